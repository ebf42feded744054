"""`hf://` against a hub of our own: what is fetched, how often, and what an interruption leaves."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from prefect_bt.weights.hub import HubSource
from prefect_bt.weights.listing import ListedFile

from .conftest import Place, tree
from .hub_server import Hub, Repo

SECRET = "hf_pl4ntedT0ken"
TEMPLATE = "%s/{repo_id}/resolve/{revision}/{filename}"
FILES = {
    "config.json": b"{}",
    "model-1.safetensors": os.urandom(200_000),
    "model-2.safetensors": os.urandom(100_000),
    "original/params.json": b'{"a": 1}',
    "README.md": b"",
}


def test_a_branch_is_pinned_and_fetched_once(hub: Hub, place: Place) -> None:
    commit = hub.repos["o/r"].commit(FILES)
    folder = place.mirror("hf://o/r")
    assert tree(folder) == FILES
    assert folder.name == f"k1-{commit}"
    assert (place.state_dir / "weights" / "k1").resolve() == folder.resolve()
    asked = hub.bodies()
    assert asked == 4, "and nothing for the empty file"
    assert place.mirror("hf://o/r") == folder
    assert hub.bodies() == asked
    assert not list((place.state_dir / "weights" / ".staging").iterdir())


def test_a_moved_branch_is_fetched_anew_and_the_old_folder_stays(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    old = place.mirror("hf://o/r@main")
    moved = {**FILES, "config.json": b'{"moved": true}'}
    hub.repos["o/r"].commit(moved)
    new = place.mirror("hf://o/r@main")
    assert tree(new) == moved
    assert tree(old) == FILES
    assert (place.state_dir / "weights" / "k1").resolve() == new.resolve()


def test_a_tag_and_a_commit(hub: Hub, place: Place) -> None:
    repo = hub.repos["o/r"]
    first = repo.commit(FILES, branch="v1")
    repo.commit({"other": b"x"})
    assert tree(place.mirror("hf://o/r@v1")) == FILES
    assert tree(place.mirror(f"hf://o/r@{first}")) == FILES
    hub.bad.status = 503
    assert place.mirror(f"hf://o/r@{first}").name.endswith(first), "a known commit needs no hub"


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
    assert {path.rpartition("/")[2] for _, path in hub.asked if "/resolve/" in path} == {
        name.rpartition("/")[2] for name in expected
    }


def test_four_processes_fetch_each_file_once(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.seconds_a_chunk = 0.1
    processes = [place.start("hf://o/r") for _ in range(4)]
    folders = {place.finish(process)["folder"] for process in processes}
    assert len(folders) == 1
    assert tree(place.state_dir / "weights" / "k1") == FILES
    assert hub.sent == sum(map(len, FILES.values()))


def test_killed_in_the_middle(hub: Hub, place: Place) -> None:
    files = {f"part-{i}.bin": os.urandom(400_000) for i in range(3)} | {"big.bin": os.urandom(1)}
    files["big.bin"] = os.urandom(17 * 1024**2)
    hub.repos["o/r"].commit(files)
    hub.bad.seconds_a_chunk = 0.02
    process = place.start("hf://o/r")
    deadline = time.monotonic() + 60
    while not hub.bodies("big.bin") and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    weights = place.state_dir / "weights"
    assert not list(weights.glob(".published/*"))
    assert not (weights / "k1").exists()
    before = {name: hub.bodies(name) for name in files}
    hub.bad.seconds_a_chunk = 0
    assert tree(place.mirror("hf://o/r")) == files
    again = {name for name in files if hub.bodies(name) > before[name]}
    assert again == {"big.bin"}
    assert not list(weights.glob(".staging/*"))


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


def test_bits_that_stay_flipped(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.corrupt = 99
    assert "damaged twice" in place.refused("hf://o/r")
    hub.bad.corrupt = 0
    assert tree(place.mirror("hf://o/r")) == FILES


def test_an_answer_that_hangs_is_asked_for_again(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit({"a.bin": b"abc"})
    hub.bad.hang = 1
    assert tree(place.mirror("hf://o/r")) == {"a.bin": b"abc"}


def test_a_repository_with_folders_of_tools(hub: Hub, place: Place) -> None:
    files = {".cache/own": b"1", ".gitattributes": b"*", "a/.cache/b": b"2"}
    hub.repos["o/r"].commit(files)
    assert tree(place.mirror("hf://o/r")) == files


def test_a_range_by_plain_http(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repos["o/r"] = Repo(token=SECRET)
    hub.repos["o/r"].commit(FILES)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", TEMPLATE % hub.url)
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.url)
    source = HubSource("hf://o/r", SECRET)
    source._commit = hub.repos["o/r"].branches["main"]
    for name in ("model-1.safetensors", "original/params.json"):
        data = FILES[name]
        file = ListedFile(name, len(data))
        assert b"".join(source.read(file, start=3, length=-1)) == data[3:]
        assert b"".join(source.read(file, start=3, length=4)) == data[3:7]
    assert hub.tokens["cdn"].keys() == {""}


# -- refusals -------------------------------------------------------------------------------


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


def test_what_does_not_exist(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    assert "hf://o/none does not exist at http://127.0.0.1" in place.refused("hf://o/none")
    assert "has no such revision" in place.refused("hf://o/r@v9")
    assert "Write hf://owner/repo" in place.refused("hf://o/r/sub/folder")
    nothing = place.refused("hf://o/r", allow=["*.gguf"])
    assert "match none of its 5 files" in nothing
    assert "**/*" in nothing


def test_the_hub_is_down(hub: Hub, place: Place) -> None:
    hub.repos["o/r"].commit(FILES)
    hub.bad.status = 503
    assert "answered 503" in place.refused("hf://o/r")
    place.environment["HF_ENDPOINT"] = "http://127.0.0.1:9"
    down = place.refused("hf://o/r")
    assert "could not be fetched from http://127.0.0.1:9" in down
    assert "Check the network" in down
    place.environment["HF_HUB_OFFLINE"] = "1"
    assert "HF_HUB_OFFLINE is set" in place.refused("hf://o/r")


@pytest.mark.parametrize(
    "name", ["../out", "/etc/passwd", "a/../../b", "a//b", "./a", ".cache/huggingface/x"]
)
def test_unsafe_names(hub: Hub, place: Place, name: str) -> None:
    hub.repos["o/r"].commit({"a": b"1", name: b"evil"})
    error = place.refused("hf://o/r")
    assert repr(name) in error
    assert hub.bodies() == 0
    assert tree(place.mirror("hf://o/r", allow=["a"])) == {"a": b"1"}
