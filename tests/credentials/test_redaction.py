"""Values kept out of text: their spellings, values that overlap, and text that comes in pieces."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.credentials import redaction
from prefect_bt.credentials.redaction import MASK, MIN_MASKED_LENGTH, Redactor

VALUE = 's3cr3t "Pä/ss+w0rd"'


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE,
        quote(VALUE),
        quote(VALUE, safe=""),
        quote_plus(VALUE),
        json.dumps({"k": VALUE}),
        repr(VALUE + "'"),
        base64.b64encode(VALUE.encode()).decode(),
        base64.b64encode(b"u:" + VALUE.encode()).decode(),
        base64.b64encode(b"us:" + VALUE.encode() + b"!").decode(),
        base64.urlsafe_b64encode(b"user:" + VALUE.encode()).decode(),
    ],
)
def test_masks_every_spelling(spelled: str) -> None:
    masked = Redactor([VALUE])(f"before {spelled} after")
    assert MASK in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")
    assert VALUE not in masked


def test_masks_each_line_of_a_secret_of_several_lines() -> None:
    redact = Redactor(["-----BEGIN KEY-----\nabcdefgh\n-----END KEY-----\n"])
    assert redact("abcdefgh") == MASK


def test_short_values_are_left_alone() -> None:
    assert Redactor(["1", "abc"])("1 abc 123") == "1 abc 123"
    assert Redactor([])("text") == "text"


@given(st.text(min_size=6), st.binary(max_size=5), st.binary(max_size=5))
def test_base64_of_anything_around_a_secret_hides_it(value: str, head: bytes, tail: bytes) -> None:
    encoded = base64.b64encode(head + value.encode() + tail).decode()
    if len(value.encode()) > 8 and len(value.strip()) >= MIN_MASKED_LENGTH:
        assert Redactor([value])(encoded) != encoded


SERVICE_ACCOUNT = {
    "type": "service_account",
    "project_id": "my-project",
    "private_key_id": "0f1e2d3c4b5a",
    "private_key": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END-----\n",
    "client_email": "me@my-project.example",
    "token_uri": "https://oauth2.example/token",
    "nested": [{"aws_secret_access_key": "wJalrXUtnFEMI"}],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_what_a_json_document_hides_is_masked_by_itself(indent: int | None) -> None:
    redact = Redactor([json.dumps(SERVICE_ACCOUNT, indent=indent)])
    for hidden in ("MIIEvQIBADANBg", "kqhkiG9w0BAQEF", "0f1e2d3c4b5a", "wJalrXUtnFEMI"):
        assert redact(f"got {hidden}.") == f"got {MASK}."
    shown = "my-project, https://oauth2.example/token"
    assert redact(shown) == shown
    assert redact(repr(SERVICE_ACCOUNT["private_key"])) == f"'{MASK}'"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ('{"password": "hidden\\ud800half"}', "hidden\ud800half"),
        ("hidden\udce9byte", "hidden\udce9byte"),
        ('{"a":' * 100_000, '{"a":' * 100_000),
    ],
    ids=["half of a pair in JSON", "no UTF-8", "deep JSON"],
)
def test_every_value_can_be_masked(value: str, shown: str) -> None:
    assert Redactor([value])(f"<{shown}>") == f"<{MASK}>"


@pytest.mark.parametrize("value", ["a.b*c", "(x|y)+", "[a-z]{3}", "\\d\\w", "^$^$", "{not json"])
def test_signs_of_regular_expressions_are_signs(value: str) -> None:
    redact = Redactor([value])
    assert redact(f"<{value}>") == f"<{MASK}>"
    assert redact("axbxc xyxy abc 123 {") == "axbxc xyxy abc 123 {"


def test_a_value_of_blanks_leaves_indentation_alone() -> None:
    assert Redactor(["    ", " \n  \n x"])("def f():\n    x") == "def f():\n    x"


@pytest.mark.parametrize(
    "spelled",
    [
        "+ echo 'it'\\''s my key'",
        json.dumps('päss "it\'s my key"', ensure_ascii=False),
        "it's my key",
    ],
)
def test_masks_what_a_shell_or_json_prints(spelled: str) -> None:
    masked = Redactor(["it's my key", 'päss "it\'s my key"'])(spelled)
    assert "my key" not in masked


# -- the beginning of a value at the end of a text -------------------------------------------


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("", 0),
        ("nothing", 0),
        ("see s", 1),
        ("see secr", 4),
        ("see secret", 0),
        ("see secrets", 1),
        ("secretsecr", 4),
        ("c2Vjcm", 6),
    ],
)
def test_unfinished(text: str, held: int) -> None:
    assert Redactor(["secret"]).partial_match_length(text) == held


def test_unfinished_without_values() -> None:
    assert Redactor([]).partial_match_length("anything") == 0


def test_unfinished_never_cuts_a_whole_value() -> None:
    redact = Redactor(["abab"])
    assert redact.partial_match_length("xxabab") in {0, 4}
    assert redact("xxabab"[: 6 - redact.partial_match_length("xxabab")]) in {"xx", f"xx{MASK}"}


@pytest.mark.slow
@given(
    st.lists(st.text("ab'\n", min_size=4, max_size=9), min_size=1, max_size=3),
    st.lists(st.text("ab'x", max_size=12), max_size=6),
)
def test_text_in_pieces_hides_what_whole_text_hides(values: list[str], noise: list[str]) -> None:
    text = "x".join(word for pair in zip(noise, values * 6, strict=False) for word in pair)
    redact, shown, rest = Redactor(values), "", ""
    for piece in (text[i : i + 3] for i in range(0, len(text), 3)):
        rest += piece
        cut = len(rest) - redact.partial_match_length(rest)
        shown, rest = shown + redact(rest[:cut]), rest[cut:]
    shown += redact(rest)
    assert not [value for value in values if value.strip() == value and value in shown]


@pytest.mark.slow
def test_nothing_is_held_back_for_long_values_that_do_not_begin() -> None:
    redact = Redactor(["".join(chr(97 + i % 23) for i in range(i, i + 3000)) for i in range(20)])
    assert redact.partial_match_length("?" * 100_000) == 0


@pytest.mark.parametrize(
    "spelled",
    [
        VALUE.encode().hex(),
        VALUE.encode().hex().upper(),
        VALUE.encode().hex(" "),
        VALUE.encode().hex(":").upper(),
        "".join(f"\\x{byte:02x}" for byte in VALUE.encode()),
        re.sub("%..", lambda found: found[0].lower(), quote(VALUE, safe="")),
        json.dumps(VALUE)[1:-1].replace("/", "\\/"),
    ],
)
def test_masks_bytes_in_hex_and_what_other_libraries_escape(spelled: str) -> None:
    hidden = Redactor([VALUE])(f"before {spelled} after")
    assert spelled not in hidden
    assert hidden == f"before {MASK} after"


@pytest.mark.parametrize("text", [VALUE[::-1], VALUE.upper(), f"{VALUE[:5]}\x1b[0m{VALUE[5:]}"])
def test_spellings_that_are_not_masked(text: str) -> None:
    """Check the limits that docs/logs.md names."""
    assert Redactor([VALUE])(text) == text


def test_hex_of_a_short_value_is_not_masked() -> None:
    assert Redactor(["abc"])("616263") == "616263"


# -- values that overlap ------------------------------------------------------------------------

CHAIN = ["admin:hunterTAIL99", "TAIL99@QQWWEERRTTYY", "RTTYY/päth?öf=8"]
TEXT = "admin:hunterTAIL99@QQWWEERRTTYY/päth?öf=8"


@pytest.mark.parametrize("values", [CHAIN[:2], CHAIN, CHAIN[::-1], [*CHAIN, "hunterTAIL"]])
@pytest.mark.parametrize(
    "spell",
    [
        str,
        lambda text: quote(text, safe=""),
        quote_plus,
        lambda text: json.dumps(text)[1:-1],
        lambda text: text.encode().hex(),
        lambda text: text.encode().hex(":").upper(),
    ],
)
def test_values_that_overlap_are_one_mask(values: list[str], spell: Callable[[str], str]) -> None:
    text = TEXT if "RTTYY/päth?öf=8" in values else TEXT[: TEXT.index("/")]
    assert Redactor(values)(f"<{spell(text)}>") == f"<{MASK}>"


@pytest.mark.parametrize("before", ["", "u", "us"])
def test_values_that_overlap_are_masked_in_base64(before: str) -> None:
    encoded = base64.b64encode((before + TEXT + "!!!").encode()).decode()
    begin = -(-8 * len(before) // 6)
    end = 8 * len((before + TEXT).encode()) // 6
    masked = Redactor(CHAIN)(encoded)
    assert masked.replace(MASK, "") == encoded[:begin] + encoded[end:]


@pytest.mark.parametrize(
    ("values", "text", "masked"),
    [
        (["inner", "the inner part"], "<the inner part>", f"<{MASK}>"),
        (["abcab"], "<abcabcabcab>", f"<{MASK}>"),
        (["first", "second"], "<firstsecond>", f"<{MASK}{MASK}>"),
        (["first", "second", "tsec"], "<firstsecond>", f"<{MASK}>"),
    ],
    ids=["contained", "with itself", "only touching", "touching, and one over both"],
)
def test_a_mask_is_for_each_run_of_values_that_overlap(
    values: list[str], text: str, masked: str
) -> None:
    assert Redactor(values)(text) == masked


def test_a_chain_of_values_is_held_from_its_beginning() -> None:
    redact = Redactor(CHAIN)
    for end in range(len(TEXT)):
        assert redact.partial_match_length(f"see {TEXT[:end]}") == end


# -- the same as every spelling compared at every character ------------------------------------


def all_spellings(values: list[str]) -> list[str]:
    found = {s for value in values for s in redaction._encodings(value)}  # pyright: ignore[reportPrivateUsage]
    return sorted(found, key=lambda s: (-len(s), s))


def covered(spellings: list[str], text: str) -> list[tuple[int, int]]:
    """Return the parts that occurrences cover; those that share a character are one part."""
    matches = list[tuple[int, int]]()
    for spelling in spellings:
        at = text.find(spelling)
        while at >= 0:
            matches.append((at, at + len(spelling)))
            at = text.find(spelling, at + 1)
    matches.sort()
    parts = list[tuple[int, int]]()
    for start, end in matches:
        if parts and start < parts[-1][1]:
            parts[-1] = (parts[-1][0], max(end, parts[-1][1]))
        else:
            parts.append((start, end))
    return parts


def mask(spellings: list[str], text: str) -> str:
    for start, end in reversed(covered(spellings, text)):
        text = text[:start] + MASK + text[end:]
    return text


def held_by(spellings: list[str], text: str) -> int:
    """Return what may be the beginning of a value, with every spelling tried at every place."""
    held = max((n for s in spellings for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    cut = len(text) - held
    return len(text) - next((s for s, e in covered(spellings, text) if s < cut < e), cut)


SIGNS = st.sampled_from("ab\n'\"/ +\u00e4{}-")
VALUES = st.lists(
    st.one_of(
        st.text(SIGNS, max_size=40),
        st.text("ab", min_size=1, max_size=3).map(lambda part: part * 9),
        st.dictionaries(st.just("token"), st.text(SIGNS, max_size=20)).map(json.dumps),
    ),
    max_size=3,
)


@st.composite
def texts(draw: st.DrawFn, values: list[str]) -> str:
    """Draw spellings, whole and cut, values that begin alike, and anything between them."""
    spellings = all_spellings([*values, "unknown"])
    pieces = st.one_of(
        st.sampled_from(spellings),
        st.sampled_from(spellings).flatmap(
            lambda s: st.tuples(st.integers(0, len(s)), st.integers(0, len(s))).map(
                lambda cut: s[min(cut) : max(cut)]
            )
        ),
        st.text(SIGNS, max_size=9),
        st.sampled_from(["x", "aaaaaaaa", "ab" * 20, "-----", "61" * 9]),
    )
    return "".join(draw(st.lists(pieces, max_size=9)))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_masks_exactly_what_the_values_cover(data: st.DataObject) -> None:
    values = data.draw(VALUES)
    text = data.draw(texts(values))
    redact, spellings = Redactor(values), all_spellings(values)
    assert redact(text) == mask(spellings, text)
    assert redact.partial_match_length(text) == held_by(spellings, text)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[str], str]:
    """Draw a text and values cut from it, so that many overlap, contain and repeat each other."""
    text = draw(st.text(st.sampled_from("aab1:/ä"), min_size=8, max_size=40))
    spans = st.tuples(st.integers(0, len(text) - 4), st.integers(4, 12))
    values = [text[at : at + size] for at, size in draw(st.lists(spans, max_size=6))]
    spell = draw(st.sampled_from([str, quote, lambda text: text.encode().hex(), json.dumps]))
    return values, spell(text * draw(st.integers(1, 3)))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.one_of(chains(), VALUES.flatmap(lambda v: st.tuples(st.just(v), texts(v)))), st.data())
def test_text_in_pieces_is_masked_as_the_whole_text(
    drawn: tuple[list[str], str], data: st.DataObject
) -> None:
    """Cut text as a log does that shows a line before its end."""
    values, text = drawn
    redact, spellings = Redactor(values), all_spellings(values)
    shown, rest = "", ""
    while text:
        size = data.draw(st.integers(1, 40))
        rest, text = rest + text[:size], text[size:]
        cut = len(rest) - redact.partial_match_length(rest)
        assert len(rest) - cut == held_by(spellings, rest)
        shown, rest = shown + redact(rest[:cut]), rest[cut:]
    assert shown + redact(rest) == mask(spellings, drawn[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", [0, 13, *(pytest.param(n, marks=pytest.mark.extended) for n in range(3, 40, 3))]
)
def test_masks_a_service_account_wherever_it_is_cut(start: int) -> None:
    lines = [base64.b64encode(bytes(range(i, i + 48))).decode() for i in range(0, 200, 9)]
    key = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(lines) + "\n-----END PRIVATE KEY-----\n"
    value = json.dumps({**SERVICE_ACCOUNT, "private_key": key}, indent=2)
    redact, spellings = Redactor([value]), all_spellings([value])
    near = "".join(s[:-1] + "~" + s[1:] + "\n" for s in spellings)
    for text in (near, value * 2, json.dumps(value), base64.b64encode(value.encode()).decode()):
        assert redact(text[start:]) == mask(spellings, text[start:])


def test_text_that_most_values_share_is_compared_with_few_of_them() -> None:
    """Whatever lies in the middle of all of them is in the log too, such as a host's name."""
    values = [
        f"user{n}:{n * 7919:08x}@registry.example.com:5000/{n * 104729:08x}" for n in range(99)
    ]
    redact = Redactor(["\n".join(values)])
    samples = redact._samples  # pyright: ignore[reportPrivateUsage]
    assert max(len(found) for sample in samples for found in sample.parts.values()) < 50
    assert redact(values[7]) == MASK


def test_no_value_is_in_the_text_of_what_finds_it() -> None:
    assert "correct horse" not in repr(vars(Redactor(["correct horse battery staple"]))["_samples"])
