"""What a bucket's server, or a proxy before it, can do wrong, one request at a time.

Each ends with the right bytes in the store, or with an error and nothing in sight.
"""

import os
import threading
import time
import urllib.request
from hashlib import sha256

import pytest

from prefect_bt.errors import ObjectExists, ObjectNotFound, StoreError
from prefect_bt.object_store import bucket as adapter
from prefect_bt.object_store import open_store
from prefect_bt.object_store.connect import Limits
from tests.object_store.faulty import (
    Answer,
    Drop,
    FlipAnswer,
    FlipUpload,
    Hang,
    Hold,
    LoseAnswer,
    SetHeader,
    Truncate,
)
from tests.object_store.small import PART

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

LARGE = 3 * PART + 1234
"""Four parts."""
EXTENDED_HANG = pytest.param(Hang(), marks=pytest.mark.extended)
"""Three seconds of silence; in the gate a part of a large file meets them."""

PASSING = [
    Answer(500, "InternalError"),
    Answer(503, "SlowDown"),
    Hang(),
    Drop(),
    LoseAnswer(),
    FlipUpload(strip=False),
]


@pytest.fixture
def opened(bucket, monkeypatch):
    """The store that meets a fault, with little patience where the fault is silence.

    A server that is slow besides costs a repetition, of which there are six for each request.
    """

    def of(fault):
        if isinstance(fault, Hang):
            monkeypatch.setattr(adapter, "_LIMITS", Limits(read=3))
        return open_store(bucket.url)

    return of


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """A path and its digest."""
    path = tmp_path_factory.mktemp("large") / "file"
    data = os.urandom(LARGE)
    path.write_bytes(data)
    return path, sha256(data).hexdigest()


def holds(bucket, key, data):
    found = bucket.client.get_object(Bucket=bucket.name, Key=f"some/prefix/{key}")
    return found["Body"].read() == data


def test_without_faults(server, bucket, store, large):
    path, digest = large
    told = []
    store.upload_verified("x", path, sha256=digest, on_bytes=told.append)
    assert holds(bucket, "x", path.read_bytes())
    assert sum(told) == LARGE
    assert len(server.sent("PUT", "partNumber")) == 4
    assert bucket.unfinished() == []


BEGIN, SECOND, END = ("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", "uploadId")
OF_AN_UPLOAD = [
    pytest.param(
        request,
        fault,
        # Each fault meets a part; that the others meet the first and the last request is for soak.
        marks=[] if request is SECOND or isinstance(fault, LoseAnswer) else pytest.mark.soak,
    )
    for request in (BEGIN, SECOND, END)
    for fault in PASSING
    if request is SECOND or not isinstance(fault, FlipUpload)  # nothing of the file is in a POST
]


@pytest.mark.parametrize(("request_", "fault"), OF_AN_UPLOAD, ids=str)
def test_a_large_file_survives(server, bucket, opened, large, request_, fault):
    method, query = request_
    store = opened(fault)
    rule = server.on(fault, method=method, query=query)
    path, digest = large
    told = []
    store.upload_verified("x", path, sha256=digest, on_bytes=told.append)
    assert rule.hits == 1
    assert holds(bucket, "x", path.read_bytes())
    assert sum(told) == LARGE
    # An answer that was lost, or given up, may have begun an upload that nobody knows of.
    begun = len(server.sent("POST", "uploads"))
    assert begun == 1 or request_ is BEGIN or isinstance(fault, Hang)
    assert len(bucket.unfinished()) <= begun - 1


@pytest.mark.parametrize(
    "fault", [EXTENDED_HANG if isinstance(one, Hang) else one for one in PASSING], ids=str
)
def test_a_small_object_survives(server, bucket, opened, fault):
    store = opened(fault)
    rule = server.on(fault, method="PUT")
    data = os.urandom(20_000)
    for _ in range(2):
        try:
            store.put("x", data)
            break
        except StoreError:
            # What the layer above does; a server that refuses what arrived damaged is such a case.
            assert bucket.keys() == []
    assert rule.hits == 1
    assert holds(bucket, "x", data)


@pytest.mark.parametrize("fault", [LoseAnswer(), Answer(503, "SlowDown"), EXTENDED_HANG], ids=str)
def test_a_create_reports_the_winner(server, bucket, opened, fault):
    """Its own bytes are no other's: an answer that was lost must not make a winner a loser."""
    store = opened(fault)
    server.on(fault, method="PUT")
    try:
        store.create("x", b"mine")
    except ObjectExists:
        pytest.fail("it was we who created it")
    except StoreError:
        # Nobody knows: to be asked again.
        return
    assert holds(bucket, "x", b"mine")
    with pytest.raises(ObjectExists):
        store.create("x", b"mine")


