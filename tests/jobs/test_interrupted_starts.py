"""A job that is pushed, retried, preempted or started runs once, whatever happens on the way.

Its process is killed after each of its writes, or stopped there while another machine acts and
continued afterwards (docs/decisions/024).
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.jobs.interrupted_starts import KILL, PAUSE, SCENES

ALL = [f"{name}-{kind}" for name in SCENES for kind in (KILL, PAUSE)]
IN_GATE = ["push without room-kill", "start-pause"]


@pytest.mark.parametrize(
    "scenes",
    [IN_GATE, pytest.param(ALL, marks=[pytest.mark.slow, pytest.mark.extended])],
    ids=["two", "all"],
)
def test_a_job_runs_once_whatever_is_interrupted(scenes: list[str], tmp_path: Path) -> None:
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME") if name in os.environ}
    home = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_BT_STATE_DIR": str(tmp_path / "s")}
    command = [sys.executable, "-m", "tests.jobs.interrupted_starts", str(tmp_path), *scenes]
    done = subprocess.run(
        command, check=False, env={**kept, **home}, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one for one in results if one[3]] == []
    interruptions = Counter(title for title, _, interrupted, _ in results if interrupted)
    assert set(interruptions) == set(scenes)
    assert min(interruptions.values()) >= 2
