"""`delete`: for good, refused while anybody needs it, and gone on with after a kill."""

import json
from pathlib import Path

import pytest

from prefect_bt.checkpoints.retention import holds
from prefect_bt.errors import NotFoundError, StoreError
from prefect_bt.host.job_lock import lock_job
from prefect_bt.jobs.delete import delete_job
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_index_key
from prefect_bt.object_store import open_store
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.settings import Settings
from tests.cli.checkpoints.test_prune import hold
from tests.cli.conftest import Cli, Shop
from tests.cli.kept import commit
from tests.forked import Forked


@pytest.fixture
def job(shop: Shop, ended, tmp_path: Path) -> JobRecord:
    record = shop.job("tiny", *ended, workspace=b"tar")
    commit(shop, record, tmp_path / "ckpts", (10, 20))
    shop.log(record, ["one line"])
    shop.ledger.runs.bind("0b41ed5c-run", record.id)
    return record


def keys(shop: Shop) -> list[str]:
    return [info.key for info in open_store(shop.url).list("")]


def test_a_job_goes_with_all_it_has(cli: Cli, shop: Shop, job, ended):
    other = shop.job("tiny", *ended)
    folder = Path(cli.env["PREFECT_BT_STATE_DIR"]) / "jobs" / job.id
    (folder / "rank-0" / "checkpoints" / "half").mkdir(parents=True)
    (folder / "rank-0" / "checkpoints" / "half" / "x").write_bytes(b"x")
    done = cli("delete", "--yes", "--job-id", job.id, "-o", "json")
    assert done.code == 0
    assert done.json == {"id": job.id, "deleted": True, "training_project_id": job.project_id}
    assert [key for key in keys(shop) if job.id in key] == [job_index_key(job.id)]
    assert not [key for key in keys(shop) if "0b41ed5c-run" in key]
    assert not folder.exists()
    assert [record.id for record in Ledger(open_store(shop.url)).list_jobs()] == [other.id]
    assert cli("view", "--job-id", job.id).code == 1
    error = cli("delete", "--yes", "--job-id", job.id).refusal()
    assert f"No job '{job.id}' in this store." in error
    # Its id is never given again.
    assert shop.ledger.reserve_job_id(job.project_id, preferred=job.id) != job.id


def test_a_running_job_is_refused(cli: Cli, shop: Shop, running, tmp_path):
    job = shop.job("tiny", *running)
    commit(shop, job, tmp_path / "ckpts", (10,))
    before = keys(shop)
    for arguments in (["--job-id", job.id], ["--project", "tiny"]):
        error = cli("delete", "--yes", *arguments).refusal()
        assert error == (
            f"error: Job {job.id} has not ended (TRAINING_JOB_RUNNING), so it cannot be deleted. "
            f"Stop it first: prefect-bt stop --job-id {job.id}\n"
        )
    assert keys(shop) == before


def test_a_job_that_others_need_is_refused(cli: Cli, shop: Shop, job, running):
    holder = shop.job("other", *running)
    hold(shop, job, "checkpoint-10", holder.id)
    hold(shop, job, "checkpoint-20", "chat", kind=holds.DEPLOYMENT)
    before = keys(shop)
    for arguments in (["--job-id", job.id], ["--project", "tiny"]):
        error = cli("delete", "--yes", *arguments).refusal()
        assert f"are needed by job {holder.id}, deployment chat, so" in error
    assert keys(shop) == before
    shop.ledger.append_event(holder.id, JobState.COMPLETED)
    assert "are needed by deployment chat, so" in cli("delete", "--yes", "--job-id", job.id).err


def test_a_job_that_is_taken_up_again_is_refused(cli: Cli, shop: Shop, job):
    with lock_job(Path(cli.env["PREFECT_BT_STATE_DIR"]), job.id):
        done = cli("delete", "--yes", "--job-id", job.id)
    assert done.code == 1
    assert f"Job {job.id} is run by process " in done.err
    assert cli("checkpoints", "verify", "--job-id", job.id).code == 0


