"""Choose the committed checkpoints that a retention policy deletes. Pure."""

from __future__ import annotations

from collections.abc import Collection

from prefect_bt.checkpoints.layout import get_series, parse_step
from prefect_bt.ledger.records import RetentionPolicy


def select_prunable(names: Collection[str], policy: RetentionPolicy) -> tuple[str, ...]:
    """Return the sorted names, out of the committed `names`, that the policy deletes.

    A name without a step is in no series and stays.
    """
    if policy.keeps_all:
        return ()
    series: dict[str, list[tuple[int, str]]] = {}
    for name in set(names):
        step = parse_step(name)
        if step is not None:
            series.setdefault(get_series(name), []).append((step, name))
    last, every = max(policy.keep_last or 1, 1), policy.keep_every
    older = [one for steps in series.values() for one in sorted(steps)[:-last]]
    gone = [name for step, name in older if not every or every < 1 or step % every]
    return tuple(sorted(gone))
