"""A real S3 server, a proxy before it that can be told to fail, and a bucket in it."""

import pytest

from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import Bucket, use
from tests.object_store.faulty import FaultyServer
from tests.object_store.small import retry_at_once, use_small_parts
from tests.s3_server import shared_s3


@pytest.fixture(scope="session")
def upstream():
    return shared_s3()


@pytest.fixture
def server(upstream, monkeypatch):
    """The environment points at it."""
    with FaultyServer(upstream) as faulty:
        use(monkeypatch, faulty.url)
        yield faulty


@pytest.fixture
def bucket(server):
    """Spoken to without the proxy."""
    made = Bucket(server.upstream)
    yield made
    made.empty()


@pytest.fixture
def store(bucket):
    """As patient as a user's: a server that is slow but alive fails no test."""
    return open_store(bucket.url)


@pytest.fixture
def quick(monkeypatch):
    use_small_parts(monkeypatch)
    retry_at_once(monkeypatch)
