"""All places are looked through, all findings removed, whatever fails; and the command says so."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.errors import StoreError
from prefect_bt.gc.findings import Findings, Orphan, OrphanKind, remove_all, run_scans
from prefect_bt.ledger.states import JobState
from tests.gc.conftest import Site
from tests.node_agent.rig import wait_over


def left(where: str, error: Exception | None = None) -> Orphan:
    def remove() -> None:
        if error is not None:
            raise error

    return Orphan(OrphanKind.NODE, where, "because", remove)


def test_a_place_that_fails_hides_no_other() -> None:
    def broken() -> Iterator[Orphan]:
        yield left("a")
        raise StoreError("no answer")

    found = run_scans([("The store", broken), ("B", lambda: [left("b")])])
    assert [one.location for one in found.orphans] == ["a", "b"]
    assert found.notes == ("The store could not be searched: no answer",)
    found = run_scans([("The jobs", broken), ("The queue", broken), ("Holds", broken)])
    assert found.notes == ("The jobs, the queue and holds could not be searched: no answer",)


def test_a_failed_removal_has_its_reason_and_the_rest_goes() -> None:
    found = Findings(
        (left("a", OSError("busy")), left("b"), replace(left("c"), kept_reason="needed"))
    )
    assert [(one.location, one.error) for one in remove_all(found)] == [("a", "busy"), ("b", "")]


def test_the_document_of_the_command(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect_bt.cli.app import main

    monkeypatch.setenv("PREFECT_BT_STORE", site.settings.store)
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(site.state))
    assert main(["gc", "--dry-run", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    job_id = site.job(JobState.COMPLETED)
    wait_over(site.node(job_id))
    assert main(["gc", "--dry-run", "-o", "json"]) == 0
    (node, folder) = json.loads(capsys.readouterr().out)
    assert (node["kind"], node["job"], node["why"]) == ("node", job_id, "the job is completed")
    assert (folder["kind"], folder["kept"]) == ("job folder", None)
    store = Path(site.settings.store)
    store.rename(away := store.with_name("away"))
    assert main(["gc"]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("could not be searched") == 1
    assert "No orphans found in the part that could be checked." in shown.out
    away.rename(store)
    assert main(["gc", "--dry-run"]) == 0
    assert "Would delete 2 orphans" in capsys.readouterr().out
    assert main(["gc", "--yes", "-o", "json"]) == 0
    assert all(one["removed"] for one in json.loads(capsys.readouterr().out))
    assert main(["gc", "--yes"]) == 0
    assert "No orphans found" in capsys.readouterr().out
