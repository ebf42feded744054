"""Beside the gang of a serving revision: whether it answers, and whose the requests are.

The revision's own flow does it, because that is taken up again whatever dies (decision 010). It
looks every second; what it finds is written down once an attempt, so that the next flow goes on.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from prefect.artifacts import create_link_artifact
from prefect.logging import get_run_logger

from prefect_bt.attempts import JobSite
from prefect_bt.errors import PrefectBtError, ServerError, StoreError
from prefect_bt.flows.reporting import UNREACHABLE
from prefect_bt.gang import Gang, read_tail
from prefect_bt.plan import GangPlan
from prefect_bt.records import FailureClass, JobState, ServingRef
from prefect_bt.router.place import Route, RouterPlace
from prefect_bt.router.running import ensure_router, router_status
from prefect_bt.secrets import resolve_secrets
from prefect_bt.serving.calling import CHAT, curl_line
from prefect_bt.serving.deployments import NONE, Deployments, Verdict
from prefect_bt.serving.enginekeys import REFERENCE, engine_key, with_engine_key
from prefect_bt.serving.gate import read_gate, run_gate
from prefect_bt.serving.readiness import check_ready, explain, way_of
from prefect_bt.serving.roles import Role, Scene, role_of
from prefect_bt.visible import visible

LOOK: Final = 1.0
"""Seconds between two looks."""
STEADY: Final = 2.0
"""The same of a revision that serves."""
MOST_DRAIN: Final = 600.0
"""Seconds that requests in flight have after another revision took over."""


def keyed(
    site: JobSite, plan: GangPlan, secrets: Mapping[str, str]
) -> tuple[GangPlan, dict[str, str]]:
    """Return the plan and secrets of a server, with the key that this attempt's server requires."""
    assert site.record.serving is not None, "no training has a server"
    place = RouterPlace.of(site.settings.state_dir, site.record.serving.deployment)
    key = engine_key(place.engine_secret(), site.job_id, plan.attempt)
    return with_engine_key(plan), {**secrets, REFERENCE: key}


