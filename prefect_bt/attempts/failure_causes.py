"""Map the end of a node to a cause, its failure class and its remedy, by tables.

A substrate that knows more than exit codes sets NodeStatus.cause; the tables cover the rest.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final, NamedTuple

from prefect_bt.errors import (
    DefinitionError,
    MaxRunTimeError,
    PlanError,
    SecretError,
    StoreError,
    SubstrateError,
)
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase, NodeStatus, StopReason


class CauseInfo(NamedTuple):
    """A row of the table.

    `description` follows "Rank 2 failed first: "; empty if the exit code explains the failure.
    """

    failure_class: FailureClass
    description: str
    remedy: str


_TABLE: Final[dict[FailureClass, dict[Cause, str | tuple[str, str]]]] = {
    FailureClass.USER: {
        Cause.COMMAND_FAILED: "Its last log lines say why.",
        Cause.USAGE: "The shell or the program rejected its arguments; see the end of the log.",
        Cause.TIMED_OUT: "This is the exit code of `timeout` when the time is up: allow more "
        "time, or find out what hangs.",
        Cause.NOT_EXECUTABLE: "A command was found but cannot be executed: is it `chmod +x`, and "
        "has it a shebang?",
        Cause.NOT_FOUND: "A command, a script or the interpreter of a script was not found: is it "
        "installed, on PATH, and in the workspace? A shebang names a program of the image, and "
        "has no Windows line end (CRLF).",
        Cause.INTERRUPTED: "It was interrupted, as by Ctrl-C.",
        Cause.SEGMENTATION_FAULT: "Native code crashed: look for libraries built for other "
        "versions (PyTorch, CUDA, extensions), and set PYTHONFAULTHANDLER=1 to see where.",
        Cause.ABORTED: "It aborted itself: a failed assertion in native code, or NCCL's watchdog "
        "after a collective that never ended; set TORCH_NCCL_TRACE_BUFFER_SIZE=2000 to see which.",
        Cause.BUS_ERROR: "The usual cause is a /dev/shm that is too small for the data loader's "
        "workers: use fewer num_workers, or more shared memory. Otherwise a mapped file was "
        "truncated, or its disk is full.",
        Cause.ILLEGAL_INSTRUCTION: "The program needs CPU instructions that this machine lacks "
        "(for example AVX-512): install a build for this CPU, or use another machine.",
        Cause.ARITHMETIC_ERROR: "Native code divided by zero or overflowed; set "
        "PYTHONFAULTHANDLER=1 to see where.",
        Cause.BROKEN_PIPE: "It wrote to a pipe whose reader had exited: find out why the reader "
        "exited.",
        Cause.LIMIT_EXCEEDED: "A limit of CPU time or file size was reached: see `ulimit -a` in "
        "the job.",
        Cause.CALL_FORBIDDEN: "Seccomp refused a system call: allow the call, or use another "
        "image.",
        Cause.CONTAINER_PROTOCOL: (
            "its container was stopped",
            "Only prefect-bt's own shell may use /.prefect-bt: find the command that writes there.",
        ),
        Cause.SIGNALLED: "Its last log lines may say why.",
        Cause.MAX_RUN_TIME: (
            "the commands have reached the maximum run time of the job",
            "Retry the job with a larger --max-run-time: it continues from its last checkpoint.",
        ),
    },
    FailureClass.INFRASTRUCTURE: {
        Cause.KILLED: "prefect-bt did not send it: an operator did, the machine was reclaimed, or "
        "the kernel was out of memory (see `dmesg` on the machine).",
        Cause.TERMINATED: "prefect-bt did not send it: an operator did, or the machine is "
        "shutting down.",
        Cause.PREEMPTED: (
            "its machine was preempted",
            "This happens to spot machines: checkpoint often, or use on-demand machines.",
        ),
        Cause.EVICTED: (
            "it was evicted from its machine",
            "Its machine was drained, or ran short of disk or memory: request the memory and disk "
            "that the job needs.",
        ),
        Cause.HUNG: (
            "the training hung",
            "`prefect-bt shell` and py-spy show where, if it happens again; "
            "TORCH_NCCL_TRACE_BUFFER_SIZE=2000 shows the collective that never ended.",
        ),
        Cause.NODE_LOST: (
            "its process disappeared without an exit code (killed?)",
            "If it happens again, look at the machine's own log.",
        ),
        Cause.ORPHANED: (
            "it was stopped, because no supervisor watched the job any more",
            "Keep the process that runs the flow alive, or run the job on a worker.",
        ),
        Cause.CUT_SHORT: (
            "it was stopped, because the flow could no longer monitor it",
            "The process of the flow died or lost its connection: see the log of the flow.",
        ),
        Cause.STAGING_FAILED: ("it could not be set up", "Its log names the file or folder."),
        Cause.VIEW_REFUSED: (
            "the machine refused to create the job's mount namespace",
            "Allow user namespaces there, or use a substrate with containers.",
        ),
        Cause.GPUS_MISSING: (
            "its GPUs are not free",
            "Wait for the jobs that hold them, or ask for fewer.",
        ),
        Cause.CAPACITY_MISSING: (
            "there was no free capacity for it",
            "Wait for other jobs to end, or ask for less.",
        ),
        Cause.LAUNCH_FAILED: (
            "it could not be launched",
            "Correct what it names, if it happens again.",
        ),
        Cause.UNSCHEDULABLE: (
            "no machine of the cluster can run it",
            "Ask for less, free or add machines, or correct the node selectors and the "
            "tolerations of the Kubernetes Substrate block; patience_seconds is how long a job "
            "waits.",
        ),
        Cause.QUOTA_EXCEEDED: (
            "the quota of its namespace is used up",
            "Wait for other jobs to end, ask for less, or have the ResourceQuota raised.",
        ),
        Cause.POD_DELETED: (
            "its pod was deleted",
            "It was not deleted by prefect-bt. Only the audit log of the cluster's API server says "
            "by which user or controller.",
        ),
        Cause.UPLOAD_FAILED: (
            "its checkpoints could not all be uploaded",
            "The commands are not run again. Mend what the message names, then run `prefect-bt "
            "checkpoints commit` on the machine of the node.",
        ),
        Cause.STORE_FAILED: (
            "the store did not answer correctly",
            "Check that the store can be reached and that its credentials are valid.",
        ),
        Cause.IMAGE_PULL_FAILED: (
            "its image could not be pulled",
            "Pull it by hand on that machine to see what is slow or full.",
        ),
        Cause.REGISTRY_UNREACHABLE: (
            "the registry of its image does not answer",
            "Check that the machine can reach the registry.",
        ),
        Cause.UNKNOWN: ("it ended for an unknown reason", "See its log."),
    },
    FailureClass.OUT_OF_MEMORY: {
        Cause.OUT_OF_MEMORY: (
            "it was killed for lack of memory",
            "Make the batch smaller, or give it more memory: raise compute.memory where it is a "
            "limit; otherwise use a larger machine, or run fewer jobs on it.",
        ),
    },
    FailureClass.DEPLOY: {
        Cause.ADMISSION_DENIED: (
            "the cluster refused its pods",
            "Change what the message names, in the job or in the Kubernetes Substrate block.",
        ),
        Cause.FORBIDDEN: (
            "prefect-bt has no permission to run it in the cluster",
            "Apply deployments/kubernetes/rbac.yaml for the user of the kubeconfig.",
        ),
        Cause.REGISTRY_REFUSED: (
            "the registry refused access to its image",
            "Give image.docker_auth credentials that may read it.",
        ),
        Cause.IMAGE_NOT_FOUND: (
            "its image does not exist",
            "Correct image.base_image, or push that tag.",
        ),
        Cause.IMAGE_UNUSABLE: (
            "its image cannot run here",
            "Use an image that has /bin/sh and is built for this machine's processor.",
        ),
        Cause.CONFIGURATION: ("the job cannot run as it is defined", "Correct it."),
        Cause.SECRET_MISSING: (
            "one of its secrets was not found",
            "Save it under that name, then retry the job.",
        ),
        Cause.AGENT_FAILED: (
            "prefect-bt's own agent failed",
            "This is an error of prefect-bt, not of the job: report it with the log of this rank, "
            "which has the traceback. `prefect-bt retry` starts the job again.",
        ),
    },
}
"""By class: the description and the remedy of each cause, or the remedy alone. SIGKILL, SIGTERM and
SIGHUP that the supervisor did not send are *infrastructure*; other signals count as the program's
own failure (docs/decisions/003)."""

CAUSES: Final[dict[Cause, CauseInfo]] = {
    cause: CauseInfo(kind, *(("", texts) if isinstance(texts, str) else texts))
    for kind, table in _TABLE.items()
    for cause, texts in table.items()
}

CAUSES_BY_EXIT_CODE: Final[dict[int, Cause]] = {
    2: Cause.USAGE,
    124: Cause.TIMED_OUT,
    126: Cause.NOT_EXECUTABLE,
    127: Cause.NOT_FOUND,
}

CAUSES_BY_SIGNAL: Final[dict[int, Cause]] = {
    signal.SIGHUP: Cause.TERMINATED,
    signal.SIGINT: Cause.INTERRUPTED,
    signal.SIGILL: Cause.ILLEGAL_INSTRUCTION,
    signal.SIGABRT: Cause.ABORTED,
    signal.SIGBUS: Cause.BUS_ERROR,
    signal.SIGFPE: Cause.ARITHMETIC_ERROR,
    signal.SIGKILL: Cause.KILLED,
    signal.SIGSEGV: Cause.SEGMENTATION_FAULT,
    signal.SIGPIPE: Cause.BROKEN_PIPE,
    signal.SIGTERM: Cause.TERMINATED,
    signal.SIGXCPU: Cause.LIMIT_EXCEEDED,
    signal.SIGXFSZ: Cause.LIMIT_EXCEEDED,
    signal.SIGSYS: Cause.CALL_FORBIDDEN,
}

REMEDIES_BY_EXIT_CODE: Final[dict[int, str]] = {
    1: "Its last log lines say why; torchrun exits with 1 whatever ended its worker, so look for "
    "the first worker that failed.",
    125: "`timeout`, `env` and `docker run` exit with it if they cannot start their command.",
    255: "Python's sys.exit(-1) and an ssh that lost its connection end with it.",
}
"""Signals and exit codes with a description of their own."""

CAUSES_BY_ERROR: Final[tuple[tuple[type[Exception], Cause], ...]] = (
    (SecretError, Cause.SECRET_MISSING),
    (MaxRunTimeError, Cause.MAX_RUN_TIME),
    (PlanError, Cause.CONFIGURATION),
    (DefinitionError, Cause.CONFIGURATION),
    (StoreError, Cause.STORE_FAILED),
    (SubstrateError, Cause.LAUNCH_FAILED),
)
"""What may be raised before a node runs; the first kind that fits."""

_SELF_EXPLANATORY: Final = frozenset({Cause.OUT_OF_MEMORY, Cause.ORPHANED})
"""Causes that the reason in a node's status does not explain further."""

