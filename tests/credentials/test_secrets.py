"""References to values, and values kept out of text."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.credentials import redaction
from prefect_bt.credentials.redaction import MASK, MIN_MASKED_LENGTH, Redactor
from prefect_bt.credentials.secrets import EnvironmentSecrets, InMemorySecrets, resolve_secrets
from prefect_bt.errors import SecretError

VALUE = 's3cr3t "Pä/ss+w0rd"'


def test_looks_in_order_and_reports_names_that_are_missing_everywhere() -> None:
    sources = [
        InMemorySecrets({"a": "1"}, label="one"),
        InMemorySecrets({"a": "2", "b": "3"}, "two"),
    ]
    assert resolve_secrets(["a", "b", "a"], sources) == {"a": "1", "b": "3"}
    with pytest.raises(SecretError) as caught:
        resolve_secrets(["a", "x", "y"], sources)
    assert caught.value.names == ("x", "y")
    assert "one (x), two (x), one (y), two (y)" in str(caught.value)
    assert "PREFECT_BT_SECRET_X" in str(caught.value)


@pytest.mark.parametrize("spelling", ["hf_access_token", "HF_ACCESS_TOKEN"])
def test_environment_spellings(spelling: str) -> None:
    source = EnvironmentSecrets({f"PREFECT_BT_SECRET_{spelling}": "v"})
    assert source.find("hf_access_token") == "v"
    assert source.find("other") is None


def test_reprs_hold_no_values() -> None:
    shown = repr(InMemorySecrets({"a": VALUE})) + repr(EnvironmentSecrets({"x": VALUE}))
    assert VALUE not in shown


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


# -- the same as one regular expression over all spellings ------------------------------------


def all_spellings(values: list[str]) -> list[str]:
    found = {s for value in values for s in redaction._encodings(value)}  # pyright: ignore[reportPrivateUsage]
    return sorted(found, key=lambda s: (-len(s), s))


def expression(values: list[str]) -> re.Pattern[str]:
    """Match the leftmost spelling, and of those that begin there the longest."""
    return re.compile("|".join(map(re.escape, all_spellings(values))) or "(?!)")


def held_by(pattern: re.Pattern[str], spellings: list[str], text: str) -> int:
    """Return what may be the beginning of a value, with every spelling tried at every place."""
    held = max((n for s in spellings for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
    longest = max(map(len, spellings), default=0)
    for found in pattern.finditer(text, max(0, len(text) - held - longest)):
        if found.start() < len(text) - held < found.end():
            held = len(text) - found.start()
    return held


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
def test_masks_exactly_what_one_expression_would_mask(data: st.DataObject) -> None:
    values = data.draw(VALUES)
    text = data.draw(texts(values))
    redact, pattern = Redactor(values), expression(values)
    assert redact(text) == pattern.sub(MASK, text)
    assert redact.partial_match_length(text) == held_by(pattern, all_spellings(values), text)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.data())
def test_text_in_pieces_is_masked_as_one_expression_masks_it(data: st.DataObject) -> None:
    """Cut text as a log does that shows a line before its end."""
    values = data.draw(VALUES)
    text = data.draw(texts(values))
    size = data.draw(st.integers(1, 40))
    redact, pattern, spellings = Redactor(values), expression(values), all_spellings(values)
    rest = ""
    for piece in (text[i : i + size] for i in range(0, len(text), size)):
        rest += piece
        held = redact.partial_match_length(rest)
        assert held == held_by(pattern, spellings, rest)
        shown, rest = rest[: len(rest) - held], rest[len(rest) - held :]
        assert redact(shown) == pattern.sub(MASK, shown)


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", [0, 13, *(pytest.param(n, marks=pytest.mark.extended) for n in range(3, 40, 3))]
)
def test_masks_a_service_account_wherever_it_is_cut(start: int) -> None:
    lines = [base64.b64encode(bytes(range(i, i + 48))).decode() for i in range(0, 200, 9)]
    key = "-----BEGIN PRIVATE KEY-----\n" + "\n".join(lines) + "\n-----END PRIVATE KEY-----\n"
    value = json.dumps({**SERVICE_ACCOUNT, "private_key": key}, indent=2)
    redact, pattern = Redactor([value]), expression([value])
    near = "".join(s[:-1] + "~" + s[1:] + "\n" for s in all_spellings([value]))
    for text in (near, value * 2, json.dumps(value), base64.b64encode(value.encode()).decode()):
        assert redact(text[start:]) == pattern.sub(MASK, text[start:])


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
