"""Every reason why a definition cannot run where it is asked to, one sentence each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from pydantic import ValidationError

from prefect_bt.definitions import (
    InteractiveSessionTrigger,
    TrainingJob,
    WeightsAuthMethod,
    WeightsSource,
    definition_error,
    parse_memory,
)
from prefect_bt.environment import RESERVED_NAMES, RESERVED_PREFIX
from prefect_bt.errors import DefinitionError
from prefect_bt.node_paths import SCRATCH_DIR, WORKSPACE_DIR
from prefect_bt.planning.plan import VolumeKind
from prefect_bt.planning.translation import (
    gpu_count,
    gpu_type,
    iter_cache_volumes,
    iter_checkpoint_volumes,
    iter_load_volumes,
    normalize_path,
)
from prefect_bt.substrates.protocol import Capacity
from prefect_bt.text.url_redaction import redact_url

FORBIDDEN_ROOTS: Final = ("/proc", "/sys", "/dev")
SYSTEM_ROOTS: Final = frozenset(
    {"/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/run", "/sbin", "/var"}
    | {"/usr", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin"}
    | {"/usr/local", "/usr/local/bin", "/usr/local/lib", "/usr/share"}
)
"""What no command can run without. Below them there is room."""
_SECRET: Final = WeightsAuthMethod.CUSTOM_SECRET
WEIGHTS_SCHEMES: Final[Mapping[str, tuple[WeightsAuthMethod, ...]]] = {
    "hf": (_SECRET,),
    "s3": (_SECRET, WeightsAuthMethod.AWS_ASSUME_ROLE, WeightsAuthMethod.AWS_OIDC),
    "r2": (_SECRET,),
    "cw": (_SECRET,),
    "gs": (_SECRET, WeightsAuthMethod.GCP_OIDC),
    "azure": (_SECRET,),
    "https": (_SECRET,),
    "file": (),
    "bt": (),
}
"""What the mirror can fetch, and how each can be authenticated."""
MAX_ARGUMENT_BYTES: Final = 128 * 1024 - 1
"""Bytes that Linux takes in one argument or variable, its end included."""
SINGLE_MACHINE_SUBSTRATES: Final = frozenset({"local", "docker"})
"""Substrates whose nodes all share the machine that the flow runs on."""
MIN_LOCAL_NODE_LIMIT: Final = 256
LOCAL_NODES_PER_CPU: Final = 4
"""How many nodes one machine takes at most: each is three processes even when it idles."""
MAX_NODES: Final = 4096


def validate_job(job: TrainingJob, capacity: Capacity, *, substrate: str) -> list[str]:
    """One sentence a reason why the job cannot run there, in the order of its fields."""
    return [
        *_validate_compute(job, capacity),
        *_validate_node_count(job, capacity, substrate),
        *_validate_commands(job),
        *_validate_environment(job),
        *_validate_checkpointing(job, capacity),
        *_validate_session(job, substrate),
        *_validate_weights(job),
        *_validate_mounts(job, capacity),
    ]


def validate_weights(job: TrainingJob) -> list[list[str]]:
    """For each of the job's weights, why no machine could mirror or mount it."""
    problems = {
        f"weights[{index}].mount_location": [*_validate_source(source, f"weights[{index}].")]
        for index, source in enumerate(job.weights)
    }
    for field, what in _validate_targets(_iter_targets(job)):
        if field in problems:
            problems[field].append(f"{field} {what}")
    return [*problems.values()]


def validate_weights_source(document: Mapping[str, object]) -> None:
    """DefinitionError when this entry of `weights`, outside of any job, could not be mirrored."""
    try:
        source = WeightsSource.model_validate({"mount_location": "/weights", **document})
    except ValidationError as error:
        where = redact_url(str(document.get("source")))
        raise definition_error(error, WeightsSource, where=where) from None
    for problem in _validate_source(source, ""):
        raise DefinitionError(problem)


def validate_names(names: Mapping[str, str]) -> list[str]:
    """One sentence a name, by its field, that no variable could hold."""
    return [
        f"{field} is {name!r}; write a name on one line, without control characters."
        for field, name in names.items()
        if not name.strip() or _has_control_characters(name)
    ]


