"""Training jobs in the manner of Baseten Training, under Prefect, on your own machines.

Begin with `jobs.submit` (from a definition to a job) and `prefect_bt.flows.train` (from a job to
its end). docs/architecture.md says what each package holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefect_bt.jobs.asynchronous import apush, arecreate, asubmit
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.submit import push, recreate, submit

__version__ = "0.1.0"
__all__ = ["SubmitOptions", "apush", "arecreate", "asubmit", "push", "recreate", "submit"]


def __getattr__(name: str) -> Any:
    """Load the public functions when they are asked for: a node needs none of them."""
    if name in __all__:
        from prefect_bt.jobs import asynchronous, submit

        return getattr(submit, name, None) or getattr(asynchronous, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
