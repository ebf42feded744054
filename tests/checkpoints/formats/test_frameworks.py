"""Checkpoints that are files, as Lightning and Keras write them: the packages themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.verify_committed import verify
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.shelf import listed

ROOT = Path(__file__).parents[3]
PACKAGES = Path(sys.prefix) / "frameworks"
"""Where `make frameworks` installs them."""
STEPS = {
    "lightning": {"epoch=0-step=4.ckpt": 4, "epoch=1-step=8.ckpt": 8, "last.ckpt": None},
    "keras": {"weights.01-#.keras": 1, "weights.02-#.keras": 2}
    | {"model-1.weights.h5": 1, "model-2.weights.h5": 2},
}


def without_loss(name):
    return re.sub(r"-\d+\.\d+\.keras", "-#.keras", name)


@pytest.mark.soak
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="run `make frameworks`, as `make soak` does")
@pytest.mark.parametrize("framework", STEPS)
def test_what_a_framework_writes_is_committed_and_its_beginning_is_not(store, tmp_path, framework):
    program = ROOT / "tests/checkpoints/more_writers.py"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}
    subprocess.run(
        [sys.executable, program, tmp_path / "written", framework],
        env=environment,
        check=True,
        capture_output=True,
    )
    directory = tmp_path / "written" / framework
    assert flush(store, directory).uncommitted == ()
    steps = {without_loss(name): one.step for name, one in listed(store).items()}
    assert steps == STEPS[framework]
    assert verify(store, PROJECT, JOB) == []
    for path in directory.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    status = flush(store, directory, attempt=2, succeeded=False)
    assert len(status.uncommitted) == len(steps)
    assert {one.attempt for one in listed(store).values()} == {1}
