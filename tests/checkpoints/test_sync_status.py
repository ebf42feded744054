"""The sync status of jobs and checkpoints, read from what real uploaders left in the store."""

import threading
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.uploader import Uploader, UploadOptions
from prefect_bt.cli.app import main
from prefect_bt.definitions import CheckpointingConfig, Compute
from prefect_bt.errors import StoreError
from prefect_bt.jobs.job_json import job_document
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.submit import write_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord, NodePhase, NodeStatus, Outcome, UploadStatus
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import uploads_prefix
from tests.checkpoints import folders
from tests.checkpoints.running import Counting
from tests.jobs.records import small_project


class Job:
    """A job whose nodes are played: their uploaders are real."""

    def __init__(self, root: Path, ledger: Ledger, *, nodes: int = 1, checkpoints: bool = True):
        self.root, self.ledger, self.nodes = root, ledger, nodes
        checkpointing = CheckpointingConfig(enabled=checkpoints)
        compute = Compute(node_count=nodes)
        project = small_project("synced", compute=compute, checkpointing_config=checkpointing)
        self.record: JobRecord = write_job(ledger, project, SubmitOptions(substrate="local"), None)
        self.attempt = -1

    def begin(self, *states: JobState) -> None:
        self.attempt = self.ledger.begin_attempt(self.record.id)
        for state in states or (JobState.DEPLOYING, JobState.RUNNING):
            self.ledger.append_event(self.record.id, state, attempt=self.attempt)

    def write(self, name: str, files: dict[str, bytes], *, rank: int = 0) -> None:
        folders.write(self.root / str(rank) / name, files)

    def flush(self, rank: int = 0, *, broken: bool = False) -> UploadStatus:
        """What a rank's uploader does when the commands ended; it says so in the store."""
        store = Counting(self.root / "store")
        store.broken = StoreError("The store is full.") if broken else None
        origin = UploadOrigin(
            self.record.project_id, self.record.id, rank, self.attempt, self.nodes
        )
        ending = threading.Event()
        ending.set()
        folder = self.root / str(rank)
        folder.mkdir(exist_ok=True)
        uploader = Uploader(
            store,
            directory=folder,
            origin=origin,
            options=UploadOptions(stall_timeout=0.0),
            report=lambda status: self.say(rank, status),
        )
        return uploader.run(ending)

    def say(self, rank: int, status: UploadStatus) -> None:
        prefix = uploads_prefix(self.record.project_id, self.record.id, self.attempt)
        self.ledger.store.put(f"{prefix}/rank-{rank}.json", codec.dumps(status).encode())

    def end(self, state: JobState, *said: UploadStatus, lost: bool = False) -> None:
        nodes = tuple(
            NodeStatus(
                rank,
                NodePhase.LOST if lost else NodePhase.DONE,
                started_at=1.0,
                upload_error=one.error,
                uncommitted=one.uncommitted,
            )
            for rank, one in enumerate(said)
        )
        self.ledger.end_attempt(self.record.id, Outcome(self.attempt, state, nodes=nodes))
        self.ledger.append_event(self.record.id, state, attempt=self.attempt)

    def read(self) -> tuple[str | None, str | None]:
        """As another machine does: a ledger of its own, and nothing but the store."""
        document = job_document(open_ledger(str(self.root / "store")), self.record)
        return document["checkpoint_sync_status"], document["checkpoint_sync_error"]

    def checkpoints(self) -> dict[str, tuple[str | None, str | None]]:
        document = job_document(self.ledger, self.record)
        return {
            one["checkpoint_id"]: (one["sync_status"], one["sync_error"])
            for one in document["checkpoints"]
        }


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    return open_ledger(str(tmp_path / "store"))


NOTHING = (None, None)


