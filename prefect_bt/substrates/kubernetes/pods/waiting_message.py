"""What a node waits for, as one message that changes only if there is something new. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

WAITING_INTERVAL: Final = 5.0
"""Minimum seconds before the reason for waiting is published, and between updates of it."""
_UUID: Final = r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?:_\d+)?"
_CHANGING: Final = (
    (r"^Back-off pulling image \"[^\"]*\": \w+: ", ""),
    (r"^\(combined from similar events\): ", ""),
    (rf"(?<![0-9a-f]){_UUID}(?![0-9a-f])", "#"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*Z?", "#"),
    (r"\b(?:0x[0-9a-f]+|(?=[a-f]*\d)[0-9a-f]{8,})\b", "#"),
    (r"-[bcdfghjklmnpqrstvwxz2456789]{5}(?=[_\"'/\s.,;:)(]|$)", "-#"),
    (r":\d{2,5}\b", ":#"),
    (r"(?<![\w\"'/-])(?:\d+(?:\.\d+)*(?:ns|us|µs|ms|s|m|h|x|%|[KMGTP]i?B?)?)+(?![\w-])", "#"),
)
"""Patterns of what differs between two messages of the same kind: identifiers of pods, sandboxes
and containers, times, ports and amounts. A number in a name (`config-2`) belongs to the name."""


def normalize_message(message: str) -> str:
    """Return the kind of the message: its text without what changes.

    >>> normalize_message('pods "gang-0-x7k2p" is forbidden: used: requests.cpu=2')
    'pods "gang-0-#" is forbidden: used: requests.cpu=#'
    """
    for pattern, replacement in _CHANGING:
        message = re.sub(pattern, replacement, message)
    return message


class WaitingMessage:
    """The message of one node. Messages that have not been shown are shown in turn."""

    def __init__(self) -> None:
        self.text = ""
        self._shown: dict[str, str] = {}
        """Kind -> the first message of that kind."""
        self._changed_at = 0.0

    def choose(self, messages: Sequence[str], now: float) -> str:
        """Return the message to show. `messages`: what holds now, the newest last."""
        kinds = {normalize_message(message): message for message in reversed(messages)}
        new = next((kind for kind in reversed(kinds) if kind not in self._shown), None)
        holds = any(self._shown.get(kind) == self.text for kind in kinds)
        if holds and (new is None or now - self._changed_at < WAITING_INTERVAL):
            return self.text
        kind = next(iter(kinds)) if new is None else new
        self.text = self._shown.setdefault(kind, kinds[kind])
        self._changed_at = now
        return self.text
