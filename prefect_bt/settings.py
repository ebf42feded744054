"""Settings of the package, from the variables PREFECT_BT_*. Nodes and secrets read their own."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)

from prefect_bt.host.container_privileges import Privileges, parse_capabilities
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.planning.plan import DEFAULT_REPEAT_DELAYS
from prefect_bt.text.durations import parse_duration

_PREFIX = "PREFECT_BT_"
_NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _default_state_dir() -> Path:
    return resolve_state_dir({"HOME": str(Path.home()), **os.environ, "PREFECT_BT_STATE_DIR": ""})


def resolve_state_dir(variables: Mapping[str, str]) -> Path:
    """Return the state folder of a process with these variables."""
    if told := variables.get("PREFECT_BT_STATE_DIR"):
        return Path(told)
    base = variables.get("XDG_STATE_HOME") or Path(variables.get("HOME", "/"), ".local", "state")
    return Path(base) / "prefect-bt"


def _parse_run_time(value: float | str | None) -> float | None:
    return None if value is None else parse_duration(value, field="PREFECT_BT_MAX_RUN_TIME")


def _parse_delays(given: str | tuple[float, ...]) -> Sequence[str | float]:
    if not isinstance(given, str):
        return given
    return [] if given.strip() == "none" else given.split(",")


def _parse_prices(given: str | Mapping[str, float]) -> Mapping[str, float]:
    """Return the prices of `H100=2.50,CPU=0.04`, or of a JSON object. ValueError."""
    prices = _parse_json(given) if isinstance(given, str) else given
    if not isinstance(prices, str):
        return prices
    pairs = [part.partition("=") for part in prices.split(",") if part.strip()]
    try:
        return {name.strip().upper(): float(price) for name, _, price in pairs}
    except ValueError:
        raise ValueError("write prices as H100=2.50,CPU=0.04") from None


def _split_paths(given: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(filter(None, given.split(os.pathsep))) if isinstance(given, str) else given


class Settings(BaseModel):
    """Settings of a process. `Settings()` reads the environment each time; an import reads nothing.

    A field is read from the variable PREFECT_BT_<FIELD>, in any case, unless it is given as an
    argument. An empty variable has no effect. pydantic-settings does the same, but its import takes
    longer than the rest of `prefect-bt view`.
    """

    model_config = ConfigDict(extra="ignore", validate_default=True)

    store: str = Field(default_factory=lambda: str(Path.home() / ".prefect-bt"))
    """Folder or URL of the store, which keeps jobs, logs and checkpoints."""
    shared_store: bool = False
    """Whether several users share the store's folder. Its mode then follows the umask."""
    state_dir: Path = Field(default_factory=_default_state_dir)
    """Folder for running nodes, training caches and weights; it must be on a local disk."""
    deployment: str = ""
    """`flow/deployment` to which `push` submits jobs; empty: it starts a process for each job."""
    substrate: str = "local"
    """Default substrate: `local`, `docker` or `kubernetes`."""
    python: str = ""
    """Python interpreter of local jobs, a path or a name on PATH; empty: an activated environment,
    that of the version of an official Python image, or the one that runs prefect-bt."""
    python_environment: bool = True
    """Whether local jobs of a project have a virtual environment, in which `pip install` stays."""
    docker_host: str = ""
    """Socket of the Docker Engine; empty: DOCKER_HOST, or the Engine's default socket."""
    docker_enforce_limits: bool = False
    """Whether containers are limited to their CPUs and memory. Otherwise these are reserved."""
    docker_capabilities: Annotated[tuple[str, ...], BeforeValidator(parse_capabilities)] = ()
    """Additional Linux capabilities of containers, such as `SYS_PTRACE,IPC_LOCK`."""
    docker_new_privileges: bool = False
    """Whether setuid programs, such as sudo, have an effect in containers."""
    docker_processes: int | None = Field(default=None, ge=64)
    """Most processes and threads of a container; None: a quarter of the machine's, up to 32768."""
    kubernetes: ClusterSettings = Field(default_factory=ClusterSettings)
    """Settings of the Kubernetes substrate as a JSON object."""
    grace: float = Field(default=30.0, ge=0)
    """Seconds between SIGTERM and SIGKILL when a job is stopped."""
    straggler_patience: float = Field(default=600.0, ge=0, allow_inf_nan=False)
    """Seconds without activity after which a rank is stopped when another has exited with 0."""
    stop_on_hang: bool = False
    """Whether an attempt that hangs is stopped and retried."""
    settle: float = Field(default=1.5, ge=0)
    """Seconds without a change after which a checkpoint is stable."""
    upload_repeat_delays: Annotated[tuple[_NonNegative, ...], BeforeValidator(_parse_delays)] = (
        DEFAULT_REPEAT_DELAYS
    )
    """Seconds before each repeat of a final flush that failed, such as `5,30,120`, or `none`."""
    keep_last: int | None = Field(default=None, ge=1)
    """Number of newest checkpoints of each series to keep while a job runs; None: all."""
    keep_every: int | None = Field(default=None, ge=1)
    """Keep also the checkpoints whose step is a multiple of this number; None: no others."""
    max_run_time: Annotated[float | None, BeforeValidator(_parse_run_time)] = None
    """Seconds that a job's commands may run in all attempts, or `12h`; None: no limit."""
    capacity_cpus: int | None = Field(default=None, ge=1)
    """CPUs of this machine that jobs may hold at once; None: all."""
    capacity_memory: ByteSize | None = Field(default=None, gt=0)
    """Memory of this machine that jobs may hold at once, such as `64GiB`; None: all."""
    r2_endpoint: str = ""
    """Endpoint of r2:// stores; empty: Cloudflare's endpoint of the account."""
    cw_endpoint: str = "https://cwobject.com"
    """Endpoint of cw:// stores; inside CoreWeave's clusters `http://cwlota.com`."""
    orphan_deadline: float = Field(default=60.0, gt=0)
    """Seconds after which a node stops because no process owns its job."""
    departed_after: float = Field(default=600.0, ge=0)
    """Seconds of silence of a machine after which another one takes up its jobs; 0: never."""
    server_port: int = Field(default=4200, ge=1, le=65535)
    """Port of the Prefect server that `prefect-bt up` starts."""
    metrics_listen: str = ""
    """Address at which `up` and `worker` serve metrics for Prometheus, such as `127.0.0.1:9464`;
    empty: none."""
    upload_role: str = ""
    """ARN of a role by whose keys clients of the API upload to an s3:// store; empty: the server
    takes uploads."""
    prices: Annotated[dict[str, _NonNegative], BeforeValidator(_parse_prices)] = Field(
        default_factory=dict[str, float]
    )
    """Prices of an hour for `prefect-bt costs`, such as `H100=2.50,CPU=0.04`: of a GPU by type,
    and of a vCPU of nodes without GPUs."""

    api_url: str = ""
    """URL of a server of the HTTP API, such as `https://train.example`: commands work with it in
    place of a store."""
    api_key: SecretStr = Field(default=SecretStr(""), exclude=True)
    """Key of the server of PREFECT_BT_API_URL."""

    request_bytes: ByteSize = Field(default=ByteSize(32 * 1024**2), gt=0)
    """Largest request to a serving deployment, such as `128MiB`; read when its router starts."""

    weights_folders: Annotated[tuple[str, ...], BeforeValidator(_split_paths)] = ()
    """Folders of this machine that `file://` sources may name, separated by `:`; empty: any that
    the flow's user can read. Name some where others may send definitions to this machine."""
    weights_bytes: ByteSize | None = Field(default=None, gt=0)
    """Budget for weights on this machine, such as `500GB`; None: the size of the disk."""
    store_weights_bytes: ByteSize | None = Field(default=None, gt=0)
    """Budget for weights in the store, which `weights prune --store` enforces; None: no limit."""
    mirror_to_store: bool = True
    """Whether weights are copied to the store, and downloaded from it by other machines."""
    stall_seconds: float = Field(default=30.0, gt=0)
    """Seconds without a byte after which a download of weights or an image is sent again."""

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        found = {name.lower(): value for name, value in process_environment().items() if value}
        names = {name: variable_name(name).lower() for name in cls.model_fields}
        chosen = {n: found[key] for n, key in names.items() if key in found} | given
        return {**chosen, "kubernetes": _read_cluster_settings(chosen.get("kubernetes"), found)}

    @property
    def weights_dir(self) -> Path:
        """Return the root of this machine's node cache (weights.cache.node_cache.NodeCache)."""
        return self.state_dir / "weights"

    def substrate_options(self, name: str, *, store: str = "") -> dict[str, Any]:
        """Return the options of `open_substrate` for the substrate of that name.

        `store` is the URL of the jobs' store if it differs from the setting.
        """
        if name == "kubernetes":
            return {"cluster": self.kubernetes, "store": store or self.store}
        options = {"state_dir": self.state_dir, "orphan_deadline": self.orphan_deadline}
        if name != "docker":
            return {**options, "python": self.python if self.python_environment else None}
        privileges = Privileges(
            self.docker_capabilities, self.docker_new_privileges, self.docker_processes
        )
        docker = {"docker_host": self.docker_host, "enforce_limits": self.docker_enforce_limits}
        return {**options, **docker, "privileges": privileges}