def test_a_job_that_commits_everything(tmp_path: Path, ledger: Ledger) -> None:
    job = Job(tmp_path, ledger)
    assert job.read() == NOTHING, "nothing was written yet"
    job.begin(JobState.DEPLOYING)
    assert job.read() == NOTHING, "nodes are being provisioned"
    ledger.append_event(job.record.id, JobState.RUNNING, attempt=0)
    assert job.read() == ("SYNCING", None)
    job.write("checkpoint-10", folders.hf_full(10))
    said = job.flush()
    assert job.read() == ("SYNCING", None), "the nodes are not over"
    assert job.checkpoints() == {"checkpoint-10": ("COMPLETE", None)}
    job.end(JobState.COMPLETED, said)
    assert job.read() == ("COMPLETED", None)
    # A failed or stopped job whose uploads are done is no other case, also between attempts.
    other = Job(tmp_path, ledger)
    other.begin()
    other.end(JobState.FAILED, said)
    assert other.read() == ("COMPLETED", None)
    ledger.append_event(other.record.id, JobState.CREATED)
    assert other.read() == ("COMPLETED", None)
    other.begin(JobState.DEPLOYING)
    assert other.read() == ("COMPLETED", None)
    other.end(JobState.DEPLOY_FAILED)
    assert other.read() == ("COMPLETED", None), "an attempt that never ran wrote nothing"


def test_without_checkpointing_and_without_an_attempt(tmp_path: Path, ledger: Ledger) -> None:
    plain = Job(tmp_path, ledger, checkpoints=False)
    plain.begin()
    assert plain.read() == NOTHING
    plain.end(JobState.COMPLETED, UploadStatus(0.0))
    assert plain.read() == NOTHING
    stopped = Job(tmp_path, ledger)
    ledger.append_event(stopped.record.id, JobState.STOPPED)
    assert stopped.read() == NOTHING


def test_a_failed_upload_and_an_incomplete_one(
    tmp_path: Path,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job(tmp_path, ledger)
    job.begin()
    job.write("checkpoint-10", folders.hf_full(10))
    failed = job.flush(broken=True)
    status, error = job.read()
    assert status is None and error is not None and "The store is full" in error
    job.end(JobState.FAILED, failed)
    assert job.read()[0] is None
    assert error.startswith("Rank 0, checkpoint checkpoint-10: ")
    # The next attempt has room; of what it writes, one is cut off.
    ledger.append_event(job.record.id, JobState.CREATED)
    job.begin()
    assert job.read() == ("SYNCING", None)
    half = folders.hf_full(20)
    half["model.safetensors"] = half["model.safetensors"][:50]
    job.write("checkpoint-20", half)
    job.end(JobState.COMPLETED, job.flush())
    status, error = job.read()
    assert status is None and error is not None
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["view", "--job-id", job.record.id]) == 0
    shown = capsys.readouterr().out
    assert "INCOMPLETE" in shown and error in shown
    assert error.startswith("rank 0: checkpoint-20: ") and "checkpoint-10" not in error
    assert job.checkpoints() == {"checkpoint-10": ("COMPLETE", None)}


def test_ranks_that_are_behind_and_ranks_that_are_lost(tmp_path: Path, ledger: Ledger) -> None:
    job = Job(tmp_path, ledger, nodes=2)
    job.begin()
    for rank in (0, 1):
        job.write("checkpoint-10", folders.hf_full(10), rank=rank)
        job.flush(rank)
    job.write("checkpoint-20", folders.hf_full(20))
    said = job.flush(0)
    whole, behind = ("COMPLETE", None), ("SYNCING", None)
    assert job.checkpoints() == {"checkpoint-10": whole, "checkpoint-20": behind}
    # Rank 1 writes its first one anew and is busy with it.
    busy = UploadStatus(2.0, ("checkpoint-10",), current="checkpoint-10", bytes_total=9)
    job.say(1, busy)
    assert job.checkpoints()["checkpoint-10"] == behind
    job.end(JobState.FAILED, said, busy, lost=True)
    assert job.read() == (
        None,
        "rank 1 was lost before its final upload while it uploaded checkpoint-10 "
        "(its last committed checkpoint is checkpoint-10).",
    )
    assert job.checkpoints() == {
        "checkpoint-10": whole,
        "checkpoint-20": (None, "rank 1 did not commit a part of it."),
    }
    # Its uploader outlived the node and came to its end after all.
    job.flush(1)
    assert job.read() == ("COMPLETED", None)
