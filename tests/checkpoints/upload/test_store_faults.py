"""The uploader's process against a store that fails, and a directory that will not rest.

Each ends committed and re-hashed, or with an error that names rank and file; meanwhile the status
tells of the trouble. The server is a real one behind a proxy that does the harm.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from hashlib import sha256

import pytest

from prefect_bt.checkpoints.committed import verify_committed
from prefect_bt.checkpoints.committed.commit_index import iter_manifest_refs
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.object_store import open_store
from tests.checkpoints import folders
from tests.checkpoints.buckets import Bucket, use
from tests.checkpoints.folders import JOB, PROJECT
from tests.checkpoints.running import wait_for
from tests.checkpoints.upload.test_upload_process import Site as Program
from tests.forked import Forked
from tests.object_store.faulty import (
    Answer,
    Drop,
    FaultyServer,
    FlipUpload,
    Hang,
    LoseAnswer,
    Truncate,
)
from tests.object_store.small import PART
from tests.s3_server import shared_s3

LARGE = PART + 12_345
"""Two parts."""
LARGER = 3 * PART + 12_345
"""Four parts."""

UPLOADER = """
import sys
from prefect_bt.checkpoints.upload import transfer
from prefect_bt.node_agent import upload_process
from tests.object_store.small import PART, retry_at_once, use_small_parts
use_small_parts()
transfer._SMALL = PART
retry_at_once()
upload_process._lower_priority = lambda: None  # a busy machine would leave it nothing
sys.exit(upload_process.main(sys.argv[1:]))
"""

s3 = pytest.mark.integration


@pytest.fixture
def server(monkeypatch):
    with FaultyServer(shared_s3()) as faulty:
        use(monkeypatch, faulty.url)
        yield faulty


class Site(Program):
    """One whose uploader is a fork, which is as quick as its store."""

    def start(self, attempt=1, patience=5.0):
        return Forked(UPLOADER, self.arguments(attempt, patience), piped=True)


class Node(Site):
    """A node whose uploader goes through the proxy, while its `store` is read without it."""

    def __init__(self, root, server):
        super().__init__(root)
        self.bucket = Bucket(server.upstream)
        self.store = open_store(self.bucket.url)
        self.server = server

    @property
    def status(self):
        return super().status if self.status_file.exists() else UploadStatus(updated_at=0.0)

    def write(self, step, size=LARGE):
        """A Trainer's checkpoint with an optimizer of `size` bytes; path -> digest."""
        files = folders.hf_full(step)
        files["optimizer.pt"] = folders.torch_zip(os.urandom(size))
        folders.write(self.ckpts / f"checkpoint-{step}", files)
        return {path: sha256(data).hexdigest() for path, data in files.items()}

    def end_well(self, process, **wanted):
        """The flush succeeds, all of `wanted` (by step) is there and re-hashes, nothing else is."""
        assert self.end(process) == 0
        assert self.status.flushed and not self.status.error and not self.status.trouble
        self.server.clear()
        assert set(self.listed()) == {f"checkpoint-{step.strip('_')}" for step in wanted}
        for step, files in wanted.items():
            assert self.listed()[f"checkpoint-{step.strip('_')}"].manifests[0].digests == files
        assert verify_committed.verify(self.store, PROJECT, JOB) == []
        assert self.bucket.unfinished() == []


@pytest.fixture
def node(tmp_path, server):
    return Node(tmp_path, server)


def bursts(*kinds):
    """Every kind of fault; `make test` has the kinds with these numbers."""
    faults = [
        *(Answer(500, "InternalError"), Answer(503, "SlowDown"), Drop(), LoseAnswer()),
        *(FlipUpload(strip=False), FlipUpload(strip=True)),
    ]
    marks = {False: pytest.mark.soak, True: ()}
    params = [pytest.param(one, marks=marks[n in kinds]) for n, one in enumerate(faults)]
    return pytest.mark.parametrize("fault", params, ids=named)


def named(fault):
    return "-".join(str(part) for part in (type(fault).__name__, *vars(fault).values()))


# The store alone meets each of these in tests/object_store/test_faults.py: here two of each kind.


