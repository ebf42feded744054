"""The uploader as the process it is: kills, signals, priority, full disks, memory."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest

from prefect_bt import codec
from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.plan import CheckpointPlan
from tests.attempts.simulated import plan
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT
from tests.checkpoints.running import wait_for

pytestmark = [pytest.mark.slow]


class Site:
    """A node's files on disk, and the uploader's process on them."""

    def __init__(self, root, store=None):
        self.root, self.ckpts = root, root / "ckpts"
        self.ckpts.mkdir(parents=True, exist_ok=True)
        self.store = DiskStore(store or root / "store")
        self.status_file = root / "status.json"

    def start(self, attempt=1, patience=5.0, settle=0.05, prefix=()):
        return subprocess.Popen(
            [
                *(*prefix, sys.executable, "-m", "prefect_bt.node_agent.upload_process"),
                *self.arguments(attempt, patience, settle),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def arguments(self, attempt, patience, settle=0.05):
        checkpoints = CheckpointPlan(directory="/mnt/ckpts", settle=settle, scan=0.02)
        facts = {"attempt": attempt, "store": self.store.url, "checkpoints": checkpoints}
        node = replace(plan(1).nodes[0], job_id=JOB, project_id=PROJECT, **facts)
        file = self.root / "plan.json"
        file.write_text(codec.dumps(node))
        return [
            *("--plan", str(file), "--directory", str(self.ckpts)),
            *("--status", str(self.status_file), "--patience", str(patience)),
        ]

    def ask_to_end(self, process):
        """Close its standard input, and go on without waiting."""
        process.stdin.close()
        process.stdin = None

    def end(self, process):
        _, errors = process.communicate(timeout=200)
        assert not errors, errors
        return process.returncode

    @property
    def status(self):
        return codec.loads(UploadStatus, self.status_file.read_bytes())

    def listed(self):
        return {one.checkpoint_id: one for one in list_checkpoints(self.store, PROJECT, JOB)}

    def wait_for(self, name, seconds=600):  # of nice 19: on a busy machine it has few of them
        deadline = time.monotonic() + seconds
        while name not in self.listed():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_commits_while_running_and_flushes_at_the_end(site):
    process = site.start()
    folders.write(site.ckpts / "checkpoint-10", folders.hf_full(10))
    site.wait_for("checkpoint-10")
    folders.write(site.ckpts / "checkpoint-20", folders.hf_full(20))
    assert site.end(process) == 0
    assert site.status.flushed
    assert site.status.committed == ("checkpoint-10", "checkpoint-20")
    assert site.status.lag is not None


def test_signals_are_for_the_commands(site):
    process = site.start()
    folders.write(site.ckpts / "checkpoint-10", folders.hf_full(10))
    site.wait_for("checkpoint-10")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
    folders.write(site.ckpts / "checkpoint-20", folders.hf_full(20))
    site.wait_for("checkpoint-20")
    assert process.poll() is None
    assert site.end(process) == 0


def test_it_steps_back(site):
    process = site.start()
    folders.write(site.ckpts / "a", {"x": b""})
    site.wait_for("a")
    assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
    assert site.end(process) == 0


def test_it_starts_light():
    code = (
        "import sys; import prefect_bt.node_agent.upload_process;"
        "print([m for m in ('prefect', 'docker',"
        "'kubernetes', 'pydantic', 'obstore', 'boto3', 'huggingface_hub') if m in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("text", ["", "{}", '{"job_id": 1}'])
def test_a_bad_plan_is_an_error(site, text):
    file = site.root / "plan.json"
    file.write_text(text)
    command = [sys.executable, "-m", "prefect_bt.node_agent.upload_process", "--plan", str(file)]
    command += ["--directory", str(site.ckpts), "--status", str(site.status_file)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 1
    assert "uploader failed" in site.status.error


def write_slowly(folder, files):
    """As a trainer does: in pieces, now and then with a pause."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        with (folder / path).open("wb") as stream:
            for start in range(0, len(data), 40_000):
                stream.write(data[start : start + 40_000])
                stream.flush()
                time.sleep(0.001)


def train(ckpts, stop, written):
    """Checkpoints for ever, only the last three kept on disk."""
    step = 0
    while not stop.is_set():
        step += 1
        files = folders.hf_full(step, b"%05d" % step, 200_000)
        written[f"checkpoint-{step}"] = files
        write_slowly(ckpts / f"checkpoint-{step}", files)
        if step > 3:
            shutil.rmtree(ckpts / f"checkpoint-{step - 3}")
        time.sleep(0.15)


