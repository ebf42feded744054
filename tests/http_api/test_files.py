"""URLs of a job's files: what they answer, and to whom."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import pytest

from prefect_bt.file_server.signed_urls import sign_url
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_keys import job_prefix
from tests.cli.conftest import Shop
from tests.s3_server import shared_s3

from .api_server import RunningApi, running_api

DATA = bytes(range(256)) * 8192
FILES = {"model.safetensors": DATA, "config.json": b"{}", "a b/ü.txt": b"text"}


def tar_of(content: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        info = tarfile.TarInfo("train.py")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


WORKSPACE = tar_of(b"print()" * 300_000)


class Served:
    """A running API whose store has one job with files, of a folder or a bucket over http."""

    def __init__(self, api: RunningApi) -> None:
        self.api = api
        self.shop = Shop(api.site.settings.store)
        digest = hashlib.sha256(WORKSPACE).hexdigest()
        self.job = self.shop.job("p", JobState.FAILED, workspace=WORKSPACE, sha256=digest)
        self.shop.commit(self.job, "checkpoint-1", FILES)
        self.shop.commit(self.job, "checkpoint-1", {"optimizer.pt": b"rank 1"}, rank=1)

    def get(self, what: str, *, job: JobRecord | None = None, key: str = "") -> Any:
        job = job or self.job
        return self.api.get(f"/v1/training_projects/{job.project_id}/jobs/{job.id}/{what}", key=key)

    def url(self, name: str = "model.safetensors") -> str:
        files = self.get("checkpoint_files")["presigned_urls"]
        return next(one["url"] for one in files if one["relative_file_name"].endswith(name))


@pytest.fixture(scope="module", params=["folder", "bucket"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        store = ""
        if request.param == "bucket":
            patch.setenv("AWS_ENDPOINT_URL", shared_s3())
            patch.setenv("AWS_ACCESS_KEY_ID", "k")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            boto3.client("s3").create_bucket(Bucket=folder.name)
            store = f"s3://{folder.name}/x"
        with running_api(folder, store=store) as api:
            yield Served(api)


def fetch(url: str, method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, method=method, headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read(), refused.headers


def test_workspace_url_needs_no_key_and_gives_the_archive(served: Served) -> None:
    (url,) = served.get("download")["artifact_presigned_urls"]
    assert fetch(url)[:2] == (200, WORKSPACE)
    bare = served.shop.job("p", JobState.FAILED)
    assert served.get("download", job=bare) == {"artifact_presigned_urls": []}


def test_checkpoint_files_have_urls_of_their_bytes(served: Served) -> None:
    found = served.get("checkpoint_files")
    files = {one["relative_file_name"]: one for one in found["presigned_urls"]}
    assert found["total_count"] == len(files) == 4
    assert found["next_page_token"] is None
    for name, content in FILES.items():
        one = files[f"checkpoint-1/{name}"]
        assert fetch(one["url"])[:2] == (200, content)
        assert one["sha256"] == hashlib.sha256(content).hexdigest()
        assert (one["size_bytes"], one["node_rank"]) == (len(content), 0)
        assert one["checkpoint_id"] == "checkpoint-1"
    assert files["checkpoint-1/optimizer.pt"]["node_rank"] == 1


def test_checkpoint_files_come_in_pages(served: Served) -> None:
    whole = [one["relative_file_name"] for one in served.get("checkpoint_files")["presigned_urls"]]
    names: list[str] = []
    token: int | None = 0
    while token is not None:
        page = served.get(f"checkpoint_files?page_size=3&page_token={token}")
        assert page["total_count"] == 4
        names += [one["relative_file_name"] for one in page["presigned_urls"]]
        token = page["next_page_token"]
    assert names == whole


@pytest.mark.parametrize(
    "query", ["page_size=0", "page_size=1001", "page_token=-1", "page_token=x"]
)
def test_checkpoint_files_page_that_cannot_be_is_refused(served: Served, query: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.get(f"checkpoint_files?{query}")
    assert caught.value.code == 400
    assert "message" in json.load(caught.value)


def test_checkpoints_are_those_of_the_job(served: Served) -> None:
    found = served.get("checkpoints")
    assert found["training_job"]["id"] == served.job.id
    (one,) = found["checkpoints"]
    assert one["checkpoint_id"] == "checkpoint-1"
    assert one["size_bytes"] == sum(map(len, FILES.values())) + len(b"rank 1")
    assert isinstance(one["checkpoint_type"], str)


@pytest.mark.parametrize("what", ["download", "checkpoints", "checkpoint_files"])
def test_files_of_another_team_are_unknown(served: Served, what: str) -> None:
    key, record = served.api.site.keys.create(f"other-{what}", team="other")
    with pytest.raises(urllib.error.HTTPError) as caught:
        served.get(what, key=key)
    assert caught.value.code == 404
    served.api.site.keys.revoke(record.id)


SIZE = len(DATA)


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-99", 5, 100),
        ("bytes=1048570-", 1048570, SIZE),
        ("bytes=-7", SIZE - 7, SIZE),
        (f"bytes=10-{SIZE * 9}", 10, SIZE),
    ],
)
def test_range_gives_exactly_these_bytes(served: Served, wanted: str, start: int, end: int) -> None:
    status, body, headers = fetch(served.url(), Range=wanted)
    assert (status, body) == (206, DATA[start:end])
    assert headers["Content-Range"] == f"bytes {start}-{end - 1}/{SIZE}"
    status, body, headers = fetch(served.url(), "HEAD", Range=wanted)
    assert (status, body, headers["Content-Length"]) == (206, b"", str(end - start))


def test_range_outside_the_file_is_refused(served: Served) -> None:
    status, _, headers = fetch(served.url(), Range=f"bytes={SIZE}-")
    assert (status, headers["Content-Range"]) == (416, f"bytes */{SIZE}")


def test_range_of_another_version_gives_all_bytes(served: Served) -> None:
    etag = fetch(served.url(), "HEAD")[2]["ETag"]
    assert fetch(served.url(), Range="bytes=0-4", If_Range=etag)[:2] == (206, DATA[:5])
    assert fetch(served.url(), Range="bytes=0-4", If_Range='"other"')[:2] == (200, DATA)


@pytest.mark.parametrize(
    "fault", ["no signature", "wrong", "other file", "expired", "other secret"]
)
def test_url_that_was_not_signed_here_is_refused(served: Served, fault: str) -> None:
    url, secret = served.url(), served.api.site.uploads.secret
    base, key = f"{served.api.url}/files", "training_projects/p/jobs/j/objects/0/x"
    url = {
        "no signature": url.partition("?")[0],
        "wrong": url[:-1] + ("0" if url[-1] != "0" else "1"),
        "other file": served.url("config.json").partition("?")[0] + "?" + url.partition("?")[2],
        "expired": sign_url(base, secret, key, expires=int(time.time()) - 1),
        "other secret": sign_url(base, b"other", key, expires=int(time.time()) + 60),
    }[fault]
    status, body, _ = fetch(url)
    assert (status, "message" in json.loads(body)) == (403, True)


@pytest.mark.parametrize("name", ["job.json", "objects/../job.json", "objects/0000/ab", "x"])
def test_url_of_what_is_no_file_of_a_job_is_unknown(served: Served, name: str) -> None:
    key = f"{job_prefix(served.job.project_id, served.job.id)}/{name}"
    secret, expires = served.api.site.uploads.secret, int(time.time()) + 60
    signed = sign_url(f"{served.api.url}/files", secret, key, expires=expires)
    assert fetch(signed.replace(quote(".."), "%2e%2e"))[0] == 404


def test_url_of_a_link_that_leads_outside_is_unknown(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        served = Served(api)
        outside = tmp_path / "outside"
        outside.write_bytes(b"secret")
        key = f"{job_prefix(served.job.project_id, served.job.id)}/objects/0000/linked"
        link = tmp_path / "store" / key
        link.symlink_to(outside)
        expires = int(time.time()) + 60
        url = sign_url(f"{api.url}/files", api.site.uploads.secret, key, expires=expires)
        assert fetch(url)[0] == 404
