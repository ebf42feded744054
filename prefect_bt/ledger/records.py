"""Stored records of jobs: events, attempts, outcomes, nodes and uploads.

The states of a job and their transitions are in states.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from prefect_bt.ledger.provenance_record import Provenance
from prefect_bt.ledger.states import JobState


class FailureClass(StrEnum):
    """Class of a failure. Each class has its own retry budget."""

    USER = "user"
    """The commands failed by themselves: an error in the code, or the job's maximum run time."""
    INFRASTRUCTURE = "infrastructure"
    """A node was lost, preempted, killed from outside or not started, or the store failed."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed a process because the memory ran out."""
    DEPLOY = "deploy"
    """Bad configuration, missing secret, refused image, or an error of prefect-bt itself.

    It is never retried.
    """


class Cause(StrEnum):
    """Reason why a node or an attempt failed (attempts.failure_causes). Add, but never respell."""

    COMMAND_FAILED = "command_failed"
    USAGE = "usage"
    TIMED_OUT = "timed_out"
    NOT_EXECUTABLE = "not_executable"
    NOT_FOUND = "not_found"
    INTERRUPTED = "interrupted"
    SEGMENTATION_FAULT = "segmentation_fault"
    ABORTED = "aborted"
    BUS_ERROR = "bus_error"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    ARITHMETIC_ERROR = "arithmetic_error"
    BROKEN_PIPE = "broken_pipe"
    LIMIT_EXCEEDED = "limit_exceeded"
    CALL_FORBIDDEN = "call_forbidden"
    CONTAINER_PROTOCOL = "container_protocol"  # a process wrote into the pipes of its agent
    SIGNALLED = "signalled"  # the command died of a signal that has no cause of its own
    OUT_OF_MEMORY = "out_of_memory"
    KILLED = "killed"
    TERMINATED = "terminated"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    ORPHANED = "orphaned"
    CUT_SHORT = "cut_short"
    """No process watched the attempt until its end."""
    STAGING_FAILED = "staging_failed"
    VIEW_REFUSED = "view_refused"
    GPUS_MISSING = "gpus_missing"
    CAPACITY_MISSING = "capacity_missing"
    LAUNCH_FAILED = "launch_failed"
    UPLOAD_FAILED = "upload_failed"
    STORE_FAILED = "store_failed"
    UNSCHEDULABLE = "unschedulable"
    QUOTA_EXCEEDED = "quota_exceeded"
    ADMISSION_DENIED = "admission_denied"
    FORBIDDEN = "forbidden"
    POD_DELETED = "pod_deleted"
    IMAGE_PULL_FAILED = "image_pull_failed"
    REGISTRY_UNREACHABLE = "registry_unreachable"
    REGISTRY_REFUSED = "registry_refused"
    IMAGE_NOT_FOUND = "image_not_found"
    IMAGE_UNUSABLE = "image_unusable"  # of another processor, or without a program of the node
    MAX_RUN_TIME = "max_run_time"  # the job's own limit: never retried automatically
    HUNG = "hung"  # no step for much longer than usual, and nothing in use
    CONFIGURATION = "configuration"
    SECRET_MISSING = "secret_missing"
    AGENT_FAILED = "agent_failed"  # an error of prefect-bt itself in a node
    UNKNOWN = "unknown"
    """Also a cause that only a newer release knows."""

    @classmethod
    def _missing_(cls, value: object) -> Cause:
        _ = value
        return cls.UNKNOWN


class NodePhase(StrEnum):
    """Progress of a node. Each phase is entered at most once, in this order."""

    LAUNCHED = "launched"
    """The substrate started the node; its agent has not reported yet."""
    STAGING = "staging"
    """The agent unpacks the workspace and mounts weights, caches and loaded checkpoints."""
    RUNNING = "running"
    """The start commands run."""
    FLUSHING = "flushing"
    """The commands ended; the uploader commits the remaining checkpoints."""
    DONE = "done"
    """The node ended, and its agent reported the result."""
    LOST = "lost"
    """The node's process is gone, and its agent reported no result."""


class StopReason(StrEnum):
    """The values of NodeStatus.reason that decisions depend on.

    Any other value is a description for people. Values are stored: add, never respell.
    """

    STOPPED = "stopped"
    """A user stopped the job; also the reason of a node that received a signal itself."""
    STRAGGLER = "straggler"
    """It was inactive after another rank had exited with 0."""
    ORPHANED = "orphaned"
    """No process owned the job any more (commands.stop_signal)."""
    PREEMPTED = "preempted"
    """A spot job whose place another job needs."""
    MAX_RUN_TIME = "maximum run time"
    HUNG = "hung"
    CONTAINER_GONE = "its container is gone"
    """The container ended while commands ran in it."""
    POD_DELETED = "its pod was deleted"
    """Kubernetes ended the pod without a request of the supervisor."""