_EXPLAINED_BY_REASON: Final = frozenset(
    {
        Cause.AGENT_FAILED,
        Cause.CONTAINER_PROTOCOL,
        Cause.PREEMPTED,
        Cause.EVICTED,
        Cause.NODE_LOST,
        Cause.POD_DELETED,
    }
)
"""Causes for which the reason of the status is shown, also after the commands started."""

_SIGNAL_NAMES: Final = {known.value: known.name for known in signal.Signals}


@dataclass(frozen=True)
class Diagnosis:
    """Why a node failed.

    `description` has no subject's name and no full stop; `remedy` is a sentence.
    """

    cause: Cause
    failure_class: FailureClass
    description: str
    remedy: str

    @property
    def message(self) -> str:
        return f"{self.description.rstrip('.')}. {self.remedy}".rstrip()


def diagnose_node(status: NodeStatus) -> Diagnosis:
    """Return the cause of a failed node's end, with the remedy."""
    cause = determine_cause(status)
    remedy = CAUSES[cause]
    what, cure = remedy.description or _format_exit(status), remedy.remedy
    if cause is Cause.COMMAND_FAILED:
        cure = REMEDIES_BY_EXIT_CODE.get(status.exit_code or 0, cure)
    show_reason = status.started_at is None or status.cause in _EXPLAINED_BY_REASON
    if cause not in _SELF_EXPLANATORY and show_reason and status.reason and status.reason != what:
        # Before the commands ran, the node's own words name what was missing.
        what = f"{what}: {status.reason}"
    return Diagnosis(cause, remedy.failure_class, what, cure)


