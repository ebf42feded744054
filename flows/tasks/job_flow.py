"""The kind of flow that this package offers: its retries, interrupts, pickles and results.

These flows return a Failed state. Prefect does not retry such a run but leaves it in AwaitingRetry
for ever. So Prefect's retries of the flow are taken as attempts of the job, or refused.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, Self, TypeVar, cast

from prefect import Flow
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.logging import get_logger
from prefect.settings import get_current_settings
from prefect.states import Cancelled

from prefect_bt.blocks.forms import AwaitableValue
from prefect_bt.errors import DefinitionError, PrefectBtError

P = ParamSpec("P")
R = TypeVar("R")


class JobFlow(Flow[P, R]):
    """A flow whose retries are attempts of its job."""

    takes_retries = False
    """Whether the flow has attempts; else Prefect's retries are refused."""
    attempt_retries: int | None = None
    """Retries given to `with_options`."""
    interrupt: KeyboardInterrupt | None = None
    """Interrupt of the run that is ending: the run is Cancelled, and its caller interrupted."""

    def with_options(self, **options: Any) -> Self:
        """Return a copy with other options. Retries become attempts; DefinitionError if none are.

        The delay between attempts is the retry policy's.
        """
        retries = options.pop("retries", None)
        if options.get("retry_delay_seconds") or (retries and not self.takes_retries):
            raise DefinitionError(
                f"The flow {self.name} does not support Prefect's own retries.",
                next_step="Use the parameters retries and retry_policy of `train`."
                if self.takes_retries
                else "Run it again: it continues from the existing data.",
            )
        copy: Any = super().with_options(**options, retries=0)
        copy.__class__ = type(self)
        copy.takes_retries = self.takes_retries
        copy.attempt_retries = self.attempt_retries if retries is None else retries
        return copy

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the flow and return its result, which a coroutine may also await."""
        try:
            result: Any = super().__call__(*args, **kwargs)
        finally:
            # Interrupts arrive in the main thread; the flow of another one goes on.
            if threading.current_thread() is threading.main_thread():
                interrupt, self.interrupt = self.interrupt, None
                if interrupt is not None:
                    raise interrupt
        if isinstance(result, dict):
            return AwaitableDict(cast("dict[str, Any]", result))
        return AwaitableList(cast("list[Any]", result)) if isinstance(result, list) else result

    def __reduce__(self) -> Any:
        """Pickle as a reference, also if cloudpickle should pickle this package by value."""
        module, name = self.fn.__module__, self.fn.__name__
        original = getattr(importlib.import_module(module), name)
        kept = original.__dict__
        changed = {
            key: value
            for key, value in self.__dict__.items()
            if key not in kept or (value is not kept[key] and value != kept[key])
        }
        return load_flow, (module, name, changed)


class AwaitableDict(AwaitableValue, dict[str, Any]):
    """A document that may be awaited."""


class AwaitableList(AwaitableValue, list[Any]):
    """A list that may be awaited."""


def load_flow(module: str, name: str, changed: dict[str, Any]) -> Any:
    """Return a copy of a flow of this package, with the options that differ."""
    flow: Any = getattr(importlib.import_module(module), name)
    loaded: Any = object.__new__(cast("type[Any]", type(flow)))
    loaded.__dict__.update({**flow.__dict__, **changed})
    return loaded


def job_flow(
    name: str, *, takes_retries: bool = False, **options: Any
) -> Callable[[Callable[P, R]], JobFlow[P, R]]:
    """Make a flow whose result is stored, so that a retried parent gets it again."""

    def decorate(function: Callable[P, R]) -> JobFlow[P, R]:
        made: JobFlow[P, R] = JobFlow(
            function, name=name, retries=0, persist_result=True, **options
        )
        made.takes_retries = takes_retries
        return made

    return decorate


def interrupted_state(interrupt: KeyboardInterrupt) -> State[Any]:
    """Return the state of a run that Ctrl-C ends; its caller is interrupted once it is set."""
    if threading.current_thread() is threading.main_thread():
        cast("Any", FlowRunContext.get()).flow.interrupt = interrupt
    return Cancelled(message="Stopped by an interrupt.")


def find_flow_retries() -> int | None:
    """Return the retries that the running flow was given as Prefect's, or has by default."""
    context = FlowRunContext.get()
    given: int | None = getattr(context.flow if context else None, "attempt_retries", None)
    return given if given is not None else get_current_settings().flows.default_retries or None


def _is_shown(record: logging.LogRecord) -> bool:
    """Return False for the line with which Prefect's engine logs the error of a Failed state."""
    error = record.exc_info[1] if record.exc_info else None
    by_engine = "exited with unexpected exception" in str(record.msg)
    return not (by_engine and isinstance(error, PrefectBtError))


# Of a run that a worker started, Prefect logs the traceback of the error in its Failed state.
for _name in ("engine", "flow_runs"):
    get_logger(_name).addFilter(_is_shown)
