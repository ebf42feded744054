"""Where a job's records, logs and checkpoints are kept."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, HttpUrl

from prefect_bt.blocks.block_docs import FOLDER_LOGO
from prefect_bt.blocks.forms import FormBlock
from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store


class TrainingStore(FormBlock):
    """The store of training jobs: records, logs, checkpoints."""

    _block_type_name: ClassVar[str | None] = "Training Store"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-store"
    _description: ClassVar[str | None] = (
        "Where training jobs keep their records, logs and checkpoints. Whoever runs, watches or "
        "resumes a job must reach the same store. Credentials come from the machine, not from here."
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
        description="A folder that every machine sees, or a bucket: s3://team-bucket/training.",
    )

    def build(self) -> Store:
        """The opened store; StoreError when no adapter knows the address."""
        return open_store(self.url)
