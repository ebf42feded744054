"""`weights list`: what is kept here and in the store."""

from pathlib import Path

import pytest

from prefect_bt.host.job_lock import lock_job
from tests.cli.conftest import Cli
from tests.cli.sources import cache_of, mirrored
from tests.cli.test_imports import Step, check_imports

pytestmark = [pytest.mark.slow]


def test_nothing_is_kept(cli: Cli) -> None:
    done = cli("weights", "list")
    assert (done.code, done.err) == (0, "")
    assert "No weights yet" in done.out
    assert "prefect-bt weights mirror config.py" in done.out
    found = cli("weights", "list", "-o", "json").json
    assert (found["trees"], found["unfinished"], found["total_bytes"]) == ([], [], 0)
    assert not cache_of(cli).root.exists()


def test_kept_weights_are_listed(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    told = (listed["name"], listed["source"], listed["folder"])
    assert told == (one["name"], model, one["folder"])
    assert (listed["files"], listed["bytes"], listed["where"]) == (2, 5002, "both")
    assert listed["in_use_by"] == []
    with lock_job(Path(cli.env["PREFECT_BT_STATE_DIR"]), "abc1234"):
        cache_of(cli).acquire_tree(one["name"], holder="abc1234")
        done = cli("weights", "list", PREFECT_BT_WEIGHTS_BYTES="500GB")
    line = next(line for line in done.out.splitlines() if line.startswith(model))
    assert one["revision"][:12] in line
    assert line.endswith("both   abc1234")
    assert "of 500.0 GB (PREFECT_BT_WEIGHTS_BYTES)" in done.out
    cache_of(cli).evict(one["name"])
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    assert (listed["where"], listed["last_used"], listed["folder"]) == ("store", None, None)


def test_listing_imports_nothing_heavy_and_needs_no_store(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    done = cli("weights", "list", PREFECT_BT_STORE="ftp://nowhere")
    assert done.code == 0
    assert "Only sources on this machine are shown" in done.err
    assert model in done.out
    check_imports(cli, [Step("weights list")])


def test_json_is_all_there_is(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    dry_runs = (["prune", "--all", "--dry-run"], ["mirror", "--dry-run", "--source", model])
    for verb in (["list"], ["verify"], *dry_runs):
        done = cli("weights", *verb, "-o", "json")
        assert done.err == ""
        assert isinstance(done.json, dict)
