"""Uploads from clients to the store's bucket, with keys of a real STS."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pytest

from prefect_bt.errors import NotFoundError, WorkspaceError
from prefect_bt.http_api.uploads import bucket_uploads
from prefect_bt.http_api.uploads.bucket_uploads import BucketUploads, open_bucket_uploads
from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import Bucket, use
from tests.s3_server import shared_s3

from .api_server import RunningApi, running_api

pytestmark = pytest.mark.integration

ROLE = "arn:aws:iam::123456789012:role/uploads"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    use(monkeypatch, shared_s3())
    made = Bucket(shared_s3())
    yield made
    made.empty()


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The session policies that were asked for."""
    asked: list[str] = []
    assume = bucket_uploads.assume_role

    def record(role: str, region: str, *, policy: str) -> Any:
        assert role == ROLE
        asked.append(policy)
        return assume(role, region, policy=policy)

    monkeypatch.setattr(bucket_uploads, "assume_role", record)
    return asked


@pytest.fixture
def api(made: Bucket, policies: list[str], tmp_path: Path) -> Iterator[RunningApi]:
    bucket = open_bucket_uploads(open_store(made.url), ROLE)
    with running_api(tmp_path, store=made.url, bucket=bucket, max_bytes=1000) as api:
        yield api


def upload(api: RunningApi, content: bytes) -> tuple[str, str]:
    found = api.get("/v1/blobs/credentials/train")
    bucket, key = found["s3_bucket"], found["s3_key"]
    client = boto3.resource("s3", **found["creds"]).meta.client
    client.upload_fileobj(BytesIO(content), bucket, key)
    return bucket, key


def test_upload_goes_to_the_bucket_and_is_taken_once(
    api: RunningApi, made: Bucket, policies: list[str]
) -> None:
    bucket, key = upload(api, b"content")
    assert bucket == made.name
    assert made.keys().count(key) == 1
    (policy,) = policies
    (statement,) = json.loads(policy)["Statement"]
    assert statement["Action"] == ["s3:PutObject", "s3:AbortMultipartUpload"]
    assert statement["Resource"] == f"arn:aws:s3:::{bucket}/{key.rpartition('/')[0]}/*"
    key_id = api.key.split("-")[2]
    with (
        pytest.raises(NotFoundError),
        api.site.uploads.take(bucket, key, api.site.keys.create("x")[1].id),
    ):
        pass
    with pytest.raises(ZeroDivisionError), api.site.uploads.take(bucket, key, key_id):
        raise ZeroDivisionError
    with api.site.uploads.take(bucket, key, key_id) as path:
        assert path.read_bytes() == b"content"
    assert made.keys().count(key) == 0
    with pytest.raises(NotFoundError), api.site.uploads.take(bucket, key, key_id):
        pass


def test_upload_to_the_bucket_too_large_is_refused(api: RunningApi) -> None:
    bucket, key = upload(api, b"x" * 1001)
    with (
        pytest.raises(WorkspaceError, match="larger than"),
        api.site.uploads.take(bucket, key, api.key.split("-")[2]),
    ):
        pass


@pytest.mark.parametrize("name", ["job.json", "training_projects/p/job.json", "uploads/x/y"])
def test_object_of_the_store_that_is_no_upload_is_not_taken(api: RunningApi, name: str) -> None:
    api.site.ledger.store.put(name, b"{}")
    bucket, key_id = api.site.uploads.bucket, api.key.split("-")[2]
    assert isinstance(bucket, BucketUploads)
    for key in (name, f"some/prefix/{name}"):
        with pytest.raises(NotFoundError), api.site.uploads.take(bucket.name, key, key_id):
            pass


def test_client_of_the_proxy_uploads_to_the_server_if_the_bucket_is_not_at_https(
    api: RunningApi, policies: list[str]
) -> None:
    host, _, port = api.host.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            b"GET http://api.localhost:8000/v1/blobs/credentials/train HTTP/1.1\r\n"
            b"Host: api.localhost:8000\r\nConnection: close\r\n"
            b"Authorization: Api-Key " + api.key.encode() + b"\r\n\r\n"
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).partition(b"\r\n\r\n")[2]
    assert json.loads(answer)["creds"]["endpoint_url"] == "http://api.localhost:8000/uploads"
    assert policies == []


@pytest.mark.parametrize("role", ["", ROLE])
def test_store_without_role_or_bucket_has_no_such_uploads(tmp_path: Path, role: str) -> None:
    assert open_bucket_uploads(open_store(str(tmp_path)), role) is None
