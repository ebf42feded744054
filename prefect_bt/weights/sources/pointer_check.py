"""Find git-LFS pointers among the files of a source: their content is elsewhere."""

from __future__ import annotations

from typing import Final

from prefect_bt.errors import WeightsError
from prefect_bt.filesystem.lfs_pointer import MAX_POINTER_BYTES, describe_pointer
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.weights.sources.file_listing import quote
from prefect_bt.weights.sources.patterns import select_files
from prefect_bt.weights.sources.protocol import SourceRequest, open_source, source_error

_NEXT_STEP: Final = (
    "Run `git lfs pull` where the files were cloned, or exclude the file with ignore_patterns."
)


class PointerFound(WeightsError):
    """A file of the source is a git-LFS pointer."""


def check_content(source: str, path: str, content: bytes) -> None:
    """Raise PointerFound if the content of a small file is a git-LFS pointer."""
    if pointer := describe_pointer(content):
        text = f"has {quote(path)}, which is {pointer} and not the file itself"
        raise source_error(source, text, _NEXT_STEP, PointerFound)


def find_pointer(plan: WeightsPlan) -> str:
    """Return the error of the first pointer in a folder of this machine; "" if there is none."""
    try:
        source = open_source(SourceRequest(plan))
        for file in select_files(plan, source.list_files()):
            if (file.size or 0) < MAX_POINTER_BYTES:
                content = b"".join(source.read(file, start=0, length=-1))
                check_content(plan.source, file.path, content)
    except PointerFound as error:
        return str(error)
    except WeightsError:  # the folder may be on another machine, which mirrors it
        return ""
    return ""
