"""Large files in parts: what an upload that was interrupted leaves, and what goes on from there."""

import os
import time
from hashlib import sha256

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.object_store import multipart
from tests.checkpoints.buckets import Bucket
from tests.checkpoints.running import wait_for
from tests.forked import Forked
from tests.object_store.faulty import Answer, Hang
from tests.object_store.small import PART

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("quick")]

OF_USERS = multipart.MIN_PART_BYTES
PARTS = 6
SIZE = (PARTS - 1) * PART + 4321

UPLOAD = """
import sys
from pathlib import Path
from prefect_bt.object_store import open_store
from tests.object_store.small import use_small_parts
use_small_parts()
open_store(sys.argv[1]).upload_verified("x", Path(sys.argv[2]), sha256=sys.argv[3])
"""

MEASURED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from prefect_bt.object_store import multipart
from prefect_bt.object_store import open_store
from tests.object_store.small import use_small_parts
use_small_parts()
multipart.MIN_PART_BYTES = 1 << 20
def most():
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))
store, source = open_store(sys.argv[1]), Path(sys.argv[2])
store.upload_verified("first", source.with_name("first"))  # what connecting takes
before = most()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda key: store.upload_verified(key, source, sha256=sys.argv[3]), "ab"))
print(most() - before)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "source"
    path.write_bytes(os.urandom(SIZE))
    return path


def digest_of(path):
    return sha256(path.read_bytes()).hexdigest()


def parts_of(bucket):
    """Numbers of the parts that unfinished uploads of x have, per upload."""
    key = "some/prefix/x"
    told = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=key)
    return [
        [
            part["PartNumber"]
            for part in bucket.client.list_parts(
                Bucket=bucket.name, Key=key, UploadId=one["UploadId"]
            ).get("Parts", [])
        ]
        for one in told.get("Uploads", [])
    ]


def body(bucket):
    return bucket.client.get_object(Bucket=bucket.name, Key="some/prefix/x")["Body"].read()


def interrupted(server, bucket, source):
    """A process is killed while its fifth part is on the way; the number of parts that arrived."""
    stuck = server.on(Hang(), method="PUT", query=r"partNumber=5\b", times=None)
    process = Forked(UPLOAD, [bucket.url, source, digest_of(source)])
    try:
        assert stuck.struck.wait(120)
    finally:
        process.kill()
        process.wait()
    server.clear()
    assert bucket.keys() == []
    server.count_all()
    wait_for(lambda: server.open == 0)  # what was on its way at the kill still arrives
    (found,) = parts_of(bucket)
    return len(found)


def test_a_source_that_grew_is_noticed_before_a_part_is_sent(bucket, store, source):
    os.truncate(source, 1 << 40)  # a file of holes, in parts that are as large in turn

    def refuse(sent):
        raise RuntimeError(sent)

    with pytest.raises(RuntimeError, match="0"):
        store.upload_verified("x", source, on_bytes=refuse)
    assert bucket.unfinished() == []


def test_a_killed_upload_goes_on_where_it_was(server, bucket, store, source):
    there = interrupted(server, bucket, source)
    before = len(server.sent("PUT", "partNumber"))
    told = []
    store.upload_verified("x", source, sha256=digest_of(source), on_bytes=told.append)
    assert len(server.sent("PUT", "partNumber")) - before == PARTS - there
    assert sum(told) == SIZE
    assert body(bucket) == source.read_bytes()
    assert bucket.unfinished() == []


def test_parts_of_other_bytes_are_sent_again(server, bucket, store, source):
    interrupted(server, bucket, source)
    with source.open("r+b") as stream:
        stream.seek(PART + 5)
        stream.write(b"changed")
    store.upload_verified("x", source, sha256=digest_of(source))
    assert body(bucket) == source.read_bytes()
    assert bucket.unfinished() == []


def test_parts_of_another_length_are_given_up(bucket, store, source):
    key = "some/prefix/x"
    unfinished = bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)["UploadId"]
    bucket.client.upload_part(
        Bucket=bucket.name, Key=key, UploadId=unfinished, PartNumber=1, Body=b"z" * (PART - 1000)
    )
    store.upload_verified("x", source, sha256=digest_of(source))
    assert body(bucket) == source.read_bytes()
    assert bucket.unfinished() == []


