"""What pods of real clusters say, as causes."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_bt.substrates.kubernetes.pods.pod_states import read_pod
from tests.cluster.recordings import recorded

from .recordings import pod_object, recorded_pod


def state(name: str, *, image: str = "team/train:1", **given: object) -> dict[str, Any]:
    return {"name": name, "image": image, "state": given}


def pending(reason: str, message: str = "", name: str = "commands") -> dict[str, Any]:
    waiting = {"reason": reason, **({"message": message} if message else {})}
    return pod_object({"phase": "Pending", "containerStatuses": [state(name, waiting=waiting)]})


def disrupted(reason: str, message: str = "", **more: object) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return pod_object({"phase": "Running", "conditions": [condition]}, **more)


@pytest.mark.parametrize(
    ("name", "cause", "says"),
    [
        ("gpu", "unschedulable", "1 Insufficient nvidia.com/gpu"),
        ("selector", "unschedulable", "didn't match Pod's node affinity/selector"),
        ("never", "image_not_found", "is not present with pull policy of Never"),
        ("nokey", "configuration", 'secret "nosecret" not found'),
        ("root", "configuration", "image will run as root"),
        ("pull", "registry_unreachable", "connection refused"),
        ("novolume", "launch_failed", "its containers are being created on node-1"),
    ],
)
def test_a_recorded_pod_that_does_not_start(name: str, cause: str, says: str) -> None:
    view = read_pod(recorded_pod(name, a="commands"))
    assert view.blocked is not None
    assert view.blocked.cause == cause
    assert says in view.blocked.message
    assert not view.blocked.message.endswith(".")
    assert (view.rank, view.has_started, view.has_ended, view.failure) == (0, False, False, None)


def test_recorded_pods_that_ended() -> None:
    ended = {
        name: read_pod(recorded_pod(name, a="commands", i="weights"))
        for name in ("ok", "oom", "nocmd", "init")
    }
    assert {view.has_ended for view in ended.values()} == {True}
    assert {view.blocked for view in ended.values()} == {None}
    assert ended["ok"].failure is None
    assert ended["oom"].failure.cause == "out_of_memory"
    assert ended["nocmd"].failure.cause == "image_unusable"
    assert "/nothing: no such file or directory" in ended["nocmd"].failure.message
    assert ended["init"].failure.cause == "node_lost", "of our own container"
    assert "'weights' ended with" in ended["init"].failure.message
    assert ended["init"].has_started


def test_the_end_of_the_agent_by_itself_is_no_fault_of_the_commands() -> None:
    view = read_pod(recorded_pod("oom", a="agent"))
    assert (view.has_started, view.failure.cause) == (True, "node_lost")
    assert view.failure.message == "the container 'agent' was killed for lack of memory"


def test_an_agent_that_ended_is_no_running_node() -> None:
    """Its pod goes on while the commands or a sidecar of the cluster run."""
    log = "step 1\nstep 2\nTraceback: no module named prefect_bt"
    ended = {"exitCode": 1, "reason": "Error", "message": log}
    runs = [state("commands", running={}), state("istio-proxy", running={})]
    statuses = [state("agent", image="team/agent:1", terminated=ended), *runs]
    view = read_pod(pod_object({"phase": "Running", "containerStatuses": statuses}))
    assert (view.agent_ended, view.has_ended, view.failure.cause) == (True, False, "node_lost")
    assert view.failure.message.endswith("ended with 1: Traceback: no module named prefect_bt")
    ended["message"] = "1795660905374799970 a line of the job"
    view = read_pod(pod_object({"phase": "Running", "containerStatuses": statuses}))
    assert view.failure.message == "the container 'agent' ended with 1"
    ended |= {"reason": "StartError", "message": "no python"}
    view = read_pod(pod_object({"phase": "Running", "containerStatuses": statuses}))
    assert view.failure.cause == "configuration"
    assert "prefect-bt's own image 'team/agent:1' cannot be used" in view.failure.message


def test_a_container_that_the_cluster_added_is_named() -> None:
    blocked = read_pod(pending("ErrImagePull", "not found", name="istio-proxy")).blocked
    assert (blocked.cause, blocked.message) == (
        "image_not_found",
        "the container 'istio-proxy': not found",
    )


def test_a_new_pod_is_being_scheduled() -> None:
    pod = recorded("job_life")["first_pod"]
    view = read_pod(pod)
    assert (view.name, view.rank, view.has_started) == ("life-0-rs57f", 0, False)
    assert view.blocked.message == "it is being scheduled"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "the kubelet of its machine node-1 has not accepted it"),
        ({"startTime": "2026-11-25T22:31:44Z"}, "its containers are being created on node-1"),
        (
            {"containerStatuses": [state("commands", waiting={"reason": "ContainerCreating"})]},
            "its containers are being created on node-1",
        ),
    ],
)
def test_a_pod_with_a_machine_that_accepted_it_or_did_not(
    status: dict[str, Any], message: str
) -> None:
    view = read_pod(pod_object({"phase": "Pending", **status}))
    assert (view.blocked.cause, view.blocked.message) == ("launch_failed", message)
    assert view.is_creating is bool(status)


PULL = 'failed to pull and unpack image "ghcr.io/team/train:1": '


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (f"{PULL}failed to resolve reference: ghcr.io/team/train:1: not found", "image_not_found"),
        ("manifest unknown", "image_not_found"),
        (f"{PULL}unexpected status from HEAD request: 401 Unauthorized", "registry_refused"),
        (f"{PULL}failed to authorize: failed to fetch anonymous token: 403", "registry_refused"),
        ("dial tcp: lookup ghcr.io on 10.96.0.10:53: no such host", "registry_unreachable"),
        ("dial tcp 10.0.0.1:443: i/o timeout", "registry_unreachable"),
        ("write /var/lib/containerd/x: no space left on device", "image_pull_failed"),
        ("", "image_pull_failed"),
    ],
)
@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_an_image_that_is_not_pulled(reason: str, message: str, cause: str) -> None:
    blocked = read_pod(pending(reason, message)).blocked
    assert (blocked.cause, blocked.message) == (cause, message or reason)


def test_our_own_image_is_not_taken_for_the_jobs() -> None:
    blocked = read_pod(pending("ErrImagePull", "not found", name="agent")).blocked
    assert blocked.cause == "configuration"
    assert "prefect-bt's own image 'team/train:1'" in blocked.message
    assert "agent_image" in blocked.message


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("CreateContainerError", "launch_failed"),
        ("RunContainerError", "image_unusable"),
        ("InvalidImageName", "configuration"),
        ("ContainerCreating", "launch_failed"),
        ("PodInitializing", "launch_failed"),
        ("SomethingNew", "launch_failed"),
    ],
)
def test_other_reasons_to_wait(reason: str, cause: str) -> None:
    assert read_pod(pending(reason)).blocked.cause == cause


@pytest.mark.parametrize(
    ("reason", "cause", "given_up"),
    [
        ("PreemptionByScheduler", "preempted", False),
        ("EvictionByEvictionAPI", "evicted", False),
        ("TerminationByKubelet", "evicted", False),
        ("DeletionByTaintManager", "node_lost", True),
        ("DeletionByPodGC", "node_lost", True),
        ("SomethingNew", "evicted", False),
    ],
)
def test_disruptions(reason: str, cause: str, given_up: bool) -> None:
    view = read_pod(disrupted(reason, "because of it."))
    assert (view.failure.cause, view.has_ended) == (cause, False)
    assert view.failure.message == "because of it (machine node-1)"
    deleted = read_pod(disrupted(reason, deletionTimestamp="2026-11-25T22:31:45Z"))
    assert deleted.has_ended is given_up, "its kubelet does not answer, so that it stays for ever"
    assert deleted.failure.message.startswith(reason)


@pytest.mark.parametrize(
    ("reason", "message", "cause"),
    [
        ("Evicted", "The node was low on resource: ephemeral-storage. ", "evicted"),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", "preempted"),
        ("NodeLost", "Node node-1 which was running pod x is unresponsive", "node_lost"),
        ("OutOfcpu", "Node didn't have enough resource: cpu", "capacity_missing"),
        (
            "UnexpectedAdmissionError",
            "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices "
            "nvidia.com/gpu, which is unexpected",
            "capacity_missing",
        ),
    ],
)
def test_reasons_of_a_whole_pod(reason: str, message: str, cause: str) -> None:
    view = read_pod(pod_object({"phase": "Failed", "reason": reason, "message": message}))
    assert (view.has_ended, view.failure.cause) == (True, cause)
    assert view.failure.message == message.strip().rstrip(".")


def test_a_running_pod_has_no_problem() -> None:
    running = {"startedAt": "2026-11-25T22:31:45Z"}
    statuses = [state("agent", running=running), state("commands", running=running)]
    view = read_pod(pod_object({"phase": "Running", "containerStatuses": statuses}, rank=3))
    assert (view.rank, view.has_started, view.has_ended) == (3, True, False)
    assert (view.blocked, view.failure) == (None, None)
    staging = [state("weights", running=running)]
    view = read_pod(pod_object({"phase": "Pending", "initContainerStatuses": staging}))
    assert view.has_started, "its init container publishes a status, too"


def test_a_pod_without_a_status_is_read() -> None:
    view = read_pod({"metadata": {"name": "x"}})
    assert (view.rank, view.has_started, view.has_ended, view.blocked) == (-1, False, False, None)
