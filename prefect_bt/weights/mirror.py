"""Mirror one source on this machine: pin, stage, verify, publish, switch the link.

Safe to run again after any interruption, and from any number of processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from prefect_bt.errors import WeightsError
from prefect_bt.objects.protocols import Store
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights.fetching import fetch_files, halves_of, list_source
from prefect_bt.weights.listing import ListedFile, Listing, check_names, find_fault
from prefect_bt.weights.patterns import choose_files
from prefect_bt.weights.source import Fetches, Source, SourceRequest, TellsTags, open_source


def mirror_source(
    plan: WeightsPlan, *, state_dir: Path, secret: str | None = None, store: Store | None = None
) -> Path:
    """The published folder of the source, fetched unless it is here already.

    A branch is pinned to its commit on every call, so a moved branch is fetched anew; running jobs
    keep the folder they have. `secret` is the value that `plan.secret` names, `store` where
    checkpoints lie (for bt://). WeightsError names the source and what to do.
    """
    root = state_dir.absolute() / "weights"
    source = open_source(SourceRequest(plan, secret, store))
    if source.fixed and (known := _published(root, plan, source.fixed)).is_dir():
        with _single_flight(root, plan):
            _point(root / plan.key, known)
        return known
    listing = list_source(source)
    published = _published(root, plan, listing.revision)
    with _single_flight(root, plan):
        if not published.is_dir():
            _fill(source, plan, listing, published)
        _point(root / plan.key, published)
    return published


def _fill(source: Source, plan: WeightsPlan, listing: Listing, published: Path) -> None:
    wanted = _choose(plan, listing)
    staging = published.parents[1] / ".staging" / published.name
    staging.mkdir(parents=True, exist_ok=True)
    _check_room(plan.source, wanted, staging)
    fetch_files(source, wanted, staging, name=plan.source)
    _verify(source, plan, wanted, staging)
    if not source.pins and source.list().revision != listing.revision:
        _refuse_changed(plan.source, staging)
    if isinstance(source, Fetches):
        source.finish(staging)
    published.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(published)
    for left in staging.parent.glob(f"{plan.key}-*"):
        shutil.rmtree(left, ignore_errors=True)  # of a revision that nobody finished


def _choose(plan: WeightsPlan, listing: Listing) -> list[ListedFile]:
    files = {file.path: file for file in listing.files}
    wanted = choose_files(files, allow=plan.allow_patterns, ignore=plan.ignore_patterns)
    if not wanted:
        why = f"the patterns match none of its {len(files)} files" if files else "it has no files"
        raise WeightsError(
            f"{plan.source}: {why}.",
            source=plan.source,
            next_step="`*` matches the top level only; `**/*` matches every folder."
            if files
            else "Check the source.",
        )
    check_names(plan.source, wanted)
    return [files[path] for path in wanted]


def _check_room(source: str, files: Sequence[ListedFile], staging: Path) -> None:
    missing = sum(file.size or 0 for file in files if not (staging / file.path).is_file())
    halves = halves_of(staging)
    here = sum(half.stat().st_size for half in halves.iterdir()) if halves.is_dir() else 0
    free = shutil.disk_usage(staging).free
    if missing - here > free:
        raise WeightsError(
            f"{source} needs {(missing - here) / 1e9:.1f} GB more in {str(staging.parents[1])!r}, "
            f"and {free / 1e9:.1f} GB are free there.",
            source=source,
            next_step="Make room, give patterns, or set PREFECT_BT_STATE_DIR to another disk.",
        )


# -- verifying ------------------------------------------------------------------------------


def _verify(source: Source, plan: WeightsPlan, files: Sequence[ListedFile], staging: Path) -> None:
    """WeightsError for files that are not what was listed, also when they are fetched anew."""
    bad = _faults(source, files, staging)
    if not bad:
        return
    _forget(source, bad, staging)
    fetch_files(source, list(bad), staging, name=plan.source)
    bad = _faults(source, list(bad), staging)
    if not bad:
        return
    _forget(source, bad, staging)
    file, fault = next(iter(bad.items()))
    more = f" (and {len(bad) - 1} other files)" if len(bad) > 1 else ""
    raise WeightsError(
        f"{plan.source}: {file.path}{more} arrived damaged twice: {fault}.",
        source=plan.source,
        next_step="Push again; if it stays so, a proxy or mirror on the way changes the bytes.",
    )


def _faults(source: Source, files: Sequence[ListedFile], staging: Path) -> dict[ListedFile, str]:
    found = {file: find_fault(file, staging / file.path) for file in files}
    bad = {file: fault for file, fault in found.items() if fault}
    if isinstance(source, TellsTags):
        return {
            file: fault
            for file, fault in bad.items()
            if _missized(file, staging) or source.is_md5(file)
        }
    return bad


def _missized(file: ListedFile, staging: Path) -> bool:
    return file.size != (staging / file.path).stat().st_size


def _forget(source: Source, files: Iterable[ListedFile], staging: Path) -> None:
    for file in files:
        if isinstance(source, Fetches):
            source.forget(file, staging)
        else:
            (staging / file.path).unlink(missing_ok=True)


def _refuse_changed(source: str, staging: Path) -> NoReturn:
    shutil.rmtree(staging, ignore_errors=True)
    raise WeightsError(
        f"{source} changed while it was copied.",
        source=source,
        next_step="Push again when nothing writes there.",
    )


# -- publishing -----------------------------------------------------------------------------


def _published(root: Path, plan: WeightsPlan, revision: str) -> Path:
    return root / ".published" / f"{plan.key}-{revision}"


def _point(link: Path, target: Path) -> None:
    fresh = link.with_name(f".{link.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


@contextmanager
def _single_flight(root: Path, plan: WeightsPlan) -> Generator[None]:
    path = root / ".locks" / plan.key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
