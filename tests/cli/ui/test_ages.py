"""Ages are read alike wherever one is typed."""

from __future__ import annotations

import pytest

from prefect_bt.cli.ui.ages import parse_age, parse_older_than
from prefect_bt.errors import PrefectBtError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("30m", 1800),
        ("2h", 7200),
        ("1.5d", 129_600),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        (" 7 D ", 604_800),
        ("1h 30m", 5400),
        ("0s", 0),
    ],
)
def test_ages(text: str, seconds: float) -> None:
    assert parse_age(text) == parse_older_than(text) == seconds


@pytest.mark.parametrize("text", ["", " ", "30", "m", "-5m", "1h-30m", "30 minutes", "soon", "1y"])
def test_what_is_no_age(text: str) -> None:
    with pytest.raises(ValueError, match="is not an age: write for example"):
        parse_age(text)
    with pytest.raises(PrefectBtError, match=r"--older-than .* is not an age\. Write"):
        parse_older_than(text)


@pytest.mark.parametrize("command", [["gc", "--dry-run"], ["weights", "prune", "--dry-run"]])
def test_every_command_takes_the_same(within, command: list[str]) -> None:
    assert within(*command, "--older-than", "1h30m").code == 0
    wrong = within(*command, "--older-than", "soon")
    assert (wrong.code, "--older-than 'soon' is not an age." in wrong.err) == (1, True)
