"""Watch a serving revision: check that its server answers, and route requests to it.

The flow of the revision runs this watch, because a supervisor recovers that flow after a crash
(docs/decisions/010). It checks the server once a second. It records the result once per attempt, so
that a recovered flow continues from it.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from prefect.artifacts import create_link_artifact
from prefect.logging import get_run_logger

from prefect_bt.attempts.gang_policy import Gang, read_log_tail
from prefect_bt.attempts.job_context import JobContext
from prefect_bt.credentials.secrets import resolve_secrets
from prefect_bt.errors import PrefectBtError, ServerError, StoreError
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.ledger.records import FailureClass, ServingRef
from prefect_bt.ledger.states import JobState
from prefect_bt.planning.plan import GangPlan
from prefect_bt.serving.curl_example import CHAT, format_curl
from prefect_bt.serving.deployment_records import NO_REVISION, DeploymentLedger, ReadinessVerdict
from prefect_bt.serving.engines.engine_key import KEY_REFERENCE, add_engine_key, derive_engine_key
from prefect_bt.serving.rollout.acceptance_gate import parse_gate, run_gate
from prefect_bt.serving.rollout.readiness import check_readiness, explain_log_tail
from prefect_bt.serving.rollout.traffic import RevisionAction, choose_action
from prefect_bt.serving.router.deployment_folder import RouterFolder
from prefect_bt.serving.router.process import ensure_router, query_router_status
from prefect_bt.serving.router.route import Route
from prefect_bt.text.control_characters import escape_controls

POLL_INTERVAL: Final = 1.0
"""Seconds between two checks."""
SERVING_POLL_INTERVAL: Final = 2.0
"""Seconds between two checks of a serving revision."""
MAX_DRAIN_SECONDS: Final = 600.0
"""Seconds that requests in flight have after another revision took over."""


def add_server_key(
    site: JobContext, plan: GangPlan, secrets: Mapping[str, str]
) -> tuple[GangPlan, dict[str, str]]:
    """Return the plan and secrets of a server, with the key that this attempt's server requires."""
    assert site.record.serving is not None, "no training job has a server"
    place = RouterFolder.for_deployment(site.settings.state_dir, site.record.serving.deployment)
    key = derive_engine_key(place.ensure_engine_secret(), site.job_id, plan.attempt)
    return add_engine_key(plan), {**secrets, KEY_REFERENCE: key}