@pytest.mark.parametrize("operation", ["get", "put", "create", "list", "download", "upload"])
def test_a_clock_that_differs_is_named(server, store, large, tmp_path, operation):
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 12_030))
    skewed = Answer(403, "RequestTimeTooSkewed", f"<ServerTime>{stamp}</ServerTime>")
    server.on(skewed, times=None)
    calls = {
        "get": lambda: store.get("x"),
        "put": lambda: store.put("x", b"1"),
        "create": lambda: store.create("x", b"1"),
        "list": lambda: list(store.list("x")),
        "download": lambda: store.download("x", tmp_path / "x"),
        "upload": lambda: store.upload_verified("x", large[0]),
    }
    with pytest.raises(StoreError, match=r"clock of this machine is 3 h 20 min ahead") as caught:
        calls[operation]()
    assert "Set the clock" in caught.value.next_step
    assert len(server.requests) == 1 + (operation == "download"), "it is not tried again"


@pytest.mark.parametrize("size", [20_000, LARGE])
def test_bytes_changed_on_the_way_in_are_noticed(server, bucket, store, tmp_path, size):
    """200 OK for other bytes, again and again: an error, and nothing in sight."""
    path = tmp_path / "source"
    data = os.urandom(size)
    path.write_bytes(data)
    server.on(FlipUpload(), method="PUT", times=None)
    with pytest.raises(StoreError, match="other bytes"):
        store.upload_verified("x", path, sha256=sha256(data).hexdigest())
    assert bucket.keys() == []
    server.clear()
    store.upload_verified("x", path, sha256=sha256(data).hexdigest())
    assert holds(bucket, "x", data)


@pytest.mark.parametrize("write", ["put", "create"])
def test_an_object_that_no_write_reached_is_kept(server, bucket, store, write):
    """The store refuses the changed bytes of each try: the object there is another writer's."""
    store.put("x", b"theirs")
    server.on(FlipUpload(strip=False), method="PUT", times=None)
    with pytest.raises(StoreError, match="other bytes"):
        getattr(store, write)("x", b"mine")
    assert holds(bucket, "x", b"theirs")


def test_a_wrong_checksum_in_an_answer(server, bucket, store, large):
    path, digest = large
    server.on(SetHeader("ETag", f'"{"0" * 32}"'), method="PUT", query="partNumber=3")
    try:
        store.upload_verified("x", path, sha256=digest)
    except StoreError:
        assert bucket.keys() == []
        store.upload_verified("x", path, sha256=digest)
    assert holds(bucket, "x", path.read_bytes())


@pytest.mark.parametrize("then", [b"theirs", None], ids=["replaced", "deleted"])
def test_another_writer_of_an_encrypted_bucket_keeps_its_object(server, bucket, store, then):
    """It comes between the write and the look at what was written."""
    server.on(SetHeader("ETag", f'"{"1" * 32}"'), method="PUT")
    arrive, key = server.arrive, "some/prefix/x"

    def write_before(request):
        if request.method == "GET" and then is None:
            bucket.client.delete_object(Bucket=bucket.name, Key=key)
        elif request.method == "GET":
            bucket.client.put_object(Bucket=bucket.name, Key=key, Body=then)
        return arrive(request)

    server.arrive = write_before
    store.put("x", b"mine")
    server.arrive = arrive
    assert bucket.keys() == ([key] if then else [])
    assert not then or store.get("x") == then


def test_etags_that_are_no_md5s(server, bucket, store):
    """An encrypted bucket: asked once, then believed."""
    server.on(SetHeader("ETag", f'"{"1" * 32}"'), times=None)
    for name in "abc":
        store.put(name, name.encode())
    assert [store.get(name) for name in "abc"] == [b"a", b"b", b"c"]
    assert len(server.sent("GET")) <= 1 + 3


