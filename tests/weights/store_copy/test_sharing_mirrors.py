"""Mirrors that share a download through a store with digests and blobs that are not right."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.object_store.disk import DiskStore
from prefect_bt.weights.download import downloader
from prefect_bt.weights.sources import protocol
from prefect_bt.weights.sources.file_listing import Listing
from prefect_bt.weights.store_copy.copies import blob_key, sharing_prefix
from tests.weights import arranged
from tests.weights.arranged import Arranged, ArrangedSource, mirrored
from tests.weights.conftest import tree


class WithDigests(ArrangedSource):
    """A source that lists SHA-256."""

    def list_files(self) -> Listing:
        listing, now = super().list_files(), arranged.NOW.files
        files = (replace(file, sha256=digest(now[file.path])) for file in listing.files)
        return replace(listing, files=tuple(files))


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("is_stored", [True, False])
def test_wrong_digests_of_another_host_do_not_end_a_mirror(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    monkeypatch.setattr(downloader, "RETRY_DELAYS", (0.01,) * 4)
    name = mirrored(tmp_path / "first").name
    store = DiskStore(tmp_path / "store")
    wrong = {path: digest(b"wrong" + data) for path, data in source_here.files.items()}
    for path, data in source_here.files.items():
        if is_stored:
            store.put(blob_key(wrong[path]), bytes(len(data)))
    store.put(f"{sharing_prefix(name)}/0", json.dumps(wrong).encode())
    assert tree(mirrored(tmp_path / "second", store=store).folder) == source_here.files
    assert tree(mirrored(tmp_path / "third", store=store).folder) == source_here.files


def test_a_batch_with_linked_files_is_given_to_other_hosts(
    source_here: Arranged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise two hosts with such batches would each wait for the other's."""
    monkeypatch.setitem(protocol.SOURCES, "arranged", f"{__name__}:WithDigests")
    source_here.files["the-same.bin"] = arranged.LARGE  # linked, not downloaded
    store = DiskStore(tmp_path / "store")
    done = mirrored(tmp_path / "state", store=store)
    assert done.fetched_bytes == len(arranged.LARGE) + len(source_here.files["small.txt"])
    shared = json.loads(store.get(f"{sharing_prefix(done.name)}/0"))
    assert shared == {path: digest(data) for path, data in source_here.files.items()}