def test_of_several_the_one_with_most_parts_goes_on(server, bucket, store, source):
    key, unfinished = "some/prefix/x", []
    data = source.read_bytes()
    for count in (1, 3, 2):
        upload = bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)["UploadId"]
        unfinished.append(upload)
        for number in range(1, count + 1):
            bucket.client.upload_part(
                Bucket=bucket.name,
                Key=key,
                UploadId=upload,
                PartNumber=number,
                Body=data[(number - 1) * PART : number * PART],
            )
    store.upload_verified("x", source, sha256=digest_of(source))
    assert len(server.sent("PUT", "partNumber")) == PARTS - 3
    assert body(bucket) == data
    assert bucket.unfinished() == []


def test_other_bytes_than_announced_leave_nothing(bucket, store, source):
    with pytest.raises(StoreError, match="not the ones announced"):
        store.upload_verified("x", source, sha256="0" * 64)
    assert bucket.keys() == bucket.unfinished() == []


def test_after_a_fault_the_next_try_sends_only_the_rest(server, bucket, store, source):
    server.on(Answer(403, "AccessDenied"), method="PUT", query=r"partNumber=6\b")
    with pytest.raises(StoreError):
        store.upload_verified("x", source, sha256=digest_of(source))
    assert bucket.keys() == []
    (there,) = parts_of(bucket)
    assert there
    sent = len(server.sent("PUT", "partNumber"))
    store.upload_verified("x", source, sha256=digest_of(source))
    assert len(server.sent("PUT", "partNumber")) - sent == PARTS - len(there)
    assert body(bucket) == source.read_bytes()


def test_unfinished_uploads_are_given_up_by_folder(bucket, store):
    for key in ("a/x", "a/b/y", "ab/z", "a"):
        bucket.client.create_multipart_upload(Bucket=bucket.name, Key=f"some/prefix/{key}")
    unfinished = list(store.list_unfinished_uploads("a"))
    assert len(unfinished) == 2
    for one in unfinished:
        store.abort_upload(one)
    assert sorted(bucket.unfinished()) == ["some/prefix/a", "some/prefix/ab/z"]
    assert list(store.list_unfinished_uploads("a")) == []


def test_parts_are_as_large_as_s3_asks():
    """The tests' own are smaller: their server is told to take them."""
    assert OF_USERS >= 5 << 20


def test_an_upload_needs_little_memory(upstream, server, tmp_path):
    """Two files of 40 parts at once: the limit is for any size, nothing grows with it."""
    bucket = Bucket(upstream)
    source = tmp_path / "source"
    source.touch()
    os.truncate(source, 40 << 20)
    (tmp_path / "first").write_bytes(bytes(3 << 20))
    process = Forked(MEASURED, [bucket.url, source, digest_of(source)])
    out, errors = process.communicate(timeout=400)
    bucket.empty()
    assert process.returncode == 0, errors
    assert int(out) < 30, "MiB; both files have 80"


def test_unfinished_uploads_are_listed_and_aborted(bucket, store):
    unfinished = []
    for key in ("some/prefix/weights/blobs/ab/cd", "some/prefix/training_projects/p/jobs/j/x", "y"):
        made = bucket.client.create_multipart_upload(Bucket=bucket.name, Key=key)
        part = {"Bucket": bucket.name, "Key": key, "UploadId": made["UploadId"], "PartNumber": 1}
        bucket.client.upload_part(**part, Body=b"12345")
        unfinished.append(made["UploadId"])
    found = {one.upload_id: one for one in store.list_unfinished_uploads()}
    assert set(found) == set(unfinished[:2]), "what others keep in the bucket is theirs"
    one = found[unfinished[1]]
    assert (one.key, one.size) == ("training_projects/p/jobs/j/x", 5)
    assert abs(one.modified - time.time()) < 120
    store.abort_upload(one)
    store.abort_upload(one)
    assert {one.upload_id for one in store.list_unfinished_uploads()} == {unfinished[0]}
