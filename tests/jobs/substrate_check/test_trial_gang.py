"""What the trial gang reports: real nodes on this machine, with commands that print failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_bt.definitions import AcceleratorSpec
from prefect_bt.jobs.substrate_check import trial_gang
from prefect_bt.jobs.substrate_check.trial_gang import TrialGang
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.settings import Settings
from prefect_bt.substrates.local.substrate import LocalProcessSubstrate
from prefect_bt.substrates.protocol import CheckResult, CheckStatus

PASSED, FAILED, SKIPPED = CheckStatus.PASSED, CheckStatus.FAILED, CheckStatus.SKIPPED
SAVE = 'mkdir -p "$BT_CHECKPOINT_DIR/checkpoint-1"; echo x >"$BT_CHECKPOINT_DIR/checkpoint-1/a"'


def run_trial(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: str,
    accelerator: AcceleratorSpec | None = None,
) -> dict[str, CheckResult]:
    monkeypatch.setattr(trial_gang, "_SCRIPT", commands)
    settings = Settings(store=str(tmp_path / "store"), state_dir=tmp_path / "state")
    trial = TrialGang(
        LocalProcessSubstrate(settings.state_dir, python=""), settings, "", accelerator
    )
    with trial:
        results = {one.name: one for one in trial.run(timeout=60)}
    assert list(DiskStore(tmp_path / "store").list("")) == []
    assert list((tmp_path / "state").glob("jobs/*")) == []
    assert list((tmp_path / "state").glob("cache/environments/*")) == []
    return results


@pytest.mark.parametrize(
    ("commands", "name", "status", "part"),
    [
        (f"{SAVE}; exit 3", "Two nodes", FAILED, "rank 0: start command 1 exited with 3"),
        ("echo cannot load; exit 127", "Two nodes", FAILED, "its last line: cannot load"),
        ("true", "Store from a node", FAILED, "no checkpoint arrived in the store"),
        (
            f"{SAVE}; echo check network failed rank 1 cannot resolve x",
            "Network of two nodes",
            FAILED,
            "rank 1 cannot resolve x",
        ),
        (
            f"{SAVE}; echo check network skipped the image has no Python",
            "Network of two nodes",
            SKIPPED,
            "use another --image",
        ),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    commands: str,
    name: str,
    status: CheckStatus,
    part: str,
) -> None:
    result = run_trial(tmp_path, monkeypatch, commands)[name]
    assert result.status is status
    assert part in result.detail
    assert bool(result.next_step) == (status is FAILED)
