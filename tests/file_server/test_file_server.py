"""The file server: real processes, real requests."""

from __future__ import annotations

import hashlib
import http.client
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from prefect_bt.errors import ServerError
from prefect_bt.file_server import process
from prefect_bt.file_server.server_folder import FileServerFolder, ServerRecord, find_local_root
from prefect_bt.file_server.signed_urls import (
    compute_signature,
    is_servable,
    is_signature_valid,
    sign_url,
)
from prefect_bt.host.processes import ProcessIdentity
from prefect_bt.host.service import LOOPBACK, current_process
from prefect_bt.object_store import open_store
from tests.ports import free_port

JOB = "training_projects/p1/jobs/j1"
DATA = bytes(range(256)) * 8192
DIGEST = hashlib.sha256(DATA).hexdigest()
KEY = f"{JOB}/objects/0000/rank-0/{DIGEST[:2]}/{DIGEST}"
SOON = 3600


@dataclass
class Shelf:
    """A store with one checkpoint file, and its file server."""

    folder: Path

    def __post_init__(self) -> None:
        self.store = open_store(str(self.folder / "a store"))
        self.store.put(KEY, DATA)
        self.store.put(f"{JOB}/job.json", b"{}")
        root = find_local_root(self.store.url)
        assert root is not None
        self.place = FileServerFolder.for_store(root, self.folder / "state")

    def keep_a_port(self) -> None:
        """Let its servers find the note of one that is gone, at a port that nobody else takes."""
        self.place.ensure_signing_key()  # makes the folder
        port, root = free_port(), str(self.place.root)
        base = f"http://{LOOPBACK}:{port}"
        self.place.write_record(
            ServerRecord(base, LOOPBACK, port, ProcessIdentity(os.getpid(), 1), root)
        )

    def ensure(self) -> ServerRecord:
        return process.ensure_server(self.place, environment=os.environ)

    def address(self, key: str = KEY, *, lasts: float = SOON) -> str:
        base = self.ensure().base
        return sign_url(
            base, self.place.ensure_signing_key(), key, expires=int(time.time() + lasts)
        )


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path)
    yield shelf
    process.stop_all_servers(tmp_path / "state")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shelf]:
    """One server for the tests that only ask it."""
    shelf = Shelf(tmp_path_factory.mktemp("asked"))
    yield shelf
    process.stop_all_servers(shelf.folder / "state")


def get(url: str, *, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, method=method, headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=30) as answer:
            return answer.status, answer.read(), _lower(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), _lower(error.headers)


