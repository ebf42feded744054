"""`prefect-bt automations` on a real server: made once, and fired by the events of real jobs."""

import json
import signal
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import yaml
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.system import Secret
from prefect.deployments.runner import RunnerDeployment
from prefect.events import Event, Resource, ResourceSpecification
from prefect.settings import PREFECT_API_AUTH_STRING
from prefect.types.entrypoint import EntrypointType

from prefect_bt.flows.deploy_checkpoints import deploy_checkpoints
from prefect_bt.local_server.setup import POOL
from prefect_bt.prefect_api.automations import TEMPLATE
from tests.e2e.conftest import Machine, call, serve, served_machine, until
from tests.in_process import environment_of

__all__ = ["served_machine"]  # a fixture
pytestmark = [pytest.mark.integration, pytest.mark.slow]

NOTIFYING = ("prefect-bt-user-failure", "prefect-bt-recovered")
SERVING = "prefect-bt-deploy-checkpoints"
LOSE_THE_TRAINING = "kill -9 $$"
FAIL_AFTER_THE_FLOW_DIED = "until test -e $WORD/killed; do sleep 0.1; done; exit 3"
SAVE = "mkdir $BT_CHECKPOINT_DIR/checkpoint-1; echo 1 > $BT_CHECKPOINT_DIR/checkpoint-1/a"


