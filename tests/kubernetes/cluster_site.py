"""A namespace of a cluster, and a machine that pushes jobs to it."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.substrates.kubernetes.client import ClusterClient
from tests.e2e.conftest import Machine, until

if TYPE_CHECKING:
    from tests.cluster.cluster import Cluster

RBAC = Path(__file__).parents[2] / "deployments" / "kubernetes" / "rbac.yaml"
SMALL = {"requests": {"cpu": "10m", "memory": "32Mi"}}
PATCH = {
    "spec": {
        "template": {
            "spec": {
                "containers": [
                    {"name": "agent", "resources": SMALL},
                    {"name": "commands", "resources": {"requests": SMALL["requests"]}},
                ]
            }
        }
    }
}
"""Small requests, by which several pods fit on a node of two CPUs."""
CONFIG = """
import json
from pathlib import Path
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
project = d.TrainingProject(
    name="on a cluster",
    job=d.TrainingJob(
        image=d.Image(base_image=given["image"]),
        compute=d.Compute(node_count=given["nodes"], cpu_count=1, memory="32Mi"),
        runtime=d.Runtime(
            start_commands=["sh ./run.sh"],
            environment_variables={"WORD": d.SecretReference(name="word")},
            checkpointing_config=d.CheckpointingConfig(enabled=True),
        ),
        weights=[d.WeightsSource(**one) for one in given["weights"]],
    ),
)
"""
WORD = "very-secret-word-9"
SAVE = """
save() {
  mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$1
  echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$1/a.json
}
newest() { ls $BT_CHECKPOINT_DIR | wc -l; }
"""
"""Shell functions of the jobs' scripts: write checkpoint number $1, and count the checkpoints."""


@dataclass
class ClusterSite:
    """A namespace of a cluster, with what the tests need to use it.

    `user`: kubeconfig of a user with the rights of rbac.yaml. `store`: URL of a bucket that pods
    reach. `cluster`: the small cluster; None if the tests run on that of KUBECONFIG.
    """

    admin: ClusterClient
    user: Path
    namespace: str
    image: str
    agent_image: str
    store: str
    variables: dict[str, str]
    cluster: Cluster | None = None

    def settings(self, **changes: Any) -> ClusterSettings:
        given = {
            "kubeconfig": str(self.user),
            "namespace": self.namespace,
            "agent_image": self.agent_image,
            "job_patch": PATCH,
            "patience_seconds": 300.0,
            **changes,
        }
        return ClusterSettings(**given)

    def list_objects(self, kind: str, *, group: str = "/api/v1") -> list[dict[str, Any]]:
        """Return prefect-bt's objects of this kind in the namespace."""
        selector = {"labelSelector": "app.kubernetes.io/managed-by=prefect-bt"}
        path = f"{group}/namespaces/{self.namespace}/{kind}"
        return self.admin.request("GET", path, query=selector)["items"]

    def all_objects(self) -> list[dict[str, Any]]:
        kinds = ("pods", "secrets", "services")
        found = [one for kind in kinds for one in self.list_objects(kind)]
        return [*found, *self.list_objects("jobs", group="/apis/batch/v1")]

    def find_pod(self, job_id: str, attempt: int, rank: int) -> str:
        """Return the name of the pod, once it exists."""
        prefix = f"prefect-bt-{job_id}-{attempt}-{rank}-"

        def look() -> str:
            names = [pod["metadata"]["name"] for pod in self.list_objects("pods")]
            return next((name for name in names if name.startswith(prefix)), "")

        return until(look, seconds=30, what=prefix)

    def delete(self, path: str, **query: str | int) -> None:
        """Delete an object of the namespace with the admin's rights; `path` as in `pods/x`."""
        self.admin.delete(f"/api/v1/namespaces/{self.namespace}/{path}", query=query)

    def node_of(self, pod: str) -> str:
        """Return the name of the pod's node."""
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}"
        return self.admin.request("GET", path)["spec"]["nodeName"]

    @contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """Cordon the node and evict its pods of this namespace; uncordon it afterwards."""
        self._cordon(node, True)
        try:
            for pod in self.list_objects("pods"):
                if pod["spec"].get("nodeName") == node:
                    self._evict(pod["metadata"]["name"])
            yield
        finally:
            self._cordon(node, None)

    def _cordon(self, node: str, on: bool | None) -> None:
        body = {"spec": {"unschedulable": on}}
        self.admin.request("PATCH", f"/api/v1/nodes/{node}", body=body)

    def _evict(self, pod: str) -> None:
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.admin.request("POST", path, body=body)


class ClusterMachine(Machine):
    """A machine that pushes jobs to the cluster, and whose store is a bucket."""

    site: ClusterSite

    @property
    def ledger(self) -> Ledger:
        return open_ledger(self.site.store)

    def job_folder(
        self,
        run_sh: str,
        *,
        nodes: int = 1,
        image: str = "",
        weights: tuple[dict[str, str], ...] = (),
    ) -> Path:
        """Create a training folder with this run.sh; return the path of its config."""
        folder = self.root / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG)
        given = {"image": image or self.site.image, "nodes": nodes, "weights": weights}
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "run.sh").write_text(textwrap.dedent(run_sh))
        return folder / "config.py"

    def nothing_left_in_cluster(self, job_id: str) -> None:
        """Assert that no object is left in the namespace, and no process or folder here."""
        until(lambda: not self.site.all_objects(), seconds=30, what="an empty namespace")
        self.nothing_left(job_id)
