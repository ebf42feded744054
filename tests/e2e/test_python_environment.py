"""A job that installs a package on which prefect-bt runs, in a version that it cannot run on."""

from pathlib import Path

import pytest

from tests.host.python.wheels import make_wheel

from .conftest import Machine

pytestmark = [pytest.mark.integration, pytest.mark.extended]

RUN = """
set -e
python -m pip install --quiet --no-index --no-deps {wheel}
python -c 'import pydantic; print("pydantic", pydantic.VERSION)'
mkdir "$BT_CHECKPOINT_DIR/checkpoint-1" && date > "$BT_CHECKPOINT_DIR/checkpoint-1/data"
"""
LATER = "python -c 'import pydantic; print(\"pydantic\", pydantic.VERSION)'"


def test_prefect_bt_runs_on_while_a_job_installs_another_pydantic(
    machine: Machine, tmp_path: Path
) -> None:
    wheel = make_wheel(tmp_path, "1.10", name="pydantic")
    first = machine.completed(machine.folder(RUN.format(wheel=wheel), nodes=2))
    assert machine.logs(first["id"]).count("pydantic 1.10") == 2
    assert machine.checkpoints(first["id"]) == ["checkpoint-1"]
    later = machine.completed(machine.folder(LATER))
    assert "pydantic 1.10" in machine.logs(later["id"])
    assert machine.python("import pydantic; print(pydantic.VERSION)").stdout.startswith("2.")
