"""git-LFS pointers in sources: an error of the mirror, and of a push for a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.pointer_check import find_pointer
from tests.checkpoints.buckets import Bucket, use
from tests.weights.arranged import URL, Arranged, mirrored
from tests.weights.conftest import mirror, tree
from tests.weights.hub_server import Hub

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize 4900000000\n" % (
    b"a" * 64
)
FILES = {"config.json": b"{}", "sub/model.safetensors": POINTER, "large.bin": bytes(3_000_000)}
TEXT = r"has 'sub/model.safetensors', which is a git-LFS pointer to 4\.9 GB and not the file"


def write(folder: Path) -> Path:
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def refused(plan: WeightsPlan, state: Path) -> None:
    with pytest.raises(WeightsError, match=TEXT) as caught:
        mirror(plan, state)
    assert "git lfs pull" in caught.value.next_step
    assert not list(state.glob("weights/trees/*"))


def test_of_a_folder(tmp_path: Path) -> None:
    url = f"file://{write(tmp_path / 'source')}"
    refused(WeightsPlan(url, "/w", "k"), tmp_path / "state")
    chosen = WeightsPlan(url, "/w", "k", ignore_patterns=("sub/",))
    assert tree(mirror(chosen, tmp_path / "state")).keys() == {"config.json", "large.bin"}


@pytest.mark.integration
def test_of_a_bucket(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, s3)
    bucket = Bucket(s3)
    for name, data in FILES.items():
        bucket.client.put_object(Bucket=bucket.name, Key=f"m/{name}", Body=data)
    refused(WeightsPlan(f"s3://{bucket.name}/m", "/w", "k"), tmp_path)


def test_of_the_hub(here: Hub, tmp_path: Path) -> None:
    here.repos["o/r"].commit(FILES)
    refused(WeightsPlan("hf://o/r", "/w", "k"), tmp_path)


@pytest.mark.parametrize(("sizes", "ranges"), [(True, True), (True, False), (False, False)])
def test_of_servers(source_here: Arranged, tmp_path: Path, sizes: bool, ranges: bool) -> None:
    source_here.files, source_here.sizes, source_here.ranges = FILES, sizes, ranges
    with pytest.raises(WeightsError, match=TEXT):
        mirrored(tmp_path, URL)


def test_before_a_push(tmp_path: Path) -> None:
    folder = write(tmp_path / "source")
    plan = WeightsPlan(f"file://{folder}", "/w", "k")
    assert "is a git-LFS pointer" in find_pointer(plan)
    (folder / "sub/model.safetensors").write_bytes(b"weights")
    assert find_pointer(plan) == ""
    assert find_pointer(WeightsPlan(f"file://{tmp_path}/none", "/w", "k")) == ""
