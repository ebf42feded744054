"""Buckets of a real S3 server, and what is unfinished in them."""

import functools
import itertools
import os

ACCESS, SECRET, REGION = "test", "testtesttest", "us-east-1"
_numbers = itertools.count(1)


class Bucket:
    """A fresh bucket on a server; `url` opens it as a store."""

    def __init__(self, endpoint):
        self.endpoint, self.name = endpoint, f"bucket-{os.getpid()}-{next(_numbers)}"
        self.client.create_bucket(Bucket=self.name)

    @property
    def client(self):
        return _client(self.endpoint)

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
        """Delete everything: the server keeps all of a test run in memory."""
        keys = [{"Key": key} for key in self.keys()]
        for start in range(0, len(keys), 1000):
            self.client.delete_objects(
                Bucket=self.name, Delete={"Objects": keys[start : start + 1000]}
            )


@functools.cache
def _client(endpoint):
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=ACCESS,
        aws_secret_access_key=SECRET,
        region_name=REGION,
    )


def use(monkeypatch, endpoint):
    """Point this process and those it starts at the server."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