_STOP_REASONS: Final = {known.value: known for known in StopReason}
EXIT_NOT_STARTED: Final = 125  # as `docker run` and `timeout` exit if the command never ran


@dataclass(frozen=True)
class NodeStatus:
    """Last reported status of a node. Times are epoch seconds, `exit_code` is that of a shell."""

    rank: int
    phase: NodePhase = NodePhase.LAUNCHED
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """Why it ended, if not by its commands: a StopReason or a description."""
    command: int | None = None
    """Index of the start command that runs or ran last."""
    started_at: float | None = None
    ended_at: float | None = None
    clock: str = ""
    """Boot id of the machine whose clock gave the times; "" for a clock that is not known."""
    active_at: float | None = None
    """When it was last active (node_agent.activity_monitor); None: not known."""
    upload_error: str = ""
    uncommitted: tuple[str, ...] = ()
    """Checkpoints that the final flush did not commit: `name: why`."""
    kept_in: str = ""
    """Machine and folder of the checkpoints, `box-7:/state/…`; "" if they end with their pod."""
    ended_processes: tuple[str, ...] = ()
    """Redacted command lines of processes that were ended after the last command; "" in pods."""
    oom: bool = False
    cause: Cause | None = None
    """Cause that the substrate reports; None: computed from exit code, signal and phase."""
    waiting: str = ""
    """Reason why the node has not started yet, as the substrate reports it."""

    @property
    def stop_reason(self) -> StopReason | None:
        """The reason, unless it is empty or a description."""
        return _STOP_REASONS.get(self.reason)

    @property
    def commands_ended(self) -> bool:
        return self.phase in {NodePhase.FLUSHING, NodePhase.DONE, NodePhase.LOST}

    @property
    def is_over(self) -> bool:
        return self.phase in {NodePhase.DONE, NodePhase.LOST}


@dataclass(frozen=True)
class ArchivedLog:
    """Archived log of a rank in one attempt. `sha256` is in hexadecimal digits."""

    rank: int
    bytes: int
    lines: int
    sha256: str


