"""`prefect_bt.metrics`."""

import sys
from pathlib import Path

import pytest

import prefect_bt
from prefect_bt.errors import NotFoundError
from prefect_bt.jobs.metrics.view import JobMetricsView
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from tests.job_metrics.node_files import archive, write_node_file
from tests.jobs.records import new_record, small_project
from tests.written_jobs import write_job


@pytest.fixture
def view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobMetricsView:
    """The metrics of a running job in its second attempt."""
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(open_store(str(tmp_path / "store")))
    record = new_record(ledger, small_project("tiny"))
    write_job(ledger, record, state=JobState.RUNNING)
    for start in (1_000_000_000.0, 1_000_000_500.0):
        attempt = ledger.begin_attempt(record.id)
        write_node_file(tmp_path / str(attempt), start=start, samples=10)
        archive(ledger, record, tmp_path / str(attempt), attempt=attempt)
    return prefect_bt.metrics(record.id)


def test_series_of_trainer_and_node_have_both_attempts(view: JobMetricsView):
    assert [sample.attempt for sample in view.series("loss")] == [0] * 10 + [1] * 10
    assert [sample.at for sample in view.series("cpu")][9:11] == [1_000_000_045.0, 1_000_000_500.0]
    assert view.names == ["loss", "learning_rate", "grad_norm", "step_time"]
    assert len(view.nodes) == 2
    assert view.document()["training_job"]["current_status"] == "TRAINING_JOB_RUNNING"


def test_unknown_series_names_those_there_are(view: JobMetricsView):
    with pytest.raises(KeyError, match=r"loss, .*cpu"):
        view.series("nothing")


@pytest.mark.slow
def test_notebook_shows_a_picture_or_a_text(view: JobMetricsView, monkeypatch: pytest.MonkeyPatch):
    assert view.plot().axes
    assert view._repr_svg_().startswith("<?xml") and view._repr_html_() is None

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert view._repr_svg_() is None
    assert "prefect-bt[pictures]" in (view._repr_html_() or "")
    assert "loss" in repr(view)


def test_unknown_job_is_reported(view: JobMetricsView):
    with pytest.raises(NotFoundError):
        prefect_bt.metrics("zzzzzzz")
