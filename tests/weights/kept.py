"""Sources that are folders of a test, and what is kept of them in a cache and a store."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_bt.object_store import open_store
from prefect_bt.object_store.protocols import Store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.planning.planner import plan_weights_sources
from prefect_bt.weights import MirrorResult, NodeCache, mirror_source

LARGE = 6 << 20
"""Bytes of a file that is fetched in blocks."""


@dataclass
class Shelf:
    """A machine's cache, and a store that all machines of the test share."""

    root: Path
    budget: int | None = None
    state: str = "state"

    @property
    def state_dir(self) -> Path:
        return self.root / self.state

    @property
    def cache(self) -> NodeCache:
        return NodeCache(self.state_dir / "weights", self.budget)

    @property
    def store(self) -> Store:
        return open_store(str(self.root / "store"))

    def folder(self, name: str, **files: int | bytes) -> str:
        """A source with files of those sizes or bytes; `a_txt` is `a.txt`. Its URI."""
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        for path, content in files.items():
            data = os.urandom(content) if isinstance(content, int) else content
            (folder / path.replace("_", ".")).write_bytes(data)
        return f"file://{folder}"

    def plan(self, source: str, **given: Any) -> WeightsPlan:
        return plan_weights_sources([{"source": source, **given}])[0]

    def mirror(self, source: str, *, holder: str = "", **given: Any) -> MirrorResult:
        plan = self.plan(source, **given)
        return mirror_source(plan, cache=self.cache, store=self.store, lease_holder=holder)
