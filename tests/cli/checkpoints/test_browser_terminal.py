"""`checkpoints list` on a real terminal, over a store that a real uploader filled."""

import json
import re
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.cli.checkpoints.browser_terminal import find_pager
from prefect_bt.file_server import process
from prefect_bt.ledger.records import JobRecord
from tests.checkpoints.folders import write
from tests.cli.conftest import Cli, Shop, StartScreen
from tests.cli.kept import upload
from tests.cli.terminals import run_on_terminal

pytestmark = [pytest.mark.slow]

HEADER = {
    "__metadata__": {"format": "pt"},
    "layer.weight": {"dtype": "BF16", "shape": [64, 16], "data_offsets": [0, 2048]},
    "layer.bias": {"dtype": "F32", "shape": [64], "data_offsets": [2048, 2304]},
}


def packed(header: object, data: int) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.fixture
def job(shop: Shop, ended, tmp_path: Path) -> JobRecord:
    record, folder = shop.job("tiny", *ended), tmp_path / "ckpts"
    files = {
        "checkpoint-10/config.json": b'{"model_type": "tiny", "note": "config of ten"}',
        "checkpoint-10/model.safetensors": packed(HEADER, 2304),
        "checkpoint-10/optim/big.dat": bytes(1_000_000),
        "checkpoint-20/config.json": b'{"model_type": "tiny", "note": "config of twenty"}',
        "checkpoint-20/model.safetensors": packed(HEADER, 2304),
        "runs/events": b"\0\1\2",
        "runs/odd.txt": b"clean\x1b]0;stolen\x07 up",
    }
    write(folder, files)
    upload(shop, record, folder)
    return record


@pytest.fixture
def start(cli: Cli, on_screen: StartScreen) -> Iterator[StartScreen]:
    yield partial(on_screen, "checkpoints", "list")
    process.stop_all_servers(cli.folder / "state")


def test_pick_walk_and_leave(start: StartScreen, job: JobRecord):
    screen = start()
    screen.wait_for("Checkpoints of job", "(3/3)", "checkpoint-10", "checkpoint-20", "runs")
    screen.press("c", "20")
    drawn = screen.wait_for("(1/3)", "> c20", "checkpoint-20")
    assert "checkpoint-10" not in drawn
    screen.press("enter")
    screen.wait_for(f"job {job.id}/checkpoint-20", "config.json", "model.safetensors", "[full")
    screen.press("left")
    screen.wait_for("checkpoint-10/", "3 files", "checkpoint-20/", "runs/")
    screen.leave("q")


def test_escape_and_ctrl_c(start: StartScreen, job: JobRecord):
    screen = start()
    screen.wait_for("(3/3)")
    screen.leave("escape")
    screen = start("--checkpoint-name", "checkpoint-10")
    screen.wait_for("config.json")
    screen.leave("ctrl-c", 130)
    assert b"Traceback" not in screen.said


def test_the_address_answers(start: StartScreen, job: JobRecord):
    screen = start("--checkpoint-name", "checkpoint-10")
    screen.wait_for("optim/")
    screen.press("right")
    screen.wait_for("big.dat")
    screen.press("right")
    said = screen.wait_for_line("http://127.0.0.1:", "Enter: back")
    found = re.search(r"http://\S+", said)
    assert found is not None
    request = urllib.request.Request(found[0], headers={"Range": "bytes=0-7"})
    with urllib.request.urlopen(request, timeout=200) as answer:
        assert (answer.status, answer.read()) == (206, bytes(8))
    screen.press("enter")
    screen.wait_for(f"job {job.id}/checkpoint-10/optim", "big.dat")
    # Of a file this large, Enter shows no more.
    screen.press("enter")
    screen.wait_for_line("too large to show", found[0].partition("?")[0])
    screen.leave("ctrl-c", 130)


def test_tensors_and_texts(start: StartScreen, job: JobRecord):
    screen = start("--checkpoint-name", "checkpoint-10", PAGER="cat")
    screen.wait_for("model.safetensors")
    screen.press("down", "enter")
    screen.wait_for_line("config of ten", "Enter: back")
    screen.press("enter")
    screen.wait_for("model.safetensors")
    screen.press("down", "enter")
    screen.wait_for_line("layer.weight", "64 x 16", "1,024", "2 tensors, 1,088 parameters")
    screen.press("enter")
    screen.wait_for("model.safetensors")
    screen.leave("q")


def test_less_is_the_pager(start: StartScreen, job: JobRecord):
    if find_pager("")[0].rpartition("/")[2] != "less":
        pytest.skip("less is not installed")
    # Many have -F in here, which lets less end at once.
    screen = start("--checkpoint-name", "checkpoint-20", LESS="FRX")
    screen.wait_for("config.json")
    screen.press("enter")
    screen.wait_for_line("config of twenty", "(END)")
    screen.press("q")
    # less loses keys while its terminal changes its size, so nothing is drawn anew here.
    screen.wait_for_line(f"job {job.id}/checkpoint-20", "← back")
    screen.leave("q")


def test_the_content_of_a_file_does_not_steer_the_terminal(start: StartScreen, job: JobRecord):
    screen = start("--checkpoint-name", "runs", PAGER="cat")
    screen.wait_for("events", "odd.txt")
    screen.press("down", "enter")
    screen.wait_for_line("clean␛]0;stolen␇ up")
    screen.press("enter")
    screen.wait_for("events")
    screen.press("up", "enter")
    screen.wait_for_line("(3 bytes, no text)", "http://127.0.0.1:", "Enter: back")
    screen.press("enter", "q")
    assert screen.end() == 0


def test_a_fault_is_shown_and_browsing_continues(start: StartScreen, job: JobRecord, shop: Shop):
    ten = list_checkpoints(shop.ledger.store, job.project_id, job.id)[0]
    gone = next(file for file in ten.files() if file.path.endswith("config.json"))
    shop.ledger.store.delete(gone.key)
    screen = start("--checkpoint-name", "checkpoint-10")
    screen.wait_for("config.json")
    screen.press("down", "enter")
    screen.wait_for_line("error: No ", "Enter: back")
    screen.press("enter")
    screen.wait_for("model.safetensors")
    screen.leave("q")


def test_a_pager_that_does_not_start(start: StartScreen, job: JobRecord):
    screen = start("--checkpoint-name", "runs", PAGER="no-such-pager -x")
    screen.wait_for("odd.txt")
    screen.press("down", "enter")
    screen.wait_for_line("error: The pager no-such-pager does not start: No such", "Enter: back")
    screen.press("enter")
    screen.wait_for("odd.txt")
    screen.leave("q")


def test_elsewhere_it_stays_a_list(cli: Cli, job: JobRecord):
    for line, term in (
        ("--non-interactive checkpoints list", "xterm"),
        ("checkpoints list", "dumb"),
        ("checkpoints list -o csv", "xterm"),
        ("checkpoints list -o json", "xterm"),
    ):
        done = run_on_terminal(cli, *line.split(), TERM=term)
        assert done.code == 0
        assert "checkpoint-20" in done.out
        assert "\x1b[?1049h" not in done.out


def test_pagers():
    assert find_pager("bat -p --style 'a b'") == ["bat", "-p", "--style", "a b"]
    assert find_pager("odd 'quote") == ["odd", "'quote"]
    assert find_pager(" ")[0].endswith(("less", "more"))
