"""Mirror in a process of its own, as flows do: `python mirroring.py <json>` prints the outcome."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from prefect_bt.errors import WeightsError
from prefect_bt.plan import WeightsPlan
from prefect_bt.weights import mirror_source

if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.DEBUG)
    plan = WeightsPlan(
        given["source"],
        "/w",
        given["key"],
        allow_patterns=tuple(given["allow"]) if given.get("allow") is not None else None,
        ignore_patterns=tuple(given["ignore"]) if given.get("ignore") is not None else None,
    )
    try:
        folder = mirror_source(
            plan, state_dir=Path(given["state_dir"]), secret=given.get("token") or None
        )
        print(json.dumps({"folder": str(folder)}))
    except WeightsError as error:
        print(json.dumps({"error": str(error), "source": error.source, "next": error.next_step}))
