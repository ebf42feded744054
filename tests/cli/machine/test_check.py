"""`prefect-bt check` on this machine: real nodes, a real store, and what is wrong with them."""

from pathlib import Path

import pytest

from prefect_bt.object_store.disk import DiskStore
from prefect_bt.substrates.checks import cluster
from tests.cli.conftest import Cli

RBAC = Path(__file__).parents[3] / "deployments/kubernetes/rbac.yaml"


def statuses(document: dict[str, object]) -> dict[str, str]:
    return {check["name"]: check["status"] for check in document["checks"]}  # type: ignore[index]


def test_a_machine_that_can_run_jobs(cli: Cli) -> None:
    done = cli("check")
    assert done.code == 0, done.out
    names = [line[9:30].strip() for line in done.out.splitlines()[:-1]]
    assert names == [
        "Store",
        "State folder",
        "Paths of a job",
        "GPUs",
        "Two nodes",
        "Store from a node",
        "Network of two nodes",
    ]
    assert done.out.endswith("Jobs can run on the substrate local.\n")
    left = list(DiskStore(cli.folder / "store").list(""))
    assert left == [], "the trial leaves nothing in the store"
    assert cli("view", "-o", "json").json["training_projects"] == []


def test_a_state_folder_that_is_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    done = cli("check", "-o", "json", PREFECT_BT_STATE_DIR=str(tmp_path / "state"))
    assert done.code == 1
    document = done.json
    assert document["passed"] is False
    assert statuses(document)["State folder"] == "failed"
    assert statuses(document)["Two nodes"] == "skipped"
    (failed,) = [check for check in document["checks"] if check["status"] == "failed"]
    assert "PREFECT_BT_STATE_DIR" in failed["next_step"]


def test_nodes_that_do_not_end_in_time(cli: Cli) -> None:
    done = cli("check", "--timeout", "0.01")
    assert done.code == 1
    assert "FAILED   Two nodes              not ended within 0 s: rank 0 is " in done.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--substrate", "moon"), "There is no substrate 'moon'."),
        (("--substrate", "kubernetes"), "No Kubernetes cluster is configured"),
        (("--substrate", "docker"), "The Docker Engine does not answer"),
    ],
)
def test_a_substrate_that_is_not_there_has_a_cure(
    cli: Cli, arguments: tuple[str, ...], part: str
) -> None:
    done = cli("check", *arguments, "-o", "json", DOCKER_HOST="unix:///nowhere", KUBECONFIG="/no")
    assert done.code == 1
    (failed,) = [check for check in done.json["checks"] if check["status"] == "failed"]
    assert part in failed["detail"]
    assert failed["next_step"]


def test_the_checked_rights_are_those_of_the_role() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    role = next(iter(yaml.safe_load_all(RBAC.read_text())))
    granted = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    checked = {
        (group, resource, verb)
        for group, resource, verbs in (*cluster.RIGHTS, cluster.CLAIM_RIGHT)
        for verb in verbs
    }
    assert checked == granted
