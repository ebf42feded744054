"""Codes of errors that a server chooses."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from prefect_bt.object_store.faults import Fault, FaultKind, classify_fault


@pytest.mark.parametrize("code", ["\x1b]0;title\x07", "https://host/?signature=s1gned", "a b", ""])
def test_a_code_that_is_none_is_not_shown(code: str) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "m"}}, "UploadPart")
    assert classify_fault(error) == Fault(FaultKind.OTHER)


def test_a_code_is_shown() -> None:
    error = ClientError({"Error": {"Code": "SlowDown"}}, "UploadPart")
    assert classify_fault(error) == Fault(FaultKind.OTHER, "SlowDown")