def _has_control_characters(text: str) -> bool:
    return any(sign < " " or sign == "\x7f" for sign in text)


def _validate_compute(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    compute = job.compute
    if compute.node_count < 1:
        yield f"compute.node_count is {compute.node_count}; a job needs at least 1 node."
    if compute.cpu_count < 1:
        yield f"compute.cpu_count is {compute.cpu_count}; a node needs at least 1 CPU."
    if compute.cpu_count > capacity.cpus:
        yield (
            f"compute.cpu_count asks for {compute.cpu_count} CPUs a node; "
            f"this machine has {capacity.cpus}."
        )
    try:
        memory = parse_memory(compute.memory)
    except DefinitionError as error:
        yield f"compute.memory: {error}"
    else:
        if memory > capacity.memory:
            yield (
                f"compute.memory asks for {compute.memory} a node; "
                f"this machine has {capacity.memory / 1024**3:.1f}Gi."
            )
    yield from _validate_gpus(job, capacity)


def _validate_node_count(job: TrainingJob, capacity: Capacity, substrate: str) -> Iterator[str]:
    most, what = MAX_NODES, "a job can have"
    if substrate in SINGLE_MACHINE_SUBSTRATES:
        most = max(MIN_LOCAL_NODE_LIMIT, LOCAL_NODES_PER_CPU * capacity.cpus)
        what = "this one machine takes"
    if job.compute.node_count > most:
        yield f"compute.node_count asks for {job.compute.node_count} nodes; {what} at most {most}."


def _validate_gpus(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    gpus = gpu_count(job)
    wanted = gpus * max(job.compute.node_count, 1)
    if wanted > capacity.gpus:
        per_node = f" ({gpus} on each of {job.compute.node_count} nodes)" if wanted > gpus else ""
        yield (
            f"compute.accelerator asks for {wanted} {gpu_type(job) or 'GPU'}{per_node}; this "
            f"machine has {capacity.gpus or 'no GPU'}. Ask for less, or try the code without a "
            "GPU: --accelerator none."
        )


def _validate_commands(job: TrainingJob) -> Iterator[str]:
    commands = job.runtime.start_commands
    if not commands:
        yield (
            "runtime.start_commands is empty, so there is nothing to run; "
            "write for example start_commands=[\"/bin/sh -c './run.sh'\"]."
        )
    for index, command in enumerate(commands):
        if not command.strip() or "\0" in command:
            yield f"runtime.start_commands[{index}] is {command!r}; write a shell command."
        elif _is_too_long(command):
            yield (
                f"runtime.start_commands[{index}] has {len(command)} characters, more than Linux "
                "takes in a command; put it into a script of the workspace."
            )


def _is_too_long(text: str) -> bool:
    return len(text.encode(errors="replace")) >= MAX_ARGUMENT_BYTES


def _validate_environment(job: TrainingJob) -> Iterator[str]:
    for name, value in job.runtime.environment_variables.items():
        if name.startswith(RESERVED_PREFIX):
            yield (
                f"runtime.environment_variables sets {name}; names that begin with "
                f"{RESERVED_PREFIX} are the platform's. Choose another name."
            )
        elif name in RESERVED_NAMES:
            yield (
                f"runtime.environment_variables sets {name}; {' and '.join(RESERVED_NAMES)} are "
                "the platform's. Choose another name."
            )
        elif not name or "=" in name or "\0" in name:
            yield f"runtime.environment_variables has {name!r}, which is not a valid name."
        elif not isinstance(value, str):
            if not value.name.strip():
                yield f"runtime.environment_variables[{name!r}] refers to a secret without a name."
        elif "\0" in value:
            yield f"runtime.environment_variables[{name!r}] contains a zero byte."
        elif _is_too_long(f"{name}={value}"):
            yield (
                f"runtime.environment_variables[{name!r}] has {len(value)} characters, more than "
                "Linux takes in a variable; put it into a file of the workspace."
            )


def _validate_checkpointing(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    config = job.runtime.checkpointing_config
    size = config.volume_size_gib
    if config.enabled and size is not None and size < 1:
        yield f"checkpointing_config.volume_size_gib is {size}; it needs at least 1 GiB."
    if config.enabled and size is not None and capacity.disk and size * 1024**3 > capacity.disk:
        yield (
            f"checkpointing_config.volume_size_gib asks for {size} GiB; "
            f"{capacity.disk / 1024**3:.0f} GiB are free here."
        )


_SHELLS: Final = {"docker": "use docker exec.", "kubernetes": "use kubectl exec -c commands."}


def _validate_session(job: TrainingJob, substrate: str) -> Iterator[str]:
    session = job.interactive_session
    if session and session.trigger is not InteractiveSessionTrigger.ON_DEMAND:
        yield (
            f"interactive_session.trigger is {session.trigger.value}; the {substrate} substrate "
            "has no interactive sessions. Leave interactive_session out: "
            + _SHELLS.get(substrate, "the node is this machine.")
        )


def _validate_weights(job: TrainingJob) -> Iterator[str]:
    for index, source in enumerate(job.weights):
        yield from _validate_source(source, f"weights[{index}].")


def _validate_source(source: WeightsSource, within: str) -> Iterator[str]:
    scheme, _, rest = source.source.partition("://")
    if scheme not in WEIGHTS_SCHEMES:
        known = ", ".join(f"{name}://" for name in WEIGHTS_SCHEMES)
        yield f"{within}source {redact_url(source.source)!r}: this version mirrors {known}."
        return
    if why := _source_error(scheme, rest):
        yield f"{within}source {redact_url(source.source)!r} {why}"
    if source.allow_patterns == []:
        yield f"{within}allow_patterns is [], which matches no file; leave it out to mirror all."
    yield from _validate_weights_auth(source, scheme, within)


def _source_error(scheme: str, rest: str) -> str:
    """What is wrong with the part after `://`; "" when nothing is."""
    host, _, path = rest.partition("?")[0].partition("/")
    match scheme:
        case "hf" if not re.fullmatch("[^/@]+(/[^/@]+)?(@.*)?", rest):
            why = "is not a repository; write hf://owner/repo[@revision]."
        case "hf" if rest.endswith("@"):
            why = "has no revision after the @; write a branch, a tag or a commit, or leave it out."
        case "https" if "@" in host:
            why = "has a name or password before the @; leave it out and give auth_secret_name."
        case "https" if not path or path.endswith("/"):
            why = "names no file; write the URL of one file: https://host/path/file."
        case "r2" if not all(host.partition(".")[::2]):
            why = "names no bucket; write r2://account_id.bucket/prefix."
        case "azure" if not path.partition("/")[0]:
            why = "names no container; write azure://account/container/path."
        case "bt" if host.startswith("loops:"):
            why = "is a Loops checkpoint, which is not supported."
        case "bt" if "@" in path or host.startswith("@") or host.endswith("@"):
            why = "is malformed; write bt://project[@job][/checkpoint]."
        case _:
            why = ""
    return why


def _validate_weights_auth(source: WeightsSource, scheme: str, within: str) -> Iterator[str]:
    possible = WEIGHTS_SCHEMES[scheme]
    if not possible:
        if source.auth or source.auth_secret_name:
            what = "is a folder" if scheme == "file" else "is in this store"
            yield f"{within}source {source.source!r} {what} and takes no auth; leave auth out."
        return
    method = source.auth.auth_method if source.auth else _SECRET
    if method not in possible:
        yield (
            f"{within}auth.auth_method is {method.value}; {scheme}:// takes "
            f"{' or '.join(each.value for each in possible)}"
            f"{': give auth_secret_name' if possible == (_SECRET,) else ''}."
        )
    elif method is not _SECRET and source.auth_secret_name:
        yield (
            f"{within}auth_secret_name is given, but {method.value} takes no secret; "
            "leave one of them out."
        )


class _Target(NamedTuple):
    """A folder of the node, by the field that asks for it. `path` is clean."""

    field: str
    path: str
    kind: VolumeKind


def _validate_mounts(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    yield from (f"{field} {what}" for field, what in _validate_targets(_iter_targets(job)))
    if not capacity.exact_paths:
        yield from _validate_pinned_paths(job, capacity)


def _validate_targets(targets: Iterable[_Target]) -> Iterator[tuple[str, str]]:
    possible: list[_Target] = []
    for target in targets:
        why = _path_error(target.path)
        if why:
            yield target.field, f"is {target.path!r}; {why}"
        else:
            possible.append(target)
    yield from _find_conflicts(possible)


def _path_error(path: str) -> str:
    if not path.startswith("/") or ".." in PurePosixPath(path).parts or path == "/":
        return "write an absolute path below /."
    if _has_control_characters(path):
        return "write a path without control characters."
    if any(_is_below(path, root) for root in FORBIDDEN_ROOTS):
        return "nothing can be mounted under /proc, /sys or /dev."
    if path in SYSTEM_ROOTS:
        return f"it would hide files that the commands need; choose a folder such as /data{path}."
    return ""


def _find_conflicts(targets: Sequence[_Target]) -> Iterator[tuple[str, str]]:
    """Two folders in one place, or one inside another that cannot hold it."""
    refused: set[int] = set()
    for (_, one), (index, other) in combinations(enumerate(targets), 2):
        if one.path == other.path and index not in refused and one.field != other.field:
            refused.add(index)
            taken = f"is {other.path!r}, which {one.field} uses already; choose another path."
            yield other.field, taken
    for outer in targets:
        for inner in targets:
            if inner.path == outer.path or not _is_below(inner.path, outer.path):
                continue
            if outer.kind is VolumeKind.WEIGHTS:
                over = f"is {outer.path!r}, which is read-only and would cover {inner.field}, "
                yield outer.field, f"{over}{inner.path!r}; choose paths beside each other."
            elif outer.kind is VolumeKind.CHECKPOINTS:
                inside = f"is {inner.path!r}, inside {outer.field}, {outer.path!r}, and would be "
                cure = "uploaded as a checkpoint; choose paths beside each other."
                yield inner.field, f"{inside}{cure}"


def _is_below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}/")


def _validate_pinned_paths(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    pinned = [f"weights[{index}].mount_location" for index in range(len(job.weights))]
    config = job.runtime.checkpointing_config
    if config.enabled and config.checkpoint_path:
        pinned.append("checkpointing_config.checkpoint_path")
    for field in pinned:
        yield (
            f"{field} pins an absolute path, and this machine cannot give a job its own view of "
            f"the file system ({capacity.mapped_reason}). Use --substrate docker, or leave it out."
        )


def _iter_targets(job: TrainingJob) -> Iterator[_Target]:
    yield _Target("the workspace", WORKSPACE_DIR, VolumeKind.WORKSPACE)
    yield _Target("the scratch folder", SCRATCH_DIR, VolumeKind.SCRATCH)
    for volume in (
        *iter_checkpoint_volumes(job),
        *iter_load_volumes(job),
        *iter_cache_volumes(job, "", ""),
    ):
        yield _Target(_FIELDS_BY_KIND[volume.kind], volume.target, volume.kind)
    for index, source in enumerate(job.weights):
        path = normalize_path(source.mount_location)
        yield _Target(f"weights[{index}].mount_location", path, VolumeKind.WEIGHTS)


_FIELDS_BY_KIND: Mapping[VolumeKind, str] = {
    VolumeKind.CHECKPOINTS: "checkpointing_config.checkpoint_path",
    VolumeKind.LOADED: "load_checkpoint_config.download_folder",
    VolumeKind.CACHE_BASE: "cache_config.mount_base_path",
    VolumeKind.PROJECT_CACHE: "cache_config.mount_base_path",
    VolumeKind.TEAM_CACHE: "cache_config.mount_base_path",
    VolumeKind.HF_CACHE: "cache_config.enable_legacy_hf_mount",
}
