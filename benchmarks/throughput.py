"""Bytes a second into a store: three shapes of checkpoint into S3, one large file into a folder."""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import contenders
import datasets
from contenders import Site
from figures import NO_GOAL, Goal, Row, paired
from servers import Server

MB = 1_000_000
SHAPES = {
    "upload_one_4gb": (1, 4_000 * MB),
    "upload_40x100mb": (40, 100 * MB),
    "upload_10000x20kb": (10_000, 20_000),
}
_AT_LEAST = Goal("ratio >= 1", lambda ratio: ratio >= 1)
_MOST = Goal("ratio >= 0.8", lambda ratio: ratio >= 0.8)
FAIR = (
    "ratio is ours / peer's in MB/s: more is better. Same files (random, page cache warm), same "
    "server, fresh prefix each, in turn; process start to exit, and for ours everything committed.",
    "ours runs at nice 19 with idle I/O, hashes every file (sha256), sends a sha256 a part, and "
    "writes a manifest; s5cmd verifies nothing but what the SDK signs, boto3 sends a CRC32; both "
    "run at nice 0 unless --same-priority. cpu_s is each one's own CPU time, which a busy machine "
    "hardly changes.",
)


def uploads(  # one figure's arguments
    figure: str, server: Server, *, work: Path, runs: int, scale: float, same_priority: bool
) -> list[Row]:
    count, size = SHAPES[figure]
    count, size = (count, int(size * scale)) if count == 1 else (max(1, int(count * scale)), size)
    folder = datasets.make(work / "data", count=count, size=size)
    total = datasets.size_of(folder) / MB
    root = work / "sites"

    def nice(who: Callable[..., float]) -> Callable[[Server, Path, str], float]:
        return lambda server, folder, prefix: who(server, folder, prefix, nice=same_priority)

    entrants: dict[str, Callable[[Server, Path, str], float]] = {
        "ours": lambda server, folder, prefix: contenders.ours(server, folder, prefix, root=root),
        "s5cmd": nice(contenders.s5cmd),
        "boto3": nice(contenders.boto3),
    }
    took: dict[str, list[float]] = {name: [] for name in entrants}
    cores: dict[str, list[float]] = {name: [] for name in entrants}
    empty = [start_up(work / "empty", server) for _ in range(runs)]
    for number in range(runs):
        for name, enter in entrants.items():
            used = _cpu_of_children()
            took[name].append(_one(enter, server, folder, f"{figure}-{name}-{number}", count))
            cores[name].append(_cpu_of_children() - used)
    speeds = {name: [total / seconds for seconds in all_of] for name, all_of in took.items()}
    extra = {"MB": total, "files": float(count), "start_up_s": statistics.median(empty)}
    extra |= {f"cpu_s_{name}": statistics.median(used) for name, used in cores.items()}
    return [
        paired(
            figure,
            "MB/s",
            list(zip(speeds["ours"], speeds[rival], strict=True)),
            peer=rival,
            goal=_AT_LEAST if rival == "s5cmd" else NO_GOAL,
            extra=extra if rival == "s5cmd" else {},
            notes=(*FAIR, f"server: {server.name}"),
        )
        for rival in ("s5cmd", "boto3")
    ]


def _cpu_of_children() -> float:
    """Seconds of those that have ended: the server is not among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def start_up(root: Path, server: Server) -> float:
    """Seconds of the uploader's process with nothing to do."""
    shutil.rmtree(root, ignore_errors=True)
    return Site(root, root / "nothing", f"s3://{server.bucket}/none", server.environment).flush()


def _one(
    enter: Callable[[Server, Path, str], float],
    server: Server,
    folder: Path,
    prefix: str,
    count: int,
) -> float:
    datasets.warm(folder)
    try:
        took = enter(server, folder, prefix)
        there, size = server.count(f"{prefix}/")
        # Ours has a manifest and the like besides.
        if there < count or size < datasets.size_of(folder):
            raise SystemExit(f"{prefix}: {there} objects, {size} bytes on the server.")
        return took
    finally:
        server.clear(prefix)


def local_store(*, work: Path, runs: int, scale: float) -> list[Row]:
    """Cold file into a folder store on the same disk, beside a read of it and a copy of it."""
    folder = datasets.make(work / "data", count=1, size=int(4_000 * MB * scale))
    source = next(folder.rglob("*.raw"))
    total = source.stat().st_size / MB
    copies, reads, direct, plain = (list[float]() for _ in range(4))
    cold = 0.0
    for number in range(runs):
        for measure, into in (
            (_store, copies),
            (_read, reads),
            (_read_direct, direct),
            (_copy, plain),
        ):
            datasets.cool(folder)
            cold = max(cold, datasets.cached(source))
            into.append(total / measure(folder, source, work / f"local-{number}"))
            shutil.rmtree(work / f"local-{number}", ignore_errors=True)
    extra = {"MB": total, "cached_share_before": cold}
    notes = (
        "local_store: source file out of the page cache before every run; ours and cp end with "
        "the copy synced to the disk.",
    )
    rows = (
        (reads, "cold sequential read", _MOST),
        (direct, "O_DIRECT sequential read", _MOST),
        (plain, "cp and fsync", NO_GOAL),
    )
    return [
        paired(
            "local_store",
            "MB/s",
            list(zip(copies, theirs, strict=True)),
            peer=name,
            goal=goal,
            extra=extra if theirs is reads else {},
            notes=notes,
        )
        for theirs, name, goal in rows
    ]


def _store(folder: Path, source: Path, root: Path) -> float:
    return Site(root, folder, str(root / "store"), contenders.plain_environment()).flush()


def _read(folder: Path, source: Path, root: Path) -> float:
    buffer = memoryview(bytearray(4 * 1024 * 1024))
    began = time.perf_counter()
    with source.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
    return time.perf_counter() - began


def _read_direct(folder: Path, source: Path, root: Path) -> float:
    command = ["dd", f"if={source}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"]
    began = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - began


def _copy(folder: Path, source: Path, root: Path) -> float:
    root.mkdir(parents=True)
    began = time.perf_counter()
    subprocess.run(["cp", "--reflink=auto", str(source), str(root / "copy")], check=True)
    subprocess.run(["sync", str(root / "copy")], check=True)
    return time.perf_counter() - began
