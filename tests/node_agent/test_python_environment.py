"""Commands of local nodes in the Python environment of their project."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prefect_bt.ledger.records import EXIT_NOT_STARTED
from tests.host.python.wheels import make_wheel
from tests.node_agent.rig import Rig, all_lines, own_lines, wait_over

VERSION = "python -c 'import shade; print(shade.VERSION)'"


def test_the_next_job_has_an_installed_package_and_prefect_bt_has_not(
    rig: Rig, tmp_path: Path
) -> None:
    rig.substrate.launcher.python = sys.executable
    pytest.importorskip("pip")
    wheel = make_wheel(tmp_path, "1.0")
    first = rig.launch(f"pip install -q --no-index {wheel} && {VERSION}; command -v python")
    assert wait_over(first).exit_code == 0
    folder = rig.state / "cache" / "environments" / "proj123"
    assert own_lines(first)[0] == "1.0"
    assert own_lines(first)[1].startswith(str(folder))
    assert any("of the project's environment" in line for line in all_lines(first))
    assert rig.run(VERSION, job_id="next123")[1] == ["1.0"]
    assert rig.run(VERSION, job_id="other12", project_id="other12")[0].exit_code == 1
    rig.substrate.launcher.python = None
    assert rig.run(VERSION, job_id="off1234")[0].exit_code == 1


def test_a_node_without_its_interpreter_has_the_reason(rig: Rig) -> None:
    rig.substrate.launcher.python = "/nonexistent/python3"
    status = wait_over(rig.launch("true"))
    assert status.exit_code == EXIT_NOT_STARTED
    assert "PREFECT_BT_PYTHON is '/nonexistent/python3'" in status.reason
