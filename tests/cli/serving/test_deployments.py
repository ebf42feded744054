"""`deployments`: records and routes written by hand."""

import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.ledger.records import Outcome
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger, ReadinessVerdict, Revision
from prefect_bt.serving.router.deployment_folder import ListenAddress, RouterFolder
from prefect_bt.serving.router.route import Route
from tests.cli.conftest import Cli, Shop, Within
from tests.cli.test_imports import Step, check_imports

pytestmark = [pytest.mark.slow]

NAME = "stories"
RUNNING = (JobState.DEPLOYING, JobState.RUNNING)
STOPPED = (*RUNNING, JobState.STOPPED)


@dataclass
class Serving:
    """Revisions of `stories`, as their flows would have written them."""

    shop: Shop
    place: RouterFolder
    jobs: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.deployments = DeploymentLedger(self.shop.ledger)
        self.deployments.ensure_deployment(NAME)
        self.place.write_listen_address(ListenAddress("127.0.0.1", 19))

    def add(self, *states: JobState, ready: bool | None = True) -> int:
        """A revision whose job went through `states`, with a verdict of its one attempt."""
        job = self.shop.job("serving", *states)
        self.shop.ledger.begin_attempt(job.id)

        def make(number: int) -> Revision:
            return Revision(
                number=number,
                at=self.shop.at,
                engine="transformers",
                kind="lora",
                models=(f"checkpoint-{number}0",),
                checkpoints=(("abc1234", f"checkpoint-{number}0"),),
                base_model="org/base",
            )

        number = self.deployments.add_revision(NAME, make).number
        self.deployments.bind_job(NAME, number, job.id)
        self.jobs[number] = job.id
        if ready is not None:
            said = "It answers." if ready else "It was not ready in 5 s: the disk is full."
            self.deployments.record_verdict(
                NAME, ReadinessVerdict(number, 0, ready, said, self.shop.at)
            )
        return number

    def route(self, number: int, target: str = "http://127.0.0.1:20") -> None:
        self.place.write_route(Route(number, target, (f"checkpoint-{number}0",)))

    def move(self, number: int, why: str = "deployed") -> None:
        self.deployments.set_desired_revision(NAME, number, why=why, by="ann")

    @contextmanager
    def when_promoted(self, number: int, react: Callable[[], object]) -> Generator[None]:
        """Call `react` in a thread once a command of the block has promoted the revision."""

        def wait() -> None:
            deadline = time.monotonic() + 200
            while self.deployments.get_desired_revision(NAME) != number:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            react()

        with ThreadPoolExecutor(1) as pool:
            reacted = pool.submit(wait)
            yield
            reacted.result()


@pytest.fixture
def serving(shop: Shop, cli: Cli) -> Serving:
    return Serving(shop, RouterFolder.for_deployment(Path(cli.env["PREFECT_BT_STATE_DIR"]), NAME))


@pytest.fixture
def two(serving: Serving) -> Serving:
    """The first stands by, the second serves."""
    for number in (serving.add(*RUNNING), serving.add(*RUNNING)):
        serving.move(number)
    serving.route(2)
    return serving


# -- list, view -------------------------------------------------------------------------------


def test_there_is_none(within: Within):
    assert "Create one: prefect-bt deploy_checkpoints" in within("deployments", "list").out
    assert within("deployments", "list", "-o", "json").json == {"deployments": []}


@pytest.mark.parametrize("verb", ["view", "logs", "stop --yes", "rollback"])
def test_one_that_is_not_there(within: Within, two: Serving, verb: str):
    error = within("deployments", *verb.split(), "nope").refusal()
    assert error == (
        "error: No deployment 'nope' in this store. Deployments of this store: stories.\n"
    )


@pytest.mark.parametrize("verb", ["promote", "logs"])
def test_a_revision_that_is_not_there(within: Within, two: Serving, verb: str):
    assert "There are: 1, 2." in within("deployments", verb, NAME, "--revision", "7").refusal()
    assert within("deployments", verb, NAME, "--revision", "0").code == 2


def test_list(within: Within, two: Serving):
    (row,) = [one for one in within("deployments", "list").out.splitlines() if NAME in one]
    assert row.split()[:4] == [NAME, "serving", "2", "checkpoint-20"]
    (found,) = within("deployments", "list", "-o", "json").json["deployments"]
    assert (found["name"], found["serving_revision"]) == (NAME, 2)


def test_view(within: Within, two: Serving):
    two.add(*STOPPED, ready=False)
    said = within("deployments", "view", NAME).out
    for told in ("http://127.0.0.1:19/v1", "org/base", two.jobs[3], "the disk is full", "deployed"):
        assert told in said
    states = {one["number"]: one["state"] for one in _view(within)["revisions"]}
    assert states == {1: "ready", 2: "serving", 3: "failed"}
    assert "curl http://127.0.0.1:19/v1/chat/completions" in said


