"""Write the truss config of a deployment."""

from __future__ import annotations

import time
from pathlib import Path

from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.errors import DefinitionError
from prefect_bt.serving.engines.truss_config import FILE_NAME, truss_config_text
from prefect_bt.serving.rollout.deploy import DeployOptions
from prefect_bt.serving.served_model import ModelSelection


def write_truss_config(
    terminal: Terminal, selection: ModelSelection, options: DeployOptions, folder: Path | None
) -> Path | None:
    """Write the config to `folder`, by default a new one in `truss_configs`; return its path.

    Without `folder`, warn and return None for models that vLLM cannot serve. `options` has the
    compute as requested, not as available on this machine.
    """
    server = options.server
    try:
        text = truss_config_text(selection, options.model_name, server.compute, server.environment)
    except DefinitionError as error:
        if folder:
            raise
        terminal.warn(f"No truss config was written: {error}")
        return None
    target = folder or Path("truss_configs") / f"dry_run_{time.strftime('%Y%m%d_%H%M%S')}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / FILE_NAME).write_text(text, "utf-8")
    except OSError as error:
        raise DefinitionError(
            f"The truss config cannot be written to {target}: {error.strerror}.",
            next_step="Choose another folder with --truss-config-output-dir.",
        ) from error
    return target / FILE_NAME
