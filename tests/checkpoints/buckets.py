"""A real S3 server in a process of its own, and what is unfinished in it."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

ACCESS, SECRET, REGION = "test", "testtesttest", "us-east-1"
_numbers = itertools.count(1)


class Bucket:
    """A fresh bucket on a server; `url` opens it as a store."""

    def __init__(self, endpoint):
        self.endpoint, self.name = endpoint, f"bucket-{os.getpid()}-{next(_numbers)}"
        self.client.create_bucket(Bucket=self.name)

    @property
    def client(self):
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
            region_name=REGION,
        )

    @property
    def url(self):
        return f"s3://{self.name}/some/prefix"

    def unfinished(self):
        """Keys of uploads in parts that were neither completed nor aborted."""
        told = self.client.list_multipart_uploads(Bucket=self.name)
        return [one["Key"] for one in told.get("Uploads", [])]

    def keys(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return [one["Key"] for page in pages for one in page.get("Contents", [])]

    def empty(self):
        """Everything goes, so that a server that keeps all in memory stays small."""
        keys = [{"Key": key} for key in self.keys()]
        for start in range(0, len(keys), 1000):
            self.client.delete_objects(
                Bucket=self.name, Delete={"Objects": keys[start : start + 1000]}
            )


@contextlib.contextmanager
def s3_server(folder):
    """The address of a server; its log lies in `folder`."""
    pytest.importorskip("moto.server", reason="moto[server] is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            _await(f"http://127.0.0.1:{port}", server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait()


def _await(endpoint, server):
    for _ in range(300):
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"{endpoint}/moto-api/", timeout=1).close()
            return
        assert server.poll() is None, "the S3 server ended"
        time.sleep(0.1)
    raise AssertionError("the S3 server did not start")


def use(monkeypatch, endpoint):
    """Point this process and those it starts at the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
