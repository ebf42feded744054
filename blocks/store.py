"""Block Training Store: the store of records, logs and checkpoints."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.forms import FOLDER_LOGO, FormBlock
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store


class TrainingStore(FormBlock):
    """Store of training jobs: records, logs, checkpoints."""

    _block_type_name: ClassVar[str | None] = "Training Store"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-store"
    _description: ClassVar[str | None] = (
        "Store of the records, logs and checkpoints of training jobs. All machines that run, watch "
        "or resume a job need the same store. Each machine uses its own credentials."
    )
    _logo_url: ClassVar[HttpUrl | None] = FOLDER_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import TrainingStore

    TrainingStore(url="s3://team-bucket/training").save("BLOCK_NAME")
    store = TrainingStore.load("BLOCK_NAME").build()
    ```
    """

    url: str = Field(
        min_length=1,
        title="URL",
        description="Folder that all machines share, or a bucket: s3://team-bucket/training.",
    )

    def build(self) -> Store:
        """Return the opened store; raise StoreError if no adapter supports the address."""
        return open_store(self.url)
