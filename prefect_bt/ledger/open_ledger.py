"""Open the ledger of a store, and load the definition of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store import open_store
from prefect_bt.settings import Settings

if TYPE_CHECKING:  # imported on use: a command that lists ended jobs needs no definitions
    from prefect_bt.definitions import TrainingProject


def open_ledger(store: str | None = None) -> Ledger:
    """Return the ledger of `store`, by default of the store in the settings."""
    return Ledger(open_store(store or Settings().store))


def load_definition(record: JobRecord) -> TrainingProject:
    """Return the definition as it was pushed."""
    from prefect_bt.definitions import training_project_from_json

    return training_project_from_json(record.definition)