def _read_cluster_settings(given: Any, variables: Mapping[str, str]) -> Any:
    """Return the cluster's settings: a JSON object, and fields that have their own variable.

    `variables` has lower-case names. A text that is not JSON is returned as it is; validation then
    rejects it under the name of its field.
    """
    given = _parse_json(given) if isinstance(given, str) else given or {}
    if not isinstance(given, dict):
        return given
    chosen = dict(cast("dict[str, Any]", given))
    for name, field in ClusterSettings.model_fields.items():
        text = variables.get(variable_name(f"kubernetes_{name}").lower())
        if text is not None and name not in chosen:
            is_text = isinstance(field.get_default(call_default_factory=True), str)
            chosen[name] = text if is_text else _parse_json(text)
    return chosen


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


_chosen: ContextVar[Mapping[str, str] | None] = ContextVar("chosen settings", default=None)


def process_environment() -> dict[str, str]:
    """Return the environment for a process that needs this context's settings."""
    return {**os.environ, **(_chosen.get() or {})}


@contextmanager
def use_settings(settings: Settings) -> Generator[None]:
    """Make `settings` those of this context, and of the processes that it starts."""
    values = settings.model_dump(exclude_unset=True)
    token = _chosen.set({variable_name(name): _as_text(value) for name, value in values.items()})
    try:
        yield
    finally:
        _chosen.reset(token)


def _as_text(value: object) -> str:
    """Return the text of a variable; "" for None, which overrides a variable of the machine."""
    if isinstance(value, dict):
        return json.dumps(value)
    if value is None:
        return ""
    if not isinstance(value, tuple):
        return str(value)
    words = cast("tuple[str, ...]", value)
    return (os.pathsep if any("/" in word for word in words) else ",").join(words)


def variable_name(field: str) -> str:
    """Return the name of the environment variable that sets the field."""
    return f"{_PREFIX}{field.upper()}"


def format_settings_error(error: Exception) -> str:
    """Return the invalid variables of a validation error of Settings; "" for another error."""
    if not isinstance(error, ValidationError) or error.title != Settings.__name__:
        return ""
    return "; ".join(
        f"{variable_name('_'.join(map(str, e['loc'])))} is {e['input']!r}: {e['msg']}."
        for e in error.errors()
    )
