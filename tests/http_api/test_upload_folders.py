"""Uploads on disk while something else happens: a late part, other jobs, a silent bucket."""

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import StoreError, UsageError
from prefect_bt.http_api.uploads import staging
from prefect_bt.http_api.uploads.staging import MAX_OPEN_UPLOADS, Uploads, join_parts, publish

KEY = "abc1234"


class SilentBucket:
    """A bucket whose objects can be read, and not deleted."""

    name, prefix = "bucket", "store/uploads/"

    def download(self, name: str, target: Path, *, max_bytes: int) -> None:
        target.write_bytes(name.encode()[:max_bytes])

    def delete(self, name: str) -> None:
        raise StoreError(f"No answer: {name}", url="s3://bucket/store")


def open_bucket_uploads(folder: Path) -> Uploads:
    bucket: Any = SilentBucket()
    return Uploads(folder, bucket=bucket)


def test_part_that_is_received_twice_does_not_come_back_after_the_end(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    folder = uploads.open(uploads.issue(KEY)[0])

    def receive(data: bytes) -> Path:
        file = uploads.create_file(folder, len(data))
        file.write_bytes(data)
        return file

    parts = [(n, hashlib.sha256(data).hexdigest()) for n, data in ((1, b"one"), (2, b"two"))]
    slow = receive(b"one")  # its client has given up, and sends it again
    publish(folder, receive(b"one"), *parts[0])
    publish(folder, receive(b"two"), *parts[1])
    join_parts(folder, parts)
    with pytest.raises(FileNotFoundError):
        publish(folder, slow, *parts[0])
    join_parts(folder, parts)
    assert (folder / staging.OBJECT_NAME).read_bytes() == b"onetwo"


def test_upload_starts_while_a_job_takes_another_of_a_full_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploads = Uploads(tmp_path)
    ids = [uploads.issue(KEY)[0] for _ in range(MAX_OPEN_UPLOADS + 1)]
    for upload_id in ids[:-1]:
        (uploads.open(upload_id) / staging.OBJECT_NAME).touch()
    find_paths = staging.find_paths

    def find_and_take(folder: Path, pattern: str) -> list[Path]:
        paths = find_paths(folder, pattern)
        with uploads.take(staging.BUCKET, f"{ids[3]}/{staging.OBJECT_NAME}", KEY):
            return paths

    monkeypatch.setattr(staging, "find_paths", find_and_take)
    assert uploads.open(ids[-1]).is_dir()


def test_job_has_started_although_its_upload_cannot_be_deleted(tmp_path: Path) -> None:
    uploads = open_bucket_uploads(tmp_path)
    upload_id = uploads.issue(KEY)[0]
    with uploads.take("bucket", f"store/uploads/{upload_id}/workspace.tgz", KEY) as path:
        assert path.read_bytes().startswith(upload_id.encode())
    assert not path.parent.exists()


def test_upload_of_a_refused_job_gives_way_in_a_bucket_too(tmp_path: Path) -> None:
    uploads = open_bucket_uploads(tmp_path)
    key = f"store/uploads/{uploads.issue(KEY)[0]}/workspace.tgz"
    with pytest.raises(UsageError), uploads.take("bucket", key, KEY) as path:
        raise UsageError("refused")
    uploads.give_up(key, KEY)
    assert time.time() - path.stat().st_mtime > 600