def diagnose_cause(cause: Cause, description: str = "") -> Diagnosis:
    """Return a cause that no node's status has; `description` replaces the table's text."""
    remedy = CAUSES[cause]
    return Diagnosis(cause, remedy.failure_class, description or remedy.description, remedy.remedy)


def diagnose_error(error: Exception) -> Diagnosis:
    """Return why an attempt could not be launched; `what` is the error's message."""
    cause = next((c for kind, c in CAUSES_BY_ERROR if isinstance(error, kind)), Cause.LAUNCH_FAILED)
    if isinstance(error, SubstrateError) and error.cause:
        cause = Cause(error.cause)
    return diagnose_cause(cause, str(error).rstrip("."))


def determine_cause(status: NodeStatus) -> Cause:
    """Use the substrate's cause, then phase and reason, then exit code and signal."""
    if status.oom:
        return Cause.OUT_OF_MEMORY
    if status.cause is not None:
        return status.cause
    if status.phase is NodePhase.LOST or is_agent_lost(status):
        return Cause.NODE_LOST
    if status.stop_reason is StopReason.ORPHANED:
        return Cause.ORPHANED
    return Cause.STAGING_FAILED if status.started_at is None else _determine_exit_cause(status)


def _determine_exit_cause(status: NodeStatus) -> Cause:
    number = find_signal(status)
    if number is not None:
        return CAUSES_BY_SIGNAL.get(number, Cause.SIGNALLED)
    if status.exit_code is None:
        return Cause.UNKNOWN
    return CAUSES_BY_EXIT_CODE.get(status.exit_code, Cause.COMMAND_FAILED)


def is_agent_lost(status: NodeStatus) -> bool:
    """Return whether the commands began and ended without a result: the agent died."""
    began = status.started_at is not None
    return status.phase is NodePhase.FLUSHING and began and status.exit_code is None


def find_signal(status: NodeStatus) -> int | None:
    """Return the signal that ended the command, also if a shell reported it as 128 + number."""
    code = status.exit_code or 0
    number = status.signal or (code - 128 if code > 128 else 0)
    return number if number in _SIGNAL_NAMES else None


def format_signal(number: int) -> str:
    """Return `SIGKILL`, or `signal 40` for a signal without a name."""
    return _SIGNAL_NAMES.get(number, f"signal {number}")


def _format_exit(status: NodeStatus) -> str:
    which = f"start command {(status.command or 0) + 1}"
    number = find_signal(status)
    if number is None:
        known = status.exit_code is not None
        return f"{which} " + (f"exited with {status.exit_code}" if known else "left no exit code")
    kind = CAUSES[CAUSES_BY_SIGNAL.get(number, Cause.SIGNALLED)].failure_class
    how = "was ended from outside by" if kind is FailureClass.INFRASTRUCTURE else "died of"
    return f"{which} {how} {format_signal(number)}"
