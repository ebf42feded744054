"""`prefect-bt metrics`: tables, JSON, CSV, and following."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import pytest

from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from tests.job_metrics.node_files import archive, write_node_file

from ..conftest import ENDED, RUNNING, Cli, Shop, StartScreen, Within


def measured(shop: Shop, folder: Path, *states: JobState, **file: object) -> JobRecord:
    """A job of one attempt whose node has twenty samples."""
    record = shop.job("tiny", *RUNNING[:1], name="measured")
    attempt = shop.ledger.begin_attempt(record.id)
    write_node_file(folder / "node", start=shop.at, **{"samples": 20, **file})
    archive(shop.ledger, record, folder / "node", attempt=attempt)
    shop.at += 200
    for state in states or ENDED[1:]:
        shop.ledger.append_event(record.id, state)
    return record


def test_tables_show_the_last_values_of_nodes_and_training(cli: Cli, shop: Shop, tmp_path: Path):
    record = measured(shop, tmp_path, gpus=1)

    shown = cli("metrics", "--job-id", record.id).out

    for text in ("Node: 0", " cores", "68.7 GB", "GPU 0 utilization", "%", "40.0%", "MB/s"):
        assert text in shown
    for name in ("Training", "step", "38", "loss", "learning_rate", "grad_norm", "step_time"):
        assert name in shown
    assert "▁" not in shown, "sparklines are for terminals"


def test_node_without_gpus_has_no_gpu_rows_and_empty_gpu_series(
    cli: Cli, shop: Shop, tmp_path: Path
):
    record = measured(shop, tmp_path)

    assert "GPU" not in cli("metrics", "--job-id", record.id).out
    document = cli("metrics", "--job-id", record.id, "-o", "json").json
    assert document["gpu_utilization"] == document["gpu_memory_usage_bytes"] == {}


def test_json_is_the_document_of_the_training_api(cli: Cli, shop: Shop, tmp_path: Path):
    record = measured(shop, tmp_path, gpus=2)

    document = cli("metrics", "--job-id", record.id, "-o", "json").json

    assert document["training_job"]["id"] == record.id
    assert list(document["gpu_utilization"]) == ["0", "1"]
    assert [each["node_id"] for each in document["per_node_metrics"]] == ["0"]
    shared = document["per_node_metrics"][0]["metrics"]
    assert shared == {key: document[key] for key in shared}
    assert document["ephemeral_storage"]["utilization"][0]["value"] == 0.4
    assert document["cache"] is None
    last = document["training"]["loss"][-1]
    assert last["step"] == 38 and last["timestamp"].endswith("+00:00")


@pytest.mark.parametrize("count", [20, 600])
def test_csv_has_a_row_for_each_sample(cli: Cli, shop: Shop, tmp_path: Path, count: int):
    record = measured(shop, tmp_path, samples=count, interval=100 / count)

    out = cli("metrics", "--job-id", record.id, "-o", "csv").out

    rows = list(csv.DictReader(io.StringIO(out)))
    assert list(rows[0]) == ["timestamp", "attempt", "rank", "series", "step", "value"]
    assert len([row for row in rows if row["series"] == "cpu" and row["rank"] == "0"]) == count
    assert len([row for row in rows if row["series"] == "loss"]) == count


@pytest.mark.parametrize(
    ("states", "words"),
    [(RUNNING, "waiting for metrics"), (ENDED, "ended without metrics")],
    ids=["running", "ended"],
)
def test_job_without_metrics_waits_or_has_ended(cli: Cli, shop: Shop, states, words: str):
    record = shop.job("tiny", *states)

    assert words in cli("metrics", "--job-id", record.id).out


def test_watch_without_terminal_ends_with_the_job(cli: Cli, shop: Shop, tmp_path: Path):
    record = measured(shop, tmp_path)

    run = cli("metrics", "--job-id", record.id, "--watch", "-o", "json")

    assert run.code == 0
    [line] = run.out.splitlines()
    assert json.loads(line)["training_job"]["id"] == record.id
    assert "completed successfully" in run.err


@pytest.mark.slow
@pytest.mark.parametrize(("lang", "marks"), [("C.UTF-8", "█"), ("POSIX", "#")])
def test_terminal_has_sparklines_and_colors(
    on_screen: StartScreen, shop: Shop, tmp_path: Path, lang: str, marks: str
):
    record = measured(shop, tmp_path, disk=0.95)
    environment = {"LC_ALL": lang, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}

    screen = on_screen("metrics", "--job-id", record.id, **environment)

    shown = screen.wait_for_line("Training", "Node: 0", "Disk written")
    assert marks * 3 in shown
    assert re.search(rb"\x1b\[31m *95\.0%", screen.said), "a disk that is nearly full is red"


@pytest.mark.slow
def test_watch_draws_in_place_until_ctrl_c(on_screen: StartScreen, shop: Shop, tmp_path: Path):
    record = measured(shop, tmp_path, *RUNNING[1:])

    screen = on_screen("metrics", "--job-id", record.id, "--watch")
    screen.wait_for_line("Training", "Node: 0")
    screen.press("ctrl-c")

    screen.wait_for_line("Detached.")
    assert screen.process.wait(30) == 130
    assert b"\x1b[?1049h" not in screen.said, "no alternate screen"


def test_samples_lie_after_since(cli: Cli, shop: Shop, tmp_path: Path):
    record = measured(shop, tmp_path)

    none = cli("metrics", "--job-id", record.id, "-o", "json", "--since", "1h").json
    every = cli("metrics", "--job-id", record.id, "-o", "json", "--since", "2020-01-01").json

    assert (none["cpu_usage"], len(every["cpu_usage"])) == ([], 20)
    assert every["cpu_usage"][0]["timestamp"].startswith("2023-11-1")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("c.svg", b"<?xml"), ("c.PNG", b"\x89PNG")])
def test_picture_has_the_format_of_its_suffix(
    cli: Cli, shop: Shop, tmp_path: Path, name: str, start: bytes
):
    record = measured(shop, tmp_path)

    assert cli("metrics", "--job-id", record.id, "--picture", f"pictures/{name}").code == 0

    assert (tmp_path / "pictures" / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("name", "hidden", "words"),
    [("c.bmp", "", ".svg or .png"), ("c.svg", "matplotlib", 'pip install "prefect-bt[pictures]"')],
)
def test_picture_that_cannot_be_drawn_names_what_to_do(
    within: Within,
    shop: Shop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    hidden: str,
    words: str,
):
    record = measured(shop, tmp_path)
    if hidden:
        monkeypatch.setitem(sys.modules, hidden, None)

    run = within("metrics", "--job-id", record.id, "--picture", name)

    assert run.code == 2 and words in run.err
