"""What `deploy` writes, and in which order."""

from pathlib import Path

import pytest

from prefect_bt.definitions import Compute
from prefect_bt.errors import DefinitionError, PlanError, StoreError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.queue.machines import report_machine
from prefect_bt.queue.records import Machine
from prefect_bt.serving.rollout.deploy import DeployOptions, _check_installed, deploy
from prefect_bt.serving.serving_job import ServerOptions, build_serving_job
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import Fault, FaultyServer, Request, StripRequest
from tests.s3_server import shared_s3
from tests.serving.chosen import choice, gpus, lora
from tests.serving.committed import Shop, full, select


def test_a_store_without_conditional_writes_gets_no_revision_and_no_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dir = tmp_path / "state"
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(state_dir))
    with FaultyServer(shared_s3()) as server:
        use(monkeypatch, server.url)
        bucket = Bucket(server.upstream)
        store = open_store(bucket.url)
        shop = Shop(tmp_path / "checkpoints", Ledger(store))
        job = shop.job()
        shop.commit(job, {"checkpoint-1": full()})
        selected, before = select(shop, job, "checkpoint-1"), [info.key for info in store.list("")]

        def ignore_condition(request: Request) -> Fault:
            return StripRequest("If-None-Match") if request.conditional else None

        server.arrive = ignore_condition
        options = DeployOptions("stories", ServerOptions(), substrate="local", store=bucket.url)
        with pytest.raises(StoreError, match="ignores the header If-None-Match"):
            deploy(selected, options)
        assert [info.key for info in store.list("")] == before
        assert not (state_dir / "deployments").exists()
        bucket.empty()


def test_an_engine_beside_the_interpreter_of_the_jobs_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    serving = build_serving_job(choice(lora()), ServerOptions(engine="vllm", compute=gpus()))
    (tmp_path / "empty").mkdir()
    for name in ("python", "vllm"):
        (tmp_path / name).symlink_to("/bin/true")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(DefinitionError, match="vllm is not on this machine's PATH"):
        _check_installed(serving)
    monkeypatch.setenv("PREFECT_BT_PYTHON", str(tmp_path / "python"))
    _check_installed(serving)


def test_a_server_is_planned_for_the_machine_of_its_router(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine of the queue could run it, but nothing would reach it there."""
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    store = open_store(str(tmp_path / "store"))
    shop = Shop(tmp_path / "checkpoints", Ledger(store))
    job = shop.job()
    shop.commit(job, {"checkpoint-1": full()})
    report_machine(store, Machine("b1", "gpu2", 999, 2**40, seen_at=1.0))
    server = ServerOptions(compute=Compute(cpu_count=999))
    options = DeployOptions("stories", server, substrate="local", store=store.url)
    with pytest.raises(PlanError, match="999 CPUs a node; this machine has"):
        deploy(select(shop, job, "checkpoint-1"), options)