@pytest.mark.parametrize(
    "fault",
    [
        Truncate(1000),
        # Nine seconds; in the gate test_a_read_that_is_never_whole_is_an_error has them short.
        pytest.param(Hang(1000), marks=pytest.mark.extended),
        Drop(),
        Answer(503, "x"),
    ],
    ids=str,
)
def test_read_bytes_are_complete(server, opened, fault, tmp_path):
    data, store = os.urandom(60_000), opened(fault)
    store.put("x", data)
    server.on(fault, method="GET", times=1)
    assert store.get("x") == data
    server.clear()
    server.on(fault, method="GET", times=1)
    store.download("x", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == data
    server.clear()
    server.on(fault, method="GET", times=1)
    assert store.get_range("x", start=10, length=50_000) == data[10:50_010]


@pytest.mark.parametrize("fault", [Truncate(1000), Hang(1000)], ids=str)
def test_a_read_that_is_never_whole_is_an_error(
    server, bucket, store, fault, tmp_path, monkeypatch
):
    store.put("x", os.urandom(60_000))
    # One retry says as much as six; whatever is given up here besides is an error as well.
    monkeypatch.setattr(adapter, "_LIMITS", Limits(read=0.3, retries=1))
    store = open_store(bucket.url)
    server.on(fault, method="GET", times=None)
    for read in (
        lambda: store.get("x"),
        lambda: store.get_range("x", start=0, length=50_000),
        lambda: store.download("x", tmp_path / "x"),
    ):
        with pytest.raises(StoreError):
            read()
    assert list(tmp_path.iterdir()) == []


def test_a_large_download_is_whole(server, store, large, tmp_path):
    path, digest = large
    store.upload_verified("x", path, sha256=digest)
    for fault in (Truncate(1000), Answer(503, "SlowDown"), Drop()):
        server.on(fault, method="GET", skip=1)
    store.download("x", tmp_path / "y")
    assert sha256((tmp_path / "y").read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("status", [400, 403])
def test_credentials_that_expired_are_named_and_renewed(
    server, bucket, store, large, monkeypatch, status
):
    path, digest = large
    rule = server.on(Answer(status, "ExpiredToken"), skip=3, times=None)
    with pytest.raises(StoreError, match="credentials"):
        store.upload_verified("x", path, sha256=digest)
    assert rule.hits
    with pytest.raises(StoreError, match="credentials"):
        store.put("y", b"1")
    server.clear()
    seen = len(server.requests)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    store.upload_verified("x", path, sha256=digest)
    store.put("y", b"1")
    assert holds(bucket, "x", path.read_bytes())
    assert len(server.requests) > seen


def test_no_credentials_at_all(bucket, store, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(StoreError, match="credentials"):
        open_store(bucket.url).put("x", b"1")


def test_a_bucket_that_is_not_there(server, store, tmp_path, large):
    other = open_store("s3://no-such-bucket/prefix")
    for act in (
        lambda: other.put("x", b"1"),
        lambda: other.get("x"),
        lambda: list(other.list("x")),
        lambda: other.create("x", b"1"),
        lambda: other.upload_verified("x", large[0], sha256=large[1]),
        lambda: other.download("x", tmp_path / "x"),
    ):
        with pytest.raises(
            StoreError, match=r"no-such-bucket.*does not exist.*Create it"
        ) as caught:
            act()
        assert not isinstance(caught.value, ObjectNotFound)


def test_a_server_that_is_not_there(store, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(adapter, "_LIMITS", Limits(retries=1))
    with pytest.raises(StoreError):
        open_store("s3://bucket/prefix").put("x", b"1")


def test_an_address_for_anyone_answers_ranges(store):
    store.put("a b/ü", b"0123456789")
    url = store.presign("a b/ü", seconds=60)
    ranged = urllib.request.Request(url, headers={"Range": "bytes=2-4"})
    with urllib.request.urlopen(ranged, timeout=120) as answer:
        assert (answer.status, answer.read()) == (206, b"234")
    assert "X-Amz-Expires=604800" in store.presign("x", seconds=10**9)


def test_two_threads_with_the_same_bytes(server, bucket, store, large):
    """Two files of one checkpoint may be alike; neither upload takes the other's away."""
    path, digest = large
    held = server.on(Hold(), method="PUT", query="partNumber=1")
    failed = []

    def upload():
        try:
            store.upload_verified("x", path, sha256=digest)
        except StoreError as error:
            failed.append(error)

    threads = [threading.Thread(target=upload) for _ in range(2)]
    threads[0].start()
    assert held.struck.wait(120)
    threads[1].start()
    threads[1].join(0.3)
    assert threads[1].is_alive(), "one thread at a time"
    server.clear()
    for thread in threads:
        thread.join()
    assert failed == []
    assert holds(bucket, "x", path.read_bytes())
    assert bucket.unfinished() == []


def test_flipped_reads_are_for_the_layers_above(server, store):
    """Which hash what they load: S3 tells nothing that could be compared with a range."""
    store.put("x", b"0123456789")
    server.on(FlipAnswer(), method="GET", times=1)
    assert store.get("x") != b"0123456789"
    assert store.get("x") == b"0123456789"
