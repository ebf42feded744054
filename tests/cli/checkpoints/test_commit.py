"""`checkpoints commit`: what the final flush left on this machine, and how it is said."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed import catalog
from prefect_bt.host.job_lock import host_id
from prefect_bt.host.state_folder import JobFolder
from prefect_bt.ledger.records import NodePhase, NodeStatus, Outcome, RetentionPolicy
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from tests.checkpoints import folders
from tests.cli.conftest import Cli, Shop

MISSING = "model-00002-of-00003.safetensors"
REASON = f"{MISSING} is missing, which model.safetensors.index.json names"


def incomplete(step: int = 20) -> dict[str, bytes]:
    files = folders.hf_sharded(step)
    del files[MISSING]
    return files


@dataclass
class KeptJob:
    """A job that has ended, whose node left files in its folder on this machine."""

    shop: Shop
    state_dir: Path
    id: str
    project_id: str

    @property
    def folder(self) -> JobFolder:
        return JobFolder(self.state_dir, self.id)

    @property
    def directory(self) -> Path:
        return self.folder.checkpoints_folder(0)

    def keep(
        self, name: str, files: Mapping[str, bytes], *, rank: int = 0, to: str = "checkpoints"
    ) -> None:
        folders.write(self.folder.rank_folder(rank) / to / name, dict(files))

    def end(self, *uncommitted: str, error: str = "") -> None:
        kept_in = f"{os.uname().nodename}:{self.directory}"
        node = NodeStatus(
            0,
            NodePhase.DONE,
            exit_code=0,
            started_at=1.0,
            upload_error=error,
            uncommitted=uncommitted,
            kept_in=kept_in,
        )
        state = JobState.FAILED if error else JobState.COMPLETED
        ledger = self.shop.ledger
        ledger.end_attempt(self.id, Outcome(0, state, nodes=(node,), ended_at=ledger.now()))
        ledger.append_event(self.id, state)

    def committed(self) -> dict[str, str]:
        """Return the note of each committed checkpoint."""
        found = catalog.list_checkpoints(open_store(self.shop.url), self.project_id, self.id)
        return {one.checkpoint_id: one.note for one in found}


@pytest.fixture
def state_dir(cli: Cli) -> Path:
    folder = Path(cli.env["PREFECT_BT_STATE_DIR"])
    folder.mkdir()
    return folder


@pytest.fixture
def job(shop: Shop, state_dir: Path) -> KeptJob:
    record = shop.job("tiny", JobState.DEPLOYING, JobState.RUNNING)
    shop.ledger.begin_attempt(record.id, host=host_id(state_dir))
    return KeptJob(shop, state_dir, record.id, record.project_id)


def test_everything_complete_is_committed_without_names(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-10", folders.hf_full(10))
    job.keep("checkpoint-20", incomplete())
    job.keep("checkpoint-10", folders.hf_full(10), rank=1)
    job.end("checkpoint-20: …", error="503")
    done = cli("checkpoints", "commit", "--job-id", job.id, "-o", "json")
    assert done.code == 0, done
    names = [(one["rank"], one["checkpoint_id"]) for one in done.json["committed"]]
    assert sorted(names) == [(0, "checkpoint-10"), (1, "checkpoint-10")]
    (left,) = done.json["uncommitted"]
    assert left["kept_in"].endswith(str(job.directory)) and MISSING in left["why"]
    assert done.json["removed"] == [str(job.folder.checkpoints_folder(1))]
    assert job.committed() == {"checkpoint-10": ""}
    again = cli("checkpoints", "commit", "--job-id", job.id, "-o", "json").json
    assert (again["committed"], again["removed"]) == ([], [])
    assert [one["checkpoint_id"] for one in again["unchanged"]] == ["checkpoint-10"]
    assert (job.directory / "checkpoint-20").is_dir(), "it is the only copy"
    last = cli("checkpoints", "commit", "--job-id", job.id, "checkpoint-20", "-o", "json").json
    assert last["removed"] == [str(job.directory)], "the other was committed before"


INCOMPLETE = {
    "a missing shard": ("checkpoint-20", incomplete()),
    "a cut file": ("checkpoint-20", folders.hf_full() | {"model.safetensors": b"x" * 40}),
    "a temporary folder": ("tmp-checkpoint-20", folders.hf_full(20)),
    "a temporary file": ("checkpoint-20", {"model.safetensors.tmp": b"x"}),
}


@pytest.mark.parametrize("kind", INCOMPLETE)
def test_a_named_checkpoint_is_committed_as_it_is(cli: Cli, job: KeptJob, kind: str) -> None:
    name, files = INCOMPLETE[kind]
    job.keep(name, files)
    job.end(f"{name}: it is incomplete")
    refused = cli("checkpoints", "commit", "--job-id", job.id)
    assert f"Not committed: rank 0, {name}: " in refused.err
    assert job.committed() == {}
    done = cli("checkpoints", "commit", "--job-id", job.id, name)
    assert done.code == 0, done
    assert f"Committed: rank 0, {name} (" in done.out
    assert job.committed()[name], "the reason is its note"
    found = catalog.list_checkpoints(open_store(job.shop.url), job.project_id, job.id)
    assert {file.path for one in found for file in one.files()} == {f"{name}/{x}" for x in files}
    assert not job.folder.path.exists(), "the store has everything"
    document = cli("view", "--job-id", job.id, "-o", "json").json
    assert document["uncommitted"] == []
    (listed,) = cli("checkpoints", "list", "--job-id", job.id, "-o", "json").json["checkpoints"]
    assert listed["note"] == job.committed()[name]
    assert "Note" in cli("checkpoints", "list", "--job-id", job.id, COLUMNS="200").out


def test_a_new_version_of_a_committed_checkpoint_can_be_committed(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-10", folders.hf_full(10))
    job.end("checkpoint-10: it is incomplete", "checkpoint-20: it is incomplete")
    assert cli("checkpoints", "commit", "--job-id", job.id).code == 0
    job.keep("checkpoint-10", folders.hf_full(10, seed=b"new"))
    job.keep("checkpoint-20", incomplete())
    assert cli("checkpoints", "commit", "--job-id", job.id, "checkpoint-10").code == 0
    found = catalog.list_checkpoints(open_store(job.shop.url), job.project_id, job.id)
    assert [one.manifests[0].version for one in found] == [2]


def test_a_checkpoint_that_a_retry_set_aside_replaces_no_newer_one(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-10", folders.hf_full(10, seed=b"new"))
    job.end()
    assert cli("checkpoints", "commit", "--job-id", job.id).code == 0
    job.keep("checkpoint-10", folders.hf_full(10, seed=b"old"), to="set-aside/attempt-1")
    job.keep("checkpoint-5", folders.hf_full(5), to="set-aside/attempt-1")
    done = cli("checkpoints", "commit", "--job-id", job.id, "-o", "json")
    assert [one["checkpoint_id"] for one in done.json["committed"]] == ["checkpoint-5"]
    assert job.folder.rank_folder(0).is_dir()


@pytest.mark.parametrize(
    ("named", "kept"), [((), {"checkpoint-30"}), (("checkpoint-10",), {"checkpoint-10"})]
)
def test_retention_holds_but_for_a_checkpoint_that_is_named(
    cli: Cli, shop: Shop, state_dir: Path, named: tuple[str, ...], kept: set[str]
) -> None:
    policy = RetentionPolicy(keep_last=1)
    record = shop.job("tiny", JobState.DEPLOYING, JobState.RUNNING, retention=policy)
    shop.ledger.begin_attempt(record.id, host=host_id(state_dir))
    job = KeptJob(shop, state_dir, record.id, record.project_id)
    for step in (10, 20, 30):
        job.keep(f"checkpoint-{step}", folders.hf_full(step, seed=b"%d" % step))
    job.end(error="503")
    done = cli("checkpoints", "commit", "--job-id", job.id, *named)
    assert done.code == 0, done
    assert set(job.committed()) == kept


def test_a_link_out_of_the_volumes_is_not_followed(cli: Cli, job: KeptJob, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    job.keep("checkpoint-10", folders.hf_full(10))
    (job.directory / "checkpoint-10/link").symlink_to(tmp_path / "secret")
    job.end("checkpoint-10: …")
    done = cli("checkpoints", "commit", "--job-id", job.id, "checkpoint-10")
    assert done.code == 0
    assert "link" in job.committed()["checkpoint-10"], "the note names what is left out"
    found = catalog.list_checkpoints(open_store(job.shop.url), job.project_id, job.id)
    assert {file.path for one in found for file in one.files()} == {
        f"checkpoint-10/{path}" for path in folders.hf_full(10)
    }


def test_a_store_that_fails_changes_nothing(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-10", folders.hf_full(10))
    job.end(error="503")
    prefix = Path(job.shop.url) / f"training_projects/{job.project_id}/jobs/{job.id}"
    (prefix / "objects").touch()
    assert cli("checkpoints", "commit", "--job-id", job.id).code == 1
    (prefix / "objects").unlink()
    assert cli("checkpoints", "commit", "--job-id", job.id).code == 0
    assert job.committed() == {"checkpoint-10": ""}


@pytest.mark.parametrize(
    ("host", "said"),
    [("box-7:0123456789ab", "on box-7"), ("{here}:0123456789ab", "PREFECT_BT_STATE_DIR")],
)
def test_another_machine_is_named(cli: Cli, shop: Shop, state_dir: Path, host: str, said: str):
    record = shop.job("tiny", JobState.DEPLOYING, JobState.RUNNING, JobState.COMPLETED)
    shop.ledger.begin_attempt(record.id, host=host.format(here=os.uname().nodename))
    refused = cli("checkpoints", "commit", "--job-id", record.id)
    assert said in refused.refusal()


def test_a_name_that_is_not_utf8_is_refused(cli: Cli, job: KeptJob) -> None:
    name = os.fsdecode(b"checkpoint-\xff")
    job.keep(name, folders.hf_full(10))
    job.end()
    done = cli("checkpoints", "commit", "--job-id", job.id, name)
    assert done.code == 1 and "its name is not UTF-8" in done.err
    assert job.committed() == {} and job.directory.is_dir()


def test_refusals(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-10", folders.hf_full(10))
    running = cli("checkpoints", "commit", "--job-id", job.id)
    assert running.code == 1 and job.committed() == {}
    job.end()
    unknown = cli("checkpoints", "commit", "--job-id", job.id, "checkpoint-11")
    assert f"Job {job.id} has: checkpoint-10." in unknown.refusal()


def test_the_end_of_a_job_names_what_is_not_committed(cli: Cli, job: KeptJob) -> None:
    job.keep("checkpoint-20", incomplete())
    job.end(f"checkpoint-20: {REASON}")
    said = cli("logs", "--tail", "--job-id", job.id)
    assert said.code == 0, "everything complete is committed"
    assert "completed, but not every checkpoint is committed" in said.err
    for words in (
        f"rank 0, checkpoint-20: {REASON}",
        f"Kept in {os.uname().nodename}:{job.directory}",
        f"prefect-bt checkpoints commit --job-id {job.id} NAME",
    ):
        assert words in said.err
    assert cli("checkpoints", "commit", "--job-id", job.id, "checkpoint-20").code == 0
    assert "completed successfully" in cli("logs", "--tail", "--job-id", job.id).err
