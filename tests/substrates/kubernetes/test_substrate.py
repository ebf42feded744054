"""What a launch that fails leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefect_bt.ledger.records import Cause
from prefect_bt.object_keys import job_index_key
from prefect_bt.substrates.kubernetes.client import ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.substrate import KubernetesSubstrate
from tests.cluster.recordings import recorded
from tests.node_agent.rig import JOB, make_gang, make_plan

from .api_stub import ApiStub, answer, settings_for


@pytest.mark.parametrize(
    ("name", "cause"),
    [("forbidden_create_job", Cause.FORBIDDEN), ("already_exists", Cause.LAUNCH_FAILED)],
)
def test_a_job_that_is_refused_leaves_no_record_and_deletes_nothing(
    api: ApiStub, client: ClusterClient, tmp_path: Path, name: str, cause: Cause
) -> None:
    """Whoever may create no Job may delete none, and a Job of that name is another's."""
    said = recorded("errors")[name]
    api.on("POST jobs", answer(said["code"], said["body"]))
    substrate = KubernetesSubstrate(settings_for(api.server.server_port), str(tmp_path / "store"))
    substrate.client = client
    plan = make_plan(tmp_path / "state", ("true",))
    substrate.store.put(job_index_key(JOB), json.dumps({"project_id": plan.project_id}).encode())
    with pytest.raises(ClusterError) as caught:
        substrate.launch(make_gang(plan), secrets={})
    assert caught.value.cause == cause
    assert list(substrate.list_nodes(JOB)) == []
    assert api.of("DELETE") == []