def assert_only_whole(site, written):
    """What is committed is what was written, every byte of it."""
    assert verify_committed.verify(site.store, PROJECT, JOB) == []
    for name, one in site.listed().items():
        assert set(one.manifests[0].digests) == set(written[name]), name
        for file in one.files():
            assert site.store.get(file.key) == written[name][file.path.rpartition("/")[2]]


@pytest.mark.soak
def test_killed_at_random_moments_under_a_rotating_writer(site, soak):
    stop, written = threading.Event(), {}
    writer = threading.Thread(target=train, args=(site.ckpts, stop, written))
    writer.start()
    try:
        for number in range(25 * soak.length):
            site.status_file.unlink(missing_ok=True)
            process = site.start(settle=0.03)
            wait_for(site.status_file.exists)  # a busy machine takes a second to start it
            time.sleep(soak.random.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if number % 6 == 0:
                assert_only_whole(site, written)
    finally:
        stop.set()
        writer.join()
    assert site.end(site.start()) == 0
    assert_only_whole(site, written)
    left = {path.name for path in site.ckpts.iterdir()}
    assert left <= set(site.listed()) and site.status.uncommitted == ()
    assert len(site.listed()) >= 4


def test_a_writer_killed_half_way_leaves_nothing_half(site):
    """The commands die in the middle; the next attempt's uploader sees the same folder."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2])\n"
        "from tests.checkpoints.upload.test_upload_process import write_slowly, folders\n"
        "step = int(sys.argv[3])\n"
        "while True:\n"
        "    step += 1\n"
        "    files = folders.hf_full(step, b'%05d' % step, 150_000)\n"
        "    for path, data in files.items():\n"
        "        write_slowly(Path(sys.argv[1]) / f'checkpoint-{step}', {path: data})\n"
        "        print(path, flush=True)\n"
        "        sys.stdin.readline()\n"
    )
    here = str(folders.Path(__file__).parents[3])
    for attempt, files in ((1, 2), (2, 12)):  # in its first checkpoint, and in a later one
        # A pause of the writer's is no reason to take what it is writing.
        process = site.start(attempt=attempt, settle=60)
        writer = subprocess.Popen(
            [sys.executable, "-c", code, str(site.ckpts), here, str(attempt * 1000)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert writer.stdin and writer.stdout
        for number in range(1, files + 1):
            assert writer.stdout.readline()
            if number < files:
                time.sleep(0.02)  # a file system's clock ticks: the next file is newer
                writer.stdin.write(b"\n")
                writer.stdin.flush()
        writer.kill()
        writer.communicate()
        assert site.end(process) == 0
        written = {
            name: folders.hf_full(step := int(name.rpartition("-")[2]), b"%05d" % step, 150_000)
            for name in site.listed()
        }
        assert_only_whole(site, written)
        on_disk = {path.name for path in site.ckpts.iterdir() if any(path.iterdir())}
        named = {line.partition(":")[0] for line in site.status.uncommitted}
        assert on_disk == set(written) | named


def test_memory_stays_bounded(site):
    big = site.ckpts / "checkpoint-10/model.bin"
    big.parent.mkdir()
    with big.open("wb") as stream:
        for number in range(160):
            stream.write(number.to_bytes(4, "little") * 262_144)
    folders.write(site.ckpts / "many", {f"f{n}": b"%d" % n for n in range(500)})
    peak = 0
    process = site.start()
    while process.poll() is None:
        try:
            text = folders.Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        peak = max([peak, *(int(x.split()[1]) for x in text.splitlines() if x.startswith("VmHWM"))])
        if peak and process.stdin:
            site.ask_to_end(process)
        time.sleep(0.01)
    assert process.wait() == 0
    assert set(site.listed()) == {"checkpoint-10", "many"}
    assert 0 < peak < 120_000, f"{peak} kB"


def test_the_status_file_is_always_complete_json(site):
    process = site.start()
    folders.write(site.ckpts / "checkpoint-10", folders.hf_full(10, size=2_000_000))
    seen = 0
    while process.poll() is None:
        if site.status_file.exists():
            json.loads(site.status_file.read_bytes())
            seen += 1
            if process.stdin:
                site.ask_to_end(process)
        time.sleep(0.001)
    assert seen
    assert [path.name for path in site.root.glob(".status*")] == []
