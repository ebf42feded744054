"""Classify errors of obstore, botocore and httpx.

A result never contains the text of an error, which may hold a signed URL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Any, Final


class FaultKind(StrEnum):
    DENIED = auto()
    NOT_FOUND = auto()  # for HTTP servers, and some that speak S3, the bucket as well
    NO_BUCKET = auto()
    EXISTS = auto()
    WRONG_REGION = auto()
    CHANGED = auto()  # not the version that was asked for
    NO_RANGES = auto()  # the whole object instead of a range
    PAST_END = auto()
    INVALID_NAME = auto()
    CHECKSUM = auto()  # other bytes arrived than were sent
    THROTTLED = auto()
    CERTIFICATE = auto()
    INSECURE = auto()  # no https where it is required
    UNREACHABLE = auto()
    OTHER = auto()


@dataclass(frozen=True)
class Fault:
    kind: FaultKind
    reason: str = ""
    """The server's code, or a part of a sentence without URLs; empty if neither is known."""


_NAMES: Final = {
    FaultKind.DENIED: "AccessDenied ExpiredToken Forbidden InvalidAccessKeyId InvalidToken"
    " SignatureDoesNotMatch TokenRefreshRequired AuthenticationFailed AuthorizationFailure"
    " InvalidAuthenticationInfo AuthorizationPermissionMismatch NoAuthenticationInformation"
    " PublicAccessNotPermitted 401 403 PermissionDeniedError UnauthenticatedError PermissionError"
    " NoCredentialsError PartialCredentialsError CredentialRetrievalError",
    FaultKind.NOT_FOUND: "NoSuchKey 404 FileNotFoundError",
    FaultKind.NO_BUCKET: "NoSuchBucket ContainerNotFound",
    FaultKind.EXISTS: "AlreadyExistsError",
    FaultKind.WRONG_REGION: "PermanentRedirect AuthorizationHeaderMalformed"
    " IllegalLocationConstraintException",
    FaultKind.CHANGED: "PreconditionError DigestMismatch",
    FaultKind.NO_RANGES: "NotSupportedError",
    FaultKind.PAST_END: "InvalidRange 416",
    FaultKind.INVALID_NAME: "InvalidPathError",
    FaultKind.CHECKSUM: "BadDigest InvalidDigest XAmzContentChecksumMismatch CorruptUpload",
    FaultKind.THROTTLED: "SlowDown 429 503",
}
"""Codes and statuses of servers, and classes of errors."""
_KINDS: Final = {name: kind for kind, names in _NAMES.items() for name in names.split()}
_KINDS_BY_TEXT: Final = (
    ("redirect without LOCATION", FaultKind.WRONG_REGION, ""),
    # Also for headers that obstore cannot use, such as those without a length.
    ("non-partial response|source: (Header|(Parse|No)ContentRange)", FaultKind.NO_RANGES, ""),
    ("StartTooLarge", FaultKind.PAST_END, ""),
    (
        "InvalidCertificate|CERTIFICATE_VERIFY_FAILED",
        FaultKind.CERTIFICATE,
        "its certificate is not trusted",
    ),
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
