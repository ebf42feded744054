"""A namespace of a cluster, a user with the documented rights, and a store that pods reach."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_bt.cluster_settings import ClusterSettings
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.opening import open_ledger
from prefect_bt.substrates.kubernetes.client import ClusterClient
from tests.e2e.conftest import Machine, environment_of

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
"""Lets several pods run on a machine of two CPUs."""
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


@dataclass
class ClusterSite:
    """`user` is the kubeconfig of the documented user; `cluster` is None for a real cluster."""

    admin: ClusterClient
    user: Path
    namespace: str
    image: str
    agent_image: str
    store: str
    variables: dict[str, str]
    cluster: Cluster | None = None
    jobs: list[str] = field(default_factory=list[str])

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
        """Return the namespace's objects that prefect-bt made."""
        selector = {"labelSelector": "app.kubernetes.io/managed-by=prefect-bt"}
        path = f"{group}/namespaces/{self.namespace}/{kind}"
        return self.admin.request("GET", path, query=selector)["items"]

    def all_objects(self) -> list[dict[str, Any]]:
        kinds = ("pods", "secrets", "services")
        found = [one for kind in kinds for one in self.list_objects(kind)]
        return [*found, *self.list_objects("jobs", group="/apis/batch/v1")]

    def find_pod(self, job_id: str, attempt: int, rank: int) -> str:
        """Return the name of the pod, once it is there."""
        prefix = f"prefect-bt-{job_id}-{attempt}-{rank}-"

        def look() -> str:
            names = [pod["metadata"]["name"] for pod in self.list_objects("pods")]
            return next((name for name in names if name.startswith(prefix)), "")

        return until(look, what=prefix)

    def delete(self, path: str, **query: str | int) -> None:
        """Delete something of the namespace as somebody else would; `path` as in pods/x."""
        group = "/apis/batch/v1" if path.startswith("jobs/") else "/api/v1"
        self.admin.delete(f"{group}/namespaces/{self.namespace}/{path}", query=query)


class ClusterMachine(Machine):
    """A machine that pushes jobs to the cluster; its store is a bucket."""

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
        """Return the config of a training folder with this run.sh."""
        folder = self.root / f"work-{time.monotonic_ns()}"
        folder.mkdir()
        (folder / "config.py").write_text(CONFIG)
        given = {"image": image or self.site.image, "nodes": nodes, "weights": weights}
        (folder / "given.json").write_text(json.dumps(given))
        (folder / "run.sh").write_text(textwrap.dedent(run_sh))
        return folder / "config.py"

    def nothing_left_in_cluster(self, job_id: str) -> None:
        """No object of the job remains in the namespace, and no process or folder here."""
        until(lambda: not self.site.all_objects(), what="an empty namespace")
        self.nothing_left(job_id)


@contextmanager
def store_access(site: ClusterSite) -> Iterator[None]:
    """Let this process reach the store as the machine does."""
    with environment_of(site.variables):
        yield


def until(probe: Callable[[], Any], *, what: str, seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.1)
    return found