@s3
@bursts(3, 5)
def test_a_burst_while_a_large_file_travels(node, fault):
    """Every part once, the beginning and the end of the upload too."""
    rules = [node.server.on(fault, method="PUT", query=r"partNumber=\d", times=5)]
    if not isinstance(fault, FlipUpload):
        rules.append(node.server.on(fault, method="POST", times=2))
    files = node.write(10, LARGER)
    node.end_well(node.start(patience=120), _10=files)
    assert [rule.hits for rule in rules] == [rule.times for rule in rules], node.server.requests


@s3
@bursts(1, 2)
def test_a_burst_while_small_files_travel(node, fault):
    rule = node.server.on(fault, method="PUT", path="/objects/", times=4)
    files = node.write(10, size=20_000)
    node.end_well(node.start(patience=120), _10=files)
    assert rule.hits == 4


@s3
@pytest.mark.parametrize("code", [pytest.param("SlowDown", marks=pytest.mark.soak), "AccessDenied"])
def test_trouble_is_in_the_status_while_it_lasts(node, code):
    node.server.on(Answer(503 if code == "SlowDown" else 403, code), method="PUT", times=None)
    files = node.write(10, size=20_000)
    process = node.start(patience=120)
    wait_for(lambda: node.status.trouble)
    assert "checkpoint-10/" in node.status.trouble and node.bucket.name in node.status.trouble
    assert node.listed() == {} and not node.status.error
    node.server.clear()
    node.wait_for("checkpoint-10")
    wait_for(lambda: not node.status.trouble)
    node.end_well(process, _10=files)


@s3
def test_a_store_that_stays_broken_is_an_error_that_names_rank_and_file(node):
    node.server.on(Answer(500, "InternalError"), method="PUT", query="partNumber=2", times=None)
    node.write(10)
    assert node.end(node.start(patience=0.5)) == 1
    assert node.status.flushed and "Rank 0" in node.status.error
    assert "checkpoint-10/optimizer.pt" in node.status.error
    assert node.listed() == {} and node.bucket.unfinished() == []


@s3
@pytest.mark.soak
def test_requests_that_are_never_answered_are_given_up(node):
    """It takes the store's whole patience; in test_faults.py of objects a store has little of it.

    A part says nothing at all; the end of the upload begins to answer and then hangs."""
    part = node.server.on(Hang(), method="PUT", query="partNumber=2")
    end = node.server.on(Hang(after=10), method="POST", query="uploadId=")
    files = node.write(10)
    process = node.start(patience=100)
    node.ask_to_end(process)
    assert process.wait(200) == 0
    assert part.hits == 1 and end.hits == 1
    node.end_well(node.start(), _10=files)


@s3
@pytest.mark.parametrize("keep", [pytest.param(0, marks=pytest.mark.soak), 40])
def test_answers_that_are_cut_short(node, keep):
    """What is committed is read at the start; a cut list must not look like an empty one."""
    files = node.write(10, size=20_000)
    node.end_well(node.start(), _10=files)
    lists = node.server.on(Truncate(keep), method="GET", query="list-type", times=2)
    manifests = node.server.on(Truncate(keep), method="GET", path="/manifests/", times=2)
    more = node.write(20)
    done = node.server.on(Truncate(keep), method="POST", query="uploadId=")
    node.end_well(node.start(patience=120), _10=files, _20=more)
    assert lists.hits == 2 and manifests.hits == 2 and done.hits == 1
    assert node.listed()["checkpoint-10"].manifests[0].version == 1


@s3
def test_credentials_that_expire_in_mid_upload_and_are_renewed(node, tmp_path, monkeypatch):
    script, asked = tmp_path / "credentials.py", tmp_path / "asked"
    script.write_text(
        "import datetime, json\n"
        f"open({str(asked)!r}, 'a').write('x')\n"
        "ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5)\n"
        "print(json.dumps({'Version': 1, 'AccessKeyId': 'test', 'SecretAccessKey': 'x',"
        " 'SessionToken': 't', 'Expiration': ends.isoformat()}))\n"
    )
    # boto3 asks for new ones whenever those that it has end within ten minutes.
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = {sys.executable} {script}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    rule = node.server.on(
        Answer(403, "ExpiredToken"), method="PUT", query="partNumber=", skip=1, times=None
    )
    files = node.write(10)
    process = node.start(patience=120)
    wait_for(lambda: node.status.trouble)
    assert rule.hits and "checkpoint-10/optimizer.pt" in node.status.trouble
    before = asked.stat().st_size
    node.server.clear()
    node.wait_for("checkpoint-10")
    assert asked.stat().st_size > before
    use_static(monkeypatch)
    node.end_well(process, _10=files)


