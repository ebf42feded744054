"""Mirror one source on this machine: pin, stage, verify, publish, switch the link.

Safe to run again after any interruption, and from any number of processes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prefect_bt.errors import WeightsError
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights import folder, hub
from prefect_bt.weights.listing import ListedFile, Listing, check_names, find_fault
from prefect_bt.weights.patterns import choose_files


def mirror_source(plan: WeightsPlan, *, state_dir: Path, token: str | None = None) -> Path:
    """The published folder of the source, fetched unless it is here already.

    A branch is pinned to its commit on every call, so a moved branch is fetched anew; running jobs
    keep the folder they have. WeightsError names the source and what to do.
    """
    root = state_dir.absolute() / "weights"
    fixed = hub.fixed_revision(plan.source) if _is_hub(plan.source) else ""
    if fixed and (known := _published(root, plan, fixed)).is_dir():
        with _single_flight(root, plan):
            _point(root / plan.key, known)
        return known
    listing = _list(plan.source, token)
    published = _published(root, plan, listing.revision)
    with _single_flight(root, plan):
        if not published.is_dir():
            _fill(root, plan, listing, token)
        _point(root / plan.key, published)
    return published


def _fill(root: Path, plan: WeightsPlan, listing: Listing, token: str | None) -> None:
    wanted = _choose(plan, listing)
    published = _published(root, plan, listing.revision)
    staging = root / ".staging" / published.name
    staging.mkdir(parents=True, exist_ok=True)
    _check_room(plan.source, wanted, staging)
    _fetch(listing, wanted, staging, token)
    if bad := _faults(wanted, staging):
        for file in bad:
            hub.forget_file(staging, file)
        _fetch(listing, list(bad), staging, token)
        if bad := _faults(list(bad), staging):
            _refuse_damaged(plan.source, bad, staging)
    hub.drop_bookkeeping(staging)
    published.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(published)
    for left in staging.parent.glob(f"{plan.key}-*"):
        shutil.rmtree(left, ignore_errors=True)  # of a revision that nobody finished


def _list(source: str, token: str | None) -> Listing:
    if _is_hub(source):
        return hub.list_repo(source, token=token)
    return folder.list_folder(source)


def _fetch(listing: Listing, files: Sequence[ListedFile], staging: Path, token: str | None) -> None:
    if _is_hub(listing.source):
        hub.fetch_repo_files(listing, files, staging, token=token)
    else:
        folder.copy_files(listing, files, staging)


def _is_hub(source: str) -> bool:
    return source.startswith("hf://")


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
    free = shutil.disk_usage(staging).free
    if missing > free:
        raise WeightsError(
            f"{source} needs {missing / 1e9:.1f} GB more in {str(staging.parents[1])!r}, and "
            f"{free / 1e9:.1f} GB are free there.",
            source=source,
            next_step="Make room, give patterns, or set PREFECT_BT_STATE_DIR to another disk.",
        )


def _faults(files: Sequence[ListedFile], staging: Path) -> dict[ListedFile, str]:
    found = {file: find_fault(file, staging / file.path) for file in files}
    return {file: fault for file, fault in found.items() if fault}


def _refuse_damaged(source: str, bad: dict[ListedFile, str], staging: Path) -> None:
    for file in bad:
        hub.forget_file(staging, file)
    file, fault = next(iter(bad.items()))
    more = f" (and {len(bad) - 1} other files)" if len(bad) > 1 else ""
    raise WeightsError(
        f"{source}: {file.path}{more} arrived damaged twice: {fault}.",
        source=source,
        next_step="Push again; if it stays so, a proxy or mirror on the way changes the bytes.",
    )


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
