"""Mirror one source on this machine: pin, stage, publish, switch the link. Safe to run again."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from prefect_bt.errors import WeightsError
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.hub import download_files, pin_revision
from prefect_bt.weights.patterns import choose_files


def mirror_source(plan: WeightsPlan, *, state_dir: Path, token: str | None = None) -> Path:
    """The published folder of the source, fetched unless it is here already.

    A branch is pinned to its commit on every call, so a moved branch is fetched anew; running jobs
    keep the folder they have. WeightsError names the source and what to do.
    """
    root = state_dir / "weights"
    pinned = pin_revision(plan.source, token=token)
    name = f"{plan.key}-{pinned.revision}"
    published = root / ".published" / name
    with _single_flight(root / ".locks" / plan.key):
        if not published.is_dir():
            wanted = choose_files(
                pinned.files, allow=plan.allow_patterns, ignore=plan.ignore_patterns
            )
            if not wanted:
                raise WeightsError(
                    f"{plan.source}: the patterns match none of its {len(pinned.files)} files.",
                    source=plan.source,
                    next_step="`*` matches the top level only; `**/*` matches every folder.",
                )
            staging = root / ".staging" / name
            staging.mkdir(parents=True, exist_ok=True)
            download_files(pinned, wanted, staging, token=token)
            published.parent.mkdir(parents=True, exist_ok=True)
            staging.rename(published)
        _point(root / plan.key, published)
    return published


def _point(link: Path, target: Path) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def _single_flight(path: Path) -> Generator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
