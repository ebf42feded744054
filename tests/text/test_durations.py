"""Durations and ages as they are typed."""

from __future__ import annotations

import pytest

from prefect_bt.errors import DefinitionError
from prefect_bt.text.durations import parse_age, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("2h", 7200),
        ("1.5d", 129_600),
        ("2w", 1_209_600),
        ("1h30m", 5400),
        (" 7 D ", 604_800),
        ("1h 30m", 5400),
    ],
)
def test_with_units(text: str, seconds: float) -> None:
    assert parse_age(text, field="f") == parse_duration(text, field="f") == seconds


def test_an_age_may_be_zero_and_a_duration_a_number() -> None:
    assert parse_age("0s", field="f") == 0
    assert parse_duration("30", field="f") == 30
    with pytest.raises(DefinitionError):
        parse_duration("0s", field="f")


@pytest.mark.parametrize("text", ["", " ", "30", "m", "-5m", "1h-30m", "30 minutes", "soon", "1y"])
def test_no_age(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"--older-than is .*, which is not an age\. Write"):
        parse_age(text, field="--older-than")
