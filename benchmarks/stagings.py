"""Milliseconds until a second job has weights that are here already: not to grow with bytes."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import datasets
import hub_serving
import mirroring
from datasets import Digested
from figures import NO_GOAL, Goal, Row, alone, paired
from hub_serving import Hub
from mirroring import Machine, Setup, Upstream
from mirrors import ENDING, MB

SHAPES = {"stage_100mb": (1, 100 * MB), "stage_20gb": (1_000, 20 * MB)}
_SMALL, _LARGE = SHAPES
_SOON = Goal("< 100 ms", lambda milliseconds: milliseconds < 100)
_FLAT = Goal("ratio <= 1.2", lambda ratio: ratio <= 1.2)
_STAGINGS = 10
_NOTES = (
    "stage_*: a branch of a local Hub, asked for its commit every time, in a process that has "
    "everything imported: mirror_source, then the folder bound read-only in a mount namespace of "
    "its own until the first byte of a file was read there. The Hub has lost the files by then.",
    "again: start to exit of `prefect-bt weights mirror` and `hf download`, with nothing to fetch.",
)


@dataclass(frozen=True)
class _Case:
    """One figure's repository, mirrored by ours and by hf download."""

    figure: str
    repo_id: str
    size: int
    files: int
    home: Path
    """HF_HOME of the rival."""

    @property
    def source(self) -> str:
        return f"hf://{self.repo_id}"


def stage(figure: str, setup: Setup) -> list[Row]:
    """The figure's rows; those of the large one need the small one beside it."""
    wanted = [_LARGE, _SMALL] if figure == _LARGE else [figure]
    _check_room(setup, wanted)
    with (
        mirroring.fresh(setup.work / "stage") as root,
        hub_serving.serving(setup.work / "hub", delay=setup.delay) as hub,
    ):
        at, upstream = mirroring.machine(root), mirroring.hub_upstream(hub.url)
        cases = [_mirror_twice(name, at, hub, scale=setup.scale) for name in wanted]
        staged = _stage_in_turn(cases, at, upstream, times=setup.runs * _STAGINGS)
        rows = [_soon(cases[0], staged[cases[0].source])]
        if figure == _LARGE:
            rows.append(_flat(*(staged[case.source] for case in cases)))
        return [
            *rows,
            _again(cases[0], at, upstream, setup.runs),
            _links(cases[0], at, staged, setup.runs),
        ]


def _shape(figure: str, scale: float) -> tuple[int, int]:
    count, size = SHAPES[figure]
    return (max(1, int(count * scale)), size) if count > 1 else (count, size)


def _check_room(setup: Setup, wanted: Sequence[str]) -> None:
    """Twice all files: once as the rival's, from which the Hub serves, and once as ours."""
    need = (
        sum(2 * count * size for count, size in (_shape(name, setup.scale) for name in wanted))
        + 2e9
    )
    free = shutil.disk_usage(setup.work).free
    if free < need:
        sys.exit(
            f"{wanted[0]} needs {need / 1e9:.0f} GB in {setup.work}, and {free / 1e9:.0f} are free."
        )


# -- making -----------------------------------------------------------------------------------


def _mirror_twice(figure: str, at: Machine, hub: Hub, *, scale: float) -> _Case:
    """By both, with one copy of the bytes between the rival and the Hub, which then loses them."""
    count, size = _shape(figure, scale)
    made = at.root / f"{figure}-source"
    files = datasets.digest(datasets.make(made, count=count, size=size), ending=ENDING)
    repo_id = f"bench/{figure.replace('_', '-')}"
    case = _Case(figure, repo_id, count * size, count, at.root / f"{figure}-hf")
    hub.publish(repo_id, files)
    upstream = mirroring.hub_upstream(hub.url)
    mirroring.hf_download(repo_id, upstream, case.home)
    _serve_from(case.home, files)
    mirroring.ours(case.source, upstream, at)
    mirroring.clear(made)
    os.sync()
    return case


def _serve_from(home: Path, files: list[Digested]) -> None:
    """The rival's files under the source's names as well, in place of the source's."""
    for snapshot in home.glob("hub/*/snapshots/*"):
        for file in files:
            file.place.unlink()
            os.link((snapshot / file.path).resolve(), file.place)


# -- measuring --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Staged:
    """Milliseconds, one a time."""

    mirror: list[float]
    whole: list[float]


def _stage_in_turn(
    cases: Sequence[_Case], at: Machine, upstream: Upstream, *, times: int
) -> dict[str, _Staged]:
    command = [sys.executable, str(Path(__file__).with_name("stage_repeatedly.py")), str(times)]
    ran = subprocess.run(
        [*command, *(case.source for case in cases)],
        env=at.environment(upstream),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    if ran.returncode:
        sys.exit("Staging failed; see above.")
    return {
        source: _Staged(*([1000 * row[column] for row in rows] for column in (0, 1)))
        for source, rows in json.loads(ran.stdout).items()
    }


def _soon(case: _Case, staged: _Staged) -> Row:
    return alone(
        case.figure,
        "ms",
        staged.whole,
        what="mirror_source and the mount, in a process that runs",
        goal=_SOON,
        extra={
            "MB": case.size / MB,
            "files": float(case.files),
            "mirror_ms": statistics.median(staged.mirror),
            "worst_ms": max(staged.whole),
        },
        notes=_NOTES,
    )


def _flat(large: _Staged, small: _Staged) -> Row:
    return paired(
        _LARGE,
        "ms",
        list(zip(large.whole, small.whole, strict=True)),
        peer=f"{_SMALL}, in turn",
        goal=_FLAT,
    )


def _again(case: _Case, at: Machine, upstream: Upstream, runs: int) -> Row:
    pairs = [
        (
            1000 * mirroring.ours(case.source, upstream, at).seconds,
            1000 * mirroring.hf_download(case.repo_id, upstream, case.home).seconds,
        )
        for _ in range(runs)
    ]
    return paired(case.figure, "ms", pairs, peer="again: a process of ours, hf download")


def _links(case: _Case, at: Machine, staged: dict[str, _Staged], runs: int) -> Row:
    """What staging would be with the cheapest copy there is."""
    folder = max(at.published(), key=lambda path: mirroring.measure(path).apparent)
    took: list[float] = []
    for number in range(runs):
        target = at.root / f"links-{number}"
        began = time.perf_counter()
        subprocess.run(["cp", "-al", str(folder), str(target)], check=True)
        took.append(1000 * (time.perf_counter() - began))
        mirroring.clear(target)
    pairs = list(zip(staged[case.source].whole, took, strict=False))
    return paired(case.figure, "ms", pairs, peer="cp -al of the same files", goal=NO_GOAL)
