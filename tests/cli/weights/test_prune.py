"""`weights prune`: what goes, what stays, and who is asked."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.host.job_lock import lock_job
from prefect_bt.planning.planner import plan_weights_sources
from prefect_bt.weights import mirror_source as mirror_here
from tests.cli.conftest import Cli, StartScreen, Within
from tests.cli.sources import cache_of, folder, mirrored


@pytest.fixture
def three(cli: Cli, tmp_path: Path) -> list[dict[str, Any]]:
    """Used an hour apart, the first the longest ago."""
    sources = [folder(tmp_path, name, {"a": os.urandom(1 << 20)}) for name in ("p", "q", "r")]
    rows = mirrored(cli, *sources)
    for hours, row in zip((72, 48, 1), rows, strict=True):
        at = time.time() - hours * 3600
        os.utime(Path(row["folder"]).parent / "used", (at, at))
    return rows


def left(cli: Cli) -> list[str]:
    return [tree.summary.source.rpartition("/")[2] for tree in cache_of(cli).list_trees()]


def test_until_so_much_is_left(cli: Cli, three: list[dict[str, Any]]) -> None:
    dry = cli("weights", "prune", "--yes", "--keep-bytes", "2.5MB", "--dry-run")
    assert dry.code == 0
    assert "Would free 1.0 MB. Nothing was deleted." in dry.out
    assert "keep: within the size limit" in dry.out
    assert left(cli) == ["p", "q", "r"]
    done = cli("weights", "prune", "--yes", "--keep-bytes", "2.5MB", "-o", "json")
    assert [row["name"] for row in done.json["removed"]] == [three[0]["name"]]
    assert done.json["freed_bytes"] == 1 << 20
    assert left(cli) == ["q", "r"]
    again = cli("weights", "prune", "--yes", "--keep-bytes", "1GB")
    assert "There is nothing to delete." in again.out


def test_what_was_not_used_for_long(cli: Cli, three: list[dict[str, Any]]) -> None:
    done = cli("weights", "prune", "--yes", "--older-than", "2d")
    assert done.code == 0
    assert "Freed 2.1 MB." in done.out
    assert left(cli) == ["r"]
    assert not Path(three[0]["folder"]).exists()


def test_by_name_and_never_what_a_job_uses(cli: Cli, three: list[dict[str, Any]]) -> None:
    with lock_job(Path(cli.env["PREFECT_BT_STATE_DIR"]), "abc1234"):
        cache_of(cli).acquire_tree(three[1]["name"], holder="abc1234")
        done = cli("weights", "prune", "--yes", three[0]["source"], three[1]["name"])
        assert done.code == 0
        assert "keep: job abc1234 uses it" in done.out
        assert left(cli) == ["r", "q"]
        kept = cli("weights", "prune", "--yes", "--all", "-o", "json").json["kept"]
        assert [row["why"] for row in kept] == ["job abc1234 uses it"]
        assert left(cli) == ["q"]
    assert cli("weights", "prune", "--yes", "--all", PREFECT_BT_STORE="ftp://nowhere").code == 0
    assert (left(cli), cache_of(cli).usage()) == ([], 0)


def test_what_was_begun_and_left(cli: Cli, three: list[dict[str, Any]]) -> None:
    part = cache_of(cli).partial_path("0" * 32)
    part.mkdir(parents=True)
    (part / "data").write_bytes(bytes(100_000))
    done = cli("weights", "prune", "--yes", "--older-than", "1000d", "-o", "json")
    assert (done.json["leftover_bytes"], part.exists()) == (0, True)
    old = time.time() - 8 * 86400
    for path in (part / "data", part):
        os.utime(path, (old, old))
    listed = cli("weights", "list")
    assert "Unfinished: " in listed.out
    done = cli("weights", "prune", "--yes", "--older-than", "1000d")
    assert "Unfinished downloads to delete" in done.out
    assert not part.exists()
    assert left(cli) == ["p", "q", "r"]


@pytest.mark.slow
def test_the_stores_copies(cli: Cli, three: list[dict[str, Any]]) -> None:
    done = cli("weights", "prune", "--yes", "--store", three[0]["source"], "-o", "json")
    assert [row["name"] for row in done.json["removed"]] == [three[0]["name"]]
    trees = cli("weights", "list", "-o", "json").json["trees"]
    where = {row["name"]: row["where"] for row in trees}
    assert [where[row["name"]] for row in three] == ["here", "both", "both"]
    assert left(cli) == ["p", "q", "r"]
    mirrored(cli, three[0]["source"])
    cli("weights", "prune", "--yes", "--store", "--keep-bytes", "1.1MB")
    where = [row["where"] for row in cli("weights", "list", "-o", "json").json["trees"]]
    assert sorted(where) == ["both", "here", "here"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Give names, --keep-bytes, --older-than or --all"),
        (["--all", "--older-than", "1d"], "exactly one choice"),
        (["--keep-bytes", "lots"], "'lots' is not a size"),
        (["--older-than", "soon"], "'soon', which is not an age"),
    ],
)
def test_pruned_in_a_wrong_way(within: Within, arguments: list[str], words: str) -> None:
    assert words in within("weights", "prune", "--yes", *arguments).refusal(2)


@pytest.mark.slow
def test_a_person_is_asked(cli: Cli, on_screen: StartScreen, model: str) -> None:
    plan = plan_weights_sources([model])[0]
    mirror_here(plan, cache=cache_of(cli))
    for answer, kept in (("n", 1), ("y", 0)):
        screen = on_screen("weights", "prune", "--all")
        screen.wait_for_line("Delete 1 tree from this machine? [y/N]")
        screen.press(answer, "enter")
        assert screen.end() == kept
        assert len(cache_of(cli).list_trees()) == kept
