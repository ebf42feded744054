"""References to secrets, and where their values are found."""

from __future__ import annotations

import pytest

from prefect_bt.attempts.failure_causes import diagnose_error
from prefect_bt.credentials.secrets import EnvironmentSecrets, InMemorySecrets, resolve_secrets
from prefect_bt.errors import SecretError
from prefect_bt.ledger.records import FailureClass

VALUE = "s3cr3t"


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
    ("value", "why"),
    [
        ("s3cr3t\udce9", "is not UTF-8: its character 7 is the byte 0xE9;"),
        ("s3cr3t\ud800", "is not UTF-8: its character 7 is U+D800, half of a surrogate pair;"),
        ("s3cr3t\0", "is not usable: its character 7 is a zero byte;"),
    ],
)
@pytest.mark.parametrize("kind", ["environment", "block"])
def test_refuses_a_value_that_no_process_can_get(kind: str, value: str, why: str) -> None:
    source = InMemorySecrets({"token": value})
    if kind == "environment":
        source = EnvironmentSecrets({"PREFECT_BT_SECRET_TOKEN": value})
    with pytest.raises(SecretError) as caught:
        resolve_secrets(["token", "gone"], [source])
    assert caught.value.names == ("gone", "token")
    assert f"The value of secret 'token' {why}" in str(caught.value)
    assert "Secret 'gone' not found" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
    assert diagnose_error(caught.value).failure_class is FailureClass.DEPLOY


def test_refuses_a_value_that_is_too_long_for_its_variable() -> None:
    source = InMemorySecrets({"key": "s3cr3t" * 30_000})
    assert resolve_secrets(["key"], [source])
    with pytest.raises(SecretError) as caught:
        resolve_secrets(["key"], [source], variables={"API_KEY": "key", "OTHER": "absent"})
    assert "The value of secret 'key' has 180000 characters" in str(caught.value)
    assert "API_KEY" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)
