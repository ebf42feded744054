"""What every store promises, run against each of them: object_store/protocols.py."""

import base64
import contextlib
import email.utils
import hmac
import itertools
import os
import shutil
import socket
import subprocess
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from prefect_bt.errors import InvalidKey, ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.small import PART, use_small_parts
from tests.ports import free_port
from tests.s3_server import shared_s3

# The account that every copy of Azure's emulator has, by its manual.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
containers = itertools.count()


@pytest.fixture
def s3():
    return shared_s3()


@pytest.fixture(scope="module")
def azurite(tmp_path_factory):
    command = shutil.which("azurite-blob")
    if command is None:
        pytest.skip("no azurite-blob here: `make test` installs it where there is npm")
    port = str(free_port())
    folder = tmp_path_factory.mktemp("azurite")
    command = [command, "--inMemoryPersistence", "--skipApiVersionCheck", "--blobPort", port]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            _await(int(port), server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _await(port, server):
    for _ in range(1200):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        assert server.poll() is None, "the server ended"
        time.sleep(0.1)
    raise AssertionError("the server did not start")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    use_small_parts(monkeypatch)


@pytest.fixture(
    params=[
        "disk",
        "memory",
        pytest.param("s3", marks=pytest.mark.integration),
        # Only the address differs: test_the_other_s3s in the gate.
        *(pytest.param(n, marks=[pytest.mark.integration, pytest.mark.soak]) for n in ("r2", "cw")),
        pytest.param("azure", marks=pytest.mark.integration),
        # Not gs: no emulator speaks the XML interface that obstore uses.
    ]
)
def store(request, tmp_path, monkeypatch):
    if request.param == "disk":
        return open_store(str(tmp_path / "store"))
    if request.param == "memory":
        return open_store("memory://")
    if request.param == "azure":
        return open_store(azure_url(request.getfixturevalue("azurite"), monkeypatch))
    return like_s3(request.param, request.getfixturevalue("s3"), monkeypatch)


def like_s3(scheme, endpoint, monkeypatch):
    use(monkeypatch, endpoint)
    bucket = Bucket(endpoint)
    monkeypatch.setenv("PREFECT_BT_R2_ENDPOINT", endpoint)
    monkeypatch.setenv("PREFECT_BT_CW_ENDPOINT", endpoint)
    if scheme != "s3":
        # These know their server themselves.
        monkeypatch.delenv("AWS_ENDPOINT_URL")
    account = "0123456789abcdef." if scheme == "r2" else ""
    return open_store(f"{scheme}://{account}{bucket.name}/some/prefix")


def azure_url(endpoint, monkeypatch):
    """A fresh container, made as Azure's clients do."""
    container = f"c{os.getpid()}-{next(containers)}"
    now = email.utils.formatdate(usegmt=True)
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:2021-08-06\n"
    signed += f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{container}\nrestype:container"
    mac = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), sha256).digest()
    headers = {
        "x-ms-date": now,
        "x-ms-version": "2021-08-06",
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(mac).decode()}",
        "Content-Length": "0",
    }
    address = f"{endpoint}/{AZURE_ACCOUNT}/{container}?restype=container"
    made = urllib.request.Request(address, method="PUT", headers=headers)
    urllib.request.urlopen(made, timeout=120).close()
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", endpoint)
    return f"azure://{AZURE_ACCOUNT}/{container}/some/prefix"


def test_get_what_was_put(store):
    store.put("a/b%2Fc.json", b"one")
    assert store.get("a/b%2Fc.json") == b"one"
    store.put("a/b%2Fc.json", b"two")
    assert store.get("a/b%2Fc.json") == b"two"


def test_an_empty_object_is_an_object(store, tmp_path):
    store.put("empty", b"")
    store.create("created", b"")
    (tmp_path / "nothing").write_bytes(b"")
    store.upload_verified("uploaded", tmp_path / "nothing")
    assert [store.get(key) for key in ("empty", "created", "uploaded")] == [b"", b"", b""]
    assert store.get_range("empty", start=0, length=5) == b""


def test_names_that_are_not_ascii(store):
    store.put("projekt ü/名前/a b#1.txt", b"x")
    assert store.get("projekt ü/名前/a b#1.txt") == b"x"
    assert [info.key for info in store.list("projekt ü")] == ["projekt ü/名前/a b#1.txt"]


def test_missing(store, tmp_path):
    for act in (
        lambda: store.get("no"),
        lambda: store.get_range("no", start=0, length=1),
        lambda: store.download("no", tmp_path / "target"),
    ):
        with pytest.raises(ObjectNotFound) as caught:
            act()
        assert caught.value.key == "no"
    store.delete("no")
    store.put("folder/x", b"")
    with pytest.raises(ObjectNotFound):
        store.get("folder")
    assert not list(tmp_path.glob(".*.tmp"))


def test_get_range(store):
    store.put("x", b"0123456789")
    assert store.get_range("x", start=2, length=3) == b"234"
    assert store.get_range("x", start=8, length=30) == b"89"
    assert store.get_range("x", start=10, length=3) == b""
    assert store.get_range("x", start=99, length=3) == b""


def test_create_only_once(store):
    store.create("x", b"first")
    with pytest.raises(ObjectExists):
        store.create("x", b"second")
    assert store.get("x") == b"first"
    store.delete("x")
    store.create("x", b"third")
    assert store.get("x") == b"third"


