"""What the fetching of one source works with, and when what has come is what was listed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.weights.crew import Stop
from prefect_bt.weights.filling import Fill
from prefect_bt.weights.listing import ListedFile, fault_of
from prefect_bt.weights.origins import Origins
from prefect_bt.weights.progress import Meter
from prefect_bt.weights.source import Interrupted
from prefect_bt.weights.telling import shown

TRIES: Final = 2
"""How often a file may arrive damaged."""


@dataclass(frozen=True)
class Fetching:
    """Threads share it. `stop` ends all of them at their next piece."""

    fill: Fill
    origins: Origins
    meter: Meter
    stop: Stop

    @property
    def source(self) -> str:
        """As it may be shown."""
        return shown(self.fill.source)


def check_stop(fetching: Fetching) -> None:
    """WeightsError when somebody asked to stop."""
    if fetching.stop.is_set():
        raise stopped(fetching.fill.source)


def stopped(source: str) -> WeightsError:
    return WeightsError(
        f"{shown(source)}: the mirror was stopped.",
        source=source,
        next_step="What is here already is kept for the next time.",
    )


def damaged_twice(source: str, file: ListedFile, fault: str) -> WeightsError:
    return WeightsError(
        f"{source}: {file.path} arrived damaged twice: {fault}.",
        source=source,
        next_step="Push again; if it stays so, a proxy or mirror on the way changes the bytes.",
    )


def find_fault(fetching: Fetching, file: ListedFile, size: int, found: dict[str, str]) -> str:
    """Why what has come is not the listed file; "" when it is, as far as anybody can tell."""
    fault = fault_of(file, size, found)
    if fault and "md5" in found and size == file.size and not fetching.origins.is_md5(file):
        return ""
    return fault


def ended_early(source: str, file: ListedFile, size: int) -> Interrupted:
    return Interrupted(
        f"{source}: {file.path} ended after {size} of {file.size} bytes.",
        source=source,
        next_step="Push again: what is here already is kept.",
    )
