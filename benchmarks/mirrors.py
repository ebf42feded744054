"""Bytes a second from a source that nobody has yet; what ten at once and a second revision cost."""

from __future__ import annotations

import hashlib
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import bucket_serving
import datasets
import hub_serving
import mirroring
from datasets import Digested
from figures import Goal, Row, alone, paired
from hub_serving import Hub
from mirroring import Machine, Setup, Took, Upstream

MB = 1_000_000
ENDING = ".safetensors"
LARGE, SMALL, MANY = (4, 1_000 * MB), (10_000, 20_000), (10, 100 * MB)
_AT_LEAST = Goal("ratio >= 1", lambda ratio: ratio >= 1)
_ONCE = Goal("<= 1.001", lambda times: times <= 1.001)
_DIVIDED = Goal("<= 1.2", lambda times: times <= 1.2)
_SHARED = Goal("<= 1.11", lambda times: times <= 1.11)
_PROCESSES = 10
_BUCKET, _REPO = "bench", "bench/model"
_FAIR = (
    "mirror_*: ratio is ours / peer's in MB/s: more is better. Same random files from the same "
    "local server, whose page cache is warm; fresh target each, in turn; process start to exit. "
    "ratio_synced: the same with the sync of the disk after it, which ours has done before it says "
    "that it is published and the peers leave to the kernel. ratio_verified: the same with "
    "`openssl dgst -sha256` of all files after s5cmd, which hashes nothing itself.",
    "ours is `prefect-bt weights mirror`: it hashes every file (sha256) and compares it with what "
    "upstream says, keeps it as a blob with a manifest, and links it into a folder store on the "
    "same disk. hf download compares sizes, s5cmd nothing. cpu_s is each one's own CPU time.",
)
Enter = Callable[[int], Took]


def shape(full: tuple[int, int], scale: float) -> tuple[int, int]:
    """Fewer small files, smaller large ones."""
    count, size = full
    return (max(1, int(count * scale)), size) if count > 100 else (count, int(size * scale))


def prepare(setup: Setup, full: tuple[int, int], *, seed: int = 20) -> list[Digested]:
    count, size = shape(full, setup.scale)
    folder = datasets.make(setup.work / "data", count=count, size=size, seed=seed)
    return datasets.digest(folder, ending=ENDING)


# -- throughput -------------------------------------------------------------------------------


def mirror_hub(figure: str, full: tuple[int, int], setup: Setup) -> list[Row]:
    files = prepare(setup, full)
    with hub_serving.serving(setup.work / "hub", delay=setup.delay) as hub:
        hub.publish(_REPO, files)
        upstream = mirroring.hub_upstream(hub.url)

        def rival(target: Path) -> Took:
            return mirroring.hf_download(_REPO, upstream, target)

        entrants = _entrants(setup, files, f"hf://{_REPO}", upstream, rival)
        return _pair(figure, files, entrants, setup, peer="hf download")


def mirror_s3(figure: str, full: tuple[int, int], setup: Setup) -> list[Row]:
    files = prepare(setup, full)
    objects = {"model": files}
    serving = bucket_serving.serving(setup.work / "s3", _BUCKET, objects, delay=setup.delay)
    with serving as endpoint:
        upstream = mirroring.bucket_upstream(endpoint)
        source = f"s3://{_BUCKET}/model"

        def rival(target: Path) -> Took:
            return mirroring.s5cmd(source, upstream, target)

        entrants = _entrants(setup, files, source, upstream, rival)
        return _pair(figure, files, entrants, setup, peer="s5cmd")


def _entrants(
    setup: Setup,
    files: list[Digested],
    source: str,
    upstream: Upstream,
    rival: Callable[[Path], Took],
) -> tuple[Enter, Enter]:
    def ours(number: int) -> Took:
        with mirroring.fresh(setup.work / f"ours-{number}") as root:
            at = mirroring.machine(root)
            took = mirroring.ours(source, upstream, at)
            for folder in at.published() or [root]:
                _check(files, folder)
            return took

    def theirs(number: int) -> Took:
        with mirroring.fresh(setup.work / f"theirs-{number}") as target:
            took = rival(target)
            snapshots = sorted(target.glob("hub/*/snapshots/*"))
            _check(files, snapshots[0] if snapshots else target)
            return took

    return ours, theirs


