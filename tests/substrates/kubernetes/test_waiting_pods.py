"""How long a gang waits for pods that do not start, and what it shows meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_bt.attempts.failure_causes import diagnose_node
from prefect_bt.ledger.records import Cause, FailureClass, NodePhase
from prefect_bt.substrates.kubernetes.pods.pod_states import read_pod
from prefect_bt.substrates.kubernetes.pods.waiting_message import WAITING_INTERVAL, WaitingMessage
from tests.cluster.recordings import recorded

from .api_stub import ApiStub, answer
from .gang_site import GangSite, OpenSite
from .recordings import pod_object

ACCEPTED = {"phase": "Pending", "startTime": "2026-11-25T22:31:44Z"}
CREATING = recorded("pods")["statuses"]["novolume"]
"""A status whose container waits with ContainerCreating, as during the pull of an image."""
BOUND = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]}
"""A machine was chosen, whose kubelet has not written a status."""

READY = {"type": "PodReadyToStartContainers", "status": "True"}
NAME = pod_object({})["metadata"]["name"]
NO_VOLUME = 'MountVolume.SetUp failed for volume "config" : configmap "config" not found'


def warning(
    message: str, *, reason: str = "FailedMount", pod: str = NAME, at: int = 1
) -> dict[str, Any]:
    return {
        "type": "Warning",
        "reason": reason,
        "message": message,
        "involvedObject": {"kind": "Pod", "name": pod},
        "lastTimestamp": f"2026-01-01T00:00:{at:02d}Z",
    }


def waiting(reason: str, message: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"name": "commands", "image": "r/x:1", "state": state}


def follow(site: GangSite, seconds: float = 30.0, *, step: float = 2.0) -> list[str]:
    """Observe the node again and again; return what the log shows: each change of the reason."""
    shown: list[str] = []
    end = site.now + seconds
    while site.now < end:
        text = site.gang.observe(0).waiting
        if text and text != (shown or [""])[-1]:
            shown.append(text)
        site.now += step
    return shown


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_bt.substrates.kubernetes.gang_watch.REASON_INTERVAL", 0.0)


def test_a_rank_that_starts_while_the_reason_is_published_is_no_error(
    open_site: OpenSite,
) -> None:
    class Messages(dict[int, WaitingMessage]):
        """As if another thread saw each rank start in the moment before it is looked up."""

        def __getitem__(self, rank: int) -> WaitingMessage:
            self.pop(rank, None)
            return super().__getitem__(rank)

    gang = open_site(BOUND).gang
    gang._messages = Messages({0: WaitingMessage()})
    gang._publish_waiting()


def test_a_pod_that_no_kubelet_accepts_fails_after_the_patience(open_site: OpenSite) -> None:
    site = open_site(BOUND)
    site.gang.observe(0)
    site.now += 59.0
    what = "the kubelet of its machine node-1 has not accepted it"
    assert site.gang.observe(0).waiting == what
    site.now += 2.0
    status = site.gang.observe(0)
    assert (status.phase, status.cause, status.reason) == (
        NodePhase.DONE,
        Cause.LAUNCH_FAILED,
        what,
    )
    assert diagnose_node(status).failure_class is FailureClass.INFRASTRUCTURE


@pytest.mark.parametrize("pod", [ACCEPTED, CREATING])
def test_a_large_image_may_be_pulled_for_longer_than_the_patience(
    api: ApiStub, open_site: OpenSite, pod: dict[str, Any]
) -> None:
    api.on("GET events", answer(200, {"items": []}))
    site = open_site(pod)
    site.gang.observe(0)
    for _ in range(3):
        site.now += 61.0
        status = site.gang.observe(0)
        assert status.phase is NodePhase.LAUNCHED
        assert "being created on node-1" in status.waiting


@pytest.mark.parametrize(
    "reason", ["FailedMount", "FailedCreatePodSandBox", "FailedAttachVolume", "NetworkNotReady"]
)
def test_a_warning_is_shown_at_once_and_falls_under_the_patience(
    api: ApiStub, open_site: OpenSite, reason: str
) -> None:
    other = warning("of the pod of another job", pod="other-0-abcde", at=9)
    api.on("GET events", answer(200, {"items": [warning(NO_VOLUME, reason=reason), other]}))
    site = open_site(CREATING)
    assert follow(site, WAITING_INTERVAL + 2.0) == [NO_VOLUME]
    assert site.objects.read_waiting() == f"rank 0: {NO_VOLUME}"
    api.on("GET events", answer(500))
    site.now += 54.0
    status = site.gang.observe(0)
    assert (status.cause, status.reason) == (Cause.LAUNCH_FAILED, NO_VOLUME)


def test_the_warnings_of_all_pods_are_one_request(
    api: ApiStub, open_site: OpenSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_bt.substrates.kubernetes.gang_watch.REASON_INTERVAL", 5.0)
    api.on("GET events", answer(200, {"items": [warning(NO_VOLUME)]}))
    site = open_site(CREATING)
    follow(site)
    queries = [one.query for one in api.requests if one.path.endswith("/events")]
    assert [set(query["fieldSelector"].split(",")) for query in queries] == [
        {"type=Warning", "involvedObject.kind=Pod"}
    ]


@pytest.mark.parametrize(
    ("reason", "conditions"),
    [
        ("FailedMount", [READY]),
        ("FailedScheduling", []),
        ("MissingClusterDNS", []),
        ("DNSConfigForming", []),
        ("VolumePermissionChangeInProgress", []),
    ],
)
def test_a_warning_that_is_over_or_harmless_is_not_shown(
    api: ApiStub, open_site: OpenSite, reason: str, conditions: list[dict[str, str]]
) -> None:
    """Volumes are mounted before the pod is ready to start containers: then images are pulled."""
    api.on("GET events", answer(200, {"items": [warning(NO_VOLUME, reason=reason)]}))
    site = open_site({**ACCEPTED, "conditions": conditions})
    assert follow(site, 90.0, step=10.0) == ["its containers are being created on node-1"]


def test_a_warning_of_a_pod_that_starts_soon_is_not_asked_for(
    api: ApiStub, open_site: OpenSite
) -> None:
    site = open_site(CREATING)
    follow(site, WAITING_INTERVAL - 1.0)
    assert not [one for one in api.requests if one.path.endswith("/events")]


SANDBOX = (
    "Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for "
    'sandbox "{}": plugin type="calico" failed (add): error getting ClusterInformation'
)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (SANDBOX, ("9f3c" * 16, "01ab" * 16, "77e0" * 16)),
        ("lookup of pod {} failed", ("gang-0-0-x7k2p", "gang-0-0-b4d9z", "gang-0-0-22222")),
        (
            'name "gang_default_{}" is reserved',
            (f"{'5c8ce0a5-3a0b-4d53-9d0b-3f6a6c2a4f1'}{n}_{n}" for n in range(3)),
        ),
        ("back-off {} restarting", ("10s", "1m20s", "2m40s")),
        ("attempt {} of 5 failed", ("1", "2", "3")),
        (
            "read tcp 10.0.0.7:{}->10.0.0.1:443: connection reset by peer",
            ("43512", "51188", "60001"),
        ),
        ("at {}: no route", ("2026-11-28T17:52:28Z", "2026-11-28T17:52:33.25Z")),
    ],
)
def test_a_message_that_differs_in_what_changes_is_shown_once(
    api: ApiStub, open_site: OpenSite, text: str, values: tuple[str, ...]
) -> None:
    messages = [text.format(value) for value in values]
    sites = [
        answer(200, {"items": [warning(message, at=n) for n, message in enumerate(messages[:k])]})
        for k in range(1, len(messages) + 1)
    ]
    api.on("GET events", *sites)
    site = open_site(CREATING)
    assert follow(site) == messages[:1]


@pytest.mark.parametrize(
    "messages",
    [
        [NO_VOLUME, NO_VOLUME.replace("config", "config-2"), SANDBOX],
        ['configmap "a1" not found', 'configmap "a2" not found'],
        ['secret "x" not found', 'configmap "x" not found'],
    ],
)
def test_warnings_of_different_kinds_are_shown_in_turn_once_each(
    api: ApiStub, open_site: OpenSite, messages: list[str]
) -> None:
    """Also when the kubelet repeats each of them again and again."""
    events = [warning(message, at=n) for n, message in enumerate(messages)]
    api.on(
        "GET events",
        *(answer(200, {"items": events if n % 2 else events[::-1]}) for n in range(12)),
    )
    site = open_site(CREATING)
    assert follow(site) == messages


def test_a_warning_without_a_reason_gives_way_to_one_with_a_reason(
    api: ApiStub, open_site: OpenSite
) -> None:
    late = "Unable to attach or mount volumes: unmounted volumes=[x]: context deadline exceeded"
    api.on("GET events", answer(200, {"items": [warning(NO_VOLUME), warning(late, at=9)]}))
    site = open_site(CREATING)
    assert follow(site, 60.0, step=6.0) == [NO_VOLUME]
    assert site.gang.observe(0).reason == NO_VOLUME


def test_a_pull_that_is_tried_again_is_shown_once(api: ApiStub, open_site: OpenSite) -> None:
    """The kubelet alternates between the error and its back-off, which quotes the error."""
    error = 'failed to pull and unpack image "r/x:1": connection refused'
    states = {
        "ErrImagePull": error,
        "ImagePullBackOff": f'Back-off pulling image "r/x:1": ErrImagePull: {error}',
    }
    pods = [
        read_pod(pod_object({"phase": "Pending", "containerStatuses": [waiting(*state)]}))
        for state in states.items()
    ]
    site = open_site(CREATING)
    site.gang.watch.find = lambda rank: pods[int(site.now) // 6 % 2]
    assert len(follow(site, 50.0, step=6.0)) == 1


def not_root(what: str) -> str:
    return f'{what} (pod: "gang-0-0-x7k2p_rec(ec5b3f8f)", container: commands)'


@pytest.mark.parametrize(
    "message",
    [
        not_root("container has runAsNonRoot and image will run as root"),
        not_root("container's runAsUser breaks non-root policy"),
        not_root("container has runAsNonRoot and image has non-numeric user (app), cannot verify"),
    ],
)
def test_a_container_that_may_not_be_root_fails_at_once_with_the_cure(
    open_site: OpenSite, message: str
) -> None:
    containers = [waiting("CreateContainerConfigError", message)]
    site = open_site({"phase": "Pending", "containerStatuses": containers})
    status = site.gang.observe(0)
    assert (status.phase, status.cause) == (NodePhase.DONE, Cause.CONFIGURATION)
    assert status.reason.startswith(message)
    assert "run_as_user" in status.reason


@pytest.mark.parametrize(
    "message",
    [
        'secret "x" not found',
        'configmap "x" not found',
        "couldn't find key a in ConfigMap rec/x",
        "failed to sync configmap cache: timed out waiting for the condition",
    ],
)
def test_a_reference_that_may_be_created_meanwhile_has_the_patience(
    open_site: OpenSite, message: str
) -> None:
    containers = [waiting("CreateContainerConfigError", message)]
    site = open_site({"phase": "Pending", "containerStatuses": containers})
    assert follow(site, 60.0, step=6.0) == [message]
    assert site.gang.observe(0).cause is Cause.CONFIGURATION


def creations(text: str, count: int) -> list[dict[str, Any]]:
    """Return the events of a Job whose pods are refused; each names a pod of its own."""
    return [
        {
            "type": "Warning",
            "reason": "FailedCreate",
            "message": "Error creating: " + text.format(f"gang-0-{end}"),
            "involvedObject": {"kind": "Job", "name": "gang"},
            "lastTimestamp": f"2026-01-01T00:00:{n:02d}Z",
        }
        for n, end in enumerate(["x7k2p", "b4d9z", "22222"][:count])
    ]


POD_SECURITY = (
    'pods "{}" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true (pod '
    'or container "commands" must set securityContext.runAsNonRoot=true)'
)
DENIED = 'admission webhook "policy.example.com" denied the request: pod {} has no owner'
POLICY = "pods \"{}\" is forbidden: ValidatingAdmissionPolicy 'p' denied request: no owner"
QUOTA = 'pods "{}" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1'
WEBHOOK_DOWN = (
    'Internal error occurred: failed calling webhook "policy.example.com": failed to call webhook: '
    'Post "https://policy.rec.svc:443/check?timeout=10s": dial tcp: connection refused'
)


@pytest.mark.parametrize(
    ("text", "count", "cure"),
    [
        (POD_SECURITY, 2, "Set run_as_user to a user other than root"),
        (DENIED, 2, "Change what the message names"),
        (POLICY, 3, "Change what the message names"),
        (POD_SECURITY, 1, ""),
        (DENIED, 1, ""),
        (QUOTA, 3, ""),
        (WEBHOOK_DOWN, 3, ""),
    ],
)
def test_pods_that_the_cluster_refuses_twice_for_what_they_are_fail_at_once(
    api: ApiStub, open_site: OpenSite, text: str, count: int, cure: str
) -> None:
    """A quota becomes free, and a webhook may answer again."""
    api.on("GET events", answer(200, {"items": creations(text, count)}))
    api.on("GET gang", answer(200, {"spec": {}}))
    site = open_site(None)
    status = site.gang.observe(0)
    assert status.is_over is bool(cure)
    if cure:
        assert status.cause is Cause.ADMISSION_DENIED
        assert cure in status.reason
    else:
        assert len(follow(site, 60.0, step=6.0)) == 1


def test_refused_pods_with_random_names_are_shown_once(api: ApiStub, open_site: OpenSite) -> None:
    rising = [answer(200, {"items": creations(QUOTA, n)}) for n in (1, 2, 3)]
    api.on("GET events", *rising)
    api.on("GET gang", answer(200, {"spec": {}}))
    site = open_site(None)
    assert len(follow(site)) == 1
