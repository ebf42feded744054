"""The list of mirrored sources: on this machine, in the store, or in both."""

from __future__ import annotations

from pathlib import Path

from prefect_bt.weights.cache.eviction import evict
from prefect_bt.weights.inventory import list_entries
from prefect_bt.weights.store_copy.copies import StoreMirror
from tests.weights.kept import Shelf


def test_where_a_source_is_kept(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    source = shelf.folder("model", a_bin=1000)
    done = shelf.mirror(source)
    mirror = StoreMirror(shelf.store)
    assert [(one.name, one.location) for one in list_entries(shelf.cache, mirror)] == [
        (done.name, "both")
    ]
    assert [one.location for one in list_entries(shelf.cache, None)] == ["here"]
    shelf.cache.evict(done.name)
    assert [one.location for one in list_entries(shelf.cache, mirror)] == ["store"]
    shelf.mirror(source)
    evict(shelf.cache, mirror, done.name)  # a store on the same disk holds the same bytes
    assert list_entries(shelf.cache, mirror) == []
