"""A server at HF_ENDPOINT that is no friend: what it names is neither a path nor a key."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights import NodeCache
from prefect_bt.weights.cache.digest_index import DigestIndex
from prefect_bt.weights.dry_run import plan_mirror
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest, load_manifest
from prefect_bt.weights.sources import hub as hub_source
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.hub import HubSource
from prefect_bt.weights.sources.protocol import SourceRequest, TransientError
from tests.weights.conftest import Place, requested, tree
from tests.weights.hub_server import Hub, Repo

HOST = b"a secret of the host"
DIGEST = hashlib.sha256(HOST).hexdigest()
ILL_FORMED = [
    *("../../../host-file", DIGEST.upper(), DIGEST[:-1], DIGEST + "\n", f"{DIGEST}/..", ""),
    *(f"sha256:{DIGEST}", DIGEST[:-1] + "\uff11", "\x1b]0;title\x07\u202e", "/" * 100_000),
    *(None, True, 7, [DIGEST], {"a": DIGEST}),
]
SECRET = "hf_pl4ntedT0ken"
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
        assert "model.bin" in refused(hub, place, repr(digest)[:20], "[0-9a-f]{64}")
    assert host_file.stat().st_nlink == 1


@pytest.mark.slow
@pytest.mark.parametrize("found", ILL_FORMED)
def test_digests_of_another_form(hub: Hub, place: Place, found: Any) -> None:
    hub.repos["o/r"].commit({"model.bin": b"x"})
    hub.bad.entry = {"lfs": {"oid": found, "size": 1, "pointerSize": 134}}
    refused(hub, place, "as oid of lfs of 'model.bin'")
    hub.bad.entry = {"lfs": None, "oid": found}
    refused(hub, place, "as oid of 'model.bin'")


@pytest.mark.slow
@pytest.mark.parametrize(
    "found", ["../../x", "/etc", COMMIT.upper() + "A", COMMIT + "\n", "main", 7]
)
def test_a_commit_that_is_a_path(hub: Hub, place: Place, found: Any) -> None:
    hub.repos["o/r"].commit({"a": b"x"})
    hub.bad.info = {"id": "o/r", "sha": found}
    refused(hub, place, f"{found!r} as sha: ")


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
            cache.blob_path(found)
        assert not cache.has_blob(found, len(HOST))
    for place in (cache.staging_path, cache.partial_path, cache.index_path, cache.tree_path):
        for name in ("", ".", "..", "../x", "/x", "a/b", "a\0"):
            with pytest.raises(ValueError, match="not a name in the node cache"):
                place(name)
    assert cache.find_tree("../../x") is None


def test_a_damaged_index_names_no_digest(tmp_path: Path) -> None:
    index = DigestIndex(tmp_path / "index")
    index.add({"git:1": "/etc/passwd", "git:2": DIGEST})
    index.reload()
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
    right = dump_manifest(WeightsManifest("s", "k", "r", (FileEntry("a", 1, DIGEST),), 0.0))
    assert load_manifest(right).entries
    data = right.replace(b'["a", 1, "%s"]' % DIGEST.encode(), json.dumps(row).encode())
    assert data != right
    with pytest.raises((ValueError, TypeError)):
        load_manifest(data)
    for value in (b"[" * 100_000, right.replace(b"0.0", b"9" * 400)):
        with pytest.raises(ValueError):
            load_manifest(value)


# -- listings and pages ---------------------------------------------------------------------


def listed(hub: Hub, *named: str) -> str:
    """Return why the listing is refused: one sentence and a step, and nothing was fetched."""
    with pytest.raises(WeightsError) as caught:
        HubSource(requested("hf://o/r", SECRET)).list_files()
    error = str(caught.value)
    assert not isinstance(caught.value, TransientError), "asking again would not help"
    assert caught.value.source == "hf://o/r"
    assert all(name in error for name in ("hf://o/r", hub.url, "Check that HF_ENDPOINT", *named))
    assert len(error) < 500
    assert error.isprintable()
    assert hub.bodies() == 0
    return error


@pytest.fixture
def listing(here: Hub) -> Hub:
    """A hub with one file, `a`, behind a token."""
    here.repos["o/r"] = Repo(token=SECRET)
    here.repos["o/r"].commit({"a": b"x"})
    return here


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (7, "gives 7 as the answer: Input should be a valid list"),
        (None, "gives None as the answer"),
        ({"error": "\x1b[2J"}, "should be a valid list"),
        ("a" * 100_000, "should be a valid list"),
        ([7], "gives 7 as entry 0: "),
        ([None], "gives None as entry 0"),
        (["a"], "gives 'a' as entry 0"),
        ([["a"]], "should be a valid dictionary"),
    ],
)
def test_pages_that_list_no_files(listing: Hub, page: Any, why: str) -> None:
    listing.bad.listing = json.dumps(page).encode()
    listed(listing, why)


@pytest.mark.parametrize("path", [None, 7, True, ["a"], {"a": 1}, "a/" * 1_000_000])
def test_paths_that_are_none(listing: Hub, path: Any) -> None:
    listing.bad.entry = {"path": path}
    listed(listing, " as path of ")


@pytest.mark.parametrize("size", [None, "1", True, -1, 1 << 63, 10**4000, 1.0, 1e999, [1], {}])
def test_sizes_that_no_file_has(listing: Hub, size: Any) -> None:
    listing.bad.entry = {"size": size}
    listed(listing, " as size of 'a': Input should be ")
    listing.bad.entry = {"lfs": {"oid": DIGEST, "size": size}}
    listed(listing, " as size of lfs of 'a': Input should be ")


@pytest.mark.parametrize("lfs", [7, "x", True, [1], []])
def test_pointers_that_are_none(listing: Hub, lfs: Any) -> None:
    listing.bad.entry = {"lfs": lfs}
    listed(listing, " as lfs of 'a'")


@pytest.mark.parametrize("opening", [b"[", b'{"a":', b'[{"type":"file","path":' + b"["])
def test_documents_that_are_nested_without_end(listing: Hub, opening: bytes) -> None:
    listing.bad.listing = opening * 200_000
    listed(listing, "is nested too deeply")


@pytest.mark.parametrize("info", [[], [1], 7, "x", {"id": "o/r"}, {"sha": None}, {"sha": ["a"]}])
def test_answers_that_name_no_commit(listing: Hub, info: Any) -> None:
    listing.bad.info = info
    listed(listing)


def test_pages_without_end(listing: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_source, "MAX_PAGES", 5)
    listing.bad.link = '</next?cursor={n}>; rel="next"'.replace("/next", _tree_path(listing))
    listed(listing, "has more than", "5 pages")
    assert listing.pages == 5 + 1
    monkeypatch.setattr(hub_source, "MAX_ENTRIES", 5)
    listing.bad.listing = json.dumps([{"type": "directory"}] * 6).encode()
    listed(listing, "has more than 5 files")
    assert listing.pages == 5 + 2


@pytest.mark.parametrize("cursor", ["?recursive=true", "?cursor=1"])
def test_pages_that_come_round_again(listing: Hub, cursor: str) -> None:
    listing.bad.link = f'<{_tree_path(listing)}{cursor}>; rel="next"'
    listed(listing, "repeats a page")
    assert listing.pages <= 2


def test_a_page_without_end(listing: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_source, "MAX_PAGE_BYTES", 1 << 20)
    listing.bad.listing = b"[" + b" " * (64 << 20) + b"]"
    listed(listing, "has more than 1 MiB")
    listing.bad.info = {"sha": "a" * (64 << 20)}
    listed(listing, "has more than 1 MiB")


def test_a_page_that_is_too_slow(listing: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_source, "MAX_PAGE_SECONDS", 0.0)
    with pytest.raises(TransientError, match="no page in 0 s"):
        HubSource(requested("hf://o/r", SECRET)).list_files()


@pytest.mark.parametrize(
    "target",
    [
        *("{cdn}/next", "//{cdn_host}/next", "https://{host}/next", "file:///etc/passwd"),
        *("ftp://{host}/x", "http://{cdn_host}\\@{host}/next", "http://{host}@{cdn_host}/next"),
        *("data:,[]", "http://", "http://[::1", "http://{host}.example/x", "gopher://{host}/"),
    ],
)
def test_the_token_follows_no_page_elsewhere(listing: Hub, target: str) -> None:
    places = {"cdn": listing.cdn_url, "cdn_host": listing.cdn_url[7:], "host": listing.url[7:]}
    listing.bad.link = f'<{target.format(**places)}>; rel="next"'
    with pytest.raises(WeightsError, match="HF_ENDPOINT") as caught:
        HubSource(requested("hf://o/r", SECRET)).list_files()
    assert not isinstance(caught.value, TransientError)
    assert not listing.tokens["cdn"], "nothing was asked there"


def test_the_pages_of_a_mirror_that_names_the_hub_are_asked_for_at_the_mirror(listing: Hub) -> None:
    listing.repos["o/r"].commit({f"f{n}": b"1" for n in range(7)})
    listing.bad.page, listing.bad.named = 2, listing.cdn_url
    assert len(HubSource(requested("hf://o/r", SECRET)).list_files().files) == 7
    assert not listing.tokens["cdn"], "nothing was asked there"


@pytest.mark.parametrize("length", [1, -1], ids=["block", "stream"])
def test_the_token_follows_no_redirect_elsewhere(listing: Hub, length: int) -> None:
    cdn, host = listing.cdn_url[7:], listing.url[7:]
    source = HubSource(requested(f"hf://o/r@{COMMIT}", SECRET, stall_timeout=20.0))
    file = ListedFile("a", 9)
    for target in (f"http://{cdn}/x", f"http://{cdn}\\@{host}/x", f"//{cdn}/x"):
        listing.bad.status, listing.bad.headers = 307, {"Location": target}
        listing.tokens["cdn"].clear()
        with pytest.raises(WeightsError):
            list(source.read(file, start=0, length=length))
        assert f"Bearer {SECRET}" not in listing.tokens["cdn"], target


@pytest.mark.parametrize(
    "told", [f"Fri, 31 Dec {10**20} 23:59:59 GMT", f"1 Jan 2020 00:00:00 +{10**30}", "9" * 5000]
)
def test_dates_to_wait_for_that_are_none(listing: Hub, told: str) -> None:
    listing.bad.status, listing.bad.headers = 429, {"Retry-After": told}
    with pytest.raises(TransientError, match="answered 429"):
        HubSource(requested("hf://o/r", SECRET)).list_files()


@pytest.mark.slow
def test_names_that_are_too_deep_or_too_long(hub: Hub, place: Place) -> None:
    deep, long = "a/" * 1_500 + "a", "/".join("x" * 250 for _ in range(16))
    for name in (deep, long, "x" * 256):
        hub.repos["o/r"].commit({"a": b"1", name: b"2"})
        error = place.refused("hf://o/r")
        assert "cannot be a path below the mount. Nothing was downloaded" in error
        assert len(error) < 500
        assert hub.bodies() == 0
    hub.repos["o/r"].commit({"x/" * 190 + "x": b"1"})
    assert list(tree(place.mirror("hf://o/r")).values()) == [b"1"]


def test_a_dry_run_ends_with_the_error_of_a_mirror(listing: Hub, tmp_path: Path) -> None:
    listing.bad.entry = {"size": "1"}
    plan = WeightsPlan("hf://o/r", "/w", "k1", secret="hub")
    with pytest.raises(WeightsError, match="gives '1' as size of 'a'") as refused:
        plan_mirror(SourceRequest(plan, SECRET), NodeCache(tmp_path / "weights"))
    assert "HF_ENDPOINT" in refused.value.next_step


def _tree_path(hub: Hub) -> str:
    return f"/api/models/o/r/tree/{hub.repos['o/r'].branches['main']}"
