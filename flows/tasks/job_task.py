"""The kind of task of a job's flow, and the states in which its runs end.

Such a task is not retried or cached, whatever Prefect's defaults are. The task stays outside the
transaction of the task that calls it. Its final state has a message: Failed has the error's
message, Cancelled says that an interrupt stopped the task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import wraps
from typing import Any, ParamSpec, cast

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run, task_run
from prefect.states import Cancelled, Crashed, Failed
from prefect.transactions import BaseTransaction
from prefect.utilities.engine import emit_task_run_state_change_event

from prefect_bt.errors import PrefectBtError
from prefect_bt.flows.tasks.reporting.report import API_ERRORS

INTERRUPTS = (KeyboardInterrupt, TerminationSignal)
"""Exceptions of Ctrl-C, SIGTERM and a worker's cancellation in the main thread."""

P = ParamSpec("P")


def job_task(
    name: str, *, run_name: str | Callable[..., str] | None = None, raises: bool = False
) -> Callable[[Callable[P, Any]], Task[P, Any]]:
    """Make a task whose run ends in a state with the error's sentence, without a traceback.

    `raises`: for a task that Prefect retries; Prefect 3.8 does not retry a Failed state.
    """

    def decorate(function: Callable[P, Any]) -> Task[P, Any]:
        @wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return function(*args, **kwargs)
            except PrefectBtError as error:
                if raises:
                    raise
                return failed_state(error)
            except INTERRUPTS as error:
                return Cancelled(message="Stopped by an interrupt.", data=error)

        return Task(
            run,
            name=name,
            task_run_name=cast("Any", run_name),  # the stubs know no function with parameters here
            cache_policy=NO_CACHE,
            persist_result=False,
            # Never retried, whatever Prefect's default is; without a retry that is left, Prefect
            # logs a failed state with the traceback of no exception ("NoneType: None").
            retries=1,
            retry_condition_fn=lambda _task, _run, _state: False,
        )

    return decorate


def failed_state(error: PrefectBtError) -> State[Any]:
    """Return the Failed state of a task or flow that ends with a known error.

    Raised, the error would stand in the run's log with a traceback, and in its state with its
    class's name.
    """
    return Failed(message=str(error), data=error)


def call_task(called: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a task in this thread; return its result, or its Cancelled state if it was stopped.

    Raises the error that ended the task, interrupts included.
    """
    return read_result(called(*args, return_state=True, **kwargs))


def read_result(state: State[Any]) -> Any:
    """Return the result of a task that ended, or its Cancelled state; raise what ended it."""
    ended: Any = getattr(state.data, "result", state.data)
    if isinstance(ended, BaseException):
        raise ended
    return state if state.is_cancelled() else ended


@contextmanager
def outside_transaction() -> Generator[None]:
    """Keep the tasks that the block calls out of the calling task's transaction.

    A transaction that is rolled back sets its finished tasks to RolledBack, which Prefect counts
    as completed: a failed rank of a failed attempt would be green.
    """
    transaction = BaseTransaction.__var__
    token = transaction.set(cast("Any", None))
    try:
        yield
    finally:
        transaction.reset(token)


def start_thread(target: Callable[..., object], *args: object) -> threading.Thread:
    """Start a daemon thread in the run's context: its Prefect server, artifacts and log lines."""
    thread = threading.Thread(target=copy_context().run, args=(target, *args), daemon=True)
    thread.start()
    return thread


def set_task_state(run: TaskRun, state: State[Any]) -> None:
    """Set the state of a task run that no engine of this process owns."""
    state.state_details.task_run_id, state.state_details.flow_run_id = run.id, run.flow_run_id
    emit_task_run_state_change_event(run, initial_state=run.state, validated_state=state)


def end_lost_tasks() -> None:
    """Set the unfinished tasks of this flow run to Crashed: the process that ran them is dead.

    Called by the first task of a process that takes a run up again.
    """
    ours = FlowRunFilter(id=FlowRunFilterId(any_=[cast("Any", flow_run.get_id())]))
    with suppress(*API_ERRORS), get_client(sync_client=True) as client:
        for run in client.read_task_runs(flow_run_filter=ours):
            if str(run.id) != task_run.get_id() and run.state and not run.state.is_final():
                message = "The process of this task died; the job continues in new tasks."
                set_task_state(run, Crashed(message=message))
