"""The labels by which automations tell events apart, and how often commits refresh the card."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_bt.flows.tasks.reporting import upload_progress
from prefect_bt.flows.tasks.reporting.report import transition_labels
from prefect_bt.ledger.records import Cause, FailureClass, JobEvent, Outcome
from prefect_bt.ledger.states import JobState as S

BEGIN = [JobEvent(S.PENDING, 0), JobEvent(S.CREATED, 1)]
ATTEMPT = [*BEGIN, JobEvent(S.DEPLOYING, 2, attempt=0), JobEvent(S.RUNNING, 3, attempt=0)]
FAILED = [*ATTEMPT, JobEvent(S.FAILED, 4)]
FAILURE = {"failure-class": "infrastructure", "cause": "node_lost"}
SAVED = {"checkpoint": "checkpoint-20", "step": 20}
LOST = Outcome(
    0,
    S.FAILED,
    failure=FailureClass.INFRASTRUCTURE,
    cause=Cause.NODE_LOST,
    newest_checkpoint="p/j/manifests/rank-0/checkpoint-20/0000-0001.json",
)


@pytest.mark.parametrize(
    ("events", "outcomes", "labels"),
    [
        (BEGIN, [], {"attempt": None, "retry": ""}),
        (ATTEMPT, [], {"attempt": 0, "retry": ""}),
        (FAILED, [LOST], {"attempt": 0, "retry": "", **SAVED, **FAILURE}),
        (
            [*ATTEMPT, JobEvent(S.CREATED, 4, attempt=0)],
            [LOST],
            {"attempt": 0, "retry": "policy", **SAVED, **FAILURE},
        ),
        (
            [*ATTEMPT, JobEvent(S.CREATED, 4, attempt=0), JobEvent(S.DEPLOYING, 5, attempt=1)],
            [LOST],
            {"attempt": 1, "retry": "policy", **SAVED},
        ),
        (
            [*FAILED, JobEvent(S.CREATED, 5)],
            [LOST],
            {"attempt": 0, "retry": "manual", **SAVED, **FAILURE},
        ),
        (  # it failed before another attempt began: not what the last one failed of
            [*FAILED, JobEvent(S.CREATED, 5), JobEvent(S.FAILED, 6)],
            [LOST],
            {"attempt": 0, "retry": "manual", **SAVED},
        ),
        ([*ATTEMPT[:3], JobEvent(S.CREATED, 4)], [], {"attempt": None, "retry": "crash"}),
    ],
)
def test_labels(events: list[JobEvent], outcomes: list[Outcome], labels: dict[str, Any]) -> None:
    assert transition_labels(events, outcomes) == labels


def test_commits_refresh_the_card_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a minute for a month: within the budget of requests, and each commit is an event."""
    now, refreshed, reported = 0.0, list[float](), list[str]()
    monkeypatch.setattr(upload_progress, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(upload_progress, "get_run_logger", lambda: logging.getLogger("none"))
    monkeypatch.setattr(upload_progress, "publish_job_card", lambda _: refreshed.append(now))
    monkeypatch.setattr(
        upload_progress, "report_commit", lambda _, **given: reported.append(given["name"])
    )
    site: Any = SimpleNamespace(
        record=SimpleNamespace(id="j", project_id="p"), ledger=SimpleNamespace(store=None)
    )
    reporter = upload_progress.UploadProgressReporter(site, 0)
    names = list[str]()
    upload: Any = SimpleNamespace(
        rank=0, status=SimpleNamespace(committed=names, trouble="", bytes_done=0, bytes_total=0)
    )
    monkeypatch.setattr(upload_progress, "format_upload", lambda _: "")
    monkeypatch.setattr(reporter, "_uploads", SimpleNamespace(read=lambda: [upload]))
    for minute in range(1, 30 * 24 * 60):
        now = minute * 60.0
        names.append(f"checkpoint-{minute}")
        reporter.poll()
    assert reported == names
    assert len([at for at in refreshed if at <= 3600]) == 9
    assert len(refreshed) == 18
