"""The contract of substrates (tests/contracts), for that of Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.object_keys import job_index_key, job_prefix
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import ImagePlan, NodePlan
from prefect_bt.substrates import open_substrate
from prefect_bt.substrates.protocol import Substrate
from tests.contracts.test_substrate_contract import *  # noqa: F403
from tests.contracts.test_substrate_contract import Place
from tests.node_agent.rig import JOB, make_plan

from .cluster_site import ClusterSite

pytestmark = [pytest.mark.integration, pytest.mark.slow]


class InCluster(Place):
    site: ClusterSite

    def plan(self, *commands: str, **changes: object) -> NodePlan:
        made = make_plan(self.state, commands, **changes)
        return replace(made, image=ImagePlan(self.site.image), store=self.site.store)


@pytest.fixture
def place(site: ClusterSite, tmp_path: Path) -> Iterator[Place]:
    store = open_store(site.store)
    project = make_plan(tmp_path, ()).project_id
    store.put(job_index_key(JOB), json.dumps({"project_id": project}).encode())

    def reopen() -> Substrate:
        return open_substrate("kubernetes", cluster=site.settings(), store=site.store)

    made = InCluster(reopen(), reopen, tmp_path / "state")
    made.site = site
    yield made
    for handle in made.substrate.list_nodes(JOB):
        handle.remove()
    assert list(made.reopen().list_nodes(JOB)) == []
    assert site.all_objects() == []
    assert list(store.list(job_prefix(project, JOB))) == []
