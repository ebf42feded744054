"""Run the checks of a substrate: access, the store, and a trial gang of two nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass

from prefect_bt.definitions import AcceleratorSpec
from prefect_bt.errors import PrefectBtError
from prefect_bt.jobs.substrate_check.trial_gang import TrialGang
from prefect_bt.ledger.creation import check_creates_once, new_nonce
from prefect_bt.ledger.open_ledger import open_settings_store
from prefect_bt.object_keys import PROBES
from prefect_bt.settings import Settings
from prefect_bt.substrates import open_substrate
from prefect_bt.substrates.protocol import CheckResult, CheckStatus

DEFAULT_IMAGE = "python:3.11-slim"


@dataclass(frozen=True)
class CheckOptions:
    """Options of the checks. `timeout`: seconds that the nodes may need to start and end."""

    substrate: str
    image: str = DEFAULT_IMAGE
    accelerator: AcceleratorSpec | None = None
    timeout: float = 180.0


def run_checks(
    options: CheckOptions, *, report: Callable[[str], None] = lambda _: None
) -> Iterator[CheckResult]:
    """Yield each result as soon as it is known. No node is launched after a failure.

    `report` gets what is waited for, when it changes.
    """
    settings = Settings()
    chosen = settings.substrate_options(options.substrate, store=settings.store)
    failed = yield from _guard("Store", _check_store(settings))
    try:
        substrate = open_substrate(options.substrate, **chosen)
        failed |= yield from _guard("Access", substrate.check_access())
    except PrefectBtError as error:
        yield _failure("Substrate", error)
        return
    if failed:
        detail = "not launched, because a check before it failed"
        yield CheckResult("Two nodes", CheckStatus.SKIPPED, detail)
        return
    trial = TrialGang(substrate, settings, options.image, options.accelerator, report=report)
    with trial:
        yield from _guard("Two nodes", trial.run(timeout=options.timeout))


def _guard(name: str, checks: Iterator[CheckResult]) -> Generator[CheckResult, None, bool]:
    """Yield the results; an error becomes the failure `name`. Return whether a check failed."""
    failed = False
    try:
        for result in checks:
            failed |= result.status is CheckStatus.FAILED
            yield result
    except PrefectBtError as error:
        yield _failure(name, error)
        return True
    return failed


def _failure(name: str, error: PrefectBtError) -> CheckResult:
    return CheckResult(name, CheckStatus.FAILED, error.message, error.next_step)


def _check_store(settings: Settings) -> Iterator[CheckResult]:
    """Write, read, list and delete an object."""
    store = open_settings_store(settings)
    key = f"{PROBES}/{new_nonce()}"
    store.put(key, b"check")
    try:
        store.get(key)
        list(store.list(PROBES))
    finally:
        store.delete(key)
    check_creates_once(store, settings.state_dir)
    yield CheckResult("Store", CheckStatus.PASSED, f"{store.url} can be written, from here")
