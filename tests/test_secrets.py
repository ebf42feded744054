"""References to values, and values kept out of text."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_bt.errors import SecretError
from prefect_bt.secrets import MASK, EnvironmentSecrets, GivenSecrets, Redactor, resolve_secrets

VALUE = 's3cr3t "Pä/ss+w0rd"'


def test_looks_in_order_and_reports_what_is_missing_everywhere() -> None:
    sources = [GivenSecrets({"a": "1"}, label="one"), GivenSecrets({"a": "2", "b": "3"}, "two")]
    assert resolve_secrets(["a", "b", "a"], sources) == {"a": "1", "b": "3"}
    with pytest.raises(SecretError) as caught:
        resolve_secrets(["a", "x", "y"], sources)
    assert caught.value.names == ("x", "y")
    assert "one, two" in str(caught.value)
    assert "PREFECT_BT_SECRET_X" in str(caught.value)


@pytest.mark.parametrize("spelling", ["hf_access_token", "HF_ACCESS_TOKEN"])
def test_environment_spellings(spelling: str) -> None:
    source = EnvironmentSecrets({f"PREFECT_BT_SECRET_{spelling}": "v"})
    assert source.find("hf_access_token") == "v"
    assert source.find("other") is None


def test_reprs_hold_no_values() -> None:
    shown = repr(GivenSecrets({"a": VALUE})) + repr(EnvironmentSecrets({"x": VALUE}))
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
    if len(value.encode()) > 8:
        assert Redactor([value])(encoded) != encoded
