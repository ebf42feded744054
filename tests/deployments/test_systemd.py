"""deployments/systemd/: a unit whose commands and settings exist, shown by the guide."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prefect_bt.cli.command_table import COMMANDS
from prefect_bt.settings import Settings, variable_name

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deployments" / "systemd" / "prefect-bt-worker.service"
GUIDE = ROOT / "docs" / "guides" / "team.md"
ENTRY = re.compile(r"^(\w+)=(.*)$", re.MULTILINE)
OF_SECRETS = "PREFECT_BT_SECRET_"


def read_unit() -> dict[str, list[str]]:
    entries = dict[str, list[str]]()
    for name, value in ENTRY.findall(UNIT.read_text()):
        entries.setdefault(name, []).append(value)
    return entries


def test_the_unit_starts_a_command_with_settings_that_exist() -> None:
    unit = read_unit()
    program, *words = unit["ExecStart"][0].split()
    assert Path(program).name == "prefect-bt"
    assert " ".join(words) in COMMANDS
    named = re.findall(r"PREFECT_BT_\w+", UNIT.read_text() + GUIDE.read_text())
    known = {variable_name(field) for field in Settings.model_fields}
    assert [one for one in named if one not in known and not one.startswith(OF_SECRETS)] == []


def test_jobs_survive_a_restart_of_the_worker_and_a_full_memory() -> None:
    unit = read_unit()
    assert unit["KillMode"] == ["process"]
    assert unit["OOMPolicy"] == ["continue"]
    assert unit["Restart"] == ["always"]


def test_the_guide_shows_the_unit() -> None:
    assert UNIT.read_text() in GUIDE.read_text()


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    """The program must exist, so the unit names this Python's."""
    program = read_unit()["ExecStart"][0].split()[0]
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(program, sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
