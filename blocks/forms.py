"""Adapt the JSON schemas from which the Prefect UI makes the forms of blocks and runs.

A block type keeps its class name as the title of its schema, because Prefect stores the schema of a
reference to the block under that title, and validates flow parameters against it.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import StrEnum
from typing import Any, Final, Self, cast
from uuid import UUID

from prefect.blocks.core import Block
from pydantic import GetJsonSchemaHandler, HttpUrl
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

DOCUMENTATION: Final = "https://prefect-bt.readthedocs.io/en/stable/blocks.html"
"""The page with a section for each block type; also in pyproject.toml."""

# Prefect's client accepts only http(s) addresses for pictures (3.9.1: a `data:` picture stored by
# other means makes the block type unreadable for every client). So they are those that Prefect
# publishes for its own blocks: the UI loads nothing from a host that it does not use already.
_LOGOS: Final = (
    "https://raw.githubusercontent.com/PrefectHQ/prefect/"
    "420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/block-logos"
)
_CDN: Final = "https://cdn.sanity.io/images/3ugk85nk/production"

SECRET_LOGO: Final = HttpUrl(f"{_LOGOS}/secret.png")
FOLDER_LOGO: Final = HttpUrl(f"{_LOGOS}/filesystem.png")
PROCESS_LOGO: Final = HttpUrl(f"{_LOGOS}/process.png")
KUBERNETES_LOGO: Final = HttpUrl(f"{_LOGOS}/kubernetes.png")
DOCKER_LOGO: Final = HttpUrl(f"{_CDN}/14a315b79990200db7341e42553e23650b34bb96-250x250.png")
NODES_LOGO: Final = HttpUrl(f"{_CDN}/2d0b896006ad463b49c28aaac14f31e00e32cfab-250x250.png")


class AwaitableValue:
    """Value that is available at once; `await` returns the value itself."""

    def __await__(self) -> Generator[Any, Any, Self]:
        """Return the value itself."""
        yield from ()
        return self


class SavedBlockId(AwaitableValue, UUID):
    """Id of a saved block, also for code that awaits `save`."""


class FormBlock(AwaitableValue, Block):
    """Base class of the block types of this package; not a block type.

    The first UI stores `{}` when nothing was changed in a form, so every field that a form prefills
    has a default in Python. But a reference to a block whose schema requires nothing also matches
    that schema, and Prefect refuses what matches twice as a flow parameter (409). So where every
    field has a default, the schema, and only the schema, requires the first one whose default is
    not empty: the first UI does not save a form whose required field is empty.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        anchor = cls.get_block_type_name().lower().replace(" ", "-")
        cls._documentation_url = HttpUrl(f"{DOCUMENTATION}#{anchor}")

    def save(self, *args: Any, **kwargs: Any) -> SavedBlockId:
        """Save the block as Prefect's method does, also in a notebook without `await`.

        Prefect's method does nothing in a notebook until it is awaited.
        """
        return SavedBlockId(str(cast("Any", super()).save(*args, **kwargs, _sync=True)))

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Self:
        """Load a block as Prefect's method does, also in a notebook without `await`."""
        return cast("Any", super()).load(*args, **kwargs, _sync=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        definition = handler.resolve_ref_schema(schema)
        fields: dict[str, Any] = definition.get("properties", {})
        filled = [name for name, field in fields.items() if field.get("default") != ""]
        if filled:
            definition.setdefault("required", filled[:1])
        return schema


class FormChoice(StrEnum):
    """Base class of the enums in forms.

    Their schemas have no title and no description, because the first UI shows these instead of
    the title and description of the field.
    """

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        definition = handler.resolve_ref_schema(schema)
        for name in ("title", "description"):
            definition.pop(name, None)
        return schema
