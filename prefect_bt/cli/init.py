"""`prefect-bt init`: create a training project, or copy examples."""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from prefect_bt.cli.init_template import CONFIG, RUN_SCRIPT
from prefect_bt.cli.jobs.download import check_absent
from prefect_bt.cli.ui.options import InjectedTerminal
from prefect_bt.cli.ui.terminal import OK, Terminal
from prefect_bt.errors import WorkspaceError

TEMPLATE_FOLDER: Final = "truss-train-init"


def init(
    *,
    list_examples: bool = False,
    target_directory: Path | None = None,
    examples: str | None = None,
    terminal: InjectedTerminal,
) -> int:
    """Write config.py and run.sh into a new folder, or copy examples that run as they are.

    Args:
        list_examples: List the examples and do nothing.
        target_directory: Folder to create, or to copy examples into; default: truss-train-init,
            for examples the current directory.
        examples: Comma-separated names of examples to copy.

    Examples:

    `prefect-bt init --target-directory my-project`

    `prefect-bt init --examples lora-sft,full-finetune`
    """
    known = find_examples()
    if list_examples:
        _list(terminal, known)
        return OK
    wanted = [name.strip() for name in (examples or "").split(",") if name.strip()]
    if not wanted:
        _write_template(terminal, target_directory or Path(TEMPLATE_FOLDER))
    _validate_names(wanted, known)
    targets = {name: (target_directory or Path.cwd()) / name for name in wanted}
    for target in targets.values():
        check_absent(target)
    for name, target in targets.items():
        _copy(terminal, known[name], target)
    return OK


def find_examples() -> dict[str, Path]:
    """Return the folders with a config.py in the package's `examples/`, by name."""
    folder = Path(__file__).resolve().parents[1] / "examples"
    return {config.parent.name: config.parent for config in sorted(folder.glob("*/config.py"))}


def _list(terminal: Terminal, examples: dict[str, Path]) -> None:
    terminal.echo("Available training examples:", style="bold")
    for name, folder in examples.items():
        terminal.echo(f"- {name}: {_summary(folder)}; needs {', '.join(_libraries(folder))}")
    if examples:
        terminal.echo("To get them: prefect-bt init --examples <example1,example2>")
    else:
        terminal.echo("- none in this installation; `prefect-bt init` alone writes a template")


def _summary(folder: Path) -> str:
    """Return the part of the README's heading after the name of the example."""
    heading = (folder / "README.md").read_text(encoding="utf-8").partition("\n")[0]
    return heading.partition(": ")[2]


def _libraries(folder: Path) -> list[str]:
    """Return the names in requirements.txt, which are also the names to import."""
    text = (folder / "requirements.txt").read_text(encoding="utf-8")
    return re.findall(r"^[a-z_]+", text, re.MULTILINE)


def _validate_names(names: list[str], examples: dict[str, Path]) -> None:
    unknown = [name for name in names if name not in examples]
    if unknown:
        raise WorkspaceError(
            f"There is no example {', '.join(map(repr, unknown))}.",
            next_step=f"Choose from: {', '.join(examples) or 'none in this installation'}.",
        )


def _write_template(terminal: Terminal, target: Path) -> None:
    _create_project(target)
    (target / "config.py").write_text(CONFIG)
    script = target / "run.sh"
    script.write_text(RUN_SCRIPT)
    script.chmod(0o755)
    terminal.echo(f"Empty training project initialized at {target}", style="green")
    terminal.echo(f"Next: prefect-bt push {target}/config.py --tail")


def _copy(terminal: Terminal, source: Path, target: Path) -> None:
    _create_project(target)
    shutil.copytree(
        source,
        target,
        ignore=shutil.ignore_patterns("__pycache__", "checkpoints"),
        dirs_exist_ok=True,
    )
    terminal.echo(f"Training directory for {source.name} initialized at {target}", style="green")
    missing = [name for name in _libraries(source) if find_spec(name) is None]
    if missing:
        terminal.echo(f"Missing here: {', '.join(missing)}. Run: pip install 'prefect-bt[demo]'")
    terminal.echo(f"Next: prefect-bt push {target}/config.py --tail")


def _create_project(target: Path) -> None:
    check_absent(target)
    try:
        target.mkdir(parents=True)
    except OSError as error:
        raise WorkspaceError(
            f"{str(target)!r} cannot be created: {error.strerror}.", path=str(target)
        ) from error
