"""The error that ended a container of prefect-bt, from the end of its output. Pure."""

from __future__ import annotations

import builtins
import re
from typing import Final

from prefect_bt import errors
from prefect_bt.ledger.records import Cause

MESSAGE_LIMIT: Final = 300
_LOG_LINE: Final = re.compile(r"\d{19} ")
"""Start of a line of the job's log in the output of the agent: its time in nanoseconds."""
_FRAME: Final = re.compile(r'  File ".*", line \d+')
_ERROR: Final = re.compile(r"((?:\w+\.)*[A-Za-z_]\w*)(?:: .*)?$")
_NAMED_ERROR: Final = re.compile(r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ")
_NETWORK: Final = ("aiohttp.", "http.", "httpx.", "socket.", "ssl.", "urllib.", "urllib3.")
_STORE: Final = ("boto3.", "botocore.", "obstore.")
_SURROUNDINGS: Final = (errors.PrefectBtError, OSError, MemoryError)


def read_agent_error(output: str, exit_code: int) -> tuple[Cause, str]:
    """Return the cause and the line of a traceback that names the error, else the last line.

    A line of the job is not an error of prefect-bt. AGENT_FAILED is an error of prefect-bt itself;
    errors of the store, the network and the machine are infrastructure.
    """
    lines = output.strip().splitlines()
    line = _find_error([line for line in lines if not _LOG_LINE.match(line)])
    cause = Cause.NODE_LOST
    if line and exit_code == 1:
        cause = _classify_error(line.partition(":")[0])
    elif lines and not line and not _LOG_LINE.match(lines[-1]):
        line = lines[-1]
    return cause, line[:MESSAGE_LIMIT]


def _find_error(lines: list[str]) -> str:
    """Return the first line after the last frame; its message may have more lines."""
    frame = max((n for n, line in enumerate(lines) if _FRAME.match(line)), default=None)
    if frame is not None:
        line = next((x for x in lines[frame + 1 :] if x.strip() and not x.startswith(" ")), "")
        return line if _ERROR.match(line) else ""
    return next((line for line in reversed(lines) if _NAMED_ERROR.match(line)), "")


def _classify_error(name: str) -> Cause:
    """Return the cause of an error by the name of its class."""
    module, _, short = name.rpartition(".")
    kind: object = getattr({"": builtins, errors.__name__: errors}.get(module), short, None)
    error = kind if isinstance(kind, type) else Exception
    if name.startswith(_STORE) or issubclass(error, errors.StoreError):
        return Cause.STORE_FAILED
    if name.startswith(_NETWORK) or issubclass(error, _SURROUNDINGS):
        return Cause.NODE_LOST
    return Cause.AGENT_FAILED