def use_static(monkeypatch):
    """For the test's own reading."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@s3
def test_rotation_while_the_bytes_travel(node):
    """Training deletes a checkpoint in mid-upload and writes the next."""
    rule = node.server.on(Hang(), method="PUT", query="partNumber=2")
    node.write(10)
    process = node.start()
    assert rule.struck.wait(120)
    shutil.rmtree(node.ckpts / "checkpoint-10")
    files = node.write(20, size=20_000)
    node.server.clear()
    node.wait_for("checkpoint-20")
    assert node.end(process) == 0
    assert not node.status.error and not node.status.trouble
    assert node.listed()["checkpoint-20"].manifests[0].digests == files
    assert set(node.listed()) <= {"checkpoint-10", "checkpoint-20"}
    assert verify_committed.verify(node.store, PROJECT, JOB) == []
    assert node.bucket.unfinished() == []


@s3
def test_a_file_that_changes_while_its_bytes_travel(node):
    """It had settled; the commit is of what it became, never of a mixture."""
    rule = node.server.on(Hang(), method="PUT", query="partNumber=2")
    node.write(10)
    process = node.start()
    assert rule.struck.wait(120)
    files = node.write(10)
    node.server.clear()
    node.wait_for("checkpoint-10")
    node.end_well(process, _10=files)


@s3
def test_two_attempts_that_write_the_same_name_at_once(tmp_path, server):
    """The old attempt's uploader still flushes when the next one runs, in a folder of its own."""
    old, new = Node(tmp_path / "old", server), Node(tmp_path / "new", server)
    new.bucket, new.store = old.bucket, old.store
    rule = server.on(Hang(), method="PUT", path="/objects/0001/", query="partNumber=")
    old.write(10)
    first = old.start(attempt=1)
    assert rule.struck.wait(120)
    files = new.write(10)
    second = new.start(attempt=2)
    new.wait_for("checkpoint-10")
    server.clear()
    # The new attempt may have given up what the old one had begun: that one sends it again.
    assert old.end(first) == 0 and not old.status.error
    new.end_well(second, _10=files)
    assert {ref.attempt for ref in iter_manifest_refs(new.store, PROJECT, JOB)} == {1, 2}


@s3
def test_killed_while_a_part_hangs_and_gone_on_with(node):
    """What was sent before the kill is not sent again."""
    rule = node.server.on(Hang(), method="PUT", query="partNumber=4")
    files = node.write(10, LARGER)
    process = node.start()
    assert rule.struck.wait(120)
    wait_for(lambda: sum(one.status == 200 for one in parts_sent(node)) >= 3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    node.server.clear()
    before = len(parts_sent(node))
    node.end_well(node.start(), _10=files)
    assert len(parts_sent(node)) - before == 1


def parts_sent(node):
    return node.server.sent("PUT", r"partNumber=\d")


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounting a tmpfs needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Not one more byte fits."""
    ballast = os.open(folder / "ballast", os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while os.write(ballast, b"x" * 4096):
            pass
    os.close(ballast)


def test_a_full_disk_is_in_the_status_until_there_is_space(tmp_path, tiny_disk):
    site = Site(tmp_path, store=tiny_disk / "store")
    (tiny_disk / "ballast").write_bytes(b"x" * 1_500_000)
    process = site.start(patience=120)
    wait_for(site.status_file.exists)
    folders.write(site.ckpts / "checkpoint-10", folders.hf_full(10, size=900_000))
    wait_for(lambda: site.status.trouble)
    assert "disk is full" in site.status.trouble
    # Whichever of its files came first to a disk that its largest had filled.
    assert "checkpoint-10/" in site.status.trouble
    assert site.listed() == {} and not site.status.error
    (tiny_disk / "ballast").unlink()
    site.wait_for("checkpoint-10")
    assert site.end(process) == 0 and not site.status.trouble
    assert verify_committed.verify(site.store, PROJECT, JOB) == []


def test_a_full_disk_under_the_status_file_stops_nothing(tmp_path, tiny_disk):
    site = Site(tmp_path)
    site.status_file = tiny_disk / "status.json"
    fill(tiny_disk)
    folders.write(site.ckpts / "checkpoint-10", folders.hf_full(10))
    assert site.end(site.start()) == 0
    assert set(site.listed()) == {"checkpoint-10"}
