"""What the package's flows add to Prefect's: pickles, retries, results that may be awaited."""

import asyncio
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import cloudpickle
import pytest
from prefect.logging import get_logger
from prefect.settings import PREFECT_FLOWS_DEFAULT_RETRIES, temporary_settings

import prefect_bt
from prefect_bt import errors
from prefect_bt.flows.deploy_checkpoints import deploy_checkpoints
from prefect_bt.flows.mirror_weights import mirror_weights
from prefect_bt.flows.reconcile import reconcile
from prefect_bt.flows.serve import serve
from prefect_bt.flows.tasks.job_flow import AwaitableDict, find_flow_retries
from prefect_bt.flows.train import train
from prefect_bt.jobs.asynchronous import asynchronous, is_stop_requested

FLOWS = [train, serve, mirror_weights, deploy_checkpoints, reconcile]


@pytest.mark.slow
def test_flows_are_pickled_where_packages_are_taken_by_value() -> None:
    """As by process pools and Prefect's infrastructure bundles, for packages that are edited."""
    script = """
import pickle, sys
for data in pickle.loads(sys.stdin.buffer.read()):
    flow = pickle.loads(data)
    assert flow.name == "renamed" and type(flow).__name__ == "JobFlow", flow
    given = {"job_id": "x"} if flow.fn.__name__ == "serve" else {}
    original = getattr(sys.modules[flow.fn.__module__], flow.fn.__name__)
    assert original is not flow and original.name != "renamed"
    flow.validate_parameters(flow.serialize_parameters(given))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        input=pickle.dumps([pickle_by_value(flow) for flow in FLOWS]),
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr.decode()


def pickle_by_value(flow: Any) -> bytes:
    module = sys.modules[flow.fn.__module__]
    cloudpickle.register_pickle_by_value(prefect_bt)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(flow.with_options(name="renamed"))
    finally:
        cloudpickle.unregister_pickle_by_value(prefect_bt)
        cloudpickle.unregister_pickle_by_value(module)


def test_errors_survive_pickling() -> None:
    plan = errors.PlanError(["one", "two"], next_step="Change it.")
    failed = errors.AttemptFailed("It failed.", outcome={"attempt": 1})
    for error in (plan, failed, errors.SecretError(["a"], ["b"])):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))


def test_retries_of_train_are_attempts_and_those_of_others_are_refused() -> None:
    retried = train.with_options(retries=2, name="sweep")
    assert (retried.retries, retried.attempt_retries, train.attempt_retries) == (0, 2, None)
    assert retried.with_options(name="again").attempt_retries == 2
    for flow in (serve, mirror_weights, deploy_checkpoints, reconcile):
        with pytest.raises(errors.DefinitionError, match="not support Prefect's own retries"):
            flow.with_options(retries=1)
    with pytest.raises(errors.DefinitionError, match="retry_policy"):
        train.with_options(retry_delay_seconds=5)


def test_a_default_of_all_flows_counts_as_attempts() -> None:
    assert find_flow_retries() is None
    with temporary_settings({PREFECT_FLOWS_DEFAULT_RETRIES: 3}):
        assert find_flow_retries() == 3
        assert train.with_options(name="x").retries == 0


def test_every_public_function_has_an_asynchronous_form() -> None:
    public = [name for name in prefect_bt.__all__ if name.islower() and not name.startswith("a")]
    assert public == ["metrics", "push", "recreate", "submit"]
    for name in public[1:]:  # metrics only reads
        form = getattr(prefect_bt, f"a{name}")
        assert inspect.iscoroutinefunction(form)
        assert form.__name__ == f"a{name}"
    for flow in FLOWS:
        module = sys.modules[flow.fn.__module__]
        assert inspect.iscoroutinefunction(getattr(module, f"a{flow.fn.__name__}"))


def test_a_result_may_be_awaited() -> None:
    async def run() -> object:
        return await AwaitableDict(id="x")

    assert asyncio.run(run()) == {"id": "x"}


def test_a_cancelled_coroutine_stops_what_it_runs_and_waits_for_it() -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        while not is_stop_requested():
            time.sleep(0.01)
        ended.set()

    async def run() -> None:
        task = asyncio.create_task(asynchronous(work)())
        await asyncio.to_thread(began.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    asyncio.run(run())


def test_long_calls_do_not_take_the_threads_of_the_loop() -> None:
    """Run more calls at once than the loop's executor has threads."""
    over, count = threading.Event(), (os.cpu_count() or 1) + 5

    async def run() -> None:
        wait = asynchronous(over.wait)
        running = [asyncio.create_task(wait(60)) for _ in range(count)]
        await asyncio.sleep(0)
        await asyncio.to_thread(over.set)
        assert all(await asyncio.gather(*running))

    asyncio.run(run())


def test_only_the_engines_line_about_a_known_error_is_dropped() -> None:
    """A person's own `logger.exception` in a flow is shown."""

    def is_shown(message: str, error: Exception) -> bool:
        info = (type(error), error, None)
        record = logging.LogRecord("flow_runs", logging.ERROR, "", 0, message, None, info)
        return bool(get_logger("flow_runs").filter(record))

    by_engine, failed = "Engine execution exited with unexpected exception", "The job failed."
    assert not is_shown(by_engine, errors.AttemptFailed(failed, outcome={}))
    assert is_shown("falling back", errors.AttemptFailed(failed, outcome={}))
    assert is_shown(by_engine, OSError(failed))
