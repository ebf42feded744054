"""A job of the shop with real bytes committed by a real uploader."""

from collections.abc import Sequence
from pathlib import Path

from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.uploader import Uploader
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_store import open_store
from tests.checkpoints.folders import FAST, Ended

from .conftest import Shop


def commit(shop: Shop, job: JobRecord, folder: Path, steps: Sequence[int], *, rank: int = 0):
    """`checkpoint-<step>` with one file of its own and one that all share."""
    for step in steps:
        at = folder / f"checkpoint-{step}"
        at.mkdir(parents=True, exist_ok=True)
        (at / "weights.dat").write_bytes(b"%d.%d" % (rank, step) * 1000)
        (at / "shared.dat").write_bytes(b"shared %d" % rank * 1000)
    upload(shop, job, folder, rank=rank)


def upload(shop: Shop, job: JobRecord, folder: Path, *, rank: int = 0) -> None:
    """Commit every checkpoint of the folder."""
    status = Uploader(
        open_store(shop.url),
        directory=folder,
        origin=UploadOrigin(job.project_id, job.id, rank=rank, attempt=0),
        options=FAST,
        report=lambda _: None,
    ).run(Ended())  # pyright: ignore[reportArgumentType]
    assert (status.error, status.uncommitted) == ("", ())
