"""The keys of a job's document that come from its metrics."""

import json
import math

from prefect_bt.job_metrics.node_metrics import NodeMetrics, TrainingPoint
from prefect_bt.jobs.metrics.run_summary import format_training, run_summary
from tests.cli.conftest import ENDED, Shop


def test_a_loss_that_is_not_finite_is_null_in_json(tmp_path, monkeypatch) -> None:
    shop = Shop(str(tmp_path / "store"))
    job = shop.job("tiny", *ENDED)
    node = NodeMetrics(
        0,
        0,
        training=[
            TrainingPoint(1.0, 1, {"loss": 2.0, "lr": 0.1}),
            TrainingPoint(2.0, 2, {"loss": math.nan}),
        ],
    )
    monkeypatch.setattr(
        "prefect_bt.job_metrics.job_metrics.JobMetricsReader._read_attempt",
        lambda *_, **__: [node],
    )
    shop.ledger.begin_attempt(job.id)
    training = run_summary(shop.ledger, job, None)["training"]
    assert training["values"] == {"loss": None, "lr": 0.1}
    json.dumps(training, allow_nan=False)
    assert format_training(training) == "step 2, loss nan, lr 0.1"
