"""The environment of the start commands: a short list from the host, then the plan, then secrets.

Nothing else of the host's gets in: no PREFECT_*, no cloud credentials, no other secrets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.host.mounts.namespace_plan import is_below
from prefect_bt.host.processes import MARK_VARIABLE
from prefect_bt.host.python.base_interpreter import choose_interpreter
from prefect_bt.host.python.environment import ProjectEnvironment, open_environment
from prefect_bt.host.state_folder import NodeRecord
from prefect_bt.planning.plan import NodePlan
from prefect_bt.reserved_variables import RESERVED_PREFIX

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
GPU_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"

_PASSED_VARIABLE: Final = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TERM|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH"
    r"|(?:(?:HTTP|HTTPS|FTP|ALL|NO)_PROXY)|(?:(?:http|https|ftp|all|no)_proxy)"
    r"|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(?:CONDA|CUDA|NVIDIA|PIP)_\w+"
)


class HostEnvironment(NamedTuple):
    """Facts of the host. `virtual_environment`: that of our interpreter, or "".

    `python`: the environment of the project; None: the commands run with our interpreter.
    """

    variables: Mapping[str, str]
    mark: str
    gpus: Sequence[str] = ()
    virtual_environment: str = ""
    python: ProjectEnvironment | None = None


def open_node_environment(
    record: NodeRecord, plan: NodePlan, variables: Mapping[str, str]
) -> ProjectEnvironment | None:
    """Return the Python environment of a node's project; None if its commands get none.

    Raises OSError and PrefectBtError.
    """
    if record.python is None or record.contained:
        return None
    state_dir = Path(record.state_dir)
    base = choose_interpreter(
        record.python, image=plan.image.reference, variables=variables, state_dir=state_dir
    )
    return open_environment(state_dir, plan.project_id, base)


def build_command_environment(
    plan: NodePlan,
    host_environment: HostEnvironment,
    *,
    secrets: Mapping[str, str],
    mapped_paths: Mapping[str, Path] | None = None,
) -> dict[str, str]:
    """Return every variable of the start commands.

    `secrets` maps reference names to values; `mapped_paths` maps targets to host folders if paths
    are mapped, and then the BT_* variables with a path have the host folder.
    """
    host = {k: v for k, v in host_environment.variables.items() if _PASSED_VARIABLE.fullmatch(k)}
    host.setdefault("PATH", DEFAULT_PATH)
    if host_environment.python is not None:
        host_environment.python.enter(host)
    else:
        _enter_virtual_environment(host, host_environment.virtual_environment)
    own = {
        name: _map_path(value, mapped_paths or {}) if name.startswith(RESERVED_PREFIX) else value
        for name, value in plan.environment.items()
    }
    hidden = {name: secrets[reference] for name, reference in plan.secret_environment.items()}
    merged = {
        **host,
        "PYTHONUNBUFFERED": "1",
        **own,
        **hidden,
        MARK_VARIABLE: host_environment.mark,
    }
    merged[GPU_VARIABLE] = _visible_gpus(host_environment.gpus, {**own, **hidden}.get(GPU_VARIABLE))
    if host_environment.gpus:
        merged.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return merged


def _enter_virtual_environment(host: dict[str, str], prefix: str) -> None:
    """Put the interpreter's environment first in PATH, so that `python` has its dependencies."""
    binaries = str(Path(prefix) / "bin")
    known = {"VIRTUAL_ENV", "CONDA_PREFIX"} & host.keys()
    if prefix and not known and binaries not in host["PATH"].split(":"):
        host["PATH"] = f"{binaries}:{host['PATH']}"
        host["VIRTUAL_ENV"] = prefix


def _visible_gpus(claimed: Sequence[str], count: str | None) -> str:
    """Return the devices of this node; a choice of the user applies within them."""
    if count is None:
        return ",".join(claimed)
    chosen = [token.strip() for token in count.split(",") if token.strip()]
    return ",".join(
        claimed[int(token)] if token.isdigit() and int(token) < len(claimed) else token
        for token in chosen
        if claimed or not token.isdigit()
    )


def _map_path(value: str, mapped: Mapping[str, Path]) -> str:
    above = [target for target in mapped if is_below(value, target)]
    if not above:
        return value
    target = max(above, key=len)
    return str(mapped[target] / value[len(target) :].lstrip("/"))
