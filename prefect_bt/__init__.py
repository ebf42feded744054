"""Training jobs as on Baseten Training, run by Prefect on your own machines.

Begin with `jobs.submit`, which makes a job from a definition, and `prefect_bt.flows.train`, which
runs the job. docs/architecture.md describes the packages.
"""

from __future__ import annotations

TYPE_CHECKING = False  # without `typing`, whose import delays the handler of Ctrl-C
if TYPE_CHECKING:
    from typing import Any

    from prefect_bt.jobs.asynchronous import apush, arecreate, asubmit
    from prefect_bt.jobs.metrics.view import metrics
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.submit import push, recreate, submit

__version__ = "0.1.0"
__all__ = [
    "SubmitOptions",
    "apush",
    "arecreate",
    "asubmit",
    "metrics",
    "push",
    "recreate",
    "submit",
]


def __getattr__(name: str) -> Any:
    """Load the public functions on first use, because a node needs none of them."""
    if name == "metrics":
        from prefect_bt.jobs.metrics import view

        return view.metrics
    if name in __all__:
        from prefect_bt.jobs import asynchronous, submit

        return getattr(submit, name, None) or getattr(asynchronous, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