def _view(within: Within) -> dict[str, Any]:
    return within("deployments", "view", NAME, "-o", "json").json


# -- logs -------------------------------------------------------------------------------------


def test_logs(within: Within, two: Serving, shop: Shop):
    for number, job_id in two.jobs.items():
        shop.log(shop.ledger.get_job(job_id), [f"line of {number}"])
        shop.ledger.append_event(job_id, JobState.STOPPED)
    assert "line of 2" in within("deployments", "logs", NAME).out
    first = within("deployments", "logs", NAME, "--revision", "1", "--tail").out
    assert "line of 1" in first
    assert "line of 2" not in first


# -- promote, rollback, stop ------------------------------------------------------------------


def test_promote(within: Within, two: Serving):
    """Its flow sees the wish, and routes to it; the command sees the route."""
    with two.when_promoted(1, lambda: two.route(1)):
        run = within("deployments", "promote", NAME, "--revision", "1")
    assert (run.code, run.out) == (0, "Revision 1 of stories serves.\n")
    assert "Revision 1 of stories: ready, switching requests to it" in run.err or not run.err


def test_what_serves_already(within: Within, two: Serving):
    run = within("deployments", "promote", NAME, "--revision", "2")
    assert (run.code, run.out) == (0, "Revision 2 of stories serves.\n")


def test_nobody_has_to_wait(within: Within, two: Serving):
    run = within("deployments", "promote", NAME, "--revision", "1", "--no-wait")
    assert (run.code, two.deployments.get_desired_revision(NAME)) == (0, 1)
    assert "serves once it is ready" in run.out


def test_rollback(within: Within, two: Serving):
    two.route(1)
    run = within("deployments", "rollback", NAME)
    assert (run.code, run.out) == (0, "Revision 1 of stories serves.\n")
    assert two.deployments.get_desired_revision(NAME) == 1
    why = [move["why"] for move in _view(within)["promotions"]]
    assert why == ["deployed", "deployed", "rolled back from 2"]


def test_no_way_back(within: Within, serving: Serving):
    assert "served nothing yet" in within("deployments", "rollback", NAME).err
    serving.move(serving.add(*RUNNING, ready=False))
    serving.move(serving.add(*RUNNING))
    error = within("deployments", "rollback", NAME).refusal()
    assert "no revision before 2 that was ever ready" in error


def test_one_that_never_answers(within: Within, serving: Serving, shop: Shop):
    """The reason, the end of the server's log, and who serves as before."""
    serving.route(serving.add(*RUNNING))
    number = serving.add(*RUNNING, ready=None)
    job_id = serving.jobs[number]
    said = "It was not ready in 5 s: the disk is full."

    def fail() -> None:
        serving.deployments.record_verdict(NAME, ReadinessVerdict(number, 0, False, said, 1.0))
        tail = ("OSError: No space\x1b[2J left",)
        outcome = Outcome(0, JobState.STOPPED, message="stopped", log_tail=tail)
        shop.ledger.end_attempt(job_id, outcome)
        shop.ledger.append_event(job_id, JobState.STOPPED)

    with serving.when_promoted(number, fail):
        run = within("deployments", "promote", NAME, "--revision", str(number))
    assert (run.code, run.out) == (1, "")
    assert (
        "  OSError: No space\u241b[2J left\n"
        f"error: Revision 2 of stories does not serve. {said} Revision 1 still serves. "
        f"Its log: prefect-bt logs --job-id {job_id}\n"
    ) in run.err


def test_somebody_else_has_the_last_word(within: Within, two: Serving):
    with two.when_promoted(1, lambda: two.move(2)):
        run = within("deployments", "promote", NAME, "--revision", "1")
    assert run.code == 1
    assert "Revision 1 of stories does not serve: revision 2 was promoted meanwhile." in run.err


def test_stop(within: Within, two: Serving, shop: Shop):
    two.add(*STOPPED)
    run = within("deployments", "stop", NAME, "--yes")
    assert (run.code, run.out) == (0, "Deployment stories is stopped: 2 servers stopped.\n")
    # Nobody runs the jobs, so the command wrote down their end.
    states = {shop.ledger.get_state(two.jobs[number]) for number in (1, 2)}
    assert states == {JobState.STOPPED}
    assert two.place.read_route() is None
    again = within("deployments", "stop", NAME, "--yes")
    assert again.out == "Deployment stories is stopped: no server was running.\n"
    assert "stopped" in within("deployments", "list").out


# -- how fast ---------------------------------------------------------------------------------


def test_they_import_nothing_heavy(cli: Cli, two: Serving):
    check_imports(cli, [Step("deployments list"), Step(f"deployments view {NAME}")])
