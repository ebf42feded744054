"""Detect the level of a log line from its text: DEBUG, INFO, WARNING, ERROR, or none.

The form of the line decides: the prefix of a logger, a JSON field, a traceback. A level word inside
a sentence, a counter or a progress bar does not count: `0 errors` has no level.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum
from typing import Any, Final


class LogLevel(IntEnum):
    """Severity of a log line. A more severe level has a higher value."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


_LEVEL_WORDS: Final = {
    LogLevel.DEBUG: "TRACE|DEBUG|V|D",
    LogLevel.INFO: "INFO|INFORMATION|NOTE|NOTICE|I",
    LogLevel.WARNING: "WARN|WARNING|W",
    LogLevel.ERROR: "ERR|ERROR|EXCEPTION|SEVERE|CRITICAL|FATAL|FATAL ERROR|E|F",
}
"""Level words of common loggers; the letters are those of glog, klog, absl, TensorFlow and apt."""
LEVEL_NAMES: Final[dict[str, LogLevel]] = {
    word: level for level, words in _LEVEL_WORDS.items() for word in words.split("|")
}

_JSON_LEVEL_FIELDS: Final = ("level", "levelname", "log_level", "loglevel", "severity", "lvl")
"""Fields of JSON lines, in order of precedence."""
_LEVEL_NAME: Final = r"TRACE|DEBUG|INFO|NOTICE|WARN(?:ING)?|ERR(?:OR)?|CRITICAL|FATAL|SEVERE"
_NUMBER: Final = r"\s*[-+]?\d[\d.]*(?:e[-+]?\d+)?\s*(?:[,|;%)]|$)"
"""The value after the name of a metric."""
_MAX_PREFIX: Final = 400
"""Number of characters of a line that are searched for a prefix."""

