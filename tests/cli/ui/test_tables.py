"""Tables on terminals of several widths: what must stay whole, what is left out, what is named."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios

import pytest

from tests.cli.conftest import COMMAND, Cli, Shop
from tests.cli.terminals import run_on_terminal

pytestmark = [pytest.mark.slow]

NARROW, USUAL, WIDE = 60, 80, 200


def on_terminal(cli: Cli, width: int, *words: str) -> str:
    """Return the text on the terminal, without colours and links."""
    done = run_on_terminal(cli, *words, width=width)
    assert done.code == 0, done.out
    return without_colours(done.out)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b(\[[0-9;?]*[a-zA-Z]|\]8;[^\x1b]*\x1b\\)", "", text)


def in_own_process(cli: Cli, width: int, *words: str) -> str:
    """Return the text of a new process on a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**cli.env, "TERM": "xterm-256color"},
        cwd=cli.folder,
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the other side is closed
        pass
    os.close(ours)
    assert process.wait(200) == 0, shown
    return without_colours(shown.decode())


@pytest.mark.parametrize(
    ("show", "width"),
    [(in_own_process, NARROW), (on_terminal, USUAL), (on_terminal, WIDE)],
    ids=["narrow", "usual", "wide"],
)
def test_the_overview_breaks_no_word(cli: Cli, shop: Shop, ended, running, show, width: int):
    shop.job("a project with a long name", *ended)
    busy = shop.job("tiny", *running)
    shown = show(cli, width, "view")
    assert max(len(line) for line in shown.splitlines() if line[:1] in "╭│├╰") <= width
    for whole in (busy.id, "TRAINING_JOB_COMPLETED", "TRAINING_JOB_RUNNING"):
        assert whole in shown, shown
    assert ("Hidden columns: " in shown) == (width < WIDE)


def test_hidden_columns_are_named(cli: Cli, shop: Shop, running):
    shop.job("tiny", *running)
    shown = on_terminal(cli, USUAL, "view")
    projects, _, jobs = shown.partition("Active Training Jobs")
    assert "Hidden columns: Created, Last Modified, Checkpoint Sync. -o json shows all." in projects
    assert "Last Modified │" not in projects
    assert "Capacity Type" in jobs.partition("Hidden columns: ")[2]


def test_checkpoints_on_a_usual_terminal(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    shop.checkpoint(job, "checkpoint-240", size=3 * 1024**2, at=1, type="full")
    shown = on_terminal(cli, USUAL, "checkpoints", "list", "--non-interactive")
    assert "checkpoint-240" in shown
    assert "3.00 MiB" in shown
    assert max(len(line) for line in shown.splitlines() if line[:1] in "╭│├╰") <= USUAL


def test_a_jobs_page_is_an_address_to_copy(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    url = "http://127.0.0.1:4200/runs/flow-run/0240472f"
    shop.ledger.runs.bind("0240472f", job.id, url=url)
    assert url in on_terminal(cli, WIDE, "view", "--job-id", job.id)


def test_a_job_without_a_page_shows_how_to_get_one(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    shop.ledger.runs.bind("0240472f", job.id)
    (line,) = [x for x in cli("view", "--job-id", job.id).out.splitlines() if "Job Page" in x]
    assert "prefect-bt up" in line
