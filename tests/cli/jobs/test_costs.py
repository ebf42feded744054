"""`prefect-bt costs`: the hours and the cost of the jobs in a store."""

import pytest

from prefect_bt.ledger.records import Outcome, Resources
from prefect_bt.ledger.states import JobState
from tests.cli.conftest import ENDED, Cli, Shop, Within

GPUS = Resources(cpus=8, gpus=8, gpu_type="H100")


@pytest.fixture
def shop(shop: Shop) -> Shop:
    """Two jobs of an hour, one of them with 8 GPUs."""
    for project, resources in (("tiny", Resources(cpus=4)), ("wide", GPUS)):
        record = shop.job(project, resources=resources)
        epoch = shop.ledger.claim(record.id, "box")
        shop.ledger.begin_attempt(record.id, flow_run_id="", host="box", epoch=epoch)
        [attempt] = shop.ledger.list_attempts(record.id)
        ended = Outcome(0, JobState.COMPLETED, ended_at=attempt.at + 3600)
        shop.ledger.end_attempt(record.id, ended, epoch=epoch)
        for state in ENDED:
            shop.ledger.append_event(record.id, state, epoch=epoch)
    return shop


def test_table_has_a_row_for_each_group_and_a_total(cli: Cli, shop: Shop):
    done = cli("costs", "--since", "2023-01-01", PREFECT_BT_PRICES="H100=2.50, cpu=0.5")
    rows = [line.split()[:6] for line in done.out.splitlines()]
    assert ["tiny", "1", "1.00", "0.00", "4.00", "2.00"] in rows
    assert ["wide", "1", "1.00", "8.00", "0.00", "20.00"] in rows
    assert ["Total", "2", "2.00", "8.00", "4.00", "22.00"] in rows
    assert done.err == ""


def test_csv_and_json_have_the_same_numbers(cli: Cli, shop: Shop):
    document = cli("costs", "--by", "user", "--since", "2023-01-01", "-o", "json").json
    assert document["groups"] == [{"name": "ann", **document["total"]}]
    assert document["total"]["gpu_hours"] == {"H100": 8.0}
    assert "cost" not in document["total"]
    table = cli("costs", "--by", "user", "--since", "2023-01-01", "-o", "csv").out.splitlines()
    kept = document["total"]["kept_fraction"]
    assert 0 < kept < 1
    assert table == [
        "User,Jobs,Node Hours,H100 Hours,vCPU Hours,Kept",
        f"ann,2,2.0,8.0,4.0,{kept}",
        f"Total,2,2.0,8.0,4.0,{kept}",
    ]


def test_type_without_a_price_is_named(cli: Cli, shop: Shop):
    done = cli("costs", "--since", "2023-01-01", PREFECT_BT_PRICES="A100=1")
    assert "Add the missing prices to PREFECT_BT_PRICES: CPU=…, H100=…" in done.err


def test_nothing_ran_in_the_last_days(cli: Cli, shop: Shop):
    assert "No job ran since" in cli("costs").out


@pytest.mark.parametrize("prices", ["H100", "H100=much", "=,", "{", "[1]", "H100=-1"])
def test_wrong_prices_are_refused_with_an_example(within: Within, prices: str, monkeypatch):
    monkeypatch.setenv("PREFECT_BT_PRICES", prices)
    assert "PREFECT_BT_PRICES" in within("costs").refusal(1)


def test_wrong_time_is_wrong_usage(within: Within):
    assert "--since" in within("costs", "--since", "yesterday").refusal(2)
