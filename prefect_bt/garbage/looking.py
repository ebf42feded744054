"""Everything that `prefect-bt gc` looks through, for one machine and its store."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from prefect_bt.garbage.containers import Containers
from prefect_bt.garbage.machine import Jobs
from prefect_bt.garbage.routers import Routers
from prefect_bt.garbage.stored import Uploads, find_holds
from prefect_bt.garbage.strays import Strays
from prefect_bt.garbage.verdicts import Stores
from prefect_bt.garbage.weights import Weights, find_claims
from prefect_bt.garbage.words import Findings, Source, gather
from prefect_bt.jobs import open_ledger
from prefect_bt.settings import Settings
from prefect_bt.substrates.docker_used import engines_used
from prefect_bt.weights.cache import NodeCache

UNFINISHED_SECONDS: Final = 7 * 86400.0
"""How long what is unfinished may wait for somebody to go on with it."""


def look_for_garbage(
    settings: Settings, *, include_unsaved: bool = False, older: float = UNFINISHED_SECONDS
) -> Findings:
    """What no living job owns. Changes nothing.

    `older`: seconds after which what is unfinished, and no job's, is nobody's.
    """
    state_dir = settings.state_dir.expanduser().resolve()
    stores = Stores(open_ledger, settings.store)
    cache = NodeCache(state_dir / settings.weights_dir.name)
    found = gather(
        [
            Source("The jobs of this machine", Jobs(state_dir, stores, include_unsaved).find),
            *(
                Source(
                    f"The Docker Engine at {engine.address}",
                    Containers(state_dir, stores, engine).find,
                )
                for engine in engines_used(state_dir)
            ),
            Source("The processes of this machine", Strays(state_dir, stores).find),
            Source("The deployments of this machine", Routers(state_dir, stores).find),
            Source("The weights of this machine", Weights(cache, stores, older).find),
            Source("Uploads into the store", Uploads(stores, older).find),
            Source("Holds in the store", lambda: find_holds(stores)),
            Source("Claims in the store", lambda: find_claims(stores)),
        ]
    )
    return replace(found, notes=tuple(dict.fromkeys([*found.notes, *stores.notes])))