@contextmanager
def watch_serving(site: JobContext, ref: ServingRef, gang: Gang) -> Generator[None]:
    """Watch the server of a revision in a thread until the block ends."""
    over = threading.Event()
    watch = RevisionController(site, ref, gang)
    context = contextvars.copy_context()  # artifacts and log lines belong to the run
    thread = threading.Thread(target=context.run, args=(watch.run, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(30)
        watch.record_server_exit()


class RevisionController:
    """Controls one revision during one attempt: checks, serves, drains or stops its server.

    After an error of the store or the router, the next poll tries again.
    """

    def __init__(self, site: JobContext, ref: ServingRef, gang: Gang) -> None:
        self._site, self._ref, self._gang = site, ref, gang
        self._deployments = DeploymentLedger(site.ledger)
        self._router_folder = RouterFolder.for_deployment(site.settings.state_dir, ref.deployment)
        self._revision = self._deployments.get_revision(ref.deployment, ref.revision)
        self._key = derive_engine_key(
            self._router_folder.ensure_engine_secret(), site.job_id, gang.attempt
        )
        self._ready = False
        judged = self._deployments.list_verdicts(ref.deployment, ref.revision)
        self._has_failed = any(not v.ready for v in judged if v.attempt == gang.attempt)
        self._address, self._endpoint = "", CHAT
        self._drain_started_at: float | None = None
        self._last_logged = ""
        self._log = get_run_logger()

    def run(self, stop: threading.Event) -> None:
        bound = self._try(self._bind_job)
        while not stop.wait(SERVING_POLL_INTERVAL if self._address else POLL_INTERVAL):
            bound = bound or self._try(self._bind_job)
            self._try(self.poll)

    def _try(self, step: Callable[[], None]) -> bool:
        """Return whether the step succeeded; log its error otherwise."""
        try:
            step()
        except (PrefectBtError, OSError, ValueError) as error:
            self._log_once(f"Tried again: {error}")
            return False
        return True

    def _bind_job(self) -> None:
        self._deployments.bind_job(self._ref.deployment, self._ref.revision, self._site.job_id)

    def poll(self) -> None:
        status = self._gang.handles[0].observe()
        if status.commands_ended:
            return
        if self._has_failed:
            # Its gate is not asked again; the process that judged it may have died since.
            self._site.ledger.controls.request_stop(self._site.job_id, by="its readiness check")
            return
        if not self._ready:
            self._ready = self._check_ready(status.started_at)
        if self._ready:
            self._apply_action()

    def record_server_exit(self) -> None:
        """Record why a server ended before it was ready.

        A server that was stopped, or is restarted after a failure of the infrastructure, gets no
        verdict.
        """
        statuses = self._gang.statuses
        if self._ready or self._has_failed or not all(status.is_over for status in statuses):
            return
        outcome = self._gang.make_outcome()
        if outcome.state is JobState.STOPPED or outcome.failure is FailureClass.INFRASTRUCTURE:
            return
        with suppress(StoreError):
            message = self._explain("The server ended before it answered")
            self._record_verdict(ready=False, message=message)

    # -- whether it answers -----------------------------------------------------------------

    def _check_ready(self, started_at: float | None) -> bool:
        address = self._gang.handles[0].server_address()
        if address is None or started_at is None:
            return False
        problem, self._endpoint = check_readiness(
            f"http://{address}", self._revision.models, key=self._key
        )
        if self._gang.handles[0].server_address() != address:
            return False  # it ended meanwhile: who answered may be another server
        if not problem:
            return self._check_gate(f"http://{address}")
        if time.time() - started_at > self._revision.patience:
            late = f"It was not ready in {self._revision.patience:.0f} s"
            self._reject_revision(self._explain(late), problem)
        return False

    def _check_gate(self, address: str) -> bool:
        """Run the gate once per revision; a revision that passed it is ready after a restart."""
        before = self._deployments.was_ready(self._ref.deployment, self._ref.revision)
        gate = parse_gate(self._revision.gate) if self._revision.gate and not before else None
        sentence = f"It answers as {', '.join(self._revision.models)}."
        if gate is not None:
            result = run_gate(gate, address, self._revision.models, key=self._key)
            if not result.passed:
                self._reject_revision("It did not pass its gate", result.message)
                return False
            sentence = f"{sentence} {result.message}"
        self._record_verdict(ready=True, message=sentence)
        return True

    def _reject_revision(self, message: str, why: str) -> None:
        sentence = f"{message}: {why}"
        self._has_failed = True
        self._record_verdict(ready=False, message=sentence)
        self._site.ledger.controls.request_stop(
            self._site.job_id, by=f"its readiness check. {sentence}"
        )

    def _explain(self, message: str) -> str:
        tail = read_log_tail(self._gang.handles[0])
        explained = explain_log_tail(tail)
        said = explained or (f"its last log line: {tail[-1]}" if tail else "it said nothing")
        return f"{message}: {said}"

    def _record_verdict(self, *, ready: bool, message: str) -> None:
        ref, attempt = self._ref, self._gang.attempt
        now = self._site.ledger.now()
        verdict = ReadinessVerdict(ref.revision, attempt, ready, message, now, self._endpoint)
        told = self._deployments.record_verdict(ref.deployment, verdict)
        if not told.ready:
            self._restore_serving_revision()
        self._log_once(f"Revision {ref.revision} of {ref.deployment}: {told.sentence}")

    def _restore_serving_revision(self) -> None:
        """Set the serving revision as the desired one, if this one is desired and cannot serve."""
        name, mine = self._ref.deployment, self._ref.revision
        route, desired = self._router_folder.read_route(), self._deployments.get_desired_revision
        if route and route.revision != mine and desired(name) == mine:
            why = f"revision {mine} did not answer"
            self._deployments.set_desired_revision(name, route.revision, why=why)

    # -- whose the requests are -------------------------------------------------------------

    def _apply_action(self) -> None:
        if self._site.ledger.controls.find_stop_request(self._site.job_id):
            return  # its server is about to end: requests must not come back to it
        role, route = self._choose_action()
        if role is RevisionAction.SERVE:
            self._route_requests(route)
        elif role is RevisionAction.STOP or (role is RevisionAction.DRAIN and self._is_drained()):
            self._stop_unless_desired()

    def _choose_action(self) -> tuple[RevisionAction, Route | None]:
        """Return the action of this revision, and the present route."""
        moves = self._deployments.list_desired_revisions(self._ref.deployment)
        route = self._router_folder.read_route()
        action = choose_action(
            self._ref.revision,
            desired=moves[-1].revision if moves else NO_REVISION,
            routed=route.revision if route else None,
            ever_desired={move.revision for move in moves},
        )
        return action, route

    def _stop_unless_desired(self) -> None:
        """Request the stop of this revision, unless it was promoted meanwhile."""
        with self._router_folder.decision_lock():
            role, route = self._choose_action()
            if role in {RevisionAction.DRAIN, RevisionAction.STOP}:
                heir = f"revision {route.revision}, which took over" if route else ""
                by = heir if role is RevisionAction.DRAIN else "its stop"
                self._site.ledger.controls.request_stop(self._site.job_id, by=by)

    def _route_requests(self, route: Route | None) -> None:
        server, models = self._gang.handles[0], self._revision.models
        # In this order: an address without its process would be one that nothing guards.
        process, address = server.server_process(), server.server_address()
        if address is None:
            return  # it has just ended
        own = {self._ref.deployment: models[0]} if self._ref.deployment not in models else {}
        target = f"http://{address}"
        mine = Route(self._ref.revision, target, models, own, process, self._key)
        if route != mine:
            self._router_folder.write_route(mine)
            self._log_once(f"Requests to {self._ref.deployment} go to revision {mine.revision}.")
        if not self._address:
            self._ensure_key()
        if not self._address or not self._router_folder.is_running():
            self._address = ensure_router(
                self._site.settings.state_dir,
                self._ref.deployment,
                environment=os.environ,
                max_body_bytes=self._site.settings.request_bytes,
            )
            self._publish_address()

    def _ensure_key(self) -> None:
        secret = self._deployments.get_key_secret(self._ref.deployment)
        if secret and not self._router_folder.key_file.exists():
            self._router_folder.write_key(
                resolve_secrets([secret], self._site.secret_sources)[secret]
            )

    def _is_drained(self) -> bool:
        now = time.monotonic()
        self._drain_started_at = self._drain_started_at or now
        if now - self._drain_started_at > MAX_DRAIN_SECONDS:
            return True
        try:
            status = query_router_status(self._site.settings.state_dir, self._ref.deployment)
        except ServerError:
            return False
        return status is not None and not status.in_flight.get(self._ref.revision)

    def _publish_address(self) -> None:
        self._log_once(f"{self._ref.deployment} answers at {self._address}/v1")
        model, has_key = self._revision.models[0], self._router_folder.key_file.exists()
        try:
            create_link_artifact(
                key=f"serving-{self._site.job_id}",
                link=f"{self._address}/v1",
                link_text=f"{self._ref.deployment} (OpenAI-compatible)",
                description=format_curl(
                    self._address, model, has_key=has_key, endpoint=self._endpoint
                ),
            )
        except API_ERRORS as error:
            self._log.debug("The address cannot be shown: %s", error)

    def _log_once(self, message: str) -> None:
        if message != self._last_logged:
            self._last_logged = message
            self._log.info("%s", escape_controls(message))
