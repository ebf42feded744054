"""From the writer's last close to the manifest's presence in the store, less the transfer alone."""

from __future__ import annotations

import io
import json
import os
import shutil
import statistics
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contenders import JOB, PROJECT, Site, plain_environment
from figures import Goal, Row, alone

from prefect_bt.object_keys import manifests_prefix, quote_name

MB = 1_000_000
_SOON = Goal("<= 2 s", lambda seconds: seconds <= 2.0)
_LONGEST = 120.0
_NOTE = (
    "commit_lag: uploader with its default settings, idle before; folder store; the manifest's "
    "name is looked for every 5 ms; less the time of a flush of the same files alone."
)
Write = Callable[[Path, int, int], None]


def commit_lag(*, work: Path, runs: int, scale: float) -> list[Row]:
    """A row a layout; `runs` times five checkpoints each."""
    size = max(1000, int(40 * MB * scale))
    repeats = max(3, int(5 * runs))
    return [
        _row(name, write, fresh, work / f"lag-{number}", repeats, size)
        for number, (name, write, fresh) in enumerate(LAYOUTS)
    ]


def _row(name: str, write: Write, fresh: bool, root: Path, repeats: int, size: int) -> Row:
    alone_s = _transfer_alone(write, root / "alone", size)
    waits = list(_waits(write, root, repeats, size, fresh=fresh))
    shutil.rmtree(root, ignore_errors=True)
    lags = [max(0.0, wait - alone_s) for wait in waits]
    return alone(
        "commit_lag",
        "s",
        lags,
        what=name,
        goal=_SOON,
        extra={"worst": max(lags), "whole_wait": statistics.median(waits), "transfer": alone_s},
        notes=(_NOTE,),
    )


def _waits(write: Write, root: Path, repeats: int, size: int, *, fresh: bool) -> Iterator[float]:
    """Seconds each; `fresh`: a new uploader and directory every time."""
    for batch in range(repeats if fresh else 1):
        place = root / f"site-{batch}"
        site = Site(place, place / "ckpts", str(place / "store"), plain_environment())
        with _running(site):
            for number in range(1 if fresh else repeats):
                name = "." if write is _root_file else f"checkpoint-{number + 1}"
                target = site.watched if name == "." else site.watched / name
                write(target, number + 1, size)
                yield _await_manifest(place / "store", name, time.monotonic())
                time.sleep(0.5)
        shutil.rmtree(place, ignore_errors=True)


def _transfer_alone(write: Write, root: Path, size: int) -> float:
    """Median of three flushes of one checkpoint, less that of an empty folder."""
    took: dict[bool, list[float]] = {False: [], True: []}
    for number in range(3):
        for full, seconds in took.items():
            place = root / f"{number}-{full}"
            site = Site(place, place / "ckpts", str(place / "store"), plain_environment())
            if full:
                inside = site.watched if write is _root_file else site.watched / "checkpoint-1"
                write(inside, number, size)
            seconds.append(site.flush())
            shutil.rmtree(place)
    return max(0.0, statistics.median(took[True]) - statistics.median(took[False]))


@contextmanager
def _running(site: Site) -> Iterator[None]:
    process = site.start()
    try:
        while not site.status_file.exists():
            time.sleep(0.01)
        time.sleep(1.0)
        yield
    finally:
        process.kill()
        process.communicate()


def _await_manifest(store: Path, name: str, since: float) -> float:
    folder = store / manifests_prefix(PROJECT, JOB) / "rank-0" / quote_name(name)
    while True:
        if folder.is_dir() and any(folder.glob("*.json")):
            return time.monotonic() - since
        if time.monotonic() > since + _LONGEST:
            sys.exit(f"{name} was not committed in {_LONGEST:.0f} s.")
        time.sleep(0.005)


def _trainer(folder: Path, number: int, size: int) -> None:
    """As the Hugging Face Trainer: weights first, trainer_state.json last, short pauses between."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    text = json.dumps(head).encode()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "generation_config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + os.urandom(size)
    )
    time.sleep(0.1)
    (folder / "training_args.bin").write_bytes(_zip(b"arguments"))
    (folder / "optimizer.pt").write_bytes(_zip(os.urandom(size)))
    time.sleep(0.1)
    (folder / "scheduler.pt").write_bytes(_zip(b"scheduler"))
    (folder / "rng_state.pth").write_bytes(_zip(os.urandom(1000)))
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": number}))


def _bare(folder: Path, number: int, size: int) -> None:
    """Some files of a framework that nobody knows."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in range(4):
        (folder / f"part-{part}.raw").write_bytes(os.urandom(size // 4))
        time.sleep(0.05)


def _root_file(folder: Path, number: int, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"model-{number}.raw").write_bytes(os.urandom(size))


def _zip(payload: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", payload)
    return buffer.getvalue()


LAYOUTS: list[tuple[str, Write, bool]] = [
    ("a Trainer's folder", _trainer, False),
    ("a folder of unknown files", _bare, False),
    ("a file in the root", _root_file, True),
]