def test_a_project_goes_with_its_jobs_and_caches(cli: Cli, shop: Shop, job, ended):
    second = shop.job("tiny", *ended)
    kept = shop.job("kept", *ended)
    caches = Path(cli.env["PREFECT_BT_STATE_DIR"]) / "cache"
    kinds = ("bases", "projects", "huggingface", "environments", "teams")
    for kind in kinds:
        for name in (job.project_id, kept.project_id):
            (caches / kind / name).mkdir(parents=True)
    # A push that died before its job was written.
    shop.ledger.reserve_job_id(job.project_id, preferred="unwrit1")
    shop.ledger.store.put(f"training_projects/{job.project_id}/jobs/unwrit1/workspace.tar", b"")
    done = cli("delete", "--yes", "--project", "tiny", "-o", "json")
    assert (done.code, done.json) == (0, {"id": job.project_id, "deleted": True})
    assert not [key for key in keys(shop) if f"training_projects/{job.project_id}" in key]
    assert [project.id for project in shop.ledger.projects.list()] == [kept.project_id]
    left = {str(path.relative_to(caches)) for path in caches.glob("*/*")}
    assert left == {f"{kind}/{kept.project_id}" for kind in kinds} | {f"teams/{job.project_id}"}
    for job_id in (job.id, second.id):
        assert shop.ledger.reserve_job_id(kept.project_id, preferred=job_id) != job_id
    assert cli("delete", "--yes", "--project", "tiny").code == 1


def test_delete_without_a_terminal_and_confirmation_changes_nothing(cli: Cli, job):
    error = cli("delete", "--job-id", job.id).refusal(2)
    assert "There is no terminal to ask on. Add --yes." in error
    assert cli("view", "--job-id", job.id).code == 0
    assert cli("--non-interactive", "delete", "--job-id", job.id).code == 0
    assert cli("view", "--job-id", job.id).code == 1


def test_nothing_named(cli: Cli, shop: Shop, job):
    expected = "error: delete needs a job or a project. Give --job-id or --project.\n"
    assert cli("delete").refusal(2) == expected


def test_of_another_project(cli: Cli, shop: Shop, job, ended):
    shop.job("other", *ended)
    error = cli("delete", "--yes", "--job-id", job.id, "--project", "other").refusal()
    assert "It belongs to project" in error
    assert shop.ledger.get_job(job.id)


@pytest.mark.slow
def test_stopped_at_every_step_it_is_finished_when_run_again(cli: Cli, shop: Shop, job):
    """It ends after one write or delete, then after two, and so on.

    At no moment is the job half there: found with all its checkpoints, or not found.
    """

    class Limited(DiskStore):
        left = 0

        def _spend(self, key):
            if self.left == 0:
                raise StoreError("Enough.", url=self.url, key=key)
            self.left -= 1

        def put(self, key, data):
            self._spend(key)
            super().put(key, data)

        def delete(self, key):
            self._spend(key)
            super().delete(key)

    store = Limited(Path(shop.url))
    settings = Settings(state_dir=Path(cli.env["PREFECT_BT_STATE_DIR"]), store=shop.url)
    seen_deleted = rounds = 0
    while True:
        store.left, rounds = rounds + 1, rounds + 1
        try:
            delete_job(Ledger(store), job.id, settings=settings)
        except StoreError as error:
            assert not isinstance(error, NotFoundError)
        else:
            break
        try:
            Ledger(open_store(shop.url)).get_job(job.id)
        except NotFoundError:
            seen_deleted += 1
        else:
            assert cli("checkpoints", "verify", "--job-id", job.id).code == 0
        assert rounds < 30
    assert seen_deleted > 1
    assert [key for key in keys(shop) if job.id in key] == [job_index_key(job.id)]
    assert json.loads(open_store(shop.url).get(job_index_key(job.id)))["deleted"] is True


def test_the_lock_of_a_killed_deletion_is_in_nobodys_way(cli: Cli, shop: Shop, job):
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from prefect_bt.host.job_lock import JobLock\n"
        "JobLock(Path(sys.argv[1])).acquire(sys.argv[2])\n"
        "print('held', flush=True)\n"
        "time.sleep(60)\n"
    )
    holder = Forked(code, [cli.env["PREFECT_BT_STATE_DIR"], job.id])
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    assert cli("delete", "--yes", "--job-id", job.id).code == 0