_PROGRESS: Final = re.compile(r"\d%\|")
"""A tqdm bar, which has metrics beside it."""
_RULES: Final[tuple[re.Pattern[str], ...]] = tuple(
    re.compile(rule)
    for rule in (
        # logfmt: level=info msg="..."
        r"(?:^|\s)(?:level|lvl|levelname|severity)=[\"']?(?P<word>[A-Za-z]+)\b",
        # WARNING:root:text   INFO 11-20 10:00:00 [file.py:1] text   ERROR    text
        rf"^[\s*!#>]*(?P<word>{_LEVEL_NAME})(?=[\s:|\])>-]|$)(?!:{_NUMBER})",
        # [INFO|trainer.py:2345]   [ERROR]   <WARN>   structlog's [info     ]
        rf"[\[<(](?P<word>(?i:{_LEVEL_NAME}))\s*[\]>)|:]",
        # ... - INFO - text   ... | INFO     | text   (pid=1) INFO text   NCCL WARN text
        rf"(?:[\])>|*]\s*|\s-\s|\sNCCL\s)(?P<word>{_LEVEL_NAME})(?=[\s:|]\s*\S)",
        # 2026-11-20 10:00:00,123 INFO text   10:00:00Z WARN text
        rf"\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s+(?P<word>{_LEVEL_NAME})(?=[\s:|]|$)",
        # wandb: ERROR text   CUDA ERROR: text
        rf"(?:^[\w.-]+:\s+(?P<word>{_LEVEL_NAME})\s+\S)",
        rf"(?:\s(?P<word>{_LEVEL_NAME}):(?=\s)(?!{_NUMBER}))",
        # I1120 10:00:00.123456 1 file.py:1] text   [rank0]:[W1120 10:00:00.123456789 file.cpp:1]
        r"^(?:\[\w+\]:)?\[?(?P<word>[VDIWEF])\d{3,4} \d\d:\d\d:\d\d",
        # 2026-11-20 10:00:00.123456: W tensorflow/core/...
        r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: (?P<word>[VDIWEF]) \S",
        # error: text   run.py: error: text   main.c:1:2: warning: text   E: text
        r"^(?:\S+:\d+:(?:\d+:)?\s*|[\w./-]+:\s+)?"
        rf"(?P<word>(?i:fatal error|fatal|error|warning|info|debug|note)):(?!{_NUMBER})\s*\S",
        r"^(?P<word>[EW]): \S",
    )
)
_FORMS: Final[tuple[tuple[LogLevel, re.Pattern[str]], ...]] = (
    # /path/file.py:12: UserWarning: text
    (LogLevel.WARNING, re.compile(r"^(?:\S.*?:\d+: )?(?:[\w.]+\.)?[A-Z]\w*Warning: ")),
    # torch.cuda.OutOfMemoryError: text   Traceback ...
    (
        LogLevel.ERROR,
        re.compile(
            r"^(?:[\w.]+\.)?(?:[A-Z]\w*(?:Error|Exception)|Exception|KeyboardInterrupt|SystemExit)"
            r"(?::\s|:?$)"
            r"|^(?:Traceback \(most recent call last\):|Exception in thread |Segmentation fault"
            r"|Fatal Python error: |terminate called |panic: |thread '.*' panicked at"
            r"|During handling of the above exception|The above exception was the direct cause"
            r"|Aborted \(core dumped\)|Bus error|Killed$|\s*\+ Exception Group Traceback)"
        ),
    ),
)
_HINTS: Final = (
    *("err", "warn", "info", "debug", "trace", "crit", "fatal", "noti", "note:", "severe"),
    *("excep", "level=", "lvl=", "severity=", "interrupt", "systemexit", "terminate", "panic"),
    *("segmentation", "aborted", "killed"),
)
"""Every line with a level contains one of them, or begins with `_INITIAL` or `{`."""
_INITIAL: Final = re.compile(
    r"(?:\[\w+\]:)?\[?[VDIWEF]\d{3,4} |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [VDIWEF] |[EW]: "
)
_RANK_PREFIX: Final = re.compile(r"\[(?:rank|default)\d+\]: ?")
"""Prefix of torchrun before each line of a worker."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK: Final = "Traceback (most recent call last):"


def detect_level(message: str) -> LogLevel | None:
    """Return the level in the text of the line, None without one.

    >>> detect_level("2026-11-20 10:00:00,123 - train - WARNING - slow").name
    'WARNING'
    >>> detect_level("finished with 0 errors")
    """
    if message.startswith("{"):
        return _detect_json_level(message)
    head = message[:_MAX_PREFIX]
    lower = head.lower()
    if not any(map(lower.__contains__, _HINTS)) and not _INITIAL.match(head):
        return None
    if "\x1b" in head:
        head = _COLOUR.sub("", head)
    if _PROGRESS.search(head):
        return None
    for rule in _RULES:
        found = rule.search(head)
        if found and (level := LEVEL_NAMES.get(found["word"].upper())) is not None:
            return level
    return next((level for level, form in _FORMS if form.search(head)), None)


def parse_level(text: str) -> LogLevel:
    """Return the level named `text` in any case, `warn` and `critical` too. Raises ValueError."""
    level = LEVEL_NAMES.get(text.strip().upper()) if len(text.strip()) > 1 else None
    if level is None:
        raise ValueError(f"{text!r} is not a level: write debug, info, warning or error")
    return level


class LevelDetector:
    """Detects the levels of one log's lines in order.

    The lines of a traceback are ERROR, and an indented line has the level of the line before it.
    """

    def __init__(self) -> None:
        self._last: LogLevel | None = None
        self._in_traceback = False

    def detect(self, message: str) -> LogLevel | None:
        """Return the level of the next line."""
        prefix = _RANK_PREFIX.match(message) if message.startswith("[") else None
        text = message[prefix.end() :] if prefix else message
        if text[:1] in {" ", "\t", ""} and self._last is not None:
            return self._last if text.strip() or self._in_traceback else None
        found = detect_level(text)
        if self._in_traceback and found is None:
            found = LogLevel.ERROR  # the exception, whatever its name
        self._in_traceback = text.startswith(_TRACEBACK)
        self._last = found
        return found


def _detect_json_level(message: str) -> LogLevel | None:
    if not any(f'"{name}"' in message for name in _JSON_LEVEL_FIELDS):
        return None
    try:
        document: dict[str, Any] = json.loads(message)
    except (ValueError, RecursionError):
        return None
    named = (document.get(name) for name in _JSON_LEVEL_FIELDS)
    word = next((one for one in named if isinstance(one, str)), "")
    return LEVEL_NAMES.get(word.upper()) if len(word) > 1 else None
