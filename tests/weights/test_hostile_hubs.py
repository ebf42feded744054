"""A server at HF_ENDPOINT that is no friend: what it names is neither a path nor a key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.weights import NodeCache
from prefect_bt.weights.index import Index
from prefect_bt.weights.manifest import Entry, Manifest, dump_manifest, load_manifest

from .conftest import Place, tree
from .hub_server import Hub

HOST = b"a secret of the host"
DIGEST = hashlib.sha256(HOST).hexdigest()
ILL_FORMED = [
    *("../../../host-file", DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", f"{DIGEST}/..", ""),
    *(f"sha256:{DIGEST}", DIGEST[:-1] + "\uff11", "\x1b]0;title\x07\u202e", "/" * 100_000),
    *(None, True, 7, [DIGEST], {"a": DIGEST}),
]
COMMIT = "0123456789" * 4


@pytest.fixture
def host_file(tmp_path: Path) -> Path:
    path = tmp_path / "host-file"
    path.write_bytes(HOST)
    return path


def refused(hub: Hub, place: Place, *named: str) -> str:
    error = place.refused("hf://o/r")
    assert all(name in error for name in ("hf://o/r", hub.url, "Check that HF_ENDPOINT", *named))
    assert len(error) < 500
    assert error.isprintable()
    assert hub.bodies() == 0
    assert not list((place.state_dir / "weights").glob("fills/*"))
    return error


def test_a_digest_that_names_a_host_file(hub: Hub, place: Place, host_file: Path) -> None:
    hub.repos["o/r"].commit({"model.bin": b"x"})
    for digest in (str(host_file), f"../../../{host_file.name}"):
        hub.bad.entry = {"lfs": {"oid": digest, "size": len(HOST), "pointerSize": 134}}
        assert "model.bin" in refused(hub, place, repr(digest)[:20], "64 hexadecimal digits")
    assert host_file.stat().st_nlink == 1


@pytest.mark.slow
@pytest.mark.parametrize("found", ILL_FORMED)
def test_digests_of_another_form(hub: Hub, place: Place, found: Any) -> None:
    hub.repos["o/r"].commit({"model.bin": b"x"})
    hub.bad.entry = {"lfs": {"oid": found, "size": 1, "pointerSize": 134}}
    refused(hub, place, "SHA-256 of 'model.bin'")
    hub.bad.entry = {"lfs": None, "oid": found}
    refused(hub, place, "git id of 'model.bin'")
    if found is not None:
        hub.bad.entry = {"xetHash": found}
        refused(hub, place, "Xet hash of 'model.bin'")


@pytest.mark.slow
@pytest.mark.parametrize(
    "found", ["../../x", "/etc", COMMIT.upper() + "A", COMMIT + "\n", "main", 7]
)
def test_a_commit_that_is_a_path(hub: Hub, place: Place, found: Any) -> None:
    hub.repos["o/r"].commit({"a": b"x"})
    hub.bad.info = {"id": "o/r", "sha": found}
    refused(hub, place, "names as the commit", "40 hexadecimal digits")


def test_a_path_that_is_listed_twice(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit({"a": b"x"})
    oid = hashlib.sha1(b"blob 1\0x").hexdigest()
    entry = {"type": "file", "path": "a", "size": 1, "oid": oid}
    hub.bad.more = [entry | {"oid": oid[::-1]}]
    assert "lists 'a' twice, and not the same file" in place.refused("hf://o/r")
    hub.bad.more = [entry]
    assert tree(place.mirror("hf://o/r")) == {"a": b"x"}


def test_names_in_the_node_cache(tmp_path: Path, host_file: Path) -> None:
    cache = NodeCache(tmp_path / "state")
    for found in (str(host_file), f"../../{host_file.name}", DIGEST.upper(), DIGEST + "\n", ""):
        with pytest.raises(ValueError, match="not a SHA-256"):
            cache.blob(found)
        assert not cache.has(found, len(HOST))
    for place in (cache.fill, cache.part, cache.index, cache.tree_path):
        for name in ("", ".", "..", "../x", "/x", "a/b", "a\0"):
            with pytest.raises(ValueError, match="not a name in the node cache"):
                place(name)
    assert cache.find("../../x") is None


def test_a_damaged_index_names_no_digest(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.add({"git:1": ("/etc/passwd", 1), "git:2": (DIGEST, 1)})
    index.refresh()
    assert (index.get("git:1"), index.get("git:2")) == ("", DIGEST)


@pytest.mark.parametrize(
    "row",
    [
        *(["a", 1, "/etc/passwd"], ["a", 1, DIGEST + "\n"], ["a", 1, 7], ["a", 1]),
        *(["../a", 1, DIGEST], ["/a", 1, DIGEST], ["a\0", 1, DIGEST], ["", 1, DIGEST]),
        *(["a", -1, DIGEST], ["a", 1 << 63, DIGEST], ["a", "1", DIGEST], [7, 1, DIGEST], 7),
    ],
)
def test_a_forged_manifest(row: Any) -> None:
    right = dump_manifest(Manifest("s", "k", "r", (Entry("a", 1, DIGEST),), 0.0))
    assert load_manifest(right).entries
    data = right.replace(b'["a", 1, "%s"]' % DIGEST.encode(), json.dumps(row).encode())
    assert data != right
    with pytest.raises((ValueError, TypeError)):
        load_manifest(data)
    for value in (b"[" * 100_000, right.replace(b"0.0", b"9" * 400)):
        with pytest.raises(ValueError):
            load_manifest(value)
