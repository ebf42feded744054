"""`bt://`: a committed checkpoint of an earlier job as weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.errors import WeightsError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.planning.plan import WeightsPlan
from tests.serving.committed import Shop
from tests.weights.conftest import mirror, tree

FILES = {"config.json": b"{}", "sub/model.bin": bytes(range(256)) * 50_000}
PROJECT = "My Project"


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, Ledger(open_store(str(tmp_path / "store"))))


def mirrored(shop: Shop, source: str, state: Path) -> dict[str, bytes]:
    plan = WeightsPlan(source, "/w", "k1")
    return tree(mirror(plan, state, store=shop.ledger.store))


def refused(shop: Shop, source: str, state: Path) -> str:
    with pytest.raises(WeightsError) as caught:
        mirrored(shop, source, state)
    assert caught.value.source == source
    assert caught.value.next_step
    return str(caught.value)


@pytest.mark.slow
def test_newest_named_and_by_job(shop: Shop, tmp_path: Path) -> None:
    first, last, empty = shop.job(PROJECT), shop.job(PROJECT), shop.job(PROJECT)
    shop.commit(first, {"checkpoint-5": {"a": b"5"}})
    shop.commit(last, {"checkpoint-10": FILES})
    shop.commit(last, {"checkpoint-10": {"of-rank-1": b"1"}}, rank=1)
    for source, expected in {
        "bt://My Project": FILES,
        "bt://My Project@latest": FILES,
        f"bt://My Project@{last.id}/checkpoint-10": FILES,
        "bt://My Project/checkpoint-5": {"a": b"5"},
        f"bt://My Project@{first.id}": {"a": b"5"},
        f"bt://My Project@{first.name}": {"a": b"5"},
        f"bt://{first.project_id}@{first.id}/checkpoint-5": {"a": b"5"},
    }.items():
        assert mirrored(shop, source, tmp_path / source.replace("/", "_")) == expected
    nothing = refused(shop, f"bt://My Project@{empty.name}", tmp_path)
    assert f"latest of job {empty.name}" in nothing


def test_a_newer_checkpoint_is_mirrored_anew(shop: Shop, tmp_path: Path) -> None:
    job = shop.job(PROJECT)
    shop.commit(job, {"checkpoint-5": {"a": b"5"}})
    assert mirrored(shop, "bt://My Project", tmp_path) == {"a": b"5"}
    shop.commit(job, {"checkpoint-6": {"a": b"6"}})
    assert mirrored(shop, "bt://My Project", tmp_path) == {"a": b"6"}


def test_sentences(shop: Shop, tmp_path: Path) -> None:
    job, store = shop.job(PROJECT), shop.ledger.store
    shop.commit(job, {"checkpoint-5": FILES})
    (checkpoint,) = list_checkpoints(store, job.project_id, job.id)
    assert "No project 'other'" in refused(shop, "bt://other", tmp_path)
    told = refused(shop, "bt://My Project@none", tmp_path)
    assert "No job 'none'" in told and job.id in told
    assert "checkpoint-9" in refused(shop, "bt://My Project/checkpoint-9", tmp_path)
    [entry] = [one for one in checkpoint.manifests[0].entries if one.path == "sub/model.bin"]
    key = entry.key
    store.put(key, b"x" * entry.size)
    assert "sub/model.bin arrived damaged twice" in refused(shop, "bt://My Project", tmp_path)
    store.delete(key)
    assert "sub/model.bin is missing" in refused(shop, "bt://My Project", tmp_path)
    with pytest.raises(WeightsError, match="no store is configured here"):
        mirror(WeightsPlan("bt://My Project", "/w", "k1"), tmp_path)
