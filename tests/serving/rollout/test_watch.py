"""What the flow of a revision does beside its server: with real store, routes and router."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prefect.logging import disable_run_logger

from prefect_bt.attempts.gang_policy import Gang
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.attempts.lifecycle import decide_job_retry, record_outcome
from prefect_bt.errors import StoreError
from prefect_bt.flows.tasks.serving_watch import RevisionController
from prefect_bt.jobs import resubmit
from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.ledger.records import FailureClass, NodePhase, NodeStatus, Outcome, ServingRef
from prefect_bt.ledger.states import JobState
from prefect_bt.serving.deployment_records import DeploymentLedger, ReadinessVerdict, Revision
from prefect_bt.serving.rollout.deploy import RESTART_BUDGET
from prefect_bt.serving.rollout.revisions import promote
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import stop_router
from prefect_bt.serving.router.request_body import MAX_BODY_BYTES
from tests.cli.conftest import Shop
from tests.node_agent.rig import wait_until
from tests.serving.rollout.test_readiness import CHAT, HEARD, PLAIN, error, serving

pytestmark = [pytest.mark.integration]

NAME = "stories"
NOT_PASSED = {"prompts": [{"prompt": "2+2=", "contains": "4"}]}


class World:
    """A deployment, and revisions of it whose servers are threads of this process."""

    def __init__(self, root: Path, servers: ExitStack) -> None:
        self.shop = Shop(str(root / "store"))
        self.ledger = self.shop.ledger
        self.state_dir, self.servers = root / "state", servers
        self.place = RouterFolder.for_deployment(self.state_dir, NAME)
        self.deployments = DeploymentLedger(self.ledger)
        self.deployments.ensure_deployment(NAME)
        self.status = NodeStatus(0, NodePhase.RUNNING, started_at=1.0)

    def add(
        self,
        faults: dict[str, tuple[int, Any]] | None = None,
        *,
        patience: float = 1e12,
        gate: dict[str, Any] | None = None,
    ) -> Watched:
        def make(number: int) -> Revision:
            name = f"checkpoint-{number}"
            return Revision(
                number=number,
                at=1.0,
                engine="transformers",
                kind="full",
                models=(name,),
                checkpoints=(("abc1234", name),),
                patience=patience,
                gate=gate,
            )

        revision = self.deployments.add_revision(NAME, make)
        names = list(revision.models)
        address = self.servers.enter_context(serving(names, faults or {}))
        job = self.shop.job("serving", JobState.DEPLOYING, JobState.RUNNING)
        return Watched(self, revision.number, job.id, address.removeprefix("http://"))


class Watched:
    """One revision, looked after as by its flow; `again` is another flow of the same attempt."""

    outcome = Outcome(0, JobState.COMPLETED)

    def __init__(self, world: World, number: int, job_id: str, address: str) -> None:
        self.world, self.number, self.job_id, self.address = world, number, job_id, address
        self.again()
        world.deployments.bind_job(NAME, number, job_id)

    def again(self) -> None:
        world = self.world
        handle = SimpleNamespace(
            rank=0,
            observe=lambda: world.status,
            server_address=lambda: self.address,
            server_process=lambda: None,
            log_size=lambda: 0,
            read_log=lambda offset, limit: b"",
            read_metrics=lambda offset, limit: b"",
        )
        gang = SimpleNamespace(
            handles=[handle],
            attempt=0,
            statuses=[replace(world.status, phase=NodePhase.DONE)],
            make_outcome=lambda: self.outcome,
        )
        site = SimpleNamespace(
            ledger=world.ledger,
            settings=SimpleNamespace(state_dir=world.state_dir, request_bytes=MAX_BODY_BYTES),
            job_id=self.job_id,
            secret_sources=(),
        )
        ref = ServingRef(NAME, self.number)
        self.watch = RevisionController(cast("JobContext", site), ref, cast("Gang", gang))

    @property
    def asked_to_stop(self) -> str:
        request = self.world.ledger.controls.find_stop_request(self.job_id)
        return request.by if request else ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(
        "prefect_bt.flows.tasks.serving_watch.create_link_artifact", lambda **_: None
    )
    with ExitStack() as servers, disable_run_logger():
        yield World(tmp_path, servers)
        stop_router(tmp_path / "state", NAME, grace=3)


def routed(world: World) -> int | None:
    route = world.place.read_route()
    return route.revision if route else None


def test_one_that_does_not_pass_its_gate_is_asked_no_more(world: World) -> None:
    """Nor by the next flow, if the first died between its word and the wish that it stop."""
    one = world.add(gate=NOT_PASSED)
    world.deployments.set_desired_revision(NAME, 1, why="deployed")
    one.watch.poll()
    assert "It did not pass its gate" in world.deployments.list_verdicts(NAME, 1)[-1].sentence
    assert (routed(world), "readiness check" in one.asked_to_stop) == (None, True)
    world.ledger.controls.delete_stop_request(one.job_id)
    one.address = "127.0.0.1:1"  # nothing answers there
    one.again()
    one.watch.poll()
    assert one.asked_to_stop == "its readiness check"
    assert len(world.deployments.list_verdicts(NAME, 1)) == 1


def test_one_that_never_answers_leaves_the_requests_where_they_are(world: World) -> None:
    one, two = (
        world.add(),
        world.add(dict.fromkeys((CHAT, PLAIN, HEARD), error("no")), patience=0.0),
    )
    for watched in (one, two):
        world.deployments.set_desired_revision(NAME, watched.number, why="deployed")
        watched.watch.poll()
    assert "It was not ready in 0 s" in world.deployments.list_verdicts(NAME, 2)[-1].sentence
    one.watch.poll()
    assert (routed(world), world.deployments.get_desired_revision(NAME), one.asked_to_stop) == (
        1,
        1,
        "",
    )


def test_the_one_before_finishes_and_is_waited_for_when_it_is_wanted_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = world.add(), world.add()
    for watched in (one, two):
        world.deployments.set_desired_revision(NAME, watched.number, why="deployed")
        watched.watch.poll()
    assert (routed(world), one.asked_to_stop) == (2, "")
    one.watch.poll()
    assert one.asked_to_stop == "revision 2, which took over"

    # Wanted again while its server is ending: requests must not go there, and it starts anew.
    ended: list[str] = []
    order: list[str] = []

    def over(_: object, job_id: str) -> None:
        world.deployments.set_desired_revision(NAME, 1, why="somebody else's wish")
        one.watch.poll()
        assert routed(world) == 2
        ended.append(job_id)
        world.ledger.append_event(job_id, JobState.STOPPED)

    monkeypatch.setattr("prefect_bt.serving.rollout.revisions.wait_for_end", over)
    monkeypatch.setattr(
        "prefect_bt.serving.rollout.revisions._reacquire_holds", lambda *_: order.append("held")
    )
    monkeypatch.setattr(resubmit, "retry", lambda job_id: order.append(f"retried {job_id}"))
    assert promote(world.ledger, NAME, 1, by="ann") == one.job_id
    assert (ended, order) == ([one.job_id], ["held", f"retried {one.job_id}"])
    last = world.deployments.list_desired_revisions(NAME)[-1]
    assert (last.revision, last.by) == (1, "ann")


def test_one_that_was_named_again_in_time_does_not_leave(world: World) -> None:
    """Between its look and its word somebody promotes it: whoever is first has the lock."""
    one, two = world.add(), world.add()
    for watched in (one, two):
        world.deployments.set_desired_revision(NAME, watched.number, why="deployed")
        watched.watch.poll()
    promote(world.ledger, NAME, 1)
    one.watch._stop_unless_desired()
    assert one.asked_to_stop == ""
    one.watch.poll()
    assert routed(world) == 1


@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        (Outcome(0, JobState.COMPLETED), 1),
        (Outcome(0, JobState.FAILED, failure=FailureClass.USER), 1),
        (Outcome(0, JobState.FAILED, failure=FailureClass.INFRASTRUCTURE), 2),
        (Outcome(0, JobState.STOPPED), 2),
    ],
    ids=["exit 0", "exit 1", "its machine", "stopped"],
)
def test_one_that_ends_before_it_answers_gives_the_wish_back(
    world: World, outcome: Outcome, wanted: int
) -> None:
    """Unless it is started again, or somebody stopped it."""
    one, two = world.add(), world.add()
    world.deployments.set_desired_revision(NAME, 1, why="deployed")
    one.watch.poll()
    world.deployments.set_desired_revision(NAME, 2, why="deployed")
    two.outcome = outcome
    two.watch.record_server_exit()
    assert world.deployments.get_desired_revision(NAME) == wanted
    assert bool(world.deployments.list_verdicts(NAME, 2)) == (wanted == 1)


def test_the_watch_goes_on_after_errors_of_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the first request of the watch fails, which records the job of the revision."""
    one, bind, errors = world.add(), DeploymentLedger.bind_job, [StoreError("down")] * 2

    def fail_twice(records: DeploymentLedger, name: str, number: int, job_id: str) -> None:
        if errors:
            raise errors.pop()
        bind(records, name, number, job_id)

    monkeypatch.setattr(DeploymentLedger, "bind_job", fail_twice)
    world.deployments.set_desired_revision(NAME, 1, why="deployed")
    over = threading.Event()
    thread = threading.Thread(target=one.watch.run, args=(over,), daemon=True)
    thread.start()
    wait_until(lambda: not errors and routed(world) == 1)
    over.set()
    thread.join()


def test_a_server_that_exits_with_0_is_started_again(world: World) -> None:
    """If it ever answered: one that never did would end so again."""
    one = world.add()
    record = replace(
        world.ledger.get_job(one.job_id), serving=ServingRef(NAME, 1), retries=RESTART_BUDGET
    )
    world.ledger.begin_attempt(one.job_id)
    site: Any = SimpleNamespace(
        ledger=world.ledger,
        record=record,
        project=load_definition(record),
        job_id=one.job_id,
        settings=SimpleNamespace(state_dir=world.state_dir, request_bytes=MAX_BODY_BYTES),
        substrate=SimpleNamespace(list_nodes=lambda _: []),
        checkpointing=False,
        epoch=0,
    )
    outcome = record_outcome(site, Outcome(0, JobState.COMPLETED))
    assert (outcome.state, outcome.failure) == (JobState.FAILED, FailureClass.USER)
    assert "ended by itself, with exit code 0" in world.ledger.list_outcomes(one.job_id)[-1].message
    assert not decide_job_retry(site).retry
    world.deployments.record_verdict(
        NAME, ReadinessVerdict(1, 0, ready=True, sentence="It answers.", at=1.0)
    )
    assert decide_job_retry(site).retry