def test_one_of_many_threads_creates(store):
    def attempt(number):
        try:
            store.create("race/x", str(number).encode())
        except ObjectExists:
            return None
        return str(number).encode()

    with ThreadPoolExecutor(8) as pool:
        won = [result for result in pool.map(attempt, range(24)) if result is not None]
    assert won == [store.get("race/x")]


def test_list_is_by_folder_and_sorted(store):
    began = time.time()
    for key in ("a/b", "a-b", "a/b-c", "a/c/d", "ab", "a/B"):
        store.put(key, key.encode())
    ended = time.time()
    infos = list(store.list("a"))
    assert [info.key for info in infos] == ["a/B", "a/b", "a/b-c", "a/c/d"]
    assert [info.size for info in infos] == [3, 3, 5, 5]
    assert all(began - 2 < info.modified < ended + 2 for info in infos)
    assert [info.key for info in store.list("")] == ["a-b", "a/B", "a/b", "a/b-c", "a/c/d", "ab"]
    assert list(store.list("nothing/here")) == []


def test_upload_and_download(store, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    # Larger than one part of a bucket upload.
    data = os.urandom(2 * PART) + b"tail"
    source.write_bytes(data)
    store.upload_verified("big", source)
    store.upload_verified("big", source)
    store.download("big", target)
    assert target.read_bytes() == data
    assert [info.size for info in store.list("")] == [len(data)]


SIZES = [0, 10, PART, PART + 3, 2 * PART + 100]


def test_upload_exact_reports_every_byte(store, tmp_path):
    source = tmp_path / "source"
    for size in SIZES:
        told = []
        source.write_bytes(os.urandom(size))
        digest = sha256(source.read_bytes()).hexdigest()
        store.upload_verified(f"x/{size}", source, sha256=digest, on_bytes=told.append)
        assert store.get(f"x/{size}") == source.read_bytes()
        assert sum(told) == size


def test_an_upload_that_is_complete_is_not_unfinished(store, tmp_path):
    assert list(store.list_unfinished_uploads("nothing/here")) == []
    source = tmp_path / "source"
    source.write_bytes(b"x" * (PART + 10))
    store.upload_verified("x/y", source)
    assert list(store.list_unfinished_uploads("x")) == []
    assert [info.key for info in store.list("x")] == ["x/y"]


def test_an_address_for_anyone(store):
    store.put("a b/ü", b"0123456789")
    url = store.presign("a b/ü", seconds=60)
    if not url:
        return
    if store.url.startswith("azure:"):
        # The emulator refuses addresses that obstore signs; Azure itself was not at hand.
        assert "sig=" in url
        return
    ranged = urllib.request.Request(url, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(ranged, timeout=120) as answer:
        assert (answer.status, answer.read()) == (206, b"234")


def test_upload_exact_refuses_other_bytes(store, tmp_path):
    source = tmp_path / "source"
    for size in (0, 10, PART + 3):
        source.write_bytes(b"a" * size)
        with pytest.raises(StoreError):
            store.upload_verified(f"x/{size}", source, sha256=sha256(b"other").hexdigest())
        assert list(store.list("")) == []
        store.upload_verified(f"x/{size}", source, sha256=sha256(b"a" * size).hexdigest())
        assert [info.size for info in store.list("x")] == [size]
        store.delete(f"x/{size}")


def test_a_source_that_is_gone_is_not_the_stores_fault(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.upload_verified("x", tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        store.upload_verified("x", tmp_path / "gone", sha256="")


NO_KEYS = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b"]


def test_keys_that_are_none(store):
    acts = (store.get, store.delete, lambda k: store.put(k, b""), lambda k: store.create(k, b""))
    for key, act in itertools.product(NO_KEYS, acts):
        with pytest.raises(InvalidKey):
            act(key)


def test_a_key_that_is_too_long(store):
    key = "ü" * 513
    for write in (store.put, store.create):
        with pytest.raises(InvalidKey, match=r"long|at most 1024 bytes"):
            write(key, b"")
    with pytest.raises(InvalidKey if "://" in store.url else ObjectNotFound):
        store.get(key)


def test_the_url_names_it(store):
    assert "://" in store.url


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["r2", "cw"])
def test_the_other_s3s(scheme, s3, tmp_path, monkeypatch):
    """Every kind of request, at the address that the scheme makes; soak runs the whole contract."""
    store = like_s3(scheme, s3, monkeypatch)
    source = tmp_path / "source"
    source.write_bytes(os.urandom(2 * PART + 1))
    store.upload_verified("a b/large", source)
    store.create("a b/ü", b"0123456789")
    with pytest.raises(ObjectExists):
        store.create("a b/ü", b"")
    assert [(info.key, info.size) for info in store.list("a b")] == [
        ("a b/large", 2 * PART + 1),
        ("a b/ü", 10),
    ]
    store.download("a b/large", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == source.read_bytes()
    assert store.get_range("a b/ü", start=2, length=3) == b"234"
    with urllib.request.urlopen(store.presign("a b/ü", seconds=60), timeout=60) as answer:
        assert answer.read() == b"0123456789"
    store.delete("a b/ü")
    with pytest.raises(ObjectNotFound):
        store.get("a b/ü")
    assert list(store.list_unfinished_uploads("a b")) == []
