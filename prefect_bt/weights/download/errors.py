"""The sentences of a download that ends early."""

from __future__ import annotations

import errno

from prefect_bt.errors import WeightsError
from prefect_bt.weights.sources.file_listing import ListedFile
from prefect_bt.weights.sources.protocol import TransientError
from prefect_bt.weights.url_redaction import redact_url


def stopped_error(source: str) -> WeightsError:
    return WeightsError(
        f"{redact_url(source)}: the mirror was stopped.",
        source=source,
        next_step="What is here already is kept for the next time.",
    )


def corrupt_twice_error(source: str, file: ListedFile, mismatch: str) -> WeightsError:
    return WeightsError(
        f"{source}: {file.path} arrived damaged twice: {mismatch}.",
        source=source,
        next_step="Push again; if it stays so, a proxy or mirror on the way changes the bytes.",
    )


def interrupted_error(source: str, file: ListedFile, problem: str) -> TransientError:
    return TransientError(
        f"{source}: {file.path} {problem}.",
        source=source,
        next_step="Push again: what is here already is kept.",
    )


def write_error(source: str, error: OSError) -> WeightsError:
    if error.errno == errno.ENOSPC:
        what, step = "the disk is full", "Make room, or set PREFECT_BT_STATE_DIR to another disk"
    elif error.errno == errno.ENAMETOOLONG:
        what, step = "a path would be too long", "Set PREFECT_BT_STATE_DIR to a shorter path"
    else:
        what, step = f"it could not be written ({error})", "Check the disk of PREFECT_BT_STATE_DIR"
    return WeightsError(
        f"{redact_url(source)}: {what}.",
        source=source,
        next_step=f"{step}; what is here already is kept.",
    )
