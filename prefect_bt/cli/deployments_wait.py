"""Waiting for a revision, and what is said when it does not serve."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prefect_bt.cli.printable import printable
from prefect_bt.cli.terminal import FAILED, Terminal, status_text
from prefect_bt.errors import ServerError, ServingError, StateError

if TYPE_CHECKING:
    from prefect_bt.ledger import Ledger
    from prefect_bt.serving.deployments import Deployments, Verdict

Tell = Callable[[str], object]

_LOOK: Final = 0.2
_SETTLE_EVERY: Final = 5.0
_ANSWERS: Final = "it answers, and requests go over to it"


@dataclass(frozen=True)
class Awaited:
    """A revision of deployment `name`, and the job that runs it."""

    name: str
    revision: int
    job_id: str

    @property
    def label(self) -> str:
        return f"Revision {self.revision} of {self.name}"


def await_serving(ledger: Ledger, awaited: Awaited, tell: Tell) -> None:
    """Until its server answers and requests go to it; `tell` hears how far it is, on a change.

    ServingError with the reason when it never will, StateError when another one is to serve.
    """
    from prefect_bt.control import settle
    from prefect_bt.deploying import PHRASES, not_serving
    from prefect_bt.serving.deployments import Deployments

    deployments, told, settled = Deployments(ledger), "", time.monotonic()
    while not _is_serving(ledger, deployments, awaited):
        wanted = deployments.wanted(awaited.name)  # read first: a verdict comes before its move
        state = ledger.state(awaited.job_id)  # before the verdict, which comes before the end
        verdict = _verdict(ledger, deployments, awaited)
        if state.terminal:
            name, number = awaited.name, awaited.revision
            raise not_serving(ledger, name, number, job_id=awaited.job_id, verdict=verdict)
        if wanted != awaited.revision and (verdict is None or verdict.ready):
            raise _passed_over(awaited, wanted)
        phrase = _ANSWERS if verdict and verdict.ready else PHRASES.get(state, "waiting")
        if phrase != told:
            told = phrase
            tell(phrase)
        if time.monotonic() - settled > _SETTLE_EVERY:
            settle(ledger, awaited.job_id)
            settled = time.monotonic()
        time.sleep(_LOOK)


def _is_serving(ledger: Ledger, deployments: Deployments, awaited: Awaited) -> bool:
    from prefect_bt.records import JobState

    if _serving_revision(awaited.name) != awaited.revision:
        return False
    verdict = _verdict(ledger, deployments, awaited)
    is_ready = verdict is not None and verdict.ready
    return is_ready and ledger.state(awaited.job_id) is JobState.RUNNING


def _verdict(ledger: Ledger, deployments: Deployments, awaited: Awaited) -> Verdict | None:
    """Of the attempt that runs; the last one of a job that is over."""
    from prefect_bt.records import JobState

    verdicts = deployments.verdicts(awaited.name, awaited.revision)
    state, begun = ledger.state(awaited.job_id), len(ledger.attempts(awaited.job_id))
    is_its = bool(verdicts) and verdicts[-1].attempt == begun - 1
    return verdicts[-1] if is_its and (state is JobState.RUNNING or state.terminal) else None


def _passed_over(awaited: Awaited, wanted: int) -> StateError:
    """Whoever named another one meanwhile has the last word."""
    now = f"revision {wanted} is" if wanted else "nothing is"
    return StateError(
        f"{awaited.label} does not serve: by now {now} to serve.",
        state="",
        next_step=f"See: prefect-bt deployments view {awaited.name}",
    )


# -- on the terminal --------------------------------------------------------------------------


@contextmanager
def telling(terminal: Terminal, what: str) -> Generator[Tell]:
    """A spinner on a terminal, a line a phrase elsewhere: a log shows how far it came."""
    if not sys.stderr.isatty():
        yield lambda phrase: terminal.note(f"{what}: {phrase}")
        return
    with terminal.err.status(status_text(what)) as status:
        yield lambda phrase: status.update(status_text(f"{what}: {phrase}"))


@contextmanager
def leaving(terminal: Terminal, awaited: Awaited) -> Generator[None]:
    """Ctrl-C inside ends the waiting, not the server."""
    try:
        yield
    except KeyboardInterrupt:
        terminal.note("")
        terminal.warn(f"{awaited.label} goes on without you.")
        terminal.note(f"  How it is: prefect-bt deployments view {awaited.name}")
        terminal.note(f"  End it:    prefect-bt stop --job-id {awaited.job_id}")
        raise


def say_failure(terminal: Terminal, error: ServingError) -> int:
    """The sentence, the end of the server's log, and who serves as before; the exit code."""
    terminal.error(str(error))
    for line in error.log_tail:
        terminal.note(f"  {printable(line, keep=chr(9))}", style="dim")
    if serving := _serving_revision(error.deployment):
        terminal.note(f"Revision {serving} of {error.deployment} goes on serving.")
    return FAILED


def _serving_revision(name: str) -> int | None:
    """The one that requests go to; None for none."""
    from prefect_bt.router.place import RouterPlace
    from prefect_bt.settings import Settings

    if not name:
        return None
    with suppress(ServerError):  # a damaged route is replaced by the next one
        route = RouterPlace.of(Settings().state_dir, name).route()
        return route.revision if route else None
    return None
