"""The key of a server process, shown by the router, so that no client bypasses the router.

Each attempt of a revision's job has a key of its own, derived from a secret of the deployment that
only its owner can read (`RouterFolder.ensure_engine_secret`). So every flow that watches the server
can derive it, also after a recovery, and it is stored nowhere. It reaches the server as secrets do:
by a pipe and the environment of its process, never on a command line, and redacted in its log.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Final

from prefect_bt.planning.plan import GangPlan
from prefect_bt.serving.engines.require_key import KEY_VARIABLE

KEY_VARIABLES: Final = ("VLLM_API_KEY", KEY_VARIABLE)
"""Variables from which vLLM and transformers_server.py read the key."""
KEY_REFERENCE: Final = "(the key of this server process)"
"""Name of the secret in the plan; no user's secret can have this name."""


def derive_engine_key(secret: bytes, job_id: str, attempt: int) -> str:
    """Return the key of the server that this attempt of the job starts."""
    return hmac.digest(secret, f"{job_id}/{attempt}".encode(), hashlib.sha256).hex()


def add_engine_key(plan: GangPlan) -> GangPlan:
    """Return the plan with the secret KEY_REFERENCE in each of KEY_VARIABLES of its nodes."""
    added = dict.fromkeys(KEY_VARIABLES, KEY_REFERENCE)
    nodes = (
        replace(node, secret_environment={**node.secret_environment, **added})
        for node in plan.nodes
    )
    return replace(plan, nodes=tuple(nodes))
