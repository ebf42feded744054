"""What the machines of a cluster have free, from lists of nodes and pods."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.ledger.records import Resources
from prefect_bt.substrates.kubernetes.client import ClusterClient, ClusterError
from prefect_bt.substrates.kubernetes.pod_hosts import measure_pod, read_pod_hosts, sum_requests
from prefect_bt.substrates.protocol import CPUS, MEMORY, PodHost

from .api_stub import ApiStub, answer

GIB = 1024**3
PRODUCT = "nvidia.com/gpu.product"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def node(name: str, *, gpus: int = 0, labels: dict[str, str] | None = None, **spec: Any) -> Any:
    has = {"cpu": "15900m", "memory": "64Gi", "pods": "110"}
    if gpus:
        has["nvidia.com/gpu"] = str(gpus)
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": spec,
        "status": {"allocatable": has},
    }


def pod(where: str | None, cpu: str = "1", *, job: str = "", owner: str = "", **more: str) -> Any:
    labels = {"prefect-bt/job-id": job} if job else {"app": "x"}
    requests = {"cpu": cpu, **{name.replace("_", "/"): text for name, text in more.items()}}
    return {
        "metadata": {
            "labels": labels,
            "ownerReferences": [{"kind": owner, "name": "x"}] if owner else [],
        },
        "spec": {
            **({"nodeName": where} if where else {}),
            "containers": [{"name": "a", "resources": {"requests": requests}}, {"name": "b"}],
        },
    }


def serve(api: ApiStub, nodes: list[Any], pods: list[Any]) -> None:
    api.on("GET nodes", answer(200, {"metadata": {}, "items": nodes}))
    api.on("GET pods", answer(200, {"metadata": {}, "items": pods}))


def read(client: ClusterClient, **settings: Any) -> tuple[PodHost, ...]:
    return read_pod_hosts(client, ClusterSettings(**settings))


def test_what_pods_request_is_not_free(api: ApiStub, client: ClusterClient) -> None:
    pods = [
        pod("a", "500m", memory="1Gi"),
        pod("a", "2", job="abc1234"),
        pod("a", "2", job="abc1234"),
        pod("a", "100m", owner="DaemonSet"),
        pod(None, "8"),
        pod("elsewhere", "8"),
    ]
    serve(api, [node("a")], pods)
    (found,) = read(client)
    assert found == PodHost(
        {CPUS: 15800, MEMORY: 64 * GIB}, {CPUS: 11300, MEMORY: 63 * GIB}, {"abc1234": 2}
    )
    (listed,) = [one for one in api.requests if one.path == "/api/v1/pods"]
    assert listed.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"


def test_long_lists_are_read_in_pages(api: ApiStub, client: ClusterClient) -> None:
    serve(api, [node("a")], [])
    first = {"metadata": {"continue": "t0k"}, "items": [pod("a", "1")]}
    second = {"metadata": {"continue": ""}, "items": [pod("a", "2")]}
    api.on("GET pods", answer(200, first), answer(200, second))
    (found,) = read(client)
    assert found.free[CPUS] == 12900
    pages = [one.query for one in api.requests if one.path == "/api/v1/pods"]
    assert [(one["limit"], one.get("continue")) for one in pages] == [("500", None), ("500", "t0k")]


@pytest.mark.parametrize(
    ("more", "settings", "fits"),
    [
        ({"unschedulable": True}, {}, False),
        ({"taints": [{"key": "x", "effect": "NoSchedule"}]}, {}, False),
        ({"taints": [{"key": "x", "effect": "PreferNoSchedule"}]}, {}, True),
        (
            {"taints": [{"key": "x", "value": "1", "effect": "NoExecute"}]},
            {"tolerations": [{"key": "x", "operator": "Exists"}]},
            True,
        ),
        (
            {"taints": [{"key": "x", "value": "1", "effect": "NoSchedule"}]},
            {"tolerations": [{"key": "x", "value": "2"}]},
            False,
        ),
        ({"labels": {"pool": "t"}}, {"node_selector": {"pool": "t"}}, True),
        ({"labels": {"pool": "s"}}, {"node_selector": {"pool": "t"}}, False),
        (
            {"labels": {"pool": "s"}},
            {"job_patch": {"spec": {"template": {"spec": {"nodeSelector": {"pool": "t"}}}}}},
            False,
        ),
        ({"taints": [GPU_TAINT]}, {}, False),
    ],
)
def test_machines_on_which_no_pod_may_run(
    api: ApiStub, client: ClusterClient, more: Any, settings: Any, fits: bool
) -> None:
    serve(api, [node("a", **more)], [])
    assert len(read(client, **settings)) == int(fits)


def test_a_cordoned_machine_with_a_job(api: ApiStub, client: ClusterClient) -> None:
    serve(api, [node("a", unschedulable=True)], [pod("a", "8", job="abc1234")])
    assert read(client) == (PodHost({}, {}, {"abc1234": 1}),)


@pytest.mark.parametrize(
    ("labels", "settings", "gpu_type"),
    [
        ({PRODUCT: "NVIDIA-H100-80GB-HBM3"}, {}, "H100"),
        ({PRODUCT: "NVIDIA-A100-SXM4-40GB"}, {}, "A100_40GB"),
        ({}, {}, "GPU"),
        ({"gpu": "big"}, {"accelerator_selectors": {"H200": {"gpu": "big"}}}, "H200"),
        ({"gpu": "old"}, {"accelerator_selectors": {"H200": {"gpu": "big"}}}, "GPU"),
    ],
)
def test_the_type_of_gpus(
    api: ApiStub, client: ClusterClient, labels: Any, settings: Any, gpu_type: str
) -> None:
    mine = pod("a", "1", **{"nvidia.com_gpu": "3"})
    serve(api, [node("a", gpus=8, labels=labels, taints=[GPU_TAINT])], [mine])
    (found,) = read(client, **settings)
    assert (found.total[gpu_type], found.free[gpu_type], found.for_gpus) == (8, 5, True)


def test_gpus_of_another_device_plugin(api: ApiStub, client: ClusterClient) -> None:
    machine = node("a")
    machine["status"]["allocatable"]["amd.com/gpu"] = "4"
    serve(api, [machine], [pod("a", "1", **{"amd.com_gpu": "1"})])
    (found,) = read(client, gpu_resources={"MI300X": "amd.com/gpu"})
    assert (found.total["MI300X"], found.free["MI300X"]) == (4, 3)


def test_pod_level_requests_replace_those_of_containers() -> None:
    containers = [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]
    whole = {"requests": {"cpu": "3"}}
    requests = sum_requests({"containers": containers, "resources": whole})
    assert requests == {"cpu": 3000, "memory": 1000 * GIB}


def test_a_machine_that_reports_nothing_and_one_with_too_much(
    api: ApiStub, client: ClusterClient
) -> None:
    silent, broken = node("silent"), node("broken", gpus=7)
    del silent["status"]["allocatable"]
    eight = pod("broken")
    eight["spec"]["containers"][0]["resources"]["requests"]["nvidia.com/gpu"] = "8"
    serve(api, [silent, broken], [eight])
    assert [one.free.get("GPU", 0) for one in read(client)] == [0, 0]


def test_requests_of_init_containers_and_overhead() -> None:
    def container(cpu: str, **more: str) -> Any:
        return {"resources": {"requests": {"cpu": cpu}}, **more}

    spec: Any = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("4"), container("250m", restartPolicy="Always")],
    }
    assert sum_requests(spec) == {"cpu": 4000}
    assert sum_requests({**spec, "overhead": {"cpu": "250m", "memory": "1Gi"}}) == {
        "cpu": 4250,
        "memory": 1000 * GIB,
    }
    del spec["initContainers"][0]
    assert sum_requests(spec) == {"cpu": 1750}


def test_a_pod_requests_what_its_job_is_patched_to() -> None:
    resources = Resources(cpus=8, memory=GIB, gpus=1, gpu_type="H100")
    assert measure_pod(resources, ClusterSettings()) == (8100, GIB + 256 * 1024**2)
    small = [{"name": "agent", "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}}}]
    patch = {"spec": {"template": {"spec": {"containers": small}}}}
    assert measure_pod(resources, ClusterSettings(job_patch=patch)) == (8500, 2 * GIB)


def test_a_user_without_the_right_to_list_nodes(api: ApiStub, client: ClusterClient) -> None:
    said = 'nodes is forbidden: User "u" cannot list resource "nodes" at the cluster scope'
    api.on("GET nodes", answer(403, {"kind": "Status", "message": said, "code": 403}))
    with pytest.raises(ClusterError, match="did not list the nodes of the cluster: nodes is"):
        read(client)
