"""Our own settings: the one reader of PREFECT_BT_* besides nodes and secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, model_validator

from prefect_bt.cluster_settings import ClusterSettings
from prefect_bt.host.container_privileges import Privileges, parse_capabilities
from prefect_bt.text.durations import parse_duration

_PREFIX = "PREFECT_BT_"


def _default_state_dir() -> Path:
    return resolve_state_dir({"HOME": str(Path.home()), **os.environ, "PREFECT_BT_STATE_DIR": ""})


def resolve_state_dir(variables: Mapping[str, str]) -> Path:
    """The state folder of a process with these variables."""
    if told := variables.get("PREFECT_BT_STATE_DIR"):
        return Path(told)
    base = variables.get("XDG_STATE_HOME") or Path(variables.get("HOME", "/"), ".local", "state")
    return Path(base) / "prefect-bt"


def _parse_run_time(value: float | str | None) -> float | None:
    return None if value is None else parse_duration(value, field="PREFECT_BT_MAX_RUN_TIME")


class Settings(BaseModel):
    """Read afresh with `Settings()`; nothing is read at import.

    A field is read from the variable PREFECT_BT_<FIELD>, in any case, unless it is given as an
    argument; an empty variable counts as none. pydantic-settings does the same, and importing it
    takes longer than the rest of `prefect-bt view`.
    """

    model_config = ConfigDict(extra="ignore", validate_default=True)

    store: str = Field(default_factory=lambda: str(Path.home() / ".prefect-bt"))
    """Where jobs, logs and checkpoints are kept: a folder or a URL (PREFECT_BT_STORE)."""
    shared_store: bool = False
    """Whether the store's folder is for several users (PREFECT_BT_SHARED_STORE): its mode then
    follows the umask, and no warning says that others can enter it."""
    state_dir: Path = Field(default_factory=_default_state_dir)
    """Running nodes' folders on this machine (PREFECT_BT_STATE_DIR); a local disk."""
    deployment: str = ""
    """`flow/deployment` that push starts; empty: a process of its own (PREFECT_BT_DEPLOYMENT)."""
    substrate: str = "local"
    """Where nodes run unless somebody says otherwise (PREFECT_BT_SUBSTRATE)."""
    docker_host: str = ""
    """Socket of the Docker Engine; empty: DOCKER_HOST, or the usual one."""
    docker_enforce_limits: bool = False
    """Whether containers are held to the CPUs and the memory that their nodes get
    (PREFECT_BT_DOCKER_ENFORCE_LIMITS); otherwise these are reservations."""
    docker_capabilities: Annotated[tuple[str, ...], BeforeValidator(parse_capabilities)] = ()
    """Capabilities of containers beyond the usual ones, such as SYS_PTRACE,IPC_LOCK."""
    docker_new_privileges: bool = False
    """Whether setuid programs, such as sudo, have an effect in containers."""
    docker_processes: int | None = Field(default=None, ge=64)
    """Processes and threads that a container may have; None: a quarter of the machine's, at most
    32768."""
    kubernetes: ClusterSettings = Field(default_factory=ClusterSettings)
    """The cluster (cluster_settings.py)."""
    grace: float = Field(default=30.0, ge=0)
    """Seconds between the polite and the forced signal."""
    notice: float | None = Field(default=None, gt=0)
    """Seconds that this machine gives before it goes (PREFECT_BT_NOTICE); None: it stays."""
    settle: float = Field(default=1.5, ge=0)
    """Seconds without a change after which a checkpoint is taken as written."""
    keep_last: int | None = Field(default=None, ge=1)
    """Checkpoints of a series that stay committed while a job runs; None: all."""
    keep_every: int | None = Field(default=None, ge=1)
    """Those whose step is a multiple of it stay too."""
    max_run_time: Annotated[float | None, BeforeValidator(_parse_run_time)] = None
    """Seconds that a job's commands may run, or 12h (PREFECT_BT_MAX_RUN_TIME); None: no limit."""
    r2_endpoint: str = ""
    """Who answers for r2:// stores; empty: the account's address at Cloudflare."""
    cw_endpoint: str = "https://cwobject.com"
    """Who answers for cw:// stores; inside CoreWeave's clusters `http://cwlota.com`."""
    orphan_deadline: float = Field(default=60.0, gt=0)
    """Seconds a node goes on while nobody owns its job, and nobody takes it up again."""
    server_port: int = Field(default=4200, ge=1, le=65535)
    """Port of `prefect-bt up`."""

    request_bytes: ByteSize = Field(default=ByteSize(32 * 1024**2), gt=0)
    """Largest request to a serving deployment, such as 128MiB (PREFECT_BT_REQUEST_BYTES); its
    router reads it when it starts."""

    weights_bytes: ByteSize | None = Field(default=None, gt=0)
    """What weights may take on this machine, such as 500GB (PREFECT_BT_WEIGHTS_BYTES); None: what
    the disk has. Trees that no job uses go first, the longest unused before all."""
    store_weights_bytes: ByteSize | None = Field(default=None, gt=0)
    """What the store's copies of weights may take (PREFECT_BT_STORE_WEIGHTS_BYTES), for `weights
    prune --store`; None: no limit. The longest unused go first."""
    mirror_to_store: bool = True
    """Whether the store keeps a copy of weights for other machines."""
    stall_seconds: float = Field(default=30.0, gt=0)
    """Without a byte for so long, a source is asked anew, then in another way."""

    @model_validator(mode="before")
    @classmethod
    def _read_environment(cls, given: dict[str, Any]) -> dict[str, Any]:
        found = {name.lower(): value for name, value in process_environment().items() if value}
        names = {name: variable_name(name).lower() for name in cls.model_fields}
        chosen = {n: found[key] for n, key in names.items() if key in found} | given
        return {**chosen, "kubernetes": _read_cluster_settings(chosen.get("kubernetes"), found)}

    @property
    def weights_dir(self) -> Path:
        """The root of this machine's node cache (weights.cache.node_cache.NodeCache)."""
        return self.state_dir / "weights"

    def substrate_options(self, name: str, *, store: str = "") -> dict[str, Any]:
        """Return the options of `open_substrate` for the substrate of that name.

        `store`: that of the jobs, if it is not that of the settings.
        """
        given: dict[str, Any] = {
            "state_dir": self.state_dir,
            "orphan_deadline": self.orphan_deadline,
        }
        if name == "kubernetes":
            return {"cluster": self.kubernetes, "store": store or self.store}
        if name == "docker":
            given["docker_host"] = self.docker_host
            given["enforce_limits"] = self.docker_enforce_limits
            given["privileges"] = Privileges(
                self.docker_capabilities, self.docker_new_privileges, self.docker_processes
            )
        return given


def _read_cluster_settings(given: Any, variables: Mapping[str, str]) -> Any:
    """Return the cluster's settings: a JSON object, and fields of it that have their own variable.

    `variables`: by lower-case names. What is no JSON stays a text, which validation then refuses
    under the name of its field.
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
    """Return the environment for a process that is to have this context's settings."""
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
    return ",".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value)


def variable_name(field: str) -> str:
    """Return the name of the environment variable that sets the field."""
    return f"{_PREFIX}{field.upper()}"
