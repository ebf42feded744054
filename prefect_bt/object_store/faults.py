"""Classify errors of obstore, botocore and httpx.

A result never contains the text of an error, which may hold a signed URL.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Any, Final, NamedTuple


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
    CERTIFICATE = 1
    INSECURE = 2  # no https where it is required
    UNREACHABLE = 3
    OTHER = 4


class Fault(NamedTuple):
    kind: FaultKind
    reason: str = ""
    """The server's code, or a part of a sentence without URLs; empty if neither is known."""


_KINDS: Final = {name: kind for kind in FaultKind for name in str(kind.value).split()}
_KINDS_BY_TEXT: Final = (
    ("redirect without LOCATION", FaultKind.WRONG_REGION, ""),
    # Also for headers that obstore cannot use, such as those without a length.
    ("non-partial response|source: (Header|(Parse|No)ContentRange)", FaultKind.NO_RANGES, ""),
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


def _search(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[1] if found else ""
