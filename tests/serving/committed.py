"""Jobs whose checkpoints were committed by a real uploader, in a store in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.uploader import Uploader
from prefect_bt.definitions import project_document, training_project_from_json
from prefect_bt.errors import PrefectBtError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.serving.checkpoint_selection import CheckpointRequest, select_models
from prefect_bt.serving.served_model import ModelSelection
from tests.checkpoints import folders
from tests.written_jobs import write_job

TOKENIZER = {"tokenizer.json": b"{}", "tokenizer_config.json": b"{}"}
TEMPLATE = {"chat_template.jinja": b"{% for m in messages %}{{ m.content }}{% endfor %}"}


def lora(base: str = "org/base", rank: int = 16, **config: Any) -> dict[str, bytes]:
    """As PEFT and the Trainer leave it."""
    told = {"peft_type": "LORA", "r": rank, "base_model_name_or_path": base, **config}
    return folders.hf_lora() | {"adapter_config.json": folders.text(told)}


def full(**config: Any) -> dict[str, bytes]:
    """With its tokenizer."""
    told = {"model_type": "llama", **config}
    return folders.hf_full() | TOKENIZER | {"config.json": folders.text(told)}


def whisper() -> dict[str, bytes]:
    return folders.whisper() | TOKENIZER


class Shop:
    """A ledger, and checkpoints on their way into it."""

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger = folder, ledger
        self.written = 0

    def job(self, project: str = "train", **job: Any) -> JobRecord:
        """One that ran; `job` goes over the usual definition."""
        runtime = {
            "start_commands": ["true"],
            "checkpointing_config": {"enabled": True},
            **job.pop("runtime", {}),
        }
        image = {"base_image": "python:3.11"}
        definition = training_project_from_json(
            {"name": project, "job": {"image": image, "runtime": runtime, **job}}
        )
        known = self.ledger.projects.ensure(project)
        record = JobRecord(
            id=self.ledger.reserve_job_id(known.id),
            name=self.ledger.reserve_job_name(known.id),
            project_id=known.id,
            project_name=known.name,
            created_at=self.ledger.now(),
            definition=project_document(definition),
        )
        write_job(self.ledger, record)
        return record

    def commit(
        self, job: JobRecord, checkpoints: dict[str, dict[str, bytes]], *, rank: int = 0
    ) -> None:
        """Name -> path -> bytes, all by one final flush."""
        self.written += 1
        directory = self.folder / f"ckpts-{self.written}"
        for name, files in checkpoints.items():
            folders.write(directory / name, files)
        status = Uploader(
            self.ledger.store,
            directory=directory,
            origin=UploadOrigin(
                job.project_id, job.id, rank=rank, attempt=self.written, group_size=2
            ),
            options=folders.FAST,
            report=lambda _: None,
        ).run(folders.Ended())
        assert not status.error and not status.uncommitted, status


def select(shop: Shop, job: JobRecord, *names: str, **options: Any) -> ModelSelection:
    return select_models(
        shop.ledger, [CheckpointRequest(job.id, name) for name in names], **options
    )


def refused(shop: Shop, *wanted: CheckpointRequest, **options: Any) -> str:
    """The whole message: one error, which ends with what to do."""
    with pytest.raises(PrefectBtError) as caught:
        select_models(shop.ledger, wanted, **options)
    assert caught.value.next_step
    return str(caught.value)
