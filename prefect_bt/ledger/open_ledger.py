"""Open the ledger of a store, and load the definition of a job.

A retry can replace environment variables of the definition: <job>/environment.json, name -> value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from prefect_bt import codec
from prefect_bt.ledger.job_objects import availability_key, find_object, priority_key
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_prefix
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store
from prefect_bt.settings import Settings

if TYPE_CHECKING:  # imported on use: a command that lists ended jobs needs no definitions
    from prefect_bt.definitions import TrainingProject


def open_ledger(store: str | None = None) -> Ledger:
    """Return the ledger of `store`, by default of the store in the settings."""
    return Ledger(open_settings_store(store=store))


def open_settings_store(settings: Settings | None = None, store: str | None = None) -> Store:
    """Open the store of the settings, or another one, which this machine remembers."""
    settings = settings or Settings()
    return open_store(store or settings.store, memory=settings.state_dir / "stores")


def load_definition(record: JobRecord) -> TrainingProject:
    """Return the definition as it was pushed."""
    from prefect_bt.definitions import training_project_from_json

    return training_project_from_json(record.definition)


def load_current_definition(ledger: Ledger, record: JobRecord) -> TrainingProject:
    """Return the definition that the next attempt uses: as pushed, with what was changed since.

    Variables of retries replace those of the push, and so do the priority and the availability
    model of an update.
    Raises StoreError, and ValueError or TypeError for a damaged record.
    """
    from prefect_bt.definitions import AvailabilityModel
    from prefect_bt.definitions.variable_overrides import override_variables

    project = override_variables(load_definition(record), _read_variables(ledger, record))
    prefix = job_prefix(record.project_id, record.id)
    if model := find_object(ledger.store, availability_key(prefix), str):
        project.job.compute.availability_model = AvailabilityModel(model)
    if (priority := find_object(ledger.store, priority_key(prefix), int)) is not None:
        project.job.priority = priority
    return project


def add_variables(ledger: Ledger, record: JobRecord, variables: Mapping[str, str]) -> None:
    """Set these variables for the next attempts; those that earlier retries set are kept."""
    if variables:
        merged = {**_read_variables(ledger, record), **variables}
        ledger.store.put(_variables_key(record), codec.dumps(merged).encode())


def _read_variables(ledger: Ledger, record: JobRecord) -> dict[str, str]:
    return find_object(ledger.store, _variables_key(record), dict[str, str]) or {}


def _variables_key(record: JobRecord) -> str:
    return f"{job_prefix(record.project_id, record.id)}/environment.json"
