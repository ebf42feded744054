"""kill -9 at any moment: only whole checkpoints are seen, and at the end nothing is left over.

The gate kills an uploader over a folder when it starts, while it sends and after a commit;
upload/test_store_faults.py kills one in the middle of a part. `make soak` kills at random moments.
"""

import random
import shutil
import signal
import threading
import time
from hashlib import sha256

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.object_store import open_store
from tests.checkpoints.upload.test_upload_process import Site
from tests.forked import Forked
from tests.s3_server import shared_s3

from . import folders
from .buckets import Bucket, use
from .folders import JOB, PROJECT
from .running import wait_for

EPISODE = 20
"""Kills a job: the S3 server keeps everything in memory."""
LARGE = 3 * (8 << 20) + 12_345
"""More than three parts of an upload_process."""
SMALL = 100_000
KEPT = 3
"""As save_total_limit."""

UPLOADER = """
import sys
from prefect_bt.node_agent import upload_process
# The Trainer would leave it nothing on a busy machine.
upload_process._lower_priority = lambda: None
sys.exit(upload_process.main(sys.argv[1:]))
"""


class Quick(Site):
    """One whose uploader is a fork, as quick as the Trainer, and patient with its pauses.

    What proves to be finished is taken nevertheless, half a second after its last file.
    """

    def start(self, attempt=1, patience=5.0, settle=60.0):
        return Forked(UPLOADER, self.arguments(attempt, patience, settle), piped=True)


class DiskPlace:
    """A folder store, and what an interrupted upload leaves in it."""

    def __init__(self, root):
        self.root = root
        self.url = str(root)

    def unfinished(self):
        """Files that are no objects."""
        private = self.root / ".prefect-bt-tmp"
        return [str(path) for path in private.rglob("*") if path.is_file()]

    def empty(self):
        shutil.rmtree(self.root)


class Trainer(threading.Thread):
    """Checkpoints for ever, in pieces; some are large.

    Only the last few stay on the disk, from when `rotates` is set.
    """

    def __init__(self, ckpts, rotates):
        super().__init__()
        self.rotates, self._oldest = rotates, 1
        self.ckpts, self.stop = ckpts, threading.Event()
        self.written: dict[str, dict[str, str]] = {}
        """Name -> path -> digest, told before the first byte is written."""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join()

    def run(self):
        step = 0
        while not self.stop.is_set():
            step += 1
            size = LARGE if step % 4 == 1 else SMALL
            files = folders.hf_full(step, b"%05d" % step, SMALL)
            files["optimizer.pt"] = folders.torch_zip(random.Random(step).randbytes(size))
            name = f"checkpoint-{step}"
            self.written[name] = {path: sha256(data).hexdigest() for path, data in files.items()}
            self._write(name, files)
            while self.rotates.is_set() and self._oldest <= step - KEPT:
                shutil.rmtree(self.ckpts / f"checkpoint-{self._oldest}")
                self._oldest += 1
            self.stop.wait(0.4 if size == LARGE else 0.2)

    def _write(self, name, files):
        folder = self.ckpts / name
        folder.mkdir()
        for path, data in files.items():
            with (folder / path).open("wb") as stream:
                for start in range(0, len(data), 1 << 20):
                    stream.write(data[start : start + (1 << 20)])
                    stream.flush()


class Reader:
    """What others see: every manifest's objects are hashed, each once in a job."""

    def __init__(self, site, written):
        self.site, self.written = site, written
        self._seen: set[str] = set()

    def check(self):
        for name, one in self.site.listed().items():
            key = one.newest_manifest
            if key in self._seen:
                continue
            self._seen.add(key)
            files = {file.path.removeprefix(f"{name}/"): file for file in one.files()}
            assert {path: file.sha256 for path, file in files.items()} == self.written[name], name
            for file in files.values():
                data = self.site.store.get(file.key)
                assert len(data) == file.size and sha256(data).hexdigest() == file.sha256, file


def current(site):
    """What the uploader says it is sending."""
    return site.status.current if site.status_file.exists() else ""


def wait_for_an_upload(site, place, seconds=15.0):
    """Until something is under way; at a bucket, something of more than one part."""
    under_way = place.unfinished if isinstance(place, Bucket) else lambda: current(site)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not under_way():
        time.sleep(0.01)


@pytest.mark.slow
def test_killed_when_it_starts_while_it_sends_and_after_a_commit(tmp_path):
    place, rotates = DiskPlace(tmp_path / "store"), threading.Event()

    def after_a_commit(site):
        wait_for(site.listed)
        rotates.set()  # before, an uploader that gets little time would find nothing that stays
        wait_for(lambda: not (site.ckpts / "checkpoint-1").exists())

    moments = [
        lambda site: wait_for(site.status_file.exists),
        lambda site: wait_for(lambda: current(site)),
        after_a_commit,
    ]
    episode(place, Quick(tmp_path / "job"), moments, rotates, settle=60)


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.parametrize("kind", ["disk", "s3"])
def test_killed_at_random_moments(kind, tmp_path, monkeypatch, soak):
    if kind == "disk":
        place = DiskPlace(tmp_path / "store")
    else:
        use(monkeypatch, shared_s3())
        place = Bucket(shared_s3())

    def moment(site):
        wait_for(site.status_file.exists)
        if soak.random.random() < 0.5:
            time.sleep(soak.random.uniform(0, 1.0))
            return
        wait_for_an_upload(site, place)
        # A folder takes a checkpoint in some hundredths of a second.
        time.sleep(soak.random.uniform(0, 0.1 if kind == "s3" else 0.02))

    rotates = threading.Event()
    rotates.set()
    for number in range(soak.length):
        episode(place, Site(tmp_path / str(number)), [moment] * EPISODE, rotates, settle=0.05)


def episode(place, site, moments, rotates, *, settle):
    """One job, whose uploader is killed at each of the moments."""
    site.store, attempt = open_store(place.url), 1
    with Trainer(site.ckpts, rotates) as trainer:
        reader = Reader(site, trainer.written)
        for number, moment in enumerate(moments):
            site.status_file.unlink(missing_ok=True)
            process = site.start(attempt=attempt, settle=settle)
            moment(site)
            process.send_signal(signal.SIGKILL)
            process.communicate()
            reader.check()
            # The agent starts another of the same attempt; now and then the gang tries again.
            attempt += number % 6 == 5
    assert site.end(site.start(attempt=attempt, patience=30)) == 0
    status = site.status
    assert status.flushed and not status.error and status.uncommitted == ()
    assert {path.name for path in site.ckpts.iterdir()} <= set(site.listed())
    reader.check()
    assert verify_committed.verify(site.store, PROJECT, JOB) == []
    # In a folder each thread of a killed uploader may leave a temporary file, which gc can find.
    if isinstance(place, Bucket):
        assert not place.unfinished()
    else:
        listed = {str(place.root / one.key) for one in site.store.list_unfinished_uploads()}
        assert set(place.unfinished()) <= listed
    place.empty()
