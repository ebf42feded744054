"""Clusters for the suites of the Kubernetes substrate.

Without KUBECONFIG it is the small cluster of tests/cluster. With KUBECONFIG, it is that cluster,
and its user has only the rights of deployments/kubernetes/rbac.yaml. The tests then need:

    BT_TEST_AGENT_IMAGE   image of deployments/images/agent.Dockerfile
    BT_TEST_IMAGE         an image with a busybox
    BT_TEST_STORE         a bucket (s3://...) that this machine and the pods reach by AWS_...
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import docker
import pytest
import yaml

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.substrates.kubernetes.client import ClusterClient
from tests.cluster.conftest import agent_image
from tests.docker.conftest import BASE, base_image, engine, own_daemon
from tests.e2e.conftest import Machine, end_processes, machine_environment, served_machine

from .cluster_site import RBAC, WORD, ClusterMachine, ClusterSite

__all__ = ["agent_image", "base_image", "engine", "own_daemon", "served_machine"]

VARIABLES = ("BT_TEST_AGENT_IMAGE", "BT_TEST_IMAGE", "BT_TEST_STORE")
ROOM = {"cpu": "64", "memory": "64Gi"}


@pytest.fixture(scope="module")
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterSite]:
    folder = tmp_path_factory.mktemp("cluster")
    is_real = bool(os.environ.get("KUBECONFIG"))
    for one in _real_site(folder) if is_real else _own_site(request, folder):
        with mock.patch.dict(os.environ, one.variables):
            yield one
            assert one.all_objects() == []


def _own_site(request: pytest.FixtureRequest, folder: Path) -> Iterator[ClusterSite]:
    """Yield a namespace of a small cluster, on the Engine of the tests of Docker."""
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    engine: docker.APIClient = request.getfixturevalue("engine")
    image: str = request.getfixturevalue("base_image")
    from tests.cluster.cluster import Cluster

    agent: str = request.getfixturevalue("agent_image")
    nodes = dict.fromkeys(("node-1", "node-2"), ROOM)
    cluster = Cluster(engine, image, folder, nodes=nodes)
    cluster.start()
    namespace = "training"
    cluster.add_namespace(namespace)
    cluster.apply(RBAC.read_text())
    user = cluster.kubeconfig_for(f"system:serviceaccount:{namespace}:prefect-bt", namespace)
    bucket = moto.ThreadedMotoServer(cluster.gateway, 0)
    bucket.start()
    host, port = bucket.get_host_and_port()
    variables = _bucket(f"http://{host}:{port}")
    admin = ClusterClient(ClusterSettings(kubeconfig=str(cluster.kubeconfig)))
    try:
        yield ClusterSite(
            admin, user, namespace, BASE, agent, "s3://jobs/kubernetes", variables, cluster
        )
    finally:
        bucket.stop()
        cluster.close()


def _bucket(address: str) -> dict[str, str]:
    variables = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret-key",
        "AWS_REGION": "us-east-1",
    }
    with mock.patch.dict(os.environ, variables):
        import boto3

        client: Any = boto3.client("s3")
        client.create_bucket(Bucket="jobs")
    return variables


def _real_site(folder: Path) -> Iterator[ClusterSite]:
    """Yield a new namespace of the cluster of KUBECONFIG; delete it afterwards."""
    missing = [name for name in VARIABLES if not os.environ.get(name)]
    if missing:
        pytest.skip(f"KUBECONFIG is set, but not {', '.join(missing)}")
    admin = ClusterClient(ClusterSettings())
    namespace = f"prefect-bt-test-{secrets.token_hex(4)}"
    admin.request("POST", "/api/v1/namespaces", body={"metadata": {"name": namespace}})
    try:
        user = _create_user(admin, namespace, folder)
        image, agent = os.environ["BT_TEST_IMAGE"], os.environ["BT_TEST_AGENT_IMAGE"]
        variables = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        yield ClusterSite(
            admin, user, namespace, image, agent, os.environ["BT_TEST_STORE"], variables
        )
    finally:
        admin.delete(f"/api/v1/namespaces/{namespace}")


def _create_user(admin: ClusterClient, namespace: str, folder: Path) -> Path:
    """Write the kubeconfig of a service account that has the documented role."""
    core, name = f"/api/v1/namespaces/{namespace}/serviceaccounts", "prefect-bt"
    admin.request("POST", core, body={"metadata": {"name": name}})
    for manifest in yaml.safe_load_all(RBAC.read_text().replace("training", namespace)):
        kind = f"{manifest['kind'].lower()}s"
        group = f"/apis/{manifest['apiVersion']}/namespaces/{namespace}/{kind}"
        admin.request("POST", group, body=manifest)
    spec = {"spec": {"expirationSeconds": 7200}}
    token = admin.request("POST", f"{core}/{name}/token", body=spec)["status"]["token"]
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"] = [{"name": name, "user": {"token": token}}]
    for context in config["contexts"]:
        context["context"] |= {"user": name, "namespace": namespace}
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def machine(
    site: ClusterSite, served_machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterMachine]:
    """A machine whose jobs run in the cluster."""
    root = tmp_path_factory.mktemp("cluster-machine")
    environment = {
        **machine_environment(root),
        **served_machine.api,
        **site.variables,
        "PREFECT_BT_SUBSTRATE": "kubernetes",
        "PREFECT_BT_STORE": site.store,
        "PREFECT_BT_KUBERNETES": site.settings().model_dump_json(),
        "PREFECT_BT_SECRET_word": WORD,
    }
    made = ClusterMachine(root, environment)
    made.site = site
    yield made
    end_processes(made)