@contextmanager
def serving_watched(site: JobSite, ref: ServingRef, gang: Gang) -> Generator[None]:
    """For the time that the gang of a serving revision is watched."""
    over = threading.Event()
    watch = RevisionWatch(site, ref, gang)
    context = contextvars.copy_context()  # artifacts and log lines belong to the run
    thread = threading.Thread(target=context.run, args=(watch.until, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        watch.ended()


class RevisionWatch:
    """One attempt of one revision. Faults of store, router and Prefect are tried again."""

    def __init__(self, site: JobSite, ref: ServingRef, gang: Gang) -> None:
        self._site, self._ref, self._gang = site, ref, gang
        self._deployments = Deployments(site.ledger)
        self._place = RouterPlace.of(site.settings.state_dir, ref.deployment)
        self._revision = self._deployments.revision(ref.deployment, ref.revision)
        self._key = engine_key(self._place.engine_secret(), site.job_id, gang.attempt)
        self._ready = False
        judged = self._deployments.verdicts(ref.deployment, ref.revision)
        self._given_up = any(not v.ready for v in judged if v.attempt == gang.attempt)
        self._address, self._way = "", CHAT
        self._finishing: float | None = None
        self._told = ""
        self._log = get_run_logger()

    def until(self, over: threading.Event) -> None:
        self._deployments.bind_job(self._ref.deployment, self._ref.revision, self._site.job_id)
        while not over.wait(STEADY if self._address else LOOK):
            try:
                self.look()
            except (PrefectBtError, OSError, ValueError) as error:
                self._tell(f"Tried again: {error}")

    def look(self) -> None:
        status = self._gang.handles[0].observe()
        if status.commands_ended:
            return
        if self._given_up:  # its gate is not asked again, and whoever judged it may have died since
            self._site.ledger.request_stop(self._site.job_id, by="its readiness check")
            return
        if not self._ready:
            self._ready = self._is_ready(status.started_at)
        if self._ready:
            self._play()

    def ended(self) -> None:
        """The server's process ended. Where it never answered, that is written down with why.

        Not where it was stopped, or is started again for it was no fault of its own.
        """
        statuses = self._gang.statuses
        if self._ready or self._given_up or not all(status.over for status in statuses):
            return
        outcome = self._gang.outcome()
        if outcome.state is JobState.STOPPED or outcome.failure is FailureClass.INFRASTRUCTURE:
            return
        with suppress(StoreError):
            self._judge(ready=False, sentence=self._why("The server ended before it answered"))

    # -- whether it answers -----------------------------------------------------------------

    def _is_ready(self, started_at: float | None) -> bool:
        address = self._gang.handles[0].server_address()
        if address is None or started_at is None:
            return False
        missing = check_ready(f"http://{address}", self._revision.models, key=self._key)
        if self._gang.handles[0].server_address() != address:
            return False  # it ended meanwhile: who answered may be another server
        if missing is None:
            return self._passes(f"http://{address}")
        if time.time() - started_at > self._revision.patience:
            self._give_up(
                self._why(f"It was not ready in {self._revision.patience:.0f} s"), missing
            )
        return False

    def _passes(self, address: str) -> bool:
        """Once a revision: one that passed before is as good after a restart."""
        before = self._deployments.was_ready(self._ref.deployment, self._ref.revision)
        gate = read_gate(self._revision.gate) if self._revision.gate and not before else None
        sentence = f"It answers as {', '.join(self._revision.models)}."
        if gate is not None:
            result = run_gate(gate, address, self._revision.models, key=self._key)
            if not result.passed:
                self._give_up("It did not pass its gate", result.sentence)
                return False
            sentence = f"{sentence} {result.sentence}"
        self._way = way_of(address, self._revision.models[0], key=self._key)
        self._judge(ready=True, sentence=sentence)
        return True

    def _give_up(self, what: str, why: str) -> None:
        sentence = f"{what}: {why}"
        self._given_up = True
        self._judge(ready=False, sentence=sentence)
        self._site.ledger.request_stop(self._site.job_id, by=f"its readiness check. {sentence}")

    def _why(self, what: str) -> str:
        tail = read_tail(self._gang.handles[0])
        explained = explain(tail)
        said = explained or (f"its last words: {tail[-1]}" if tail else "it said nothing")
        return f"{what}: {said}"

    def _judge(self, *, ready: bool, sentence: str) -> None:
        ref, attempt = self._ref, self._gang.attempt
        now = self._site.ledger.now()
        verdict = Verdict(ref.revision, attempt, ready, sentence, now, self._way)
        told = self._deployments.judge(ref.deployment, verdict)
        if not told.ready:
            self._give_back()
        self._tell(f"Revision {ref.revision} of {ref.deployment}: {told.sentence}")

    def _give_back(self) -> None:
        """It was to serve and cannot: whoever does is the one that is to."""
        name, mine, route = self._ref.deployment, self._ref.revision, self._place.route()
        if route and route.revision != mine and self._deployments.wanted(name) == mine:
            why = f"revision {mine} did not answer"
            self._deployments.move(name, route.revision, why=why)

    # -- whose the requests are -------------------------------------------------------------

    def _play(self) -> None:
        if self._site.ledger.stop_request(self._site.job_id):
            return  # its server is about to end: requests must not come back to it
        role, route = self._role()
        if role is Role.SERVE:
            self._serve(route)
        elif role is Role.STOP or (role is Role.FINISH and self._is_idle()):
            self._leave()

    def _role(self) -> tuple[Role, Route | None]:
        """And whose the requests are now."""
        moves, route = self._deployments.moves(self._ref.deployment), self._place.route()
        scene = Scene(
            wanted=moves[-1].revision if moves else NONE,
            routed=route.revision if route else None,
            named={move.revision for move in moves},
        )
        return role_of(self._ref.revision, scene), route

    def _leave(self) -> None:
        """Unless it was promoted since: who promotes looks whether it is leaving."""
        with self._place.deciding():
            role, route = self._role()
            if role in {Role.FINISH, Role.STOP}:
                heir = f"revision {route.revision}, which took over" if route else ""
                by = heir if role is Role.FINISH else "its stop"
                self._site.ledger.request_stop(self._site.job_id, by=by)

    def _serve(self, route: Route | None) -> None:
        server, models = self._gang.handles[0], self._revision.models
        # In this order: an address without its process would be one that nothing guards.
        process, address = server.server_process(), server.server_address()
        if address is None:
            return  # it has just ended
        own = {self._ref.deployment: models[0]} if self._ref.deployment not in models else {}
        target = f"http://{address}"
        mine = Route(self._ref.revision, target, models, own, process, self._key)
        if route != mine:
            self._place.set_route(mine)
            self._tell(f"Requests to {self._ref.deployment} go to revision {mine.revision}.")
        if not self._address:
            self._ensure_key()
        if not self._address or not self._place.is_run():
            self._address = ensure_router(
                self._site.settings.state_dir,
                self._ref.deployment,
                environment=os.environ,
                most_bytes=self._site.settings.request_bytes,
            )
            self._show_address()

    def _ensure_key(self) -> None:
        secret = self._deployments.key_secret(self._ref.deployment)
        if secret and not self._place.key_file.exists():
            self._place.set_key(resolve_secrets([secret], self._site.secret_sources)[secret])

    def _is_idle(self) -> bool:
        now = time.monotonic()
        self._finishing = self._finishing or now
        if now - self._finishing > MOST_DRAIN:
            return True
        try:
            status = router_status(self._site.settings.state_dir, self._ref.deployment)
        except ServerError:
            return False
        return status is not None and not status.in_flight.get(self._ref.revision)

    def _show_address(self) -> None:
        self._tell(f"{self._ref.deployment} answers at {self._address}/v1")
        try:
            create_link_artifact(
                key=f"serving-{self._site.job_id}",
                link=f"{self._address}/v1",
                link_text=f"{self._ref.deployment} (OpenAI-compatible)",
                description=self._curl(),
            )
        except UNREACHABLE as error:
            self._log.debug("The address cannot be shown: %s", error)

    def _curl(self) -> str:
        has_key = self._place.key_file.exists()
        return curl_line(self._address, self._revision.models[0], key=has_key, way=self._way)

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._log.info("%s", visible(sentence))
