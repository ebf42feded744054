"""Output and names of a job: they steer no terminal, whichever command shows them."""

import json

import pytest

from prefect_bt.ledger.records import FailureClass, Outcome
from prefect_bt.ledger.states import JobState

from .conftest import Cli, Shop, StartScreen

CLEAR, TITLE, PASTE = "\x1b[2J", "\x1b]0;owned\x07", "\x1b]52;c;cm0gLXJm\x07"
LINE = f"\x1b[31mred\x1b[0m {CLEAR}{TITLE}{PASTE}\x9b2J\x7f\u202e[bold]b[/bold]\x08"
SHOWN = "\x1b[31mred\x1b[0m ␛[2J␛]0;owned␇␛]52;c;cm0gLXJm␇\\x9b2J␡\\u202e[bold]b[/bold]␈\x1b[0m"


@pytest.fixture
def job(shop: Shop):
    record = shop.job(f"p{CLEAR}[red]", JobState.DEPLOYING, JobState.RUNNING, name=f"n{TITLE}[/]")
    shop.ledger.begin_attempt(record.id)
    shop.log(record, [LINE])
    last = Outcome(
        attempt=0,
        state=JobState.FAILED,
        failure=FailureClass.USER,
        message=f"Rank 0 failed: {LINE}",
        failed_rank=0,
        log_tail=(LINE,),
    )
    shop.ledger.end_attempt(record.id, last)
    shop.ledger.append_event(record.id, JobState.FAILED, message=f"Rank 0 failed: {LINE}")
    shop.checkpoint(record, f"checkpoint{PASTE}[link=x]y", size=10, at=1)
    return record


def is_harmless(text: str) -> bool:
    kept = text.replace("\x1b[31m", "").replace("\x1b[0m", "")
    return not [c for c in kept if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160] and (
        "\u202e" not in text
    )


def test_lines_of_a_log(cli: Cli, job) -> None:
    done = cli("logs", "--no-platform", "--job-id", job.id)
    assert done.out.rstrip("\n").endswith(f"(rank-0) {SHOWN}")
    followed = cli("logs", "--no-platform", "--tail", "--job-id", job.id)
    assert f"(rank-0) {SHOWN}\n" in followed.out
    raw = cli("logs", "--no-platform", "--raw", "--job-id", job.id)
    assert f"(rank-0) {LINE}\n" in raw.out
    written = cli("logs", "--no-platform", "--job-id", job.id, "-o", "json").out
    assert json.loads(written)["logs"][0]["message"] == LINE
    assert is_harmless(written) and written.isascii()


@pytest.mark.parametrize(
    "words",
    [
        ("logs",),
        ("logs", "--first-failure"),
        ("logs", "--tail"),
        ("view",),
        ("view", "--job-id", "{}"),
        ("checkpoints", "list", "--job-id", "{}"),
        ("view", "--job-id", "{}", "-o", "json"),
        ("checkpoints", "list", "--job-id", "{}", "-o", "json"),
        ("stop", "--job-id", "{}"),
    ],
    ids=" ".join,
)
def test_a_command_steers_nothing(cli: Cli, job, words: tuple[str, ...]) -> None:
    done = cli(*(word.format(job.id) for word in words))
    told = done.out + done.err
    shown = any(sign in told for sign in ("owned", "[red]", "[link="))
    assert shown or words[0] == "stop", done
    assert is_harmless(done.out), repr(done.out)
    assert is_harmless(done.err), repr(done.err)


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    "words", [("logs",), ("logs", "--tail"), ("view",), ("checkpoints", "list", "-o", "csv")]
)
def test_a_real_terminal_is_not_steered(on_screen: StartScreen, job, words) -> None:
    screen = on_screen(*words, "--job-id", job.id, NO_COLOR="1")
    screen.wait_for_line("␛")
    assert screen.end() in {0, 1}
    for steering in (b"\x1b[2J", b"\x1b]0;", b"\x1b]52;", b"\x07", b"\xc2\x9b", b"\xe2\x80\xae"):
        assert steering not in screen.said
