import subprocess
import sys

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import use


@pytest.mark.parametrize("spelling", ["{}", "file://{}"])
def test_a_folder_reopens_by_its_url(tmp_path, spelling):
    folder = tmp_path / "with space"
    store = open_store(spelling.format(folder))
    store.put("a", b"1")
    assert open_store(store.url).get("a") == b"1"


def test_a_relative_folder_and_a_home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("here").put("a", b"1")
    assert open_store("~/here").get("a") == b"1"


def test_unknown_scheme_names_the_known_ones():
    with pytest.raises(StoreError, match=r"ftp://.*file://.*memory://.*s3://"):
        open_store("ftp://host/x")


@pytest.mark.parametrize("url", ["file://otherhost/x", "file://relative", "s3://"])
def test_bad_addresses(url):
    with pytest.raises(StoreError):
        open_store(url)


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("r2://bucket-alone/x", "r2://account_id.bucket/prefix"),
        ("r2://", "r2://account_id.bucket/prefix"),
        ("cw://", "cw://bucket/prefix"),
        ("gs://", "gs://bucket/prefix"),
        ("azure://account", "azure://account/container/prefix"),
        ("s3:///prefix", "s3://bucket/prefix"),
    ],
)
def test_a_malformed_bucket_shows_a_right_one(url, example):
    with pytest.raises(StoreError) as caught:
        open_store(url)
    assert example in str(caught.value)
    assert url in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("r2://0a1b.team/p", "https://0a1b.r2.cloudflarestorage.com/team/p/x?"),
        ("r2://0a1b.eu.team/p", "https://0a1b.eu.r2.cloudflarestorage.com/team/p/x?"),
        ("cw://team/p", "https://team.cwobject.com/p/x?"),
    ],
)
def test_the_server_of_a_bucket(monkeypatch, url, start):
    """Both libraries agree on it. CoreWeave refuses buckets that are part of the path."""
    use(monkeypatch, "http://nobody")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    from prefect_bt.object_store.connect import create_s3_client, parse_bucket_url

    assert open_store(url).presign("x", seconds=60).startswith(start)
    address = parse_bucket_url(url)
    signed = create_s3_client(address).generate_presigned_url(
        "get_object", Params={"Bucket": address.bucket, "Key": f"{address.prefix}/x"}
    )
    assert signed.startswith(start)


def test_the_import_is_cheap():
    code = (
        "import sys; import prefect_bt.object_store as o; o.open_store('/tmp/x-never-written');"
        "print([m for m in ('obstore', 'boto3', 'prefect', 'pydantic') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