@pytest.fixture(scope="module")
def machine(served_machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """With a server that no other test uses: their jobs would fire the automations, too."""
    root = tmp_path_factory.mktemp("automations")
    with serve(root, "--no-worker", database=served_machine.new_database) as environment:
        yield Machine(root, environment)


@pytest.fixture(scope="module")
def notifications() -> Generator[tuple[str, list[dict[str, str]]]]:
    """The URL of a webhook and what has been posted to it."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", received
        server.shutdown()


def create(machine: Machine, *words: str) -> dict[str, str]:
    """Run the command; the name of each automation and what was done about it."""
    done = json.loads(machine.run("automations", *words, "-o", "json").stdout)
    known = {one["id"]: one["name"] for one in call(machine, "POST", "automations/filter")}
    assert known == {one["id"]: one["name"] for one in done if one["id"]}  # no second one of a name
    return {one["name"]: one["status"] for one in done}


@pytest.fixture(scope="module")
def created(machine: Machine, notifications: Any) -> None:
    """Create them: nothing twice, and nothing whose block or deployment is missing."""
    assert create(machine) == dict.fromkeys([*NOTIFYING, SERVING], "missing")
    told = machine.run("automations").stdout
    assert "--notify slack-webhook/team" in told
    command = "prefect deploy --prefect-file deployments/prefect.yaml --name deploy-checkpoints"
    assert command in told
    with client_of(machine):
        deployment = RunnerDeployment.from_flow(
            cast("Any", deploy_checkpoints),
            name="deploy-checkpoints",
            work_pool_name=POOL,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        cast("Any", deployment).apply(_sync=True)
    missing = dict.fromkeys(NOTIFYING, "missing")
    assert create(machine) == {**missing, SERVING: "created"}
    with client_of(machine):
        data = {"subject": "{{subject}}", "body": "{{body}}"}
        url = notifications[0]
        hook: Any = CustomWebhookNotificationBlock(name="hook", url=url, json_data=data)
        hook.save("hook")
        secret: Any = Secret(value="x")  # pyright: ignore[reportArgumentType]
        secret.save("no-hook")
    for name, fault in (("custom-webhook/nobody", "no block"), ("secret/no-hook", "cannot send")):
        done = machine.run("automations", "--notify", name, check=False)
        assert (done.returncode, fault in done.stderr) == (1, True), done.stderr
    words = ("--notify", "custom-webhook/hook")
    assert create(machine, *words) == {**dict.fromkeys(NOTIFYING, "created"), SERVING: "updated"}
    assert set(create(machine, *words).values()) == {"updated"}
    assert create(machine) == {**dict.fromkeys(NOTIFYING, "unchanged"), SERVING: "updated"}


@contextmanager
def client_of(machine: Machine) -> Generator[None]:
    """Let Prefect's client in this process use the machine's server."""
    with environment_of({**machine.environment, **machine.api}):
        yield


def send_event(machine: Machine, name: str, message: str, **labels: str) -> None:
    """Send an event of a job with the labels that tests/e2e/test_endings.py finds at real ones."""
    resource = {f"prefect-bt.{label.replace('_', '-')}": value for label, value in labels.items()}
    resource["prefect.resource.id"] = f"prefect-bt.job.{labels['job']}"
    event = Event(
        event=f"prefect-bt.job.{name}", resource=Resource(resource), payload={"message": message}
    )
    auth, url = machine.api[PREFECT_API_AUTH_STRING.name], f"{machine.api_url}/events"
    answer = httpx.post(
        url, json=[event.model_dump(mode="json")], auth=tuple(auth.split(":", 1)), timeout=60
    )
    answer.raise_for_status()


def test_automations_fire_by_labels(machine: Machine, notifications: Any, created: None) -> None:
    """The event of the infrastructure's failure comes before those that do notify."""
    common = {"kind": "training", "project": "sent", "attempt": "0"}
    lost = {**common, "failure_class": "infrastructure", "cause": "killed"}
    send_event(machine, "failed", "A node was lost.", job="lost", **lost)
    send_event(machine, "recovered", "", job="flown", **common)
    failed = {**common, "failure_class": "user", "cause": "command_failed"}
    send_event(machine, "failed", "Rank 0 failed.", job="flown", **failed)
    sent = lambda: [one for one in notifications[1] if "of sent" in one["subject"]]  # noqa: E731
    until(lambda: len(sent()) > 1, seconds=60, what=lambda: f"two notifications: {sent()}")
    by_subject = {one["subject"]: one["body"] for one in sent()}
    assert set(by_subject) == {"Job flown of sent was recovered", "Job flown of sent failed"}
    body = by_subject["Job flown of sent failed"]
    assert "Rank 0 failed." in body and "Cause: command_failed, attempt 0" in body


@pytest.mark.extended
def test_notifications_by_failure_class(
    machine: Machine, notifications: Any, created: None, tmp_path: Path
) -> None:
    """The events of the infrastructure's failure come before those that do notify."""
    lost = machine.folder(LOSE_THE_TRAINING)
    words = ("--infrastructure-retries", "0")
    assert machine.push_wait(lost, *words)[1]["attempts"][0]["failure"] == "infrastructure"
    failing = machine.folder(FAIL_AFTER_THE_FLOW_DIED, env={"WORD": str(tmp_path)})
    job_id = machine.push(failing)["id"]
    machine.wait(job_id, "RUNNING")
    for flow in machine.processes(job_id, "prefect_bt.supervisor.run_flow"):
        flow.send_signal(signal.SIGKILL)
    received = lambda: [one for one in notifications[1] if "of e2e" in one["subject"]]  # noqa: E731
    until(received, seconds=60, what="the recovery")
    (tmp_path / "killed").touch()
    machine.wait(job_id, "FAILED")
    until(lambda: len(received()) > 1, seconds=60, what="the failure")
    recovered, failed = received()
    assert recovered["subject"] == f"Job {job_id} of e2e was recovered"
    assert "continues attempt 0" in recovered["body"]
    assert failed["subject"] == f"Job {job_id} of e2e failed"
    assert "start command 1 exited with 3" in failed["body"]
    assert "Cause: command_failed, attempt 0" in failed["body"]
    assert f"/runs/flow-run/{machine.view(job_id)['flow_run_id']}" in failed["body"]


@pytest.mark.extended
def test_a_checkpoint_of_a_completed_job_is_deployed(machine: Machine, created: None) -> None:
    machine.process("up")  # starts the worker
    # Flows of their own processes: in this one, events go to the first server that it used.
    assert machine.push_wait(machine.folder("exit 0"))[0] == 0  # without a checkpoint
    code, job = machine.push_wait(machine.folder(SAVE))
    assert code == 0, job
    job_id = job["id"]

    def runs() -> list[dict[str, Any]]:
        flow = {"name": {"any_": ["deploy-checkpoints"]}}
        return call(machine, "POST", "flow_runs/filter", flows=flow)

    (run,) = until(runs, seconds=60, what="a run of deploy-checkpoints")
    store = {"url": machine.ledger.store.url}
    assert run["parameters"] == {"model_name": "e2e", "job_id": job_id, "store": store}

    def ended() -> str:
        state = runs()[0]["state"]
        return state["message"] if state["type"] == "FAILED" else ""

    # The parameters fit the flow: it runs, and finds no model in what the job saved.
    reason = until(ended, seconds=120, what="the end of the run")
    assert f"of job {job_id} holds no weights" in reason


@pytest.mark.parametrize(
    ("labels", "fires"),
    [
        ({"kind": "training", "checkpoint": "a"}, True),
        ({"kind": "training"}, False),
        ({"kind": "serving", "checkpoint": "a"}, False),
    ],
)
def test_a_served_revision_is_not_deployed(labels: dict[str, str], fires: bool) -> None:
    documents = yaml.safe_load(TEMPLATE.read_text())["automations"]
    match = next(one["trigger"]["match"] for one in documents if one["name"] == SERVING)
    named = {f"prefect-bt.{label}": value for label, value in labels.items()}
    resource = Resource({"prefect.resource.id": "prefect-bt.job.x", **named})
    assert ResourceSpecification(match).matches(resource) is fires
