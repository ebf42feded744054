"""Job output that tries to steer a terminal: it has no effect."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_bt.text.control_characters import escape_controls, escape_line_controls

COLOUR = re.compile("\x1b\\[[0-9;:]*m")
SIGNS = st.sampled_from(
    [
        *(
            "\x1b",
            "[",
            "]",
            "m",
            ";",
            ":",
            "0",
            "8",
            "38;5;1",
            "2J",
            "\x07",
            "\x08",
            "\r",
            "\n",
            "\t",
        ),
        *("\x7f", "\x9b", "\x9d", "\x90", "\x9c", "P", "\\", "52;c;", "8;;http://x", "?1049h", "c"),
        *("\u202e", "\u2066", "\u200f", "\ud800", "\U000e0041", "é", "漢", "👩\u200d🚀", "a"),
    ]
)
TEXTS = st.lists(SIGNS | st.text(max_size=3)).map("".join) | st.text()


def controls(text: str, *, but: str = "") -> list[str]:
    return [c for c in text if unicodedata.category(c) in {"Cc", "Cs"} and c not in but]


def turners(text: str) -> list[str]:
    """Return the characters that change the direction of text."""
    return [c for c in text if "\u202a" <= c <= "\u202e" or "\u2066" <= c <= "\u2069"]


@given(TEXTS)
def test_a_text_has_no_control(text: str) -> None:
    shown = escape_controls(text)
    assert not controls(shown, but="\n\t")
    assert not turners(shown)
    assert escape_controls(shown) == shown


@given(TEXTS)
def test_a_line_has_colours_only_and_ends_them(text: str) -> None:
    shown = escape_line_controls(text)
    assert not controls(COLOUR.sub("", shown), but="\t")
    assert not turners(shown)
    colours = COLOUR.findall(shown)
    assert not colours or shown.endswith("\x1b[0m")
    shown.encode()


@given(st.text(st.characters(exclude_categories=("C",))))
def test_what_prints_stays(text: str) -> None:
    assert escape_controls(text) == text
    assert escape_line_controls(text) == text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("\x1b[38:2::1:2:3mred", "\x1b[38:2::1:2:3mred\x1b[0m"),
        ("\x1b]52;c;cm0gLXJm\x07", "␛]52;c;cm0gLXJm␇"),
        ("\x1b]8;;http://evil\x1b\\here", "␛]8;;http://evil␛\\here"),
        ("\x1bP+q\x1b\\", "␛P+q␛\\"),
        ("\x1b[?1049h\x1b[2J\x1b[H", "␛[?1049h␛[2J␛[H"),
        ("\x1b[>4;2m", "␛[>4;2m"),
        ("\x9b2J\x9d0;t\x9c", "\\x9b2J\\x9d0;t\\x9c"),
        ("ok\x08\x08no", "ok␈␈no"),
        ("50 %\r100 %\r", "50 %␍100 %"),
        ("abc\u202edcb\u2066", "abc\\u202edcb\\u2066"),
        ("a\tb", "a\tb"),
        ("a\nb", "a␊b"),
    ],
)
def test_a_line(line: str, shown: str) -> None:
    assert escape_line_controls(line) == shown
