"""The job's card, compared with a golden text."""

from pathlib import Path
from typing import Any

from prefect_bt.flows.tasks.reporting.job_card import render_card

GOLDEN = Path(__file__).parents[1] / "golden" / "flows" / "job_card.md"

DOCUMENT: dict[str, Any] = {
    "id": "k4x7q2m",
    "name": "warm|cosine",
    "current_status": "TRAINING_JOB_FAILED",
    "error_message": "Rank 1 failed first: start command 1 exited with 3.\nNo further attempt.",
    "instance_type": {"name": "2 nodes: 8 x H200, 64 vCPU, 512 GiB"},
    "node_count": 2,
    "training_project": {"name": "tiny-lm"},
    "substrate": "docker",
    "store": "s3://bucket/training",
    "flow_run_url": "http://127.0.0.1:4200/runs/flow-run/1",
    "resources": {"summary": "8 x H200, 64 vCPU, 512 GiB"},
    "warnings": ["Rank 1 ended a process | and another."],
    "advice": [{"kind": "disk", "rank": 0, "text": "The disk of rank 0 | is nearly full."}],
    "training": {"step": 40, "values": {"loss": 1.25, "lr": 1e-4}, "at": "", "curve": "█▄▁"},
    "goodput": {
        "wall_clock": 1200.0,
        "kept_fraction": 0.75,
        "seconds": {"queued": 60.0, "training": 900.0, "lost": 240.0, "retry_delay": 0.0},
        "lost_steps": 12,
        "phases": [],
    },
    "attempts": [
        {
            "attempt": 0,
            "status": "failed",
            "started_at": "2026-11-25T10:00:00+00:00",
            "ended_at": "2026-11-25T10:10:00+00:00",
            "host": "gpu-1",
            "failure": "infrastructure",
            "cause": "node_lost",
            "message": "Rank 0 was lost.",
            "nodes": [],
        },
        {
            "attempt": 1,
            "status": "failed",
            "started_at": "2026-11-25T10:11:00+00:00",
            "ended_at": "2026-11-25T10:20:00+00:00",
            "host": "gpu-2",
            "failure": "user",
            "cause": "command_failed",
            "message": "Rank 1 failed first: start command 1 exited with 3.",
            "nodes": [
                {"rank": 0, "exit_code": None, "reason": "stopped after rank 1 failed"},
                {"rank": 1, "exit_code": 3, "reason": None},
            ],
        },
    ],
    "weights": [
        {
            "source": "hf://Qwen/Qwen3-4B@main?patterns=*.json",
            "mount_location": "/weights",
            "revision": "1cfa9a7208912126459214e8b04321603b3df60c",
            "bytes": 8_044_982_000,
        },
        {"source": "s3://data/set", "mount_location": "/data", "revision": None, "bytes": None},
    ],
    "checkpoints": [
        {
            "checkpoint_id": f"checkpoint-{step}",
            "checkpoint_type": "full",
            "size_bytes": 8_044_000_000,
            "created_at": f"2026-11-25T10:{step}:00+00:00",
            "lag": lag,
        }
        for step, lag in ((10, 12.3), (20, None))
    ],
    "events": [{"state": "TRAINING_JOB_FAILED"}],
}
DEFINITION = {
    "job": {
        "image": {"base_image": "pytorch/pytorch:2.9"},
        "runtime": {"start_commands": ["./run.sh", "echo done"]},
    }
}


def test_a_failed_job() -> None:
    assert render_card(DOCUMENT, DEFINITION) + "\n" == GOLDEN.read_text()


def test_card_of_pending_and_serving_jobs() -> None:
    empty = {**DOCUMENT, "error_message": None, "attempts": [], "weights": [], "checkpoints": []}
    empty["warnings"] = []
    card = render_card({**empty, "flow_run_url": None}, DEFINITION)
    headings = [line for line in card.splitlines() if line.startswith("## ")]
    assert headings == ["## Definition", "## Commands"]
    serving = render_card(empty, DEFINITION, address="http://127.0.0.1:8000/v1")
    assert "serves at <http://127.0.0.1:8000/v1>" in serving


def test_the_newest_checkpoints_are_shown() -> None:
    (one, _) = DOCUMENT["checkpoints"]
    many = [{**one, "checkpoint_id": f"checkpoint-{step}"} for step in range(1, 51)]
    card = render_card({**DOCUMENT, "checkpoints": many}, DEFINITION)
    assert "| checkpoint-31 |" in card
    assert "| checkpoint-30 |" not in card
    assert "30 earlier ones" in card
