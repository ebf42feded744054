"""Classify errors of obstore, botocore and httpx.

A result never contains the text of an error, which may hold a signed URL.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from prefect_bt.text.quantities import format_elapsed


class FaultKind(Enum):
    """Kinds of errors. A value lists codes and statuses of servers, and classes of errors."""

    DENIED = (
        "AccessDenied ExpiredToken Forbidden InvalidAccessKeyId InvalidToken SignatureDoesNotMatch"
        " TokenRefreshRequired AuthenticationFailed AuthorizationFailure InvalidAuthenticationInfo"
        " AuthorizationPermissionMismatch NoAuthenticationInformation PublicAccessNotPermitted"
        " 401 403 PermissionDeniedError UnauthenticatedError PermissionError NoCredentialsError"
        " PartialCredentialsError CredentialRetrievalError"
    )
    NOT_FOUND = "NoSuchKey 404 FileNotFoundError"  # of HTTP servers, the bucket as well
    NO_BUCKET = "NoSuchBucket ContainerNotFound"
    EXISTS = "AlreadyExistsError"
    WRONG_REGION = (
        "PermanentRedirect AuthorizationHeaderMalformed IllegalLocationConstraintException"
    )
    CHANGED = "PreconditionError DigestMismatch"  # not the version that was asked for
    NO_RANGES = "NotSupportedError"  # the whole object instead of a range
    PAST_END = "InvalidRange 416"
    INVALID_NAME = "InvalidPathError"
    # Other bytes arrived than were sent.
    CHECKSUM = "BadDigest InvalidDigest XAmzContentChecksumMismatch CorruptUpload"
    # These have no names: texts of errors tell them.
    CLOCK = 1  # this machine's clock differs from the server's
    CERTIFICATE = 2
    INSECURE = 3  # no https where it is required
    UNREACHABLE = 4
    OTHER = "RequestTimeTooSkewed"  # by a right clock: the request itself took too long


class Fault(NamedTuple):
    kind: FaultKind
    reason: str = ""
    """The server's code, or a part of a sentence without URLs; empty if neither is known."""


CLOCK_STEP: Final = "Set the clock of this machine (`timedatectl set-ntp true`)."
"""Next step after a fault of the kind CLOCK."""
_WRONG_CLOCK: Final = re.compile(
    "RequestTimeTooSkewed|Request date header too old|in a reasonable timeframe"
    "|Signature expired: |Signature not yet current"
)
"""Texts of S3, Azure, Google and AWS STS."""
_SERVER_TIME: Final = r"(?:<ServerTime>|\bTime:)(\d[\dT:-]{14,18})"
_MAX_TRANSFER_SECONDS: Final = 60.0
"""Least difference of two clocks. With a smaller one, the request itself took too long."""
_KINDS: Final = {name: kind for kind in FaultKind for name in str(kind.value).split()}
_KINDS_BY_TEXT: Final = (
    ("redirect without LOCATION", FaultKind.WRONG_REGION, ""),
    # Also for headers that obstore cannot use, such as those without a length.
    ("non-partial response|source: (Header|(Parse|No)ContentRange)", FaultKind.NO_RANGES, ""),
    (
        "NotValidYet|not yet valid",
        FaultKind.CLOCK,
        "its certificate is not valid yet by this machine's clock",
    ),
    (
        r"InvalidCertificate\(\s*Expired|certificate has expired",
        FaultKind.CERTIFICATE,
        "its certificate has expired by this machine's clock",
    ),
    ("StartTooLarge", FaultKind.PAST_END, ""),
    ("InvalidCert|CERTIFICATE_VERIFY", FaultKind.CERTIFICATE, "its certificate is not trusted"),
    ("BadScheme", FaultKind.INSECURE, "it leads to an address without https"),
    ("TooManyRedirects", FaultKind.OTHER, "it redirects too often"),
    (r"dns error|\[Errno -", FaultKind.UNREACHABLE, "no address is known for its host"),
    ("Connection refused", FaultKind.UNREACHABLE, "the connection was refused"),
    ("Connection reset", FaultKind.UNREACHABLE, "the connection was reset"),
    ("Could not connect", FaultKind.UNREACHABLE, "there is no connection to the server"),
    ("kind: Timeout", FaultKind.UNREACHABLE, ""),
    ("kind: Interrupted|peer closed", FaultKind.UNREACHABLE, "the body ended early"),
)
"""Patterns of the libraries' texts, for errors without a class of their own."""


def is_transfer_error(error: Exception) -> bool:
    """Return whether an error comes from obstore, botocore, multipart.py or the system."""
    origins = ("obstore", "botocore", "boto3", "prefect_bt.object_store.multipart")
    return isinstance(error, OSError) or type(error).__module__.startswith(origins)


def classify_fault(error: Exception) -> Fault:
    """Return the kind of an error, and a short reason without URLs."""
    answer: Any = getattr(error, "response", None) or {}
    text = str(error)
    code = _search(r"^(\w+)$", str(answer.get("Error", {}).get("Code") or ""))
    code = code or _search(r"<Code>(\w+)</Code>", text)
    if _WRONG_CLOCK.search(f"{code} {text}") and (fault := _compare_clocks(answer, text)):
        return fault
    kind = _KINDS.get(code) or _KINDS.get(type(error).__name__)
    system = (error.strerror or "") if isinstance(error, OSError) else ""
    if kind or code:
        return Fault(kind or FaultKind.OTHER, code or system)
    if status := _search(r"\bstatus(?: code)?: (\d{3})\b", text):
        return Fault(_KINDS.get(status, FaultKind.OTHER), f"the server answered {status}")
    for pattern, kind, reason in _KINDS_BY_TEXT:
        if re.search(pattern, text):
            return Fault(kind, reason)
    return Fault(FaultKind.OTHER, system)


def _compare_clocks(answer: Any, text: str) -> Fault | None:
    """Return the fault of a wrong clock; None if this machine's clock is right."""
    found = answer.get("Error", {}).get("ServerTime") or _search(_SERVER_TIME, text)
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    difference = "differs from"
    with suppress(ValueError, TypeError, OverflowError):
        parsed = datetime.fromisoformat(found) if found else parsedate_to_datetime(date)
        ahead = time.time() - (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
        if abs(ahead) < _MAX_TRANSFER_SECONDS:
            return None
        difference = f"is {format_elapsed(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
    return Fault(FaultKind.CLOCK, f"the clock of this machine {difference} the server's")


def _search(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