def _lower(headers: http.client.HTTPMessage) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def raw_get(url: str, path: str) -> int:
    """The status of a path that no client would tidy up."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


def test_an_address_gives_the_file_and_any_range_of_it(asked: Shelf):
    url = asked.address()
    status, data, headers = get(url)
    assert (status, data == DATA, headers["etag"]) == (200, True, f'"{DIGEST}"')
    status, data, headers = get(url, method="HEAD")
    assert (status, data, headers["content-length"]) == (200, b"", str(len(DATA)))
    status, data, headers = get(url, Range="bytes=1-8")
    assert (status, data) == (206, DATA[1:9])
    assert headers["content-range"] == f"bytes 1-8/{len(DATA)}"
    assert get(url, Range="bytes=-5")[:2] == (206, DATA[-5:])
    start = len(DATA) - 3
    assert get(url, Range=f"bytes={start}-")[:2] == (206, DATA[-3:])
    status, data, headers = get(url, Range=f"bytes={len(DATA)}-")
    assert (status, headers["content-range"]) == (416, f"bytes */{len(DATA)}")
    assert get(url, method="POST")[0] == 405
    assert get(url, method="DELETE")[0] == 405
    assert asked.store.get(KEY) == DATA


def test_nothing_without_a_signature_that_holds(asked: Shelf):
    url = asked.address()
    other = KEY[:-1] + ("0" if KEY[-1] != "0" else "1")
    asked.store.put(other, b"other")
    assert get(url)[0] == 200
    assert get(url.partition("?")[0])[0] == 403
    assert get(url.replace(KEY, other))[0] == 403
    assert get(url.replace("expires=", "expires=9"))[0] == 403
    assert get(url[:-1] + ("0" if url[-1] != "0" else "1"))[0] == 403
    assert get(url.partition("signature=")[0] + "signature=%FF%00")[0] == 403
    status, said, _ = get(asked.address(lasts=-1))
    assert (status, said) == (403, b"This address was not signed here, or it has expired.")
    # What is not there is not told to those who may not read.
    assert get(f"{url.partition('?')[0]}0")[0] == 403
    assert get(asked.address(KEY + "0"))[0] == 404


def test_only_checkpoint_files_of_this_store(asked: Shelf):
    url, root = asked.address(), asked.place.root
    (asked.folder / "secret").write_text("secret")
    folder = (root / KEY).parent
    (folder / "out").symlink_to(asked.folder / "secret")
    (folder / "loop").symlink_to("loop")
    (folder.parent / "up").symlink_to(asked.folder)
    near = KEY.rpartition("/")[0]
    refused = [
        f"{JOB}/job.json",
        f"{JOB}/objects/../job.json",
        f"{near}/../../../../../../../../../secret",
        f"{near}/out",
        f"{near}/loop",
        f"{near.rpartition('/')[0]}/up/secret",
        near,
        f"{near}/",
        f"/{KEY}",
        f"{KEY}/more",
        f"{near}/\0",
        f"{near}/{'x' * 3000}",
    ]
    # Signed though they are, which only a thief of the key could do.
    assert {key: get(asked.address(key))[0] for key in refused} == dict.fromkeys(refused, 404)
    expires = int(time.time()) + SOON
    key = f"{near}/../../../../job.json"
    signature = compute_signature(asked.place.ensure_signing_key(), key, str(expires))
    query = f"expires={expires}&signature={signature}"
    assert raw_get(url, f"/{key}?{query}") == 404
    assert raw_get(url, f"/{key.replace('..', '%2e%2e')}?{query}") == 404
    assert raw_get(url, "/../../../../../../etc/passwd") == 403


def test_the_key_is_for_this_user_and_store_only(asked: Shelf, tmp_path: Path):
    asked.ensure()
    assert stat.S_IMODE((asked.place.path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE(asked.place.path.stat().st_mode) == 0o700
    other = FileServerFolder.for_store(tmp_path / "another store", asked.folder / "state")
    assert (
        other.ensure_signing_key()
        != asked.place.ensure_signing_key()
        == asked.place.ensure_signing_key()
    )


@pytest.mark.slow
def test_it_outlives_the_command_and_is_found_again(shelf: Shelf):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from prefect_bt.file_server import process, server_folder\n"
        "here = server_folder.FileServerFolder(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(process.ensure_server(here, environment=os.environ).process.pid)"
    )
    command = [sys.executable, "-c", code, str(shelf.place.root), str(shelf.place.path)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    pids = {int(process.communicate(timeout=400)[0]) for process in both}
    assert len(pids) == 1, "two commands at once start one server"
    assert {shelf.ensure().process.pid} == pids
    assert os.getsid(pids.pop()) != os.getsid(0)
    assert get(shelf.address())[0] == 200


@pytest.mark.slow
def test_what_cannot_serve_is_replaced(shelf: Shelf, monkeypatch: pytest.MonkeyPatch):
    """One killed, one that hangs, a note of another process, and a port that is taken."""
    shelf.keep_a_port()
    first, url = shelf.ensure(), shelf.address()
    os.kill(first.process.pid, signal.SIGKILL)
    while first.process.is_alive:
        time.sleep(0.02)
    second = shelf.ensure()
    assert (second.process.pid != first.process.pid, second.base) == (True, first.base)
    assert get(url)[0] == 200, "old addresses go on"
    os.kill(second.process.pid, signal.SIGSTOP)
    with monkeypatch.context() as impatient:
        impatient.setattr(process, "_STATUS_TIMEOUT", 0.5)
        impatient.setattr(process, "STOP_TIMEOUT", 0.5)
        third = shelf.ensure()
    assert third.process.pid != second.process.pid
    assert not second.process.is_alive
    assert get(url)[0] == 200
    assert process.stop_server(shelf.place) == third
    assert process.stop_server(shelf.place) is None
    # The pid is in use again, by a process that began at another time; and the port is taken.
    shelf.place.write_record(replace(third, process=ProcessIdentity(os.getpid(), 1)))
    with process.create_listener("127.0.0.1", third.port, preferred=0):
        fourth = shelf.ensure()
        assert fourth.process.pid not in {os.getpid(), third.process.pid}
        assert fourth.port != third.port
        with pytest.raises(ServerError, match="Cannot listen"):
            process.create_listener("127.0.0.1", third.port, preferred=0)
    assert process.stop_all_servers(shelf.folder / "state") == [fourth]
    assert not fourth.process.is_alive


def test_it_ends_when_it_is_of_no_use(shelf: Shelf):
    shelf.place.ensure_signing_key()
    command = [sys.executable, "-m", "prefect_bt.file_server", "--idle", "0.5"]
    process = subprocess.Popen([*command, str(shelf.place.root), str(shelf.place.path)])
    try:
        assert process.wait(timeout=400) == 0
    finally:
        process.kill()
    known = shelf.place.read_record()
    assert known is not None and known.process.pid == process.pid


def test_a_server_that_cannot_start_reports_the_reason(shelf: Shelf):
    environment = {**os.environ, "PYTHONPATH": str(shelf.folder)}
    (shelf.folder / "aiohttp.py").write_text("raise ImportError('no such thing here')")
    with pytest.raises(ServerError, match="no such thing here"):
        process.ensure_server(shelf.place, environment=environment)
    assert shelf.place.read_record() is None


@pytest.mark.slow
def test_in_the_foreground(shelf: Shelf):
    shelf.keep_a_port()
    before, url = shelf.ensure(), shelf.address()
    with process.become_server(shelf.place, host="127.0.0.1", port=None, base="http://box:1"):
        assert not before.process.is_alive
        known = shelf.place.read_record()
        assert known is not None and known.foreground and known.process == current_process()
        assert (known.base, known.port) == ("http://box:1", before.port)
        with pytest.raises(ServerError, match=f"Process {os.getpid()} serves this store already"):
            process.become_server(shelf.place, host="127.0.0.1", port=None, base="")
    shelf.place.write_record(before)
    assert get(url.replace(before.base, shelf.ensure().base))[0] == 200


@pytest.mark.parametrize("bad", ["", "a/objects/b", f"{JOB}/objects/", f"x/{KEY}", f"{KEY}/../x"])
def test_keys_of_no_checkpoint_file(bad: str):
    assert not is_servable(bad)
    assert is_servable(KEY)


def test_an_address_expires():
    given = compute_signature(b"secret", KEY, "100")
    assert is_signature_valid(b"secret", KEY, expires="100", signature=given, now=100.0)
    assert not is_signature_valid(b"secret", KEY, expires="100", signature=given, now=100.5)
    assert not is_signature_valid(b"Secret", KEY, expires="100", signature=given, now=99.0)
    assert not is_signature_valid(b"secret", KEY, expires="100", signature="é", now=99.0)


def test_which_stores_need_it():
    assert find_local_root("file:///a%20b/c") == Path("/a b/c")
    assert find_local_root("s3://bucket/x") is None
    assert find_local_root("memory://") is None


def test_a_part_of_another_version_is_not_given(asked: Shelf):
    part = {"Range": "bytes=0-9"}
    for version, status in ((f'"{DIGEST}"', 206), ('"another"', 200)):
        assert get(asked.address(), **part, **{"If-Range": version})[0] == status


def test_a_pipe_in_the_store_is_not_waited_for(asked: Shelf):
    os.mkfifo(asked.place.root / f"{KEY}-pipe")
    assert get(asked.address(f"{KEY}-pipe"))[0] == 404
