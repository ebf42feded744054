"""Block Training Secrets: secrets by name, which the Prefect API masks."""

from __future__ import annotations

import json
from typing import ClassVar

from prefect.types import SecretDict
from pydantic import Field, HttpUrl

from prefect_bt.blocks.forms import SECRET_LOGO, FormBlock
from prefect_bt.credentials.secrets import InMemorySecrets


class TrainingSecrets(FormBlock):
    """Secrets of training jobs by name; definitions hold only names."""

    _block_type_name: ClassVar[str | None] = "Training Secrets"
    _block_type_slug: ClassVar[str | None] = "prefect-bt-secrets"
    _description: ClassVar[str | None] = (
        "Secrets of training jobs by name. A definition contains `SecretReference(name=...)`; the "
        "value is read here when the job starts. Values are masked in the API and in logs."
    )
    _logo_url: ClassVar[HttpUrl | None] = SECRET_LOGO
    _code_example: ClassVar[str | None] = """
    ```python
    from prefect_bt.blocks import TrainingSecrets

    TrainingSecrets(values={"hf_access_token": "hf_..."}).save("BLOCK_NAME")
    secrets = TrainingSecrets.load("BLOCK_NAME").build()
    ```
    """

    # A dict of SecretStr would come back in plain text from the API; a SecretDict is masked.
    values: SecretDict = Field(
        title="Secrets",
        description='Names and values as a JSON object: {"hf_access_token": "hf_..."}.',
    )

    def build(self) -> InMemorySecrets:
        """Return the secrets as a source for `prefect_bt.credentials.secrets.resolve_secrets`."""
        values = self.values.get_secret_value()
        texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in values.items()}
        return InMemorySecrets(texts)
