"""Asynchronous forms of the public functions and flows. Each call runs in its own thread."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar, cast

from prefect_bt.jobs.submit import push, recreate, submit

P = ParamSpec("P")
R = TypeVar("R")

_stop_event: Final = contextvars.ContextVar[threading.Event | None]("stop_event", default=None)


def is_stop_requested() -> bool:
    """Return whether the coroutine that awaits the current function was cancelled."""
    event = _stop_event.get()
    return event is not None and event.is_set()


def asynchronous(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the asynchronous form of a function: a coroutine that runs it in a thread.

    If the coroutine is cancelled, the job that the function runs is stopped. A job that the
    function only submits continues.
    """

    async def run(*args: P.args, **kwargs: P.kwargs) -> R:
        stop = threading.Event()
        context = contextvars.copy_context()
        context.run(_stop_event.set, stop)
        called = cast("Callable[[], R]", partial(context.run, function, *args, **kwargs))
        # Not the loop's own executor: a few long jobs would occupy all its threads.
        executor = ThreadPoolExecutor(1)
        running = asyncio.get_running_loop().run_in_executor(executor, called)
        executor.shutdown(wait=False)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            stop.set()
            await asyncio.wait([running])
            running.exception()  # mark it as retrieved: the caller cancelled it
            raise

    run.__name__ = run.__qualname__ = f"a{getattr(function, '__name__', 'call')}"
    run.__doc__ = function.__doc__
    return run


apush = asynchronous(push)
arecreate = asynchronous(recreate)
asubmit = asynchronous(submit)
