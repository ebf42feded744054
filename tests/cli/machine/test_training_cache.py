"""`prefect-bt cache summarize`: real folders, in every form of output."""

import csv
import ctypes
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.training_cache.usage import summarize_cache
from tests.checkpoints.folders import nest
from tests.cli.conftest import COMMAND, Cli, Shop
from tests.cli.ui.test_tables import on_terminal

pytestmark = [pytest.mark.slow]

AT = 1_700_000_000
"""2023-11-14 22:13:20 UTC; the command runs in UTC."""
HEADER = "File Path,Size (bytes),Size (human readable),Modified,Type,Permissions\r\n"


@pytest.fixture
def project(shop: Shop) -> str:
    return shop.ledger.projects.ensure("tiny").id


@pytest.fixture
def cache(cli: Cli, project: str) -> Path:
    folder = Path(cli.env["PREFECT_BT_STATE_DIR"]) / "cache" / "projects" / project
    folder.mkdir(parents=True)
    return folder


def put(path: Path, size: int, *, at: float = AT, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    path.chmod(mode)
    os.utime(path, (at, at))


def put_folder(path: Path, *, at: float = AT) -> None:
    path.chmod(0o755)
    os.utime(path, (at, at))


@pytest.fixture
def filled(cache: Path) -> Path:
    put(cache / "model" / "deep" / "weights.bin", 1_500_000)
    put(cache / "model" / "config.json", 1001, at=AT + 60, mode=0o600)
    put(cache / "a,b.txt", 1000, at=AT + 120)
    put_folder(cache / "model" / "deep")
    put_folder(cache / "model", at=AT - 60)
    return cache


def exact(cli: Cli, *words: str) -> bytes:
    """Standard output as it is, without any newline translated."""
    done = cli(*words)
    assert done.code == 0, done.err
    return done.out.encode()


def paths(cli: Cli, *words: str) -> list[str]:
    done = cli("cache", "summarize", "tiny", "-o", "json", *words)
    assert done.code == 0, done.err
    return [file["path"] for file in done.json["files"]]


def test_csv_to_the_byte(cli: Cli, filled: Path):
    assert exact(cli, "cache", "summarize", "tiny", "-o", "csv").decode() == (
        HEADER + '"a,b.txt",1000,1000 B,2023-11-14T22:15:20+00:00,file,-rw-r--r--\r\n'
        "model,1501001,1.50 MB,2023-11-14T22:12:20+00:00,directory,drwxr-xr-x\r\n"
        "model/config.json,1001,1.00 KB,2023-11-14T22:14:20+00:00,file,-rw-------\r\n"
        "model/deep,1500000,1.50 MB,2023-11-14T22:13:20+00:00,directory,drwxr-xr-x\r\n"
        "model/deep/weights.bin,1500000,1.50 MB,2023-11-14T22:13:20+00:00,file,-rw-r--r--\r\n"
    )


def test_json_to_the_byte(cli: Cli, cache: Path, project: str):
    put(cache / "d" / "é", 2048)
    put_folder(cache / "d")
    out = exact(cli, "cache", "summarize", project, "--output-format", "json").decode()
    at = json.loads(out)["timestamp"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?\+00:00", at)
    file = '      "path": "{}",\n      "size_bytes": 2048,\n'
    file += '      "size_human_readable": "2.05 KB",\n'
    file += '      "modified": "2023-11-14T22:13:20+00:00",\n      "type": "{}",\n'
    file += '      "permissions": "{}"\n'
    first = file.format("d", "directory", "drwxr-xr-x")
    second = file.format("d/\\u00e9", "file", "-rw-r--r--")
    assert out == (
        f'{{\n  "timestamp": "{at}",\n  "project_id": "{project}",\n  "total_files": 2,\n'
        '  "total_size_bytes": 2048,\n  "total_size_human_readable": "2.05 KB",\n'
        f'  "files": [\n    {{\n{first}    }},\n    {{\n{second}    }}\n  ]\n}}\n'
    )


def test_the_table(cli: Cli, filled: Path, project: str):
    done = cli("cache", "summarize", "tiny", "--remote", "x")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0].startswith("Cache captured at: 20")
    assert lines[1:5] == [f"Project ID: {project}", "Total files: 5", "Total size: 1.50 MB", ""]
    assert lines[5] == f"Cache summary for project: {project}"
    assert lines[6].split("  ")[0] == "File Path"
    assert lines[6].split() == ["File", "Path", "Size", "Modified", "Type", "Permissions"]
    assert re.split(r"\s{2,}", lines[8]) == (
        ["model", "1.50 MB", "2023-11-14 22:12:20 UTC", "directory", "drwxr-xr-x"]
    )
    assert "Tip" not in done.out


def test_the_python_environment_is_named_beside_the_list(cli: Cli, filled: Path, project: str):
    folder = filled.parents[1] / "environments" / project
    put(folder / "python3.11-0" / "torch.so", 500_000)
    done = cli("cache", "summarize", "tiny", "-o", "json")
    assert f"Python environment of its local jobs, {folder}, is not listed: 50" in done.err
    assert done.json == json.loads(done.out)
    assert "torch.so" not in done.out


def test_a_long_path_brings_a_tip(cli: Cli, cache: Path):
    put(cache / ("p" * 60), 1)
    assert "Tip" not in cli("cache", "summarize", "tiny").out
    put(cache / ("p" * 61), 1)
    assert "\n\nTip: -o csv and -o json " in cli("cache", "summarize", "tiny").out


def test_on_a_terminal(cli: Cli, filled: Path):
    shown = on_terminal(cli, 80, "cache", "summarize", "tiny")
    assert "model/deep/weights.bin" in shown
    assert "╭" in shown


@pytest.mark.parametrize(
    ("sort", "first", "last"),
    [
        ("filepath", ["a,b.txt", "model", "model/config.json"], "a,b.txt"),
        ("size", ["a,b.txt", "model/config.json", "model/deep"], "a,b.txt"),
        ("modified", ["model", "model/deep", "model/deep/weights.bin"], "model"),
        ("type", ["model", "model/deep", "a,b.txt"], "model/deep"),
        ("permissions", ["model/config.json", "a,b.txt"], "model/config.json"),
    ],
)
def test_sorted(cli: Cli, filled: Path, sort: str, first: list[str], last: str):
    assert paths(cli, "--sort", sort)[: len(first)] == first
    assert paths(cli, "--sort", sort, "--order", "desc")[-1] == last


@pytest.mark.parametrize("made", [False, True])
def test_empty(cli: Cli, project: str, made: bool):
    if made:
        folder = Path(cli.env["PREFECT_BT_STATE_DIR"]) / "cache"
        (folder / "projects" / project).mkdir(parents=True)
        (folder / "bases" / project / "user_artifacts").mkdir(parents=True)
        (folder / "bases" / project / "team_artifacts").symlink_to(folder)
    table = cli("cache", "summarize", "tiny")
    assert (table.code, table.out) == (0, "No cache summary found for this project.\n")
    assert exact(cli, "cache", "summarize", "tiny", "-o", "csv").decode() == HEADER
    zero = cli("cache", "summarize", "tiny", "-o", "json").json
    assert bool(zero.pop("timestamp")) is made
    assert zero == {
        "project_id": project,
        "total_files": 0,
        "total_size_bytes": 0,
        "total_size_human_readable": "0 B",
        "files": [],
    }


def test_an_id_comes_before_a_name(cli: Cli, shop: Shop, filled: Path, project: str):
    other = shop.ledger.projects.ensure(project)
    assert other.id != project
    assert cli("cache", "summarize", project, "-o", "json").json["project_id"] == project


@pytest.mark.parametrize("output", ["cli-table", "csv", "json"])
def test_no_such_project(cli: Cli, project: str, output: str):
    error = cli("cache", "summarize", "nope", "-o", output).refusal()
    assert f"No project 'nope' in this store. Projects here: {project} (tiny)." in error


@pytest.mark.parametrize("words", [["--sort", "name"], ["--order", "up"], ["-o", "xml"], []])
def test_asked_in_a_wrong_way(cli: Cli, project: str, words: list[str]):
    error = cli("cache", "summarize", *(["tiny", *words] if words else [])).refusal(2)
    assert "See: prefect-bt cache summarize --help" in error


def test_beside_the_project_cache(cli: Cli, cache: Path, project: str):
    caches = cache.parent.parent
    put(cache / "mine", 1)
    put(caches / "bases" / project / "pip" / "wheel", 10)
    (caches / "bases" / project / "user_artifacts").mkdir()
    (caches / "bases" / project / "huggingface").mkdir()
    put(caches / "huggingface" / project / "hub" / "blob", 100)
    put(caches / "teams" / "default" / "shared", 1000)
    done = cli("cache", "summarize", "tiny", "-o", "json")
    assert [(file["path"], file["size_bytes"]) for file in done.json["files"]] == [
        ("../huggingface/hub", 100),
        ("../huggingface/hub/blob", 100),
        ("../pip", 10),
        ("../pip/wheel", 10),
        ("mine", 1),
    ]
    assert done.json["total_size_bytes"] == 111


def test_links_are_entries_and_never_followed(cli: Cli, cache: Path, tmp_path: Path):
    put(tmp_path / "outside" / "big", 5000)
    put(cache / "blobs" / "1", 100)
    (cache / "snapshot").symlink_to("blobs/1")
    (cache / "away").symlink_to(tmp_path / "outside")
    (cache / "dangling").symlink_to("nowhere")
    (cache / "round").symlink_to(".")
    os.mkfifo(cache / "pipe")
    files = cli("cache", "summarize", "tiny", "-o", "json").json["files"]
    assert {file["path"]: file["type"] for file in files} == {
        "away": "symlink",
        "blobs": "directory",
        "blobs/1": "file",
        "dangling": "symlink",
        "pipe": "fifo",
        "round": "symlink",
        "snapshot": "symlink",
    }
    assert next(f["permissions"] for f in files if f["path"] == "away") == "lrwxrwxrwx"


def test_a_link_in_place_of_the_cache_is_not_followed(cli: Cli, cache: Path, tmp_path: Path):
    put(tmp_path / "of-the-host" / "file", 7)
    cache.rmdir()
    cache.symlink_to(tmp_path / "of-the-host")
    done = cli("cache", "summarize", "tiny", "-o", "json")
    assert (done.code, done.json["files"]) == (1, [])
    assert "'.' cannot be read" in done.err


def test_a_tree_deeper_than_a_path(cli: Cli, cache: Path):
    name = "d" * 200
    (cache / "file").touch()
    (cache / "link").symlink_to("/")
    nest(cache, name, 30)
    try:
        done = cli("cache", "summarize", "tiny", "-o", "json")
    finally:
        remove_tree(cache)  # pytest could not
    assert done.code == 1
    listed = {file["path"]: file["type"] for file in done.json["files"]}
    assert (listed["file"], listed["link"]) == ("file", "symlink")
    assert listed[f"{name}/{name}/{name}"] == "directory"
    assert not any("link/" in path for path in listed)
    assert "is not counted: its paths are too long for this machine" in done.err
    assert len(done.err) < 1000


def test_names_of_any_bytes(cli: Cli, cache: Path):
    for name in (b"caf\xe9", b"caf\xe8", b"two\nlines", b"\x1b[2J", b'"quoted"'):
        Path(os.fsdecode(bytes(cache) + b"/" + name)).write_bytes(b"")
    names = ['"quoted"', "\x1b[2J", "caf\\xe8", "caf\\xe9", "two\nlines"]
    assert sorted(paths(cli)) == sorted(names)
    text = exact(cli, "cache", "summarize", "tiny", "-o", "csv").decode()
    assert sorted(row[0] for row in csv.reader(io.StringIO(text, newline=""))) == sorted(
        ["File Path", *names]
    )
    table = cli("cache", "summarize", "tiny").out
    assert "\x1b" not in table
    assert "two\u240alines" in table


def test_times_no_calendar_has(cli: Cli, cache: Path):
    put(cache / "old", 1, at=-AT)
    put(cache / "far", 1, at=2**33)
    assert sorted(paths(cli, "--sort", "modified")) == ["far", "old"]


def without_root_rights() -> None:
    """In the child: root that may not read what its modes forbid."""
    libc = ctypes.CDLL(None)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(24, capability, 0, 0, 0)


def test_permission_denied(cli: Cli, cache: Path):
    put(cache / "open", 5)
    put(cache / "closed" / "secret", 5000)
    put(cache / "listed" / "file", 300)
    (cache / "closed").chmod(0)
    (cache / "listed").chmod(0o444)
    done = subprocess.run(
        [*COMMAND, "cache", "summarize", "tiny", "-o", "json"],
        env=cli.env,
        cwd=cli.folder,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=without_root_rights,
    )
    (cache / "closed").chmod(0o755)
    (cache / "listed").chmod(0o755)
    found = json.loads(done.stdout)
    if any(file["path"] == "closed/secret" for file in found["files"]):
        pytest.skip("this user reads everything, whatever the modes say")
    assert done.returncode == 1
    assert "'closed', 'listed' cannot be read and is not counted." in done.stderr
    assert [f["path"] for f in found["files"]] == ["closed", "listed", "listed/file", "open"]
    hidden = found["files"][2]
    assert (hidden["type"], hidden["permissions"], hidden["modified"]) == ("file", "Unknown", "")
    assert found["total_size_bytes"] == 5


def test_files_that_vanish_meanwhile(cli: Cli, cache: Path, project: str):
    """When the listing is half way, a job deletes what was named and not yet looked at."""
    for number in range(700):
        (cache / f"f{number}").touch()
        (cache / f"d{number}").mkdir()
        (cache / f"d{number}" / "inside").touch()

    def delete(_count: int) -> None:
        for path in cache.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    found = summarize_cache(Path(cli.env["PREFECT_BT_STATE_DIR"]), project, on_progress=delete)
    assert found.unreadable == []
    assert all(entry.permissions for entry in found.entries)
    assert 1000 <= len(found.entries) < 2100
    assert found.total_size == 0


def test_many_files_come_as_plain_columns(cli: Cli, cache: Path):
    for folder in range(3):
        (cache / str(folder)).mkdir()
        for file in range(1000):
            (cache / str(folder) / f"{file:04d}").touch()
    done = cli("cache", "summarize", "tiny")
    assert "Total files: 3003" in done.out
    title, header, first, *rest = done.out.splitlines()[5:]
    assert title.startswith("Cache summary for project: ")
    assert header.split() == ["File", "Path", "Size", "Modified", "Type", "Permissions"]
    assert header.index("Type") == first.index("directory")
    assert len(rest) == 3002
    assert "Listing the cache: " in on_terminal(
        cli, 80, "cache", "summarize", "tiny", "--sort", "size"
    )
