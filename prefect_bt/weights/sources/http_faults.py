"""Failed HTTP requests of the Hub and https sources, classified."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Final

from prefect_bt.object_store.faults import FaultKind, classify_fault

MAX_RETRY_AFTER: Final = 60.0
"""The longest pause in seconds that a server can ask for."""
_RETRYABLE_STATUSES: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
_RESET: Final = re.compile(r"\bt=(\d+)")
_NO_RANGES: Final = (FaultKind.NO_RANGES, "the server sends whole files only")
_SIGNS: Final = (
    # A header that obstore cannot use, such as no length, or a path that it refuses; httpx can.
    (r"source: (Header|ParseContentRange|NoContentRange)\b", *_NO_RANGES),
    (r"^(NotSupportedError|ValueError Could not parse path)\b", *_NO_RANGES),
    (r"^(InvalidURL|UnsupportedProtocol|ValueError)\b", FaultKind.INVALID_NAME, "that is no URL"),
    (r"CERTIFICATE_VERIFY_FAILED", FaultKind.CERTIFICATE, "its certificate is not trusted"),
    (r"peer closed connection", FaultKind.UNREACHABLE, "the body ended early"),
    (r"\[Errno -\d+\]", FaultKind.UNREACHABLE, "no address is known for its host"),
)
"""Patterns for "class text" of errors that classify_fault does not know."""


class HttpFault(Exception):
    """A failed request. `reason` is a part of a sentence without URLs.

    `status` and `headers` are those of the answer; 0 and empty when there is none.
    """

    def __init__(
        self,
        kind: FaultKind,
        reason: str = "",
        status: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.status, self.headers = kind, status, headers or {}
        self.reason = f"the server answered {status}" if status else reason
        super().__init__(self.reason)

    @property
    def is_transient(self) -> bool:
        if self.status:
            return self.status in _RETRYABLE_STATUSES
        return self.kind in (FaultKind.UNREACHABLE, FaultKind.OTHER)

    @property
    def retry_after(self) -> float:
        """Seconds that the server asks to wait; at most MAX_RETRY_AFTER."""
        value, seconds = self.headers.get("Retry-After", "").strip(), 0.0
        if value.isdecimal():
            seconds = float(value)
        elif value:
            with suppress(ValueError, OverflowError):
                seconds = parsedate_to_datetime(value).timestamp() - time.time()
        elif self.status == 429 and (reset := _RESET.search(self.headers.get("RateLimit", ""))):
            seconds = float(reset[1])
        return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def create_fault(error: Exception, connect: float, stall: float) -> HttpFault:
    """Classify an error of httpx or obstore. `connect` and `stall` are the limits in seconds."""
    text = f"{type(error).__name__} {error}"
    if status := re.search(r"\bstatus code: (\d{3})\b", text):
        return HttpFault(FaultKind.OTHER, status=int(status[1]))
    for pattern, kind, reason in _SIGNS:
        if re.search(pattern, text):
            return HttpFault(kind, reason)
    if "Timeout" in text:
        limits = f"no connection in {connect:g} s, or no byte for {stall:g} s"
        return HttpFault(FaultKind.UNREACHABLE, limits)
    fault = classify_fault(error)
    return HttpFault(fault.kind, fault.reason or "it sent no usable answer")
