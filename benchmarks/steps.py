"""What a busy uploader costs the training beside it: step times of examples/tiny-lm."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contenders import Site, plain_environment
from figures import Goal, Row, paired

MB = 1_000_000
_LITTLE = Goal("ratio <= 1.01", lambda ratio: ratio <= 1.01)
_TRAIN = Path(__file__).resolve().parents[1] / "examples" / "tiny-lm"
_STEPS, _SIZE, _KEPT = 240, 300 * MB, 6
_WARM_UP = 8
"""Steps that do not count: caches and clocks settle."""
_STRETCH = 5
"""Steps between two switches."""
_TIMED = """
import runpy, sys, time
from transformers import TrainerCallback, trainer
class Timing(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("timed", state.global_step, time.perf_counter(), flush=True)
trainer.DEFAULT_CALLBACKS.append(Timing)
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""
_NOTES = (
    "step_time: examples/tiny-lm, median time of a step (those with a save left out), pairs of "
    "runs with and without an uploader that is never idle; new checkpoints of 300 MB keep coming "
    "in both. Folder store: an S3 server would be another machine.",
    "step_time in one run: the uploader is stopped (SIGSTOP) for every second stretch of steps, so "
    "that the pairs lie seconds apart; the machine's own drift does not count.",
)


def step_time(*, work: Path, runs: int, scale: float) -> list[Row]:
    steps = max(48, int(_STEPS * scale))
    pairs, busy, sent = list[tuple[float, float]](), list[float](), list[float]()
    root = work / "steps"
    shelf = _prepare(root / "shelf", int(_SIZE * min(1.0, scale)))
    for number in range(runs):
        with _feeding(root / f"on-{number}", shelf, uploader=True) as feeder:
            on = statistics.median(_train(root / f"train-on-{number}", steps))
        sent.append(feeder.sent)
        busy.append(feeder.core_share)
        with _feeding(root / f"off-{number}", shelf, uploader=False):
            off = statistics.median(_train(root / f"train-off-{number}", steps))
        pairs.append((on, off))
    extra = {"MB/s_sent": statistics.median(sent), "core_share": statistics.median(busy)}
    rows = [
        paired("step_time", "s", pairs, peer="no uploader", goal=_LITTLE, extra=extra, notes=_NOTES)
    ]
    blocks: list[tuple[float, float]] = []
    for number in range(runs):
        with _feeding(root / f"block-{number}", shelf, uploader=True) as feeder:
            blocks += _alternate(root / f"train-block-{number}", steps, feeder)
    rows.append(paired("step_time", "s", blocks, peer="uploader stopped, one run", goal=_LITTLE))
    return rows


def _prepare(folder: Path, size: int) -> list[Path]:
    folder.mkdir(parents=True)
    block = os.urandom(MB)
    shelf = [folder / f"{number}.raw" for number in range(_KEPT)]
    for path in shelf:
        with path.open("wb") as stream:
            for _ in range(max(1, size // MB)):
                stream.write(block)
    os.sync()
    return shelf


class Feeder:
    """Puts a new checkpoint into the watched folder as soon as fewer than two are on their way.

    A checkpoint is a link to a prepared file whose first bytes are new: all of it must be read,
    hashed and stored again, and making it costs next to nothing.
    """

    def __init__(self, site: Site, shelf: list[Path], process: subprocess.Popen[bytes] | None):
        self.site, self.process = site, process
        self._shelf, self._size = shelf, shelf[0].stat().st_size
        self._stop, self._fed, self._began = threading.Event(), 0, time.monotonic()
        self._thread = threading.Thread(target=self._run)
        self.sent = self.core_share = 0.0

    def __enter__(self) -> Feeder:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.monotonic() - self._began
        self.sent = self._done() * self._size / MB / took
        if self.process:
            self.core_share = _cpu(self.process.pid) / took
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            if self.process is None or self._fed - self._done() < 2:
                self._feed()

    def _done(self) -> int:
        with_status = self.process is not None and self.site.status_file.exists()
        return len(self.site.status.committed) if with_status else 0

    def _feed(self) -> None:
        if self.process is None and self._fed >= 2 * (time.monotonic() - self._began):
            return
        self._fed += 1
        old = self.site.watched / f"checkpoint-{self._fed - _KEPT + 1}"
        shutil.rmtree(old, ignore_errors=True)
        source = self._shelf[self._fed % _KEPT]
        with source.open("r+b") as stream:
            stream.write(os.urandom(16))
        folder = self.site.watched / f"checkpoint-{self._fed}"
        folder.mkdir(parents=True)
        (folder / "weights.raw").hardlink_to(source)
        self._shorten_store()

    def _shorten_store(self) -> None:
        """The disk is not what is measured: objects of older checkpoints go."""
        found = (self.site.root / "store").rglob("*")
        objects = [one for one in found if one.parent.parent.name.startswith("rank-")]
        large = [one for one in objects if one.is_file() and one.stat().st_size == self._size]
        for one in sorted(large, key=lambda path: path.stat().st_mtime)[:-2]:
            one.unlink(missing_ok=True)


@contextmanager
def _feeding(root: Path, shelf: list[Path], *, uploader: bool) -> Iterator[Feeder]:
    site = Site(root, root / "ckpts", str(root / "store"), plain_environment())
    process = site.start() if uploader else None
    site.watched.mkdir(parents=True, exist_ok=True)
    try:
        with Feeder(site, shelf, process) as feeder:
            yield feeder
    finally:
        if process:
            process.kill()
            process.communicate()
        shutil.rmtree(root, ignore_errors=True)
        os.sync()


def _start(folder: Path, steps: int) -> subprocess.Popen[str]:
    environment = {
        **plain_environment(),
        "BT_CHECKPOINT_DIR": str(folder),
        "TINY_LM_STEPS": str(steps),
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", _TIMED],
        env=environment,
        cwd=_TRAIN,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _train(folder: Path, steps: int) -> list[float]:
    """Seconds of every step."""
    process = _start(folder, steps)
    try:
        return [seconds for _, seconds in _steps(process)]
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _alternate(folder: Path, steps: int, feeder: Feeder) -> list[tuple[float, float]]:
    """Pairs of medians (with, without) from neighbouring stretches of steps."""
    assert feeder.process
    process = _start(folder, steps)
    marks: dict[bool, list[float]] = {True: [], False: []}
    stretch: list[float] = []
    running, due = True, _WARM_UP + _STRETCH
    try:
        for step, seconds in _steps(process):
            stretch.append(seconds)
            if step < due:
                continue
            # The first step of a stretch still feels the one before.
            marks[running].append(statistics.median(stretch[1:] or stretch))
            stretch, running, due = [], not running, step + _STRETCH
            feeder.process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)
    finally:
        feeder.process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)
    return list(zip(marks[True], marks[False], strict=False))


def _steps(process: subprocess.Popen[str]) -> Iterator[tuple[int, float]]:
    """(step, seconds) of those after the warm-up in which nothing was saved."""
    assert process.stdout
    before = None
    for line in process.stdout:
        if line.startswith("saved "):
            before = None
        elif line.startswith("timed "):
            step, at = int(line.split()[1]), float(line.split()[2])
            if before is not None and step > _WARM_UP:
                yield step, at - before
            before = at
        elif line.startswith(">"):
            return
    if process.wait():
        sys.exit("The training failed; run examples/tiny-lm/train.py by hand. make demo-deps?")


def _cpu(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")
