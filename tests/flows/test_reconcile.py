"""The flow `reconcile` as a function, on a store that it must not use."""

from pathlib import Path
from typing import Any

import pytest
from prefect.client.schemas.objects import State

from prefect_bt.flows.reconcile import reconcile
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.queue.keepers import read_snapshot
from tests.checkpoints.buckets import Bucket, use
from tests.jobs.records import new_record
from tests.object_store.faulty import Fault, FaultyServer, Request, StripRequest
from tests.s3_server import shared_s3


def test_no_job_is_put_back_on_a_store_without_conditional_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr("prefect_bt.queue.keepers.START_SECONDS", -1.0)
    with FaultyServer(shared_s3()) as server:
        use(monkeypatch, server.url)
        bucket = Bucket(server.upstream)
        monkeypatch.setenv("PREFECT_BT_STORE", bucket.url)
        ledger = Ledger(open_store(bucket.url))
        record = new_record(ledger, substrate="local")
        ledger.create_job(record)

        def ignore_condition(request: Request) -> Fault:
            return StripRequest("If-None-Match") if request.conditional else None

        server.arrive = ignore_condition
        done: Any = reconcile.fn(substrate="local")
        assert isinstance(done, State)
        assert "ignores the header If-None-Match" in str(done.message)
        assert ledger.list_events(record.id) == []
        assert read_snapshot(ledger).entries == {}
        bucket.empty()
