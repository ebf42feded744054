"""The objects of an attempt, against tests/golden/kubernetes and the rules of Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from prefect_bt import codec
from prefect_bt.host.nodes.container_pipes import INIT_SCRIPT
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.planning.plan import NodePlan
from prefect_bt.substrates.kubernetes.job_manifests import render_cache_claim
from prefect_bt.substrates.kubernetes.json_merge import Json

from .gangs import CASES, SECRETS, Case, containers_of, open_secret, pod_of, render

GOLDEN = Path(__file__).parents[2] / "golden" / "kubernetes"
VERSIONS = ("1.29", "1.36")
pytestmark = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def case(name: str) -> Case:
    return CASES[name]


@pytest.fixture
def objects(case: Case) -> dict[str, Json]:
    return render(case)


def shown(objects: dict[str, Json]) -> str:
    """As YAML, with the Secret's values in clear, and without what changes for reasons of its own:
    the script and the plan."""
    texts = {name: json.loads(text) for name, text in open_secret(objects).items()}
    secret = {**objects["Secret"], "data": {**texts, "plan.json": "PLAN"}}
    documents = [objects["Job"], secret, objects["Service"]]
    text = json.dumps(documents).replace(json.dumps(INIT_SCRIPT.replace("$", "$$")), '"SCRIPT"')
    return yaml.safe_dump_all(json.loads(text), sort_keys=False, width=100)


def test_as_agreed_on(name: str, objects: dict[str, Json]) -> None:
    path = GOLDEN / f"{name}.yaml"
    text = shown(objects)
    assert path.is_file(), f"{path} is not there; it would say:\n{text}"
    assert text == path.read_text("utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_as_the_api_server_reads_it(version: str, case: Case, objects: dict[str, Json]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    claim = render_cache_claim(case.settings.model_copy(update={"cache_storage_class": "nfs"}))
    for manifest in (*objects.values(), claim):
        validator.validate(manifest, version, strict=True)


def test_no_secret_is_in_any_object_but_the_secret(objects: dict[str, Json]) -> None:
    outside = json.dumps([objects["Job"], objects["Service"]])
    assert "s3cret" not in outside
    opened = open_secret(objects)
    assert "s3cret" not in opened["plan.json"] + opened["weights.json"]
    assert json.loads(opened["environment.json"]) == {"AWS_SECRET_ACCESS_KEY": "store-s3cret"}


def test_the_secret_holds_what_the_agent_reads(case: Case, objects: dict[str, Json]) -> None:
    opened, plan = open_secret(objects), case.plan()
    assert codec.loads(NodePlan, opened["plan.json"].encode()) == plan.nodes[0]
    assert len(json.loads(opened["weights.json"])) == len(plan.weights)
    wanted = {n: SECRETS[n] for n in plan.nodes[0].secret_environment.values()}
    assert json.loads(opened["secrets.json"]) == wanted


def test_the_agents_containers_meet_the_level_restricted(objects: dict[str, Json]) -> None:
    for name, container in containers_of(objects).items():
        if name not in {"agent", "weights"}:
            continue
        given = container["securityContext"]
        assert given["allowPrivilegeEscalation"] is False
        assert given["capabilities"] == {"drop": ["ALL"]}
        assert given["runAsNonRoot"] is True
        assert given["runAsUser"] > 0
        assert given["seccompProfile"] == {"type": "RuntimeDefault"}
        assert "privileged" not in given
        assert "ports" not in container
    pod = pod_of(objects)
    assert not {"hostPID", "hostIPC"} & pod.keys()
    assert pod["automountServiceAccountToken"] is False


def expand(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a container's command and of a variable's value: $$ is $, and
    $(NAME) the variable's value if there is one."""
    made, rest = "", text
    while rest:
        here, dollar, rest = rest.partition("$")
        made += here
        if rest.startswith("$"):
            made, rest = made + "$", rest[1:]
        elif rest.startswith("(") and ")" in rest:
            name, _, rest = rest[1:].partition(")")
            made += variables.get(name, f"$({name})")
        else:
            made += dollar
    return made


def test_every_dollar_survives(case: Case, objects: dict[str, Json]) -> None:
    commands = containers_of(objects)["commands"]
    variables = {"HOME": "EXPANDED", "1": "EXPANDED", "printf '%b.' \"$1\"": "EXPANDED"}
    assert expand("$$(HOME) $(HOME) $(x) $", variables) == "$(HOME) EXPANDED $(x) $", "the rule"
    told = {one["name"]: one for one in commands["env"]}
    for name, value in case.plan().nodes[0].environment.items():
        if "value" in told[name]:
            assert expand(told[name]["value"], variables) == value
    assert told["BT_NODE_RANK"]["valueFrom"]["fieldRef"], "the one that differs between pods"
    words = [expand(word, variables) for word in commands["command"]]
    assert words[:4] == ["/bin/sh", "-c", INIT_SCRIPT, "prefect-bt"]


def test_only_the_agent_has_the_secret(objects: dict[str, Json]) -> None:
    for name, container in containers_of(objects).items():
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        assert ("secret" in mounted) == (name in {"agent", "weights"})
        assert "envFrom" not in container
        assert "secretKeyRef" not in json.dumps(container.get("env"))


def test_every_mount_names_a_volume_and_has_a_path_of_its_own(objects: dict[str, Json]) -> None:
    volumes = [volume["name"] for volume in pod_of(objects)["volumes"]]
    assert len(set(volumes)) == len(volumes)
    used: set[str] = set()
    for container in containers_of(objects).values():
        mounts = container.get("volumeMounts", [])
        paths = [mount["mountPath"] for mount in mounts]
        assert len(set(paths)) == len(paths)
        assert all(path.startswith("/") for path in paths)
        used |= {mount["name"] for mount in mounts}
    assert used == set(volumes), "and no volume is for nobody"


def test_agent_and_commands_share_the_plans_volumes(case: Case, objects: dict[str, Json]) -> None:
    containers = containers_of(objects)
    seen = {
        which: {m["mountPath"]: (m["name"], m.get("subPath")) for m in one["volumeMounts"]}
        for which, one in containers.items()
        if which in {"agent", "commands"}
    }
    for number, volume in enumerate(case.plan().nodes[0].volumes):
        place = seen["commands"][volume.target]
        assert place == seen["agent"][f"/prefect-bt/volumes/{number}"]
    assert seen["commands"]["/.prefect-bt"] == seen["agent"]["/prefect-bt/control"]


def test_everything_goes_with_the_job(objects: dict[str, Json]) -> None:
    job = objects["Job"]["metadata"]["name"]
    for kind in ("Secret", "Service"):
        metadata = objects[kind]["metadata"]
        assert metadata["name"] == job
        assert [one["name"] for one in metadata["ownerReferences"]] == [job]
    labels = objects["Job"]["spec"]["template"]["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"].items() <= labels.items()
    assert pod_of(objects)["subdomain"] == job
    assert ClusterSettings().mount_token is False
