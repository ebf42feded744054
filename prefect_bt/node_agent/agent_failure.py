"""Causes of the errors of an agent, and the report of an error of the agent itself."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Collection
from contextlib import suppress
from typing import Final

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.errors import PrefectBtError
from prefect_bt.host.mounts.namespace_plan import ViewError, VolumeFolderError
from prefect_bt.host.nodes.files import StatusFile
from prefect_bt.ledger.records import Cause
from prefect_bt.node_agent.commands.container_runner import (
    ContainerProtocolError,
    ContainerStartError,
)
from prefect_bt.node_agent.log_writer import LogFile

MAX_REASON: Final = 500
"""Most characters of the error in the reason of a node."""
_MACHINE_ERRORS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE),
        *(errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EINTR),
    }
)
"""Errors of a machine that is full, overloaded or broken: another attempt can succeed."""


def has_message(error: BaseException) -> bool:
    """Return whether the text of the error says what happened, without its class."""
    return isinstance(error, (ViewError, ContainerStartError, PrefectBtError))


def classify_staging_error(error: BaseException) -> Cause | None:
    """Return the cause of an error before the commands; None: STAGING_FAILED or of the machine."""
    if isinstance(error, ContainerProtocolError):
        return Cause.CONTAINER_PROTOCOL
    if isinstance(error, ContainerStartError):
        return Cause.IMAGE_UNUSABLE
    if isinstance(error, VolumeFolderError):
        return Cause.STAGING_FAILED
    if isinstance(error, ViewError):
        return Cause.VIEW_REFUSED
    of_surroundings = isinstance(error, (PrefectBtError, OSError, MemoryError))
    return None if of_surroundings else Cause.AGENT_FAILED


def determine_failure_cause(error: BaseException) -> Cause:
    """Return NODE_LOST for an error of the machine, AGENT_FAILED for any other: a fault of ours."""
    of_machine = isinstance(error, MemoryError) or (
        isinstance(error, OSError) and error.errno in _MACHINE_ERRORS
    )
    return Cause.NODE_LOST if of_machine else Cause.AGENT_FAILED


def describe_failure(error: BaseException, redact: Redactor) -> str:
    """Return the line of the traceback that names the error, without secrets.

    A message may have further lines, and a syntax error has indented ones before.
    """
    lines = redact("".join(traceback.format_exception_only(error))).splitlines()
    name = next(line for line in lines if line.strip() and not line.startswith(" "))
    return name if len(name) <= MAX_REASON else f"{name[:MAX_REASON]}…"


def report_failure(
    error: BaseException, status: StatusFile, log: LogFile | None, secrets: Collection[str]
) -> None:
    """Write the traceback to agent.log and the rank's log, the error to the status.

    The status is not final: the guard ends the commands first.
    """
    redact = Redactor(secrets)
    lines = redact("".join(traceback.format_exception(error))).splitlines()
    print(*lines, sep="\n", file=sys.stderr)
    if log is not None:
        with suppress(OSError):  # the log itself may have failed
            for line in ("the node's agent failed, which is an error of prefect-bt:", *lines):
                log.write_platform(line)
    status.update(reason=describe_failure(error, redact), cause=determine_failure_cause(error))
