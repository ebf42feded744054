"""What a launch that fails leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.records import Cause
from prefect_bt.object_keys import job_index_key
from prefect_bt.substrates.kubernetes.client import ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.names import gang_name
from prefect_bt.substrates.kubernetes.substrate import KubernetesSubstrate
from tests.cluster.recordings import recorded
from tests.node_agent.rig import JOB, make_gang, make_plan

from .api_stub import ApiStub, answer, settings_for


@pytest.fixture
def substrate(api: ApiStub, client: ClusterClient, tmp_path: Path) -> KubernetesSubstrate:
    made = KubernetesSubstrate(settings_for(api.port), str(tmp_path / "store"))
    made.client = client
    return made


@pytest.mark.parametrize(
    ("name", "cause"),
    [("forbidden_create_job", Cause.FORBIDDEN), ("already_exists", Cause.LAUNCH_FAILED)],
)
def test_a_job_that_is_refused_leaves_no_record_and_deletes_nothing(
    api: ApiStub, substrate: KubernetesSubstrate, tmp_path: Path, name: str, cause: Cause
) -> None:
    """Whoever may create no Job may delete none, and a Job of that name is another's."""
    said = recorded("errors")[name]
    api.on("POST jobs", answer(said["code"], said["body"]))
    plan = make_plan(tmp_path / "state", ("true",))
    substrate.store.put(job_index_key(JOB), json.dumps({"project_id": plan.project_id}).encode())
    with pytest.raises(ClusterError) as caught:
        substrate.launch(make_gang(plan), secrets={})
    assert caught.value.cause == cause
    assert list(substrate.list_nodes(JOB)) == []
    assert api.of("DELETE") == []


@pytest.mark.parametrize("store", ["/folder", "~/folder", "file:///folder"])
def test_a_store_in_a_folder_needs_its_claim_and_its_user(
    monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    """The folder is private to its user, as which the agents in the pods run, then."""

    def problem(**settings: object) -> str:
        substrate = KubernetesSubstrate(ClusterSettings(**settings), store)  # type: ignore[arg-type]
        return substrate.capacity().store_problem

    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert f"The store {store} is a folder of this machine" in problem()
    assert "store_claim" in problem()
    assert "set run_as_user to 1000" in problem(store_claim="shared")
    assert problem(store_claim="shared", run_as_user=1000) == ""
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert "push as a user other than root" in problem(store_claim="shared", run_as_user=0)


def test_a_bucket_needs_no_claim() -> None:
    substrate = KubernetesSubstrate(ClusterSettings(), "s3://bucket/prefix")
    assert substrate.capacity().store_problem == ""


def test_a_launch_whose_user_may_not_list_pods_leaves_no_job(
    api: ApiStub, substrate: KubernetesSubstrate, tmp_path: Path
) -> None:
    """The Job was created, and is not started."""
    refused = recorded("errors")["forbidden_list"]
    job = {"metadata": {"name": "x", "namespace": "rec", "uid": "u"}}
    api.on("POST jobs", answer(201, job))
    api.on("GET pods", answer(refused["code"], refused["body"]))
    api.on("DELETE pods", answer(refused["code"], refused["body"]))
    api.on(f"DELETE {gang_name(JOB, 0)}", answer(200, {}))
    plan = make_plan(tmp_path / "state", ("true",))
    with pytest.raises(ClusterError) as caught:
        substrate.launch(make_gang(plan), secrets={})
    assert caught.value.cause == Cause.FORBIDDEN
    assert api.of("PATCH") == []
    assert any(one.path.endswith(f"/jobs/{gang_name(JOB, 0)}") for one in api.of("DELETE"))
