"""The servers of benchmarks/ answer the clients of others as the real ones do, and count bytes."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import boto3
import pytest
from botocore.exceptions import ClientError
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

from tests.node_agent.rig import wait_until

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGES = 1005
"""Files; more than one page of a listing."""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    names = ("datasets", "file_serving", "hub_serving", "bucket_serving", "mirroring")
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in names:
            del sys.modules[name]


@pytest.fixture(scope="module")
def large(modules, tmp_path_factory):
    """Two files of 9 MB."""
    datasets = modules["datasets"]
    folder = datasets.make(tmp_path_factory.mktemp("large"), count=2, size=9_000_001)
    return datasets.digest(folder, ending=".safetensors")


@pytest.fixture(scope="module")
def many(modules, tmp_path_factory):
    datasets = modules["datasets"]
    folder = datasets.make(tmp_path_factory.mktemp("many"), count=PAGES, size=100)
    return datasets.digest(folder, ending=".json")


@pytest.fixture
def hub(modules, tmp_path):
    with modules["hub_serving"].serving(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def bucket(modules, tmp_path, large, many):
    objects = {"large": large, "many": many}
    with modules["bucket_serving"].serving(tmp_path / "s3", "bench", objects) as url:
        yield boto3.client(
            "s3",
            endpoint_url=url,
            aws_access_key_id="any",
            aws_secret_access_key="any",
            region_name="us-east-1",
        )


@pytest.mark.slow
def test_hub_lists_what_was_published_and_keeps_commits(hub, large, many):
    api = HfApi(endpoint=hub.url)
    first = hub.publish("o/r", [*large, *many])
    assert api.model_info("o/r").sha == first
    second = hub.publish("o/r", large)
    assert api.model_info("o/r").sha == second != first

    files = list(api.list_repo_tree("o/r", revision=first, recursive=True))

    assert [file.path for file in files] == [file.path for file in (*large, *many)]
    assert [file.lfs.sha256 for file in files[:2]] == [file.sha256 for file in large]
    assert [file.lfs for file in files[2:]] == [None] * PAGES
    siblings = api.model_info("o/r", revision=second, files_metadata=True).siblings
    assert [(one.rfilename, one.size, one.lfs.sha256) for one in siblings or ()] == [
        (file.path, file.size, file.sha256) for file in large
    ]
    with pytest.raises(RevisionNotFoundError):
        api.model_info("o/r", revision="other")
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("o/other")


def test_hub_sends_files_of_git_and_of_lfs_and_counts_them(hub, large, many, tmp_path):
    hub.publish("o/r", [*large, *many])
    for file in (large[1], many[0]):
        got = hf_hub_download(
            "o/r", file.path, endpoint=hub.url, local_dir=tmp_path / "got", token=False
        )
        assert Path(got).read_bytes() == file.place.read_bytes()
    # The server counts a file after its last byte is sent.
    wanted = large[1].size + many[0].size
    wait_until(lambda: hub.sent().bytes >= wanted)
    sent = hub.sent()
    assert sent.bytes == wanted
    assert sent.paths[f"/lfs/{large[1].sha256}"] == large[1].size


def test_hub_git_id_is_gits(large):
    told = subprocess.run(
        ["git", "hash-object", str(large[0].place)], capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == large[0].git_sha1


def test_bucket_lists_in_pages_and_by_folders(bucket, many, large):
    pages = bucket.get_paginator("list_objects_v2").paginate(Bucket="bench", Prefix="many/")
    listed = [one for page in pages for one in page["Contents"]]
    assert [(one["Key"], one["Size"]) for one in listed] == [
        (f"many/{file.path}", file.size) for file in many
    ]
    top = bucket.list_objects_v2(Bucket="bench", Delimiter="/")
    assert [one["Prefix"] for one in top["CommonPrefixes"]] == ["large/", "many/"]
    assert "Contents" not in top


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wanted", "span"),
    [
        ("bytes=0-0", (0, 1)),
        ("bytes=8999999-", (8_999_999, 9_000_001)),
        ("bytes=-10", (8_999_991, 9_000_001)),
        ("bytes=5-99999999", (5, 9_000_001)),
    ],
)
def test_bucket_answers_ranges_with_206(bucket, large, wanted, span):
    answer = bucket.get_object(Bucket="bench", Key=f"large/{large[0].path}", Range=wanted)
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert answer["Body"].read() == large[0].place.read_bytes()[slice(*span)]
    assert answer["ContentRange"] == f"bytes {span[0]}-{span[1] - 1}/9000001"


def test_bucket_refuses_what_is_not_there(bucket, large):
    key = f"large/{large[0].path}"
    for refused, asked in (
        ("416", {"Key": key, "Range": "bytes=9000001-"}),
        ("PreconditionFailed", {"Key": key, "IfMatch": '"other"'}),
        ("NoSuchKey", {"Key": "large/other"}),
    ):
        with pytest.raises(ClientError) as error:
            bucket.get_object(Bucket="bench", **asked)
        assert error.value.response["Error"]["Code"] == refused
    same = bucket.get_object(Bucket="bench", Key=key, IfMatch=f'"{large[0].etag}"')
    assert same["ETag"] == f'"{large[0].etag}"'
    assert large[0].etag.endswith("-2")


def test_disk_use_counts_an_inode_once(modules, tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_bytes(b"y" * 100_000)
    found = modules["mirroring"].measure(tmp_path)
    blocks = sum((tmp_path / name).stat().st_blocks * 512 for name in "ac")
    assert (found.files, found.apparent, found.on_disk) == (3, 300_000, blocks)


def test_folder_is_gone_whatever_its_modes_and_whatever_happens(modules, tmp_path):
    with pytest.raises(KeyboardInterrupt), modules["mirroring"].fresh(tmp_path / "work") as work:
        (work / "tree").mkdir()
        (work / "tree" / "file").write_text("weights")
        (work / "tree" / "file").chmod(0o444)
        (work / "tree").chmod(0o555)
        raise KeyboardInterrupt
    assert not (tmp_path / "work").exists()
