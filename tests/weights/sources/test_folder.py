"""`file://`: a folder of this machine, copied once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.errors import WeightsError
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources import folder
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import SourceRequest, open_source
from tests.weights.conftest import mirror, requested, tree

FILES = {"config.json": b"{}", "sub/model.bin": os.urandom(3_000_000), "empty": b""}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "my model"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def plan(folder: Path, **patterns: tuple[str, ...]) -> WeightsPlan:
    return WeightsPlan(f"file://{folder}", "/w", "k1", **patterns)


def refused(folder: Path, state_dir: Path, **patterns: tuple[str, ...]) -> str:
    with pytest.raises(WeightsError) as caught:
        mirror(plan(folder, **patterns), state_dir)
    assert caught.value.source == f"file://{folder}"
    assert caught.value.next_step
    assert not list((state_dir / "weights").glob("trees/*"))
    return str(caught.value)


def test_copied_once_and_again_when_it_changed(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = mirror(plan(source), tmp_path / "state")
    assert tree(first) == FILES
    with monkeypatch.context() as patched:
        patched.setattr(folder.FolderSource, "read", None)
        assert mirror(plan(source), tmp_path / "state") == first
    with (source / "config.json").open("wb") as file:
        file.write(b"[]")
    second = mirror(plan(source), tmp_path / "state")
    assert tree(second) == {**FILES, "config.json": b"[]"}
    assert tree(first) == FILES


def test_links_to_files_are_files_and_patterns_count(source: Path, tmp_path: Path) -> None:
    (source / "linked.bin").symlink_to(source / "sub" / "model.bin")
    found = mirror(plan(source, allow_patterns=("*.bin",)), tmp_path / "state")
    assert tree(found) == {"linked.bin": FILES["sub/model.bin"]}
    assert not (found / "linked.bin").is_symlink()


def test_a_range(source: Path) -> None:
    opened = folder.FolderSource(requested(f"file://{source}"))
    [model] = [file for file in opened.list_files().files if file.path == "sub/model.bin"]
    data = FILES["sub/model.bin"]
    assert b"".join(opened.read(model, start=7, length=2_000_000)) == data[7:2_000_007]
    assert b"".join(opened.read(model, start=2_999_000, length=-1)) == data[-1000:]


@pytest.mark.parametrize(
    "name",
    [
        ".cache/huggingface/.gitignore",
        ".cache/huggingface/download/sub/model.bin.metadata",
        "sub/.cache/huggingface/download/x.incomplete",
        ".huggingface/download/config.json.lock",
        ".git/lfs/objects/ab/cd/abcd",
        "sub/.git",
        "._____temp/model.bin",
        ".msc",
        ".mv",
        ".mdl",
    ],
)
def test_the_files_of_the_program_that_downloaded_it(
    source: Path, tmp_path: Path, name: str
) -> None:
    first = mirror(plan(source), tmp_path / "state")
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    (source / name).write_bytes(b"state")
    assert mirror(plan(source), tmp_path / "state") == first, "and it is no new revision"
    assert tree(first) == FILES


def test_sockets_and_links_of_the_program_that_downloaded_it(source: Path, tmp_path: Path) -> None:
    (source / ".git").mkdir()
    os.mkfifo(source / ".git" / "fsmonitor--daemon.ipc")
    (source / ".cache").mkdir()
    (source / ".cache" / "huggingface").symlink_to(tmp_path)
    assert tree(mirror(plan(source), tmp_path / "state")) == FILES


def test_names_that_are_like_those_of_such_a_program(source: Path, tmp_path: Path) -> None:
    files = {".cache/own": b"1", ".gitattributes": b"2", "a.msc": b"3", "huggingface/x": b"4"}
    for name, data in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(data)
    assert tree(mirror(plan(source), tmp_path / "state")) == {**FILES, **files}


def test_refusals(source: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert "is not a folder on this machine" in refused(tmp_path / "none", state)
    assert "give allow_patterns" in refused(source / "config.json", state)
    (tmp_path / "void").mkdir()
    assert "it is empty" in refused(tmp_path / "void", state)
    assert "match none of its 3 files" in refused(source, state, allow_patterns=("*.gguf",))
    (source / "loop").symlink_to(source)
    assert "neither a file nor a folder of it" in refused(source, state)
    (source / "loop").unlink()
    (source / "broken").symlink_to("nowhere")
    assert "could not be copied" in refused(source, state)


def test_a_folder_that_changes_meanwhile(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = folder.FolderSource.read

    def then_write(
        self: folder.FolderSource, file: ListedFile, *, start: int, length: int
    ) -> Iterator[bytes]:
        yield from read(self, file, start=start, length=length)
        (source / "late").write_bytes(b"x")

    with monkeypatch.context() as patched:
        patched.setattr(folder.FolderSource, "read", then_write)
        assert "changed while it was copied" in refused(source, tmp_path / "state")
    assert not list((tmp_path / "state" / "weights" / "fills").iterdir())
    assert "late" in tree(mirror(plan(source), tmp_path / "state"))


def test_a_disk_too_small_is_seen_before_the_first_byte(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    error = refused(source, tmp_path / "state")
    assert "0.0 GB more" in error
    assert "PREFECT_BT_STATE_DIR" in error
    assert not tree(tmp_path / "state" / "weights" / "trees")


OUTSIDE = {
    "another folder": lambda allowed, source: source,
    "a folder that begins like it": lambda allowed, source: shutil.copytree(
        source, allowed.with_name("models-of-others")
    ),
    "dots": lambda allowed, source: allowed / ".." / source.name,
    "a link to a folder": lambda allowed, source: link(allowed / "linked", source),
    "a link to a file": lambda allowed, source: (
        link(allowed / "model" / "linked", source / "config.json").parent
    ),
}


def link(path: Path, target: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("way", OUTSIDE)
def test_a_machine_mirrors_from_the_folders_that_it_names(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A definition may be that of somebody who may not read the files of the flow's user."""
    allowed = tmp_path / "models"
    allowed.mkdir()
    place = OUTSIDE[way](allowed, source)
    assert mirror(plan(place), tmp_path / "anything")
    monkeypatch.setenv("PREFECT_BT_WEIGHTS_FOLDERS", f"/nothing:{allowed}")
    why = refused(place, tmp_path / "state")
    assert "is not in a folder from which this machine mirrors" in why
    assert f"PREFECT_BT_WEIGHTS_FOLDERS of this machine allows /nothing, {allowed}" in why
    inside = shutil.copytree(source, allowed / "inside")
    link(inside / "link", inside / "config.json")
    assert mirror(plan(inside), tmp_path / "state")


def test_a_file_that_becomes_a_link_while_it_is_opened_leads_nowhere(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its owner can exchange it at any time, and put it back before the next look."""
    monkeypatch.setenv("PREFECT_BT_WEIGHTS_FOLDERS", str(tmp_path / "models"))
    inside = shutil.copytree(source, tmp_path / "models" / "inside")
    (tmp_path / "secret").write_bytes(b"??")
    opened, realpath = open_source(SourceRequest(plan(inside))), os.path.realpath
    file = next(file for file in opened.list_files().files if file.path == "config.json")

    def exchange(path: str | Path) -> str:
        real = realpath(path)
        if not (inside / file.path).is_symlink():
            (inside / file.path).unlink()
            link(inside / file.path, tmp_path / "secret")
        return real

    monkeypatch.setattr(os.path, "realpath", exchange)
    assert b"".join(opened.read(file, start=0, length=-1)) == FILES[file.path]
    with pytest.raises(WeightsError, match="is not in a folder from which this machine"):
        b"".join(opened.read(file, start=0, length=-1))
