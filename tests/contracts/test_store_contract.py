"""What every store promises, run against each of them: objects/protocols.py."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import pytest

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.objects import open_store


@pytest.fixture(scope="module")
def moto_url(tmp_path_factory):
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path_factory.mktemp("moto") / "log").open("wb")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(150):
            try:
                urllib.request.urlopen(f"{url}/moto-api/", timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            pytest.skip("the moto server did not start")
        yield url
    finally:
        server.kill()
        server.wait()
        log.close()


@pytest.fixture(params=["disk", "memory", pytest.param("s3", marks=pytest.mark.integration)])
def store(request, tmp_path, monkeypatch):
    if request.param == "disk":
        return open_store(str(tmp_path / "store"))
    if request.param == "memory":
        return open_store("memory://")
    endpoint = request.getfixturevalue("moto_url")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    bucket = f"b{time.monotonic_ns()}"
    urllib.request.urlopen(
        urllib.request.Request(f"{endpoint}/{bucket}", method="PUT"), timeout=5
    ).close()
    return open_store(f"s3://{bucket}/some/prefix")


def test_get_what_was_put(store):
    store.put("a/b%2Fc.json", b"one")
    assert store.get("a/b%2Fc.json") == b"one"
    store.put("a/b%2Fc.json", b"two")
    assert store.get("a/b%2Fc.json") == b"two"


def test_an_empty_object_is_an_object(store, tmp_path):
    store.put("empty", b"")
    store.create("created", b"")
    (tmp_path / "nothing").write_bytes(b"")
    store.upload("uploaded", tmp_path / "nothing")
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
    for key in ("a/b", "a-b", "a/b-c", "a/c/d", "ab", "a/B"):
        store.put(key, key.encode())
    infos = list(store.list("a"))
    assert [info.key for info in infos] == ["a/B", "a/b", "a/b-c", "a/c/d"]
    assert [info.size for info in infos] == [3, 3, 5, 5]
    assert all(abs(info.modified - time.time()) < 60 for info in infos)
    assert [info.key for info in store.list("")] == ["a-b", "a/B", "a/b", "a/b-c", "a/c/d", "ab"]
    assert list(store.list("nothing/here")) == []


def test_upload_and_download(store, tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    # Larger than one part of a bucket upload.
    data = os.urandom(1 << 20) * 9 + b"tail"
    source.write_bytes(data)
    store.upload("big", source)
    store.upload("big", source)
    store.download("big", target)
    assert target.read_bytes() == data
    assert [info.size for info in store.list("")] == [len(data)]


@pytest.mark.parametrize("size", [0, 10, (8 << 20) + 3])
def test_upload_exact_refuses_other_bytes(store, tmp_path, size):
    source = tmp_path / "source"
    source.write_bytes(b"a" * size)
    with pytest.raises(StoreError):
        store.upload_exact("x/y", source, sha256=sha256(b"other").hexdigest())
    assert list(store.list("")) == []
    store.upload_exact("x/y", source, sha256=sha256(b"a" * size).hexdigest())
    assert [info.size for info in store.list("x")] == [size]


def test_a_source_that_is_gone_is_not_the_stores_fault(store, tmp_path):
    with pytest.raises(FileNotFoundError):
        store.upload("x", tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        store.upload_exact("x", tmp_path / "gone", sha256="")


@pytest.mark.parametrize("key", ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b"])
def test_keys_that_are_none(store, key):
    for act in (
        store.get,
        store.delete,
        lambda k: store.put(k, b""),
        lambda k: store.create(k, b""),
    ):
        with pytest.raises(StoreError):
            act(key)


def test_the_url_names_it(store):
    assert "://" in store.url
