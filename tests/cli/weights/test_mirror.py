"""`weights mirror`: what is said meanwhile and afterwards, and how it ends."""

import re
import signal
import time
from math import inf
from pathlib import Path

import pytest

from prefect_bt.weights.cache.partial_file import count_received
from tests.cli.conftest import Cli, StartScreen
from tests.cli.sources import LARGE, cache_of, mirrored
from tests.weights.hub_server import Hub

pytestmark = [pytest.mark.slow]


def test_mirrored_once(cli: Cli, model: str) -> None:
    done = cli("weights", "mirror", "--source", model)
    assert done.code == 0
    assert f"{model}: 2 files, 5.0 KB in " in done.out
    assert "5.0 KB from the source" in done.out
    folder = Path(re.findall(r"in (/\S+/files)$", done.out, re.MULTILINE)[0])
    assert (folder / "weights.bin").stat().st_size == 5000
    assert "already on this machine" in cli("weights", "mirror", "--source", model).out
    [again] = mirrored(cli, model)
    assert (again["hit"], again["fetched"], again["folder"]) == (True, 0, str(folder))


def test_ctrl_c_keeps_what_has_come(cli: Cli, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.bad.hold_at = 8 << 20
    process = cli.start("weights", "mirror", "--source", "hf://o/base")
    deadline = time.monotonic() + 200
    parts = cache_of(cli).root / "parts"
    while time.monotonic() < deadline:
        if sum(map(count_received, parts.glob("*"))) > 1 << 20:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out) == (130, ""), err
    assert "Stopped. " in err.splitlines()[-1]
    assert "the same command continues there" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert cache_of(cli).list_trees() == []

    hub.bad.hold_at = inf
    listed = cli("weights", "list", "-o", "json").json
    assert listed["unfinished_bytes"] > 1 << 20
    before = hub.settled_sent("model.safetensors")
    # The claim of the process that was interrupted is left to expire.
    monkeypatch.setattr("prefect_bt.weights.store_copy.shared_download.EXPIRE_SECONDS", 0.2)
    [done] = mirrored(cli, "hf://o/base")
    assert done["bytes"] == LARGE + 2
    assert done["fetched"] < LARGE
    assert hub.settled_sent("model.safetensors") - before < LARGE


def test_a_dry_run_downloads_nothing(cli: Cli, hub: Hub) -> None:
    given = ("--source", "hf://o/base", "--allow", "*.safetensors", "--dry-run")
    done = cli("weights", "mirror", *given)
    commit = hub.repos["o/base"].branches["main"]
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"hf://o/base: revision {commit}",
        "  here already: 0 files (0 B)",
        "  missing: 0 files (0 B) from the store, 1 file (12.6 MB) from the source",
    ]
    assert hub.bodies() == 0
    assert not Path(cli.env["PREFECT_BT_STATE_DIR"]).exists()


def test_a_dry_run_after_the_branch_moved(cli: Cli, hub: Hub) -> None:
    [old] = mirrored(cli, "hf://o/base")
    files = {**hub.repos["o/base"].commits[old["revision"]], "config.json": b"[]", "new": b"n"}
    new = hub.repos["o/base"].commit(files)
    given = ("--source", "hf://o/base", "--source", "file:///no/such", "--dry-run")
    done = cli("weights", "mirror", *given, "-o", "json")
    assert (done.code, done.err) == (1, "")
    found, refused = done.json["weights"]
    assert found == {
        "source": "hf://o/base",
        "key": old["key"],
        "revision": new,
        "here": {"files": 1, "bytes": LARGE},
        "from_store": {"files": 0, "bytes": 0},
        "from_source": {"files": 2, "bytes": 3},
        "error": None,
        "next_step": None,
    }
    assert "is not a folder" in refused["error"]


def test_bars_on_a_terminal(on_screen: StartScreen, hub: Hub) -> None:
    hub.bad.seconds_a_chunk = 0.01
    screen = on_screen("weights", "mirror", "--source", "hf://o/base")
    # It is read until nothing more comes: the bar moves to the end.
    said = screen.wait_for_line("2 files, 12.6 MB in ", "from the source")
    assert re.search(r"━ 1 of 2 files, \d[\d.]* MB of 12.6 MB \(\d+ %\), [\d.]+ MB/s", said)
    assert screen.end() == 0


def test_plain_lines_elsewhere(cli: Cli, hub: Hub) -> None:
    done = cli("weights", "mirror", "--source", "hf://o/base")
    assert done.code == 0
    assert "hf://o/base: 0 of 2 files, 0 B of 12.6 MB (0 %)" in done.err
    assert "\x1b" not in done.err
    quiet = cli("weights", "mirror", "--source", "hf://o/base@main", "-o", "json")
    assert quiet.err == ""


def test_trouble_names_its_source(cli: Cli, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_bt.weights.mirror.RETRY_DELAYS", (0.0, 0.0))
    hub.bad.status = 503
    error = cli("weights", "mirror", "--source", "hf://o/base").refusal()
    asking, again, *_, last = error.splitlines()
    assert asking == "hf://o/base: listing files"
    assert again.startswith("hf://o/base: tried again: hf://o/base could not be read")
    assert last.startswith("error: hf://o/base could not be read")
    assert "answered 503" in last
