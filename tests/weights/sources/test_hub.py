"""`hf://` against a hub of our own: what is fetched, how often, and what an interruption leaves."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.weights.cache.partial_file import count_received
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.hub import HubSource
from prefect_bt.weights.sources.protocol import RangesUnsupported, TransientError
from tests.weights.conftest import Place, requested, tree
from tests.weights.hub_server import Hub, Repo

SECRET = "hf_pl4ntedT0ken"
FILES = {
    "config.json": b"{}",
    "model-1.safetensors": os.urandom(200_000),
    "model-2.safetensors": os.urandom(100_000),
    "original/params.json": b'{"a": 1}',
    "README.md": b"",
}


@pytest.mark.slow
def test_a_branch_is_pinned_and_fetched_once(hub: Hub, place: Place) -> None:
    commit = hub.repos["o/r"].commit(FILES)
    folder = Path(place.finish(place.program("hf://o/r"))["folder"])
    assert tree(folder) == FILES
    assert folder == place.state_dir / "weights" / "trees" / f"k1-{commit}" / "files"
    asked = hub.bodies()
    assert asked == 4, "and nothing for the empty file"
    assert place.mirror("hf://o/r") == folder
    assert hub.bodies() == asked
    assert not list((place.state_dir / "weights").glob("fills/*"))


def test_a_moved_branch_is_fetched_anew_and_the_old_folder_stays(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    old = place.mirror("hf://o/r@main")
    moved = {**FILES, "config.json": b'{"moved": true}'}
    hub.repos["o/r"].commit(moved)
    new = place.mirror("hf://o/r@main")
    assert tree(new) == moved
    assert tree(old) == FILES


def test_a_tag_and_a_commit(hub: Hub, place: Place) -> None:
    repo = hub.repos["o/r"]
    first = repo.commit(FILES, branch="v1")
    repo.commit({"other": b"x"})
    assert tree(place.mirror("hf://o/r@v1")) == FILES
    assert tree(place.mirror(f"hf://o/r@{first}")) == FILES
    hub.bad.status = 503
    again = place.mirror(f"hf://o/r@{first}")
    assert again.parent.name.endswith(first), "a known commit needs no hub"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allow", "ignore", "expected"),
    [
        (["*.json"], None, {"config.json"}),
        (["**/*.json"], None, {"config.json", "original/params.json"}),
        (["*.json", "*.safetensors"], ["model-2*"], {"config.json", "model-1.safetensors"}),
        (None, ["*.safetensors", "original/*"], {"config.json", "README.md"}),
    ],
)
def test_patterns(
    hub: Hub, place: Place, allow: list[str], ignore: list[str], expected: set[str]
) -> None:
    hub.repos["o/r"].commit(FILES)
    assert set(tree(place.mirror("hf://o/r", allow=allow, ignore=ignore))) == expected
    wanted = {name.rpartition("/")[2] for name in expected if FILES[name]}
    assert {path.rpartition("/")[2] for _, path in hub.asked if "/resolve/" in path} == wanted


@pytest.mark.slow
def test_killed_in_the_middle(hub: Hub, place: Place) -> None:
    files = {f"part-{i}.bin": os.urandom(400_000) for i in range(3)} | {"big.bin": os.urandom(1)}
    files["big.bin"] = os.urandom(17 * 1024**2)
    hub.repos["o/r"].commit(files)
    hub.bad.hold_at = 8 << 20
    process = place.start("hf://o/r")
    weights = place.state_dir / "weights"

    def arrived() -> int:
        return sum(map(count_received, weights.glob("parts/*")))

    def count_finished() -> int:
        return sum(len(one.read_bytes().splitlines()) for one in weights.glob("fills/*/journal"))

    deadline = time.monotonic() + 200
    while arrived() < 3 << 20 or hub.bodies("big.bin") < 2 or count_finished() < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not list(weights.glob("trees/*"))
    had = arrived()
    before = {name: hub.bodies(name) for name in files}
    hub.bad.hold_at = inf
    sent = hub.settled_sent("big.bin")  # once the server noticed that nobody listens
    assert tree(place.mirror("hf://o/r")) == files
    again = {name for name in files if hub.bodies(name) > before[name]}
    assert again == {"big.bin"}
    sent = hub.settled_sent("big.bin") - sent
    assert sent < len(files["big.bin"]) - had + (1 << 20)
    assert not list(weights.glob("fills/*"))


def test_a_truncated_body_is_continued(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit({"model.safetensors": FILES["model-1.safetensors"]})
    hub.bad.truncate = 1
    folder = place.mirror("hf://o/r")
    assert tree(folder) == {"model.safetensors": FILES["model-1.safetensors"]}


@pytest.mark.parametrize("name", ["model-1.safetensors", "original/params.json"])
def test_a_flipped_bit_is_fetched_again(hub: Hub, place: Place, name: str) -> None:
    hub.repos["o/r"].commit({name: FILES[name]})
    hub.bad.corrupt = 1
    assert tree(place.mirror("hf://o/r")) == {name: FILES[name]}


@pytest.mark.slow
def test_bits_that_stay_flipped(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.corrupt = 99
    assert "damaged twice" in place.refused("hf://o/r")
    hub.bad.corrupt = 0
    assert tree(place.mirror("hf://o/r")) == FILES


@pytest.mark.slow
def test_an_answer_that_hangs_is_asked_for_again(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit({"a.bin": b"abc"})
    hub.bad.hang = 1
    assert tree(place.mirror("hf://o/r", stall=5.0)) == {"a.bin": b"abc"}


def test_a_repository_with_folders_of_tools(hub: Hub, place: Place) -> None:
    files = {".cache/own": b"1", ".gitattributes": b"*", "a/.cache/b": b"2"}
    hub.repos["o/r"].commit({**files, ".cache/huggingface/x": b"state"})
    assert tree(place.mirror("hf://o/r")) == files


# -- the adapter itself ---------------------------------------------------------------------


def opened(hub: Hub, files: dict[str, bytes], **given: Any) -> tuple[HubSource, list[ListedFile]]:
    """A source whose commit is known, and its files."""
    commit = hub.repos["o/r"].commit(files)
    source = HubSource(requested(f"hf://o/r@{commit}", hub.repos["o/r"].token, **given))
    return source, [ListedFile(name, len(data)) for name, data in files.items()]


def test_ten_thousand_files_in_pages(here: Hub) -> None:
    files = {f"d/{n}.json": b"%d" % n for n in range(10_000)} | {"m.bin": b"m"}
    here.repos["o/r"] = Repo(token=SECRET)
    commit = here.repos["o/r"].commit(files)
    listing = HubSource(requested("hf://o/r", SECRET)).list_files()
    assert listing.revision == commit
    assert len(listing.files) == len(files)
    found = {file.path: file for file in listing.files}
    small = b"blob 4\x001234"
    assert found["d/1234.json"] == ListedFile(
        "d/1234.json", 4, git_sha1=hashlib.sha1(small).hexdigest()
    )
    digest = hashlib.sha256(b"m").hexdigest()
    assert found["m.bin"] == ListedFile("m.bin", 1, sha256=digest)
    assert here.asked["GET", f"/api/models/o/r/tree/{commit}"] == 11


def test_ranges_cost_one_redirect_a_file(here: Hub) -> None:
    here.repos["o/r"] = Repo(token=SECRET)
    source, files = opened(here, FILES)
    data = FILES["model-1.safetensors"]
    starts = range(0, len(data), 10_000)

    def read(file: ListedFile, start: int, length: int) -> bytes:
        return b"".join(source.read(file, start=start, length=length))

    assert read(files[3], 3, -1) == FILES["original/params.json"][3:]
    assert read(files[4], 0, -1) == b""
    assert read(files[1], 3, 4) == data[3:7]
    with ThreadPoolExecutor(8) as pool:
        assert b"".join(pool.map(lambda at: read(files[1], at, 10_000), starts)) == data
    [path] = {path for _, path in here.asked if path.endswith("model-1.safetensors")}
    assert here.asked["GET", path] == 2 + 1 + len(starts), "the hub once, then the CDN"
    assert here.tokens["cdn"].keys() == {""}
    here.bad.refuse = 1
    assert read(files[1], 5, 5) == data[5:10], "a link that has expired is asked for again"
    assert here.tokens["cdn"].keys() == {""}


def test_a_cdn_that_broke_off_is_not_asked_without_the_hub(here: Hub) -> None:
    here.repos["o/r"] = Repo(token=SECRET)
    source, files = opened(here, FILES)
    here.bad.truncate = 1
    with pytest.raises(TransientError):
        list(source.read(files[1], start=0, length=-1))
    assert b"".join(source.read(files[1], start=0, length=-1)) == FILES["model-1.safetensors"]
    [path] = {path for _, path in here.asked if path.endswith("model-1.safetensors")}
    assert here.asked["GET", path] == 4, "hub and CDN, twice"


def test_a_cdn_without_ranges(here: Hub) -> None:
    source, files = opened(here, FILES)
    here.bad.ranges = False
    data = FILES["model-1.safetensors"]
    with pytest.raises(RangesUnsupported):
        list(source.read(files[1], start=150_000, length=1000))
    assert b"".join(source.read(files[1], start=0, length=len(data))) == data
    assert b"".join(source.read(files[1], start=0, length=-1)) == data


def test_a_hub_without_a_byte(here: Hub) -> None:
    source, files = opened(here, FILES, stall_timeout=0.3)
    here.bad.half = 1
    got: list[bytes] = []
    with pytest.raises(TransientError) as caught:
        for piece in source.read(files[1], start=0, length=-1):
            got.append(piece)
    data = FILES["model-1.safetensors"]
    assert data[: len(data) // 2].startswith(b"".join(got)), "what came is handed on, by pieces"
    source_uri = f"hf://o/r@{here.repos['o/r'].branches['main']}"
    assert f"{source_uri} could not be read at model-1.safetensors (" in str(caught.value)
    assert "no byte for 0.3 s)" in str(caught.value)
    here.bad.half, here.bad.truncate = 0, 99  # the first answer, if it comes late, may take one
    source, files = opened(here, FILES)
    with pytest.raises(TransientError, match="the body ended early"):
        list(source.read(files[1], start=0, length=-1))


def test_the_retry_time_of_a_busy_hub(here: Hub) -> None:
    source, files = opened(here, FILES)
    here.bad.status = 429
    for headers, after in (
        ({"Retry-After": "9"}, 9.0),
        ({"RateLimit": '"resolvers";r=0;t=31'}, 31.0),
        ({}, 0.0),
    ):
        here.bad.headers = headers
        for length in (len(FILES["config.json"]), 1, -1):
            with pytest.raises(TransientError, match="answered 429") as caught:
                list(source.read(files[0], start=0, length=length))
            assert caught.value.retry_after == after


def test_what_the_hub_refuses_while_it_is_read(here: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    source, files = opened(here, FILES)
    here.repos["o/r"].token, here.repos["o/r"].gated = SECRET, True
    for length in (len(FILES["config.json"]), 1, -1):
        with pytest.raises(WeightsError, match="is gated") as caught:
            list(source.read(files[0], start=0, length=length))
        assert not isinstance(caught.value, TransientError)
    here.repos["o/r"].gated = False
    with pytest.raises(WeightsError, match="does not exist at"):
        list(source.read(files[0], start=0, length=-1))
    here.repos["o/r"].token = ""
    here.bad.status = 401
    with pytest.raises(WeightsError, match="does not exist at"):
        list(source.read(files[0], start=0, length=-1))
    here.bad.headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
    with pytest.raises(WeightsError, match=r"answered 401\)\. Give auth with a token"):
        list(source.read(files[0], start=0, length=-1))
    here.bad.status = 0
    with pytest.raises(WeightsError, match="answered 404"):
        list(source.read(ListedFile("other", 3), start=0, length=-1))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE is set"):
        list(source.read(files[0], start=0, length=-1))


# -- refusals -------------------------------------------------------------------------------


@pytest.mark.slow
def test_gated(hub: Hub, place: Place) -> None:
    hub.repos["o/r"] = Repo(token=SECRET, gated=True)
    hub.repos["o/r"].commit(FILES)
    without = place.refused("hf://o/r")
    assert "hf://o/r is gated" in without
    assert "Give auth with a token" in without
    wrong = place.refused("hf://o/r", token="hf_wr0ngT0ken")
    assert "Check that its token" in wrong
    assert tree(place.mirror("hf://o/r", token=SECRET)) == FILES
    everything = "".join(place.printed)
    assert SECRET not in everything
    assert "hf_wr0ngT0ken" not in everything


@pytest.mark.slow
def test_the_token_goes_to_the_hub_alone(hub: Hub, place: Place) -> None:
    hub.repos["o/r"] = Repo(token=SECRET)
    hub.repos["o/r"].commit(FILES)
    place.mirror("hf://o/r", token=SECRET)
    assert hub.tokens["hub"].pop("", set()) <= {"/api/agent-harnesses"}  # huggingface_hub's own
    assert hub.tokens["hub"].keys() == {f"Bearer {SECRET}"}
    assert hub.tokens["cdn"].keys() == {""}
    hub.repos["o/open"] = Repo()
    hub.repos["o/open"].commit({"a": b"b"})
    hub.tokens["hub"].clear()
    place.mirror("hf://o/open", key="k2")
    assert hub.tokens["hub"].keys() == {""}, "the machine's own token is not used"


@pytest.mark.slow
def test_what_does_not_exist(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    assert "hf://o/none does not exist at http://127.0.0.1" in place.refused("hf://o/none")
    assert "has no such revision" in place.refused("hf://o/r@v9")
    assert "has no file or folder 'sub/folder'" in place.refused("hf://o/r/sub/folder")
    assert "Write hf://" in place.refused("hf://o/r//folder")
    nothing = place.refused("hf://o/r", allow=["*.gguf"])
    assert "match none of its 5 files" in nothing
    assert "**/*" in nothing


def test_the_hub_is_down(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.status = 503
    assert "answered 503" in place.refused("hf://o/r")
    place.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    down = place.refused("hf://o/r")
    assert "could not be read (" in down and "HF_ENDPOINT (http://127.0.0.1:9)" in down
    assert "Check the network" in down
    place.environment["HF_HUB_OFFLINE"] = "1"
    assert "HF_HUB_OFFLINE is set" in place.refused("hf://o/r")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../b", "a//b", "./a"])
def test_unsafe_names(hub: Hub, place: Place, name: str) -> None:
    hub.repos["o/r"].commit({"a": b"1", name: b"evil"})
    error = place.refused("hf://o/r")
    assert repr(name) in error
    assert hub.bodies() == 0
    assert tree(place.mirror("hf://o/r", allow=["a"])) == {"a": b"1"}
