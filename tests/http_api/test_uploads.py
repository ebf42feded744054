"""Uploads by real S3 clients, and by requests that no client sends on purpose."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import socket
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from prefect_bt.errors import NotFoundError
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.http_api.uploads import staging
from prefect_bt.http_api.uploads.staging import Uploads
from tests.node_agent.rig import wait_until

from .api_server import RunningApi, running_api

MIB = 1024 * 1024
SMALL = os.urandom(100_000)
LARGE = os.urandom(20 * MIB + 12345)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApi]:
    with running_api(tmp_path_factory.mktemp("api")) as api:
        yield api


@dataclass
class Client:
    """One credential, by default of a new key, and the requests of its upload."""

    api: RunningApi
    key: str = ""
    headers: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.key or self.api.site.keys.create(os.urandom(4).hex())[0]
        found = self.api.get("/v1/blobs/credentials/train", key=self.key)
        self.bucket, self.object, self.creds = found["s3_bucket"], found["s3_key"], found["creds"]
        self.path = f"/uploads/{self.bucket}/{self.object}"
        identity = self.creds["aws_access_key_id"]
        self.headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={identity}/20260101/us-east-1/s3/"
            "aws4_request, SignedHeaders=host, Signature=0",
            "X-Amz-Security-Token": self.creds["aws_session_token"],
        }

    @property
    def s3(self) -> Any:
        return boto3.resource("s3", **self.creds).meta.client

    def send(
        self, method: str, query: str = "", body: bytes = b"", **headers: str
    ) -> tuple[int, str, http.client.HTTPMessage]:
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection(self.api.host, timeout=60)
        connection.request(method, f"{self.path}{query}", body, sent)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, answer.headers

    def start_put(self, query: str, size: int) -> socket.socket:
        """A connection that announces so many bytes and sends a few of them."""
        host, _, port = self.api.host.partition(":")
        connection = socket.create_connection((host, int(port)))
        head = [f"PUT {self.path}{query} HTTP/1.1", "Host: x", f"Content-Length: {size}"]
        lines = [*head, *(f"{name}: {value}" for name, value in self.headers.items()), "", ""]
        connection.sendall("\r\n".join(lines).encode() + SMALL)
        return connection

    @property
    def folder(self) -> Path:
        return self.api.site.uploads._folder / self.object.partition("/")[0]

    def begin(self) -> str:
        status, text, _ = self.send("POST", "?uploads")
        assert status == 200
        return text.partition("<UploadId>")[2].partition("<")[0]

    def part(self, upload: str, number: int, body: bytes) -> str:
        status, _, headers = self.send("PUT", f"?uploadId={upload}&partNumber={number}", body)
        assert status == 200
        return headers["ETag"]

    def complete(self, upload: str, *parts: tuple[int, str]) -> tuple[int, str]:
        listed = "".join(
            f"<Part><ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>"
            for number, etag in parts
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        return self.send("POST", f"?uploadId={upload}", body)[:2]

    def taken(self) -> bytes | None:
        """The bytes that a job would get, which are then gone; None if there is no upload."""
        key_id = self.key.split("-")[2]
        try:
            with self.api.site.uploads.take(self.bucket, self.object, key_id) as path:
                return path.read_bytes()
        except NotFoundError:
            return None


@pytest.mark.parametrize("content", [b"", SMALL, LARGE], ids=["empty", "one PUT", "parts"])
def test_upload_by_boto3_is_complete(
    api: RunningApi, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    client = Client(api)
    config = TransferConfig(max_concurrency=10, use_threads=True)
    client.s3.upload_fileobj(BytesIO(content), client.bucket, client.object, Config=config)
    assert client.taken() == content
    assert client.taken() is None


def signed(content: bytes, crc: str | None) -> bytes:
    pieces = [content[at : at + 70_000] for at in range(0, len(content), 70_000)]
    chunks = [b"%x;chunk-signature=%b\r\n%b\r\n" % (len(one), b"0" * 64, one) for one in pieces]
    trailer = f"x-amz-checksum-crc32:{crc}\r\n" if crc else ""
    return b"".join(chunks) + f"0;chunk-signature={'0' * 64}\r\n{trailer}\r\n".encode()


def unsigned(content: bytes, digest: str | None, name: str = "crc32") -> bytes:
    trailer = f"x-amz-checksum-{name}:{digest}\r\n" if digest else ""
    return b"%x\r\n%b\r\n0\r\n" % (len(content), content) + f"{trailer}\r\n".encode()


def base64_of(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def crc32(content: bytes) -> str:
    return base64_of(zlib.crc32(content).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (unsigned, "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
        (signed, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
        (signed, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
    ],
)
@pytest.mark.parametrize("fault", ["", "checksum", "cut", "longer", "no chunks"])
def test_upload_aws_chunked_is_decoded_and_verified(
    api: RunningApi, form: Any, kind: str, fault: str
) -> None:
    client = Client(api)
    crc = None if kind.endswith("PAYLOAD") and fault != "checksum" else crc32(SMALL)
    body = form(SMALL, crc32(b"other") if fault == "checksum" else crc)
    body = {"cut": body[:-9], "no chunks": SMALL}.get(fault, body)
    status, text, _ = client.send(
        "PUT",
        "",
        body,
        Content_Encoding="aws-chunked",
        X_Amz_Content_SHA256=kind,
        X_Amz_Decoded_Content_Length=str(len(SMALL) - (fault == "longer")),
        X_Amz_Trailer="X-Amz-Checksum-CRC32",
    )
    if fault:
        assert status == 400
        assert "BadDigest" in text or "IncompleteBody" in text
        assert client.taken() is None
    else:
        assert status == 200
        assert client.taken() == SMALL


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"X_Amz_Content_SHA256": hashlib.sha256(b"other").hexdigest()}, "SHA256Mismatch"),
        ({"X_Amz_Checksum_CRC32": crc32(b"other")}, "BadDigest"),
        ({"X_Amz_Checksum_SHA1": "AAAA"}, "BadDigest"),
        ({"X_Amz_Checksum_SHA256": "AAAA"}, "BadDigest"),
        ({"Content_MD5": "AAAA"}, "BadDigest"),
    ],
)
def test_upload_damaged_on_its_way_is_refused_and_leaves_nothing(
    api: RunningApi, headers: dict[str, str], code: str
) -> None:
    client = Client(api)
    status, text, _ = client.send("PUT", "", SMALL, **headers)
    assert (status, code in text) == (400, True)
    assert not client.folder.exists()
    assert client.taken() is None


@pytest.mark.parametrize("as_trailer", [False, True])
@pytest.mark.parametrize("name", ["sha1", "sha256", "crc32c", "crc64nvme"])
def test_upload_is_compared_with_its_checksum(api: RunningApi, name: str, as_trailer: bool) -> None:
    """One that the server cannot compute, as the AWS CLI sends by default, is not compared."""
    client = Client(api)
    right = base64_of(hashlib.new(name, SMALL).digest()) if name.startswith("sha") else "AAAA"
    for digest, status in (("AAAA", 400), (right, 200)):
        headers = {"X_Amz_Checksum_Type": "FULL_OBJECT", "X_Amz_Checksum_Algorithm": name}
        body = SMALL
        if as_trailer:
            body = unsigned(SMALL, digest, name)
            headers |= {
                "X_Amz_Content_SHA256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
                "X_Amz_Decoded_Content_Length": str(len(SMALL)),
                "X_Amz_Trailer": f"x-amz-checksum-{name}",
            }
        else:
            headers[f"X_Amz_Checksum_{name}"] = digest
        headers["Content_MD5"] = base64_of(hashlib.md5(SMALL).digest())
        answer, text, _ = client.send("PUT", "", body, **headers)
        assert answer == (status if name.startswith("sha") else 200), text
    assert client.taken() == SMALL


@pytest.mark.parametrize("fault", ["no token", "wrong", "another upload", "other path", "expired"])
def test_upload_without_its_own_token_is_refused(api: RunningApi, fault: str) -> None:
    client, other = Client(api), Client(api)
    token = client.headers["X-Amz-Security-Token"]
    if fault == "no token":
        del client.headers["X-Amz-Security-Token"]
    elif fault == "wrong":
        client.headers["X-Amz-Security-Token"] = token[:-1] + ("0" if token[-1] != "0" else "1")
    elif fault == "another upload":
        client.headers["X-Amz-Security-Token"] = other.headers["X-Amz-Security-Token"]
    elif fault == "other path":
        client.path = other.path
    else:
        old = Uploads(api.site.settings.state_dir, clock=lambda: time.time() - 3602)
        upload_id, client.headers["X-Amz-Security-Token"] = old.issue(client.key.split("-")[2])
        client.path = f"/uploads/uploads/{upload_id}/workspace.tgz"
        client.headers["Authorization"] = f"AWS4-HMAC-SHA256 Credential={upload_id}/x"
    for method, query in (("PUT", ""), ("POST", "?uploads"), ("DELETE", "?uploadId=x")):
        status, text, _ = client.send(method, query, SMALL)
        assert (status, "<Code>AccessDenied</Code>" in text) == (403, True)
    assert client.taken() is other.taken() is None


@pytest.mark.parametrize(
    "path", ["/uploads/other/x/workspace.tgz", "/uploads/uploads/x", "/uploads/uploads/../../key"]
)
def test_upload_to_another_path_is_refused(api: RunningApi, path: str) -> None:
    client = Client(api)
    client.path = path
    assert client.send("PUT", "", SMALL)[0] == 403


def test_upload_of_a_revoked_key_is_refused(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        key, record = api.site.keys.create("short")
        client = Client(api, key)
        assert client.send("PUT", "", SMALL)[0] == 200
        api.site.keys.revoke(record.id)
        api.site.keys._recent.clear()  # instead of a wait of five seconds
        assert client.send("PUT", "", SMALL)[0] == 403


def test_upload_is_not_taken_by_another_key(api: RunningApi) -> None:
    client, other = Client(api), Client(api)
    assert client.send("PUT", "", SMALL)[0] == 200
    other.object = client.object
    assert other.taken() is None
    assert client.taken() == SMALL


def test_upload_stays_if_the_job_is_refused(api: RunningApi) -> None:
    client = Client(api)
    assert client.send("PUT", "", SMALL)[0] == 200
    with (
        pytest.raises(ZeroDivisionError),
        api.site.uploads.take(client.bucket, client.object, client.key.split("-")[2]),
    ):
        raise ZeroDivisionError
    assert client.taken() == SMALL


def test_parts_in_any_order_join_and_the_last_of_a_number_counts(api: RunningApi) -> None:
    client = Client(api)
    upload = client.begin()
    third, first = client.part(upload, 3, b"three"), client.part(upload, 1, b"old")
    second, new = client.part(upload, 2, b"two"), client.part(upload, 1, b"one")
    status, text = client.complete(upload, (1, first), (2, second), (3, third))
    assert (status, "InvalidPart" in text) == (400, True)
    for _ in range(2):  # the second is a client's that had no answer
        assert client.complete(upload, (1, new), (2, second), (3, third))[0] == 200
    assert client.taken() == b"onetwothree"


@pytest.mark.parametrize("fault", ["missing part", "wrong order", "wrong etag", "none", "no list"])
def test_parts_that_do_not_fit_their_list_are_refused(api: RunningApi, fault: str) -> None:
    client = Client(api)
    upload = client.begin()
    one, two = client.part(upload, 1, b"one"), client.part(upload, 2, b"two")
    parts = {
        "missing part": [(1, one), (2, two), (3, two)],
        "wrong order": [(2, two), (1, one)],
        "wrong etag": [(1, two), (2, one)],
        "none": [],
        "no list": [(1, "../../x")],
    }[fault]
    assert client.complete(upload, *parts)[0] == 400
    assert client.taken() is None
    assert client.complete(upload, (1, one), (2, two))[0] == 200


def test_aborted_upload_is_removed(api: RunningApi) -> None:
    client = Client(api)
    upload = client.begin()
    etag = client.part(upload, 1, SMALL)
    assert client.send("DELETE", f"?uploadId={upload}")[0] == 204
    assert client.complete(upload, (1, etag))[0] == 404
    assert client.send("PUT", f"?uploadId={upload}&partNumber=1", SMALL)[0] == 404
    assert client.taken() is None


@pytest.mark.parametrize("query", ["", "?uploadId={}&partNumber=1"])
def test_upload_cut_in_the_middle_is_not_accepted(api: RunningApi, query: str) -> None:
    client = Client(api)
    query = query.format(client.begin()) if query else query
    with client.start_put(query, 200_000):
        wait_until(lambda: list(client.folder.glob("*.tmp")))
    left = ["lock"] if query else []
    wait_until(lambda: [one.name for one in find_paths(client.folder, "*")] == left)
    assert client.folder.exists() is bool(query), "parts can be sent again"
    assert client.taken() is None


@pytest.mark.parametrize(
    "headers", [{}, {"X_Amz_Content_SHA256": "STREAMING-X", "X_Amz_Decoded_Content_Length": "10"}]
)
def test_list_of_parts_too_long_is_refused(api: RunningApi, headers: dict[str, str]) -> None:
    client = Client(api)
    upload = client.begin()
    status, text, _ = client.send("POST", f"?uploadId={upload}", b" " * (MIB + 1), **headers)
    assert (status, "EntityTooLarge" in text) == (413, True)


@pytest.mark.parametrize("by_parts", [False, True])
def test_upload_too_large_is_refused(tmp_path: Path, by_parts: bool) -> None:
    with running_api(tmp_path, max_bytes=250_000 if by_parts else 150_000) as api:
        client = Client(api)
        query = ""
        if by_parts:
            upload = client.begin()
            client.part(upload, 1, SMALL)
            client.part(upload, 1, SMALL)
            query = f"?uploadId={upload}&partNumber=2"
        status, text, _ = client.send("PUT", query, SMALL * 2)
        assert (status, "EntityTooLarge" in text) == (413, True)
        with pytest.raises(ClientError, match="EntityTooLarge"):
            client.s3.put_object(Bucket=client.bucket, Key=client.object, Body=SMALL * 2)
        assert client.taken() is None


def test_upload_too_large_in_parts_that_arrive_at_once_is_refused(tmp_path: Path) -> None:
    with running_api(tmp_path, max_bytes=250_000) as api, contextlib.ExitStack() as stack:
        client = Client(api)
        upload = client.begin()
        query = f"?uploadId={upload}&partNumber="
        for number in (1, 2):
            stack.enter_context(client.start_put(f"{query}{number}", 110_000))
        wait_until(lambda: len(list(client.folder.glob("*.tmp"))) == 2)
        assert client.send("PUT", f"{query}3", SMALL)[0] == 413


def test_uploads_that_no_job_takes_are_limited(tmp_path: Path) -> None:
    with running_api(tmp_path) as api:
        clients = [Client(api, api.key) for _ in range(staging.MAX_OPEN_UPLOADS + 1)]
        assert [one.send("PUT", "", b"x")[0] for one in clients] == [200] * 16 + [503]
        folder = clients[3].folder
        for one in (folder, *folder.iterdir()):
            os.utime(one, (0, time.time() - 3600))
        assert clients[-1].send("PUT", "", b"x")[0] == 200
        assert clients[3].taken() is None


@pytest.mark.slow
def test_upload_that_is_slow_delays_no_other(api: RunningApi) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(Client(api).start_put("", 9_000_000))
        client = Client(api)
        assert client.send("PUT", "", SMALL)[0] == 200, "the others do not end before it"
    assert client.taken() == SMALL
