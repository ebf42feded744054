"""Open the ledger of a store, and read what a job was pushed with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings

if TYPE_CHECKING:  # imported on use: a command that lists ended jobs needs no definitions
    from prefect_bt.definitions import TrainingProject


def open_ledger(store: str | None = None) -> Ledger:
    """The records in `store`, by default the one the settings name."""
    return Ledger(open_store(store or Settings().store))


def load_definition(record: JobRecord) -> TrainingProject:
    """The definition as it was pushed."""
    from prefect_bt.definitions import training_project_from_json

    return training_project_from_json(record.definition)
