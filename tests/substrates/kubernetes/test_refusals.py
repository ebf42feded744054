"""What an API server refuses, as causes."""

from __future__ import annotations

import pytest

from prefect_bt.ledger.records import Cause
from prefect_bt.substrates.kubernetes.refusals import classify_refusal
from tests.cluster.recordings import recorded

RECORDED = {
    Cause.FORBIDDEN: "forbidden_create_job forbidden_get forbidden_list forbidden_watch "
    "forbidden_deletecollection forbidden_all_namespaces unauthorized",
    Cause.QUOTA_EXCEEDED: "quota_exceeded quota_gpu quota_jobs quota_two quota_must_specify",
    Cause.CONFIGURATION: "no_priority_class no_account namespace_not_found strict_unknown_field "
    "wrong_type invalid_job_name invalid_label policy_container mount_of_nothing bad_quantity "
    "request_over_limit gpu_without_limit secret_key",
    Cause.LAUNCH_FAILED: "already_exists conflict not_found_job unknown_path",
}


@pytest.mark.parametrize(
    ("cause", "name"),
    [(cause, name) for cause, names in RECORDED.items() for name in names.split()],
)
def test_a_recorded_refusal(cause: Cause, name: str) -> None:
    said = recorded("errors")[name]
    refusal = classify_refusal(said["body"]["message"], said["code"])
    assert refusal.cause is cause
    assert refusal.remedy.endswith(".")


@pytest.mark.parametrize(
    ("message", "cause", "remedy"),
    [
        (
            'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true',
            Cause.ADMISSION_DENIED,
            "run_as_user",
        ),
        (
            'admission webhook "validate.kyverno.svc-fail" denied the request: no latest tag',
            Cause.ADMISSION_DENIED,
            "what the message names",
        ),
        (
            'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi',
            Cause.ADMISSION_DENIED,
            "what the message names",
        ),
        (
            'jobs.batch "x" is forbidden: unable to create new content in namespace a because it '
            "is being terminated",
            Cause.ADMISSION_DENIED,
            "what the message names",
        ),
        (
            'Pod "x" is invalid: spec.containers[1].resources.requests: Invalid value: "2Gi": must '
            "be less than or equal to memory limit of 512Mi",
            Cause.CONFIGURATION,
            "LimitRange",
        ),
    ],
)
def test_messages_of_admission(message: str, cause: Cause, remedy: str) -> None:
    refusal = classify_refusal(message, 403)
    assert refusal.cause is cause
    assert remedy in refusal.remedy


def test_a_failed_quota_has_a_remedy() -> None:
    message = recorded("errors")["quota_must_specify"]["body"]["message"]
    assert "enforce_limits" in classify_refusal(message, 403).remedy
    assert "enforce_limits" not in classify_refusal("exceeded quota: q", 403).remedy


@pytest.mark.parametrize("status", [0, 409, 500, 503])
def test_what_nobody_has_heard_of_is_tried_again(status: int) -> None:
    assert classify_refusal("the stars are wrong", status).cause is Cause.LAUNCH_FAILED
    assert classify_refusal("", status).cause is Cause.LAUNCH_FAILED


def test_events_of_a_job_are_refusals_too() -> None:
    [event] = recorded("failed_create")["events"][:1]
    assert classify_refusal(event["message"]).cause is Cause.QUOTA_EXCEEDED