@dataclass(frozen=True)
class Outcome:
    """Result of an attempt. `failed_rank` is the first failed rank; `log_tail` its last lines."""

    attempt: int
    state: JobState
    message: str = ""
    failure: FailureClass | None = None
    failed_rank: int | None = None
    exit_code: int | None = None
    log_tail: tuple[str, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    started_at: float | None = None
    ended_at: float | None = None
    newest_checkpoint: str = ""
    """Manifest key of the job's newest committed checkpoint when the attempt ended."""
    cause: Cause | None = None
    """Cause of the failure; None without a failure."""
    cure: str = ""
    """Remedy of the failure."""
    failed_at: float | None = None
    """Time at which the commands of the first failed rank ended."""
    logs: tuple[ArchivedLog, ...] = ()
    """Archived logs in rank order."""


@dataclass(frozen=True)
class JobEvent:
    """One event of a job; `at` is in epoch seconds, `epoch` a claim (ledger.fencing_epochs)."""

    state: JobState
    at: float
    message: str = ""
    attempt: int | None = None
    epoch: int = 0
    nonce: str = ""
    deployment: str = ""
    """Deployment whose worker starts the job; "": the queue, or the writer of the event."""


@dataclass(frozen=True)
class ProjectRecord:
    id: str
    name: str
    created_at: float
    team_name: str = ""


@dataclass(frozen=True)
class RetryBudget:
    """Retry policy of a job: retries for each class of failure, and the delays in seconds."""

    user: int = 0
    infrastructure: int = 3
    out_of_memory: int = 0
    without_progress: int = 2
    """Failed attempts in a row without a newer checkpoint that end the job; 0: no limit."""
    first_delay: float = 1.0
    factor: float = 2.0
    longest_delay: float = 30.0
    jitter: float = 0.2
    """Largest part of a delay, from 0 to 1, that is subtracted at random."""
    straggler_patience: float = 600.0
    """Seconds without activity after which a rank is stopped when another has exited with 0."""
    stop_on_hang: bool = False
    """Whether a hang is a failure of the attempt (job_metrics.advice)."""


@dataclass(frozen=True)
class RetentionPolicy:
    """Which checkpoints of each series are kept; None and None: all. Both numbers are at least 1.

    A series has names that differ only in the step. Its newest checkpoint is always kept.
    """

    keep_last: int | None = None
    """Number of the highest steps that are kept."""
    keep_every: int | None = None
    """Steps that are a multiple of this number are kept, too."""

    @property
    def keeps_all(self) -> bool:
        return self.keep_last is None and self.keep_every is None


@dataclass(frozen=True)
class Resources:
    """Resources of one node, which its substrate reserves. Sizes are in bytes."""

    cpus: int = 1
    memory: int = 2 * 1024**3
    gpus: int = 0
    gpu_type: str = ""
    """Type of the GPUs as in the definition; "" without GPUs."""
    shared_memory: int = 0
    """Size of `/dev/shm`; 0: the node has the machine's own."""
    why: str = ""
    """Explanation of the amounts in one line (resource_amounts.allocate_resources)."""
    limits: bool = False
    """Whether the substrate enforces the amounts as limits."""


@dataclass(frozen=True)
class ServingRef:
    """Revision of a deployment that a job serves."""

    deployment: str
    revision: int


@dataclass(frozen=True)
class JobRecord:
    """Constant facts of a job. `definition` is the document of json_documents.project_document."""

    id: str
    name: str
    project_id: str
    project_name: str
    created_at: float
    definition: dict[str, Any]
    substrate: str = "local"
    retries: RetryBudget = field(default_factory=RetryBudget)
    retention: RetentionPolicy = field(default_factory=RetentionPolicy)
    workspace_sha256: str = ""
    workspace_size: int = 0
    user: str = ""
    recreated_from: str = ""
    serving: ServingRef | None = None
    resources: Resources | None = None
    """Resources of each node as planned at the push."""
    max_run_time: float | None = None
    """Seconds that the commands may run in all attempts together; None: no limit."""
    provenance: Provenance | None = None
    host: str = ""
    """Only machine that may run it (job_lock.host_id); "" for any machine."""
    cluster: str = ""
    """ID of the cluster whose machines run its pods; "" on other substrates."""


@dataclass(frozen=True)
class AttemptRecord:
    """Record of an attempt, written before anything is launched."""

    attempt: int
    at: float
    flow_run_id: str = ""
    """Prefect flow run of the attempt; "" outside Prefect."""
    host: str = ""
    """Host that watches the attempt (job_lock.host_id)."""


@dataclass(frozen=True)
class FlowRunRecord:
    """A Prefect flow run of a job; `url` is its page in the UI, empty if there is none."""

    flow_run_id: str
    at: float
    """When it was bound to the job, or when another host took it over."""
    url: str = ""
    host: str = ""
    """Host whose process ran it last (job_lock.host_id); "" before a process ran it."""


@dataclass(frozen=True)
class UploadRepeat:
    """A repeat of a failed final flush: try `number` of `total`."""

    delay: float
    """Seconds until it begins."""
    number: int
    """Number of the try, from 2."""
    total: int
    """Most tries, with the first."""


@dataclass(frozen=True)
class UploadStatus:
    """Last report of a node's uploader. Sizes are in bytes, `updated_at` in epoch seconds."""

    updated_at: float
    committed: tuple[str, ...] = ()
    """Names of the checkpoints this uploader committed, in order."""
    rewritten: tuple[str, ...] = ()
    """Names of committed checkpoints that were written again with the same bytes."""
    present: tuple[str, ...] | None = None
    """Names of the checkpoints in the directory; None before it was read."""
    uncommitted: tuple[str, ...] = ()
    """After the final flush: `name: why it is not committed`."""
    bytes_done: int = 0
    bytes_total: int = 0
    rate: float = 0.0
    lag: float | None = None
    """Seconds between the last write to a checkpoint and its commit, for the newest commit."""
    current: str = ""
    """Name of the checkpoint that is uploaded now."""
    file: str = ""
    """File that has been in transfer for the longest time."""
    work: int = 0
    """Counter of every byte read or sent and every step; it stands still without progress."""
    waiting: tuple[str, ...] = ()
    """While training: `name: why it is not committed yet`."""
    trouble: str = ""
    """Error of the store while the uploader retries."""
    pruned: tuple[str, ...] = ()
    flushed: bool = False
    error: str = ""
    """Error that ended the upload, with rank, file and cause."""
    store_failed: bool = False
    """Whether the store caused the error, and not a checkpoint's own files."""
    repeat: UploadRepeat | None = None
    """Repeat of the upload after `error`; None: there is none."""