def _pair(
    figure: str,
    files: list[Digested],
    entrants: tuple[Enter, Enter],
    setup: Setup,
    *,
    peer: str,
) -> list[Row]:
    total = sum(file.size for file in files) / MB
    took: tuple[list[Took], list[Took]] = ([], [])
    for number in range(setup.runs):
        for enter, into in zip(entrants, took, strict=True):
            datasets.warm(files[0].place.parent)
            into.append(enter(number))
    pairs = list(zip(*took, strict=True))
    extra = {
        "MB": total,
        "files": float(len(files)),
        "delay_ms": 1000 * setup.delay,
        "ratio_synced": statistics.median(
            (b.seconds + b.sync) / (a.seconds + a.sync) for a, b in pairs
        ),
        "ratio_verified": statistics.median((b.seconds + b.digests) / a.seconds for a, b in pairs),
        "cpu_s_ours": statistics.median(one.cpu for one in took[0]),
        "cpu_s_peer": statistics.median(one.cpu for one in took[1]),
    }
    return [
        paired(
            figure,
            "MB/s",
            [(total / a.seconds, total / b.seconds) for a, b in pairs],
            peer=peer,
            goal=_AT_LEAST,
            extra=extra,
            notes=_FAIR,
        )
    ]


def _check(files: list[Digested], folder: Path) -> None:
    """Every file at its path with its size, and nothing else; the first one's bytes."""
    found = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file()
    }
    if found != {file.path: file.size for file in files}:
        sys.exit(f"{folder} has {len(found)} files, {sum(found.values())} bytes: not the source's.")
    with (folder / files[0].path).open("rb") as first:
        if hashlib.file_digest(first, "sha256").hexdigest() != files[0].sha256:
            sys.exit(f"{folder / files[0].path} has other bytes than the source.")


# -- what is fetched and kept -----------------------------------------------------------------


def ten_processes(setup: Setup) -> list[Row]:
    """All on one machine; then five each on two machines with one store."""
    files = prepare(setup, MANY)
    return [_crowd(files, machines, setup) for machines in (1, 2)]


def _crowd(files: list[Digested], machines: int, setup: Setup) -> Row:
    total = sum(file.size for file in files)
    times, seconds = list[float](), list[float]()
    for number in range(setup.runs):
        with (
            hub_serving.serving(setup.work / "hub") as hub,
            mirroring.fresh(setup.work / f"crowd-{number}") as root,
        ):
            hub.publish(_REPO, files)
            hosts = [Machine(root / f"host-{index}", root / "store") for index in range(machines)]
            seconds.append(_all_at_once(hosts, hub))
            times.append(hub.sent().bytes / total)
            for host in hosts:
                for folder in host.published() or [root]:
                    _check(files, folder)
    where = "one state directory" if machines == 1 else f"{machines} state directories, one store"
    return alone(
        "mirror_10_processes",
        "x",
        times,
        what=f"upstream bytes / source bytes: {_PROCESSES} processes, {where}",
        goal=_ONCE if machines == 1 else _DIVIDED,
        extra={"MB": total / MB, "all_s": statistics.median(seconds), "worst": max(times)},
    )


def _all_at_once(hosts: list[Machine], hub: Hub) -> float:
    upstream = mirroring.hub_upstream(hub.url)
    began = time.perf_counter()
    asked = [hosts[n % len(hosts)].start(f"hf://{_REPO}", upstream) for n in range(_PROCESSES)]
    try:
        codes = [process.wait() for process in asked]
    finally:
        for process in asked:
            process.kill()
            process.wait()
    if any(codes):
        sys.exit(f"Ten processes at once ended with {codes}; see above.")
    return time.perf_counter() - began


def revisions_share(setup: Setup) -> list[Row]:
    """Ten files, of which the second revision has one other."""
    first = prepare(setup, MANY)
    other = prepare(setup, (1, MANY[1]), seed=21)[0]
    last = first[-1]
    second = [*first[:-1], Digested(last.path, other.size, *_digests(other), place=other.place)]
    disk, upstream_share = list[float](), list[float]()
    for number in range(setup.runs):
        with (
            hub_serving.serving(setup.work / "hub") as hub,
            mirroring.fresh(setup.work / f"revisions-{number}") as root,
        ):
            at, upstream = mirroring.machine(root), mirroring.hub_upstream(hub.url)
            kept: list[int] = []
            for files in (first, second):
                before = hub.sent().bytes
                hub.publish(_REPO, files)
                mirroring.ours(f"hf://{_REPO}", upstream, at)
                kept.append(mirroring.measure(at.state, at.store).on_disk)
                share = (hub.sent().bytes - before) / sum(file.size for file in files)
            disk.append(kept[1] / kept[0])
            upstream_share.append(share)
            if len(at.published()) != 2:
                sys.exit(f"{len(at.published())} revisions are published, not 2.")
    return [
        alone(
            "revisions_share",
            "x",
            disk,
            what="disk with two revisions / with one; 90 % of their bytes are the same",
            goal=_SHARED,
            extra={"second_from_upstream": statistics.median(upstream_share)},
            notes=(
                "revisions_share: blocks of the state directory and the folder store beside it, "
                "hard links counted once.",
            ),
        )
    ]


def _digests(file: Digested) -> tuple[str, str, str]:
    return file.sha256, file.git_sha1, file.etag
