"""Mirror in a process of its own, as flows do: `python mirroring.py <json>` prints the outcome."""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import asdict
from pathlib import Path

from prefect_bt.errors import WeightsError
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.progress import Progress
from prefect_bt.weights import NodeCache, mirror, mirror_source
from prefect_bt.weights.download import downloader

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    downloader.RETRY_DELAYS = mirror.RETRY_DELAYS = (0.01,) * 4  # pyright: ignore[reportAttributeAccessIssue]
    logging.basicConfig(level=logging.DEBUG)
    plan = WeightsPlan(
        given["source"],
        "/w",
        given["key"],
        allow_patterns=tuple(given["allow"]) if given.get("allow") is not None else None,
        ignore_patterns=tuple(given["ignore"]) if given.get("ignore") is not None else None,
    )
    notes: list[str] = []
    stop = threading.Event()

    def tell(progress: Progress) -> None:
        notes.append(progress.note)
        if progress.bytes_done > given.get("stop_after", float("inf")):
            stop.set()

    try:
        done = mirror_source(
            plan,
            cache=NodeCache(Path(given["state_dir"]) / "weights", given.get("budget")),
            secret=given.get("token") or None,
            store=open_store(given["store"]) if given.get("store") else None,
            revision=given.get("revision", ""),
            lease_holder=given.get("holder", ""),
            stall_timeout=given.get("stall", 60.0),
            on_progress=tell,
            stop=stop,
        )
        facts = {**asdict(done), "folder": str(done.folder), "notes": [*dict.fromkeys(notes)]}
        print(json.dumps(facts))
    except WeightsError as error:
        print(json.dumps({"error": str(error), "source": error.source, "next": error.next_step}))
