"""What the command line asks of a real Prefect API, and how it fails when there is none."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from prefect import flow, task
from prefect.blocks.system import Secret
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Crashed, Pending, Running, Scheduled

from prefect_bt.blocks import TrainingStore
from prefect_bt.errors import ServerError
from prefect_bt.host.processes import read_start_time
from prefect_bt.jobs.starting.lost_jobs import LostJobs
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.local_server import reschedule_runs
from prefect_bt.local_server.discovery import write_server
from prefect_bt.local_server.password import write_auth
from prefect_bt.object_store import open_store
from prefect_bt.prefect_api import client
from prefect_bt.queue import keepers
from tests.jobs.records import new_record

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.integration]


@flow
def empty() -> None: ...


@flow
def stored(job_id: str, store: TrainingStore | str) -> str:
    return f"{job_id} in {store.url if isinstance(store, TrainingStore) else store}"


def save_secret(name: str, value: object) -> None:
    Secret.model_validate({"value": value}).save(name, overwrite=True)


@pytest.fixture
def deployment(prefect_api: str) -> str:
    """A deployment without a work pool: no worker takes its runs."""
    with get_client(sync_client=True) as direct:
        flow_id = direct.create_flow_from_name("train")
        direct.create_deployment(flow_id=flow_id, name="unattended")
    return "train/unattended"


def schedule(
    name: str, *, job_id: str = "a", store: str = "b", key: str = ""
) -> client.DeploymentRun:
    key = key or uuid4().hex
    return client.run_deployment(name, job_id=job_id, store=store, idempotency_key=key)


def test_run_deployment(prefect_api, deployment):
    run = schedule(deployment, job_id="abc1234", store="s3://bucket/x")
    assert run.url.endswith(f"/runs/flow-run/{run.flow_run_id}")
    assert client.run_url(run.flow_run_id) == run.url
    with get_client(sync_client=True) as direct:
        made = direct.read_flow_run(UUID(run.flow_run_id))
    assert made.state is not None and made.state.is_scheduled()
    assert made.parameters["job_id"] == "abc1234"
    assert TrainingStore.model_validate(made.parameters["store"]).url == "s3://bucket/x"
    assert client.cancel_run(run.flow_run_id)


@pytest.mark.parametrize("died", ["before the run", "before it knew the run"])
def test_a_push_that_died_before_it_had_a_run_is_completed_once(
    prefect_api, deployment, tmp_path, monkeypatch, died
):
    """A job for a deployment waits in Prefect; without a run it would wait for ever."""
    monkeypatch.setattr(keepers, "START_SECONDS", -1.0)
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(open_store(str(tmp_path / "store")))
    record = new_record(ledger)
    ledger.create_job(record)
    ledger.append_event(record.id, JobState.PENDING, after=-1, deployment=deployment)
    made = None
    if died == "before it knew the run":
        key = f"prefect-bt:{record.id}:0"
        made = schedule(deployment, job_id=record.id, store=ledger.store.url, key=key).flow_run_id
    lost = LostJobs(ledger, tmp_path / "state")
    assert lost.put_back() == [f"job {record.id}: put back into the queue"]
    (run,) = ledger.runs.list(record.id)
    assert made in {None, run.flow_run_id}
    assert read_run(run.flow_run_id).parameters["job_id"] == record.id
    assert lost.put_back() == []
    assert not list(ledger.store.list("queue/waiting"))


def test_an_unknown_deployment_names_those_that_exist(prefect_api, deployment):
    with pytest.raises(ServerError, match=r"is called 'train/nope'.*train/unattended"):
        schedule("train/nope")
    with pytest.raises(ServerError, match="does not name a deployment"):
        schedule("train")


def test_a_deployment_that_takes_no_job_is_a_clear_error(prefect_api):
    schema = {"type": "object", "properties": {"store": {"type": "integer"}}}
    with get_client(sync_client=True) as direct:
        direct.create_deployment(
            flow_id=direct.create_flow_from_name("other"),
            name="strict",
            parameter_openapi_schema=schema,
            enforce_parameter_schema=True,
        )
    with pytest.raises(ServerError, match=r"409 Conflict.*'store'"):
        schedule("other/strict")


def test_cancel_run(prefect_api):
    with get_client(sync_client=True) as direct:
        later = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=1))
        states = [later, Pending(), Running(), Completed()]
        runs = [str(direct.create_flow_run(empty, state=state).id) for state in states]
        assert [client.cancel_run(run) for run in runs] == [True, True, True, False]
        after = [direct.read_flow_run(UUID(run)).state for run in runs]
    found = [state.type.value for state in after if state]
    assert found == ["CANCELLED", "CANCELLING", "CANCELLING", "COMPLETED"]
    assert not client.cancel_run(str(uuid4()))


def set_state(run_id: str, state: State) -> None:
    with get_client(sync_client=True) as direct:
        direct.set_flow_run_state(UUID(run_id), state, force=True)


def read_run(run_id: str) -> FlowRun:
    with get_client(sync_client=True) as direct:
        return direct.read_flow_run(UUID(run_id))


def test_a_run_that_crashed_before_it_began_is_scheduled_again_a_few_times(prefect_api, deployment):
    run_id = schedule(deployment).flow_run_id
    for _ in range(client.MAX_CRASHES):
        set_state(run_id, Crashed())
        assert client.reschedule_run(run_id)
        assert client.get_run_state(run_id) is StateType.SCHEDULED
        assert client.reschedule_run(run_id), "a scheduled run is left alone"
    set_state(run_id, Crashed())
    assert not client.reschedule_run(run_id)
    assert client.get_run_state(run_id) is StateType.CRASHED


def test_a_run_of_a_dead_worker_is_retried(
    prefect_api, deployment, monkeypatch: pytest.MonkeyPatch
):
    """Of all runs of the pool, see this one alone: other tests use the server."""
    run_id = schedule(deployment).flow_run_id
    set_state(run_id, Pending())
    run = read_run(run_id)
    assert run.state is not None
    taken = run.state.timestamp.timestamp()
    ours = {StateType.PENDING: [run]}
    monkeypatch.setattr(reschedule_runs, "_iter_runs", lambda _, kind, **__: ours.get(kind, []))
    assert reschedule_runs.reschedule_lost_runs(prefect_api, before=taken) == []
    assert client.get_run_state(run_id) is StateType.PENDING
    assert reschedule_runs.reschedule_lost_runs(prefect_api, before=taken + 1) == [run.name]
    assert client.get_run_state(run_id) is StateType.SCHEDULED
    client.cancel_run(run_id)


@pytest.mark.parametrize(
    ("value", "found"), [("0123", "0123"), ("true", "true"), ({"a": [1]}, '{"a": [1]}'), (5, "5")]
)
def test_secret_values_are_text_as_stored(prefect_api, value, found):
    name = f"value-{uuid4().hex}"
    save_secret(name, value)
    assert client.SecretBlocks().find(name) == found


def test_secret_names(prefect_api):
    save_secret("hf-access-token", "v")
    source = client.SecretBlocks()
    assert source.label == "Prefect Secret blocks"
    assert source.find("hf-access-token") == "v"
    assert source.find("hf_access_token") == "v"
    assert source.find("HF_ACCESS_TOKEN") == "v"
    for missing in ("nope", "", "a/b", "a b", "a?b#c", "%2e", "../hf-access-token"):
        assert source.find(missing) is None


def test_secrets_inside_a_flow_a_task_and_an_event_loop(prefect_api):
    save_secret("inside", "v")

    @task
    def in_task() -> str | None:
        return client.SecretBlocks().find("inside")

    @flow
    def in_flow() -> tuple[str | None, str | None]:
        return client.SecretBlocks().find("inside"), in_task()

    async def in_loop() -> str | None:
        return client.SecretBlocks().find("inside")

    assert in_flow() == ("v", "v")
    assert asyncio.run(in_loop()) == "v"


def test_the_server_of_up_is_found_without_configuration(prefect_server, prefect_api, tmp_path):
    save_secret("found", "v")
    (tmp_path / "state").mkdir()
    living = {"server_pid": os.getpid(), "server_started": read_start_time(os.getpid())}
    write_server(tmp_path / "state", {"api_url": prefect_server.api_url, "ui_url": "", **living})
    write_auth(tmp_path / "state", prefect_server.auth)
    with temporary_settings(updates={PREFECT_API_URL: None, PREFECT_API_AUTH_STRING: None}):
        assert client.SecretBlocks().find("found") == "v"
        assert client.run_url(str(uuid4())).startswith(prefect_server.api_url.removesuffix("/api"))


def test_without_any_api_no_deployment_runs_and_runs_have_no_page(prefect_api):
    with temporary_settings(updates={PREFECT_API_URL: None}):
        assert client.run_url(str(uuid4())) == ""
        with pytest.raises(ServerError, match="prefect-bt up"):
            schedule("train/train")


def test_an_api_that_does_not_answer_is_named(prefect_api):
    nowhere = "http://127.0.0.1:9/api"
    with temporary_settings(updates={PREFECT_API_URL: nowhere}):
        for ask in (
            lambda: client.SecretBlocks().find("x"),
            lambda: client.cancel_run(str(uuid4())),
            lambda: schedule("a/b"),
        ):
            with pytest.raises(ServerError, match=f"{nowhere} does not answer"):
                ask()
