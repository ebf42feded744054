"""Codes of errors that a server chooses."""

from __future__ import annotations

import time
from email.utils import formatdate

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


# -- clocks ---------------------------------------------------------------------------------

SKEWED = {"Code": "RequestTimeTooSkewed"}
DATED = "%Y-%m-%dT%H:%M:%S.0000000Z"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3630, "is 1 h 0 min behind the server's"),
        (-12_030, "is 3 h 20 min ahead of the server's"),
        (-48 * 3600 - 30, "is 48 h 0 min ahead of the server's"),
    ],
)
@pytest.mark.parametrize("form", ["iso", "basic", "date", "sts", "azure"])
def test_a_clock_that_differs(form: str, seconds: int, words: str) -> None:
    now = time.gmtime(time.time() + seconds)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", now)
    headers = {"HTTPHeaders": {"date": formatdate(time.time() + seconds, usegmt=True)}}
    expired = "Signature expired: 20261128T100000Z is now earlier than 20261128T110000Z"
    errors: dict[str, Exception] = {
        "iso": ClientError({"Error": {**SKEWED, "ServerTime": stamp}}, "PutObject"),
        "basic": OSError(
            "status code: 403: <Error><Code>RequestTimeTooSkewed</Code>"
            f"<ServerTime>{time.strftime('%Y%m%dT%H%M%SZ', now)}</ServerTime></Error>"
        ),
        "date": ClientError({"Error": SKEWED, "ResponseMetadata": headers}, "PutObject"),
        "sts": ClientError(
            {
                "Error": {"Code": "SignatureDoesNotMatch", "Message": expired},
                "ResponseMetadata": headers,
            },
            "AssumeRole",
        ),
        "azure": OSError(
            "status code: 403: <Error><Code>AuthenticationFailed</Code><Message>Server failed to "
            f"authenticate the request.\nRequestId:1\nTime:{time.strftime(DATED, now)}</Message>"
            "<AuthenticationErrorDetail>Request date header too old: 'Sat, 28 Nov 2026 10:00:00 "
            "GMT'</AuthenticationErrorDetail></Error>"
        ),
    }
    fault = classify_fault(errors[form])
    assert fault.kind is FaultKind.CLOCK
    assert fault.reason == f"the clock of this machine {words}"


@pytest.mark.parametrize("given", ["", "soon", "9" * 30, "2026-13-45T00:00:00Z"])
def test_a_clock_that_differs_by_an_unknown_time(given: str) -> None:
    error = ClientError({"Error": {**SKEWED, "ServerTime": given}}, "PutObject")
    reason = "the clock of this machine differs from the server's"
    assert classify_fault(error) == Fault(FaultKind.CLOCK, reason)


def test_a_request_that_took_too_long_is_no_fault_of_the_clock() -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    error = ClientError({"Error": {**SKEWED, "ServerTime": stamp}}, "PutObject")
    assert classify_fault(error) == Fault(FaultKind.OTHER, "RequestTimeTooSkewed")


def test_a_key_of_google_that_is_not_valid_by_its_clock() -> None:
    text = "Invalid JWT: Token must be a short-lived token and in a reasonable timeframe."
    assert classify_fault(OSError(text)).kind is FaultKind.CLOCK
