"""The interpreter of a job: which one is chosen, and what `push` says about it."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.python import base_interpreter
from prefect_bt.host.python.base_interpreter import choose_interpreter, describe_python

OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
JOB_ENVIRONMENT = "state/cache/environments/proj123/python3.11-0"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Programs: Python 3.8, a shim of Python 3.7, and the environment `active`."""
    for folder in ("bin", "active/bin", f"{JOB_ENVIRONMENT}/bin"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy("/bin/true", tmp_path / "bin" / "python3.8")
    (tmp_path / "bin" / "python3.7").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "bin" / "python3.7").chmod(0o755)
    for prefix in ("active", JOB_ENVIRONMENT):
        (tmp_path / prefix / "bin" / "python").symlink_to(tmp_path / "bin" / "python3.8")
    return tmp_path


def choose(machine: Path, setting: str = "", image: str = "x", **given: str) -> str:
    variables = {"PATH": str(machine / "bin"), **given}
    chosen = choose_interpreter(
        setting, image=image, variables=variables, state_dir=machine / "state"
    )
    return "ours" if chosen == Path(sys.executable) else os.path.relpath(chosen, machine)


@pytest.mark.parametrize(
    ("setting", "image", "active", "chosen"),
    [
        ("", "pytorch/pytorch:2.4.0", {}, "ours"),
        ("python3.8", "python:3.11", {"VIRTUAL_ENV": "active"}, "bin/python3.8"),
        ("{machine}/active/bin/python", "python:3.8", {}, "active/bin/python"),
        ("", "python:3.8", {"VIRTUAL_ENV": "active"}, "active/bin/python"),
        ("", "x", {"CONDA_PREFIX": "active"}, "active/bin/python"),
        ("", "x", {"CONDA_PREFIX": "removed"}, "ours"),
        ("", "x", {"VIRTUAL_ENV": sys.prefix, "CONDA_PREFIX": "active"}, "ours"),
        ("", "python:3.8", {"VIRTUAL_ENV": sys.prefix}, "bin/python3.8"),
        ("", "x", {"VIRTUAL_ENV": JOB_ENVIRONMENT}, "ours"),
        ("", "python:3.8-slim", {}, "bin/python3.8"),
        ("", "docker.io/library/python:3.8.19-slim-bookworm", {}, "bin/python3.8"),
        ("", f"python:{OURS}", {}, "ours"),
        ("", "python:3.7-slim", {}, "ours"),  # a shim may run another version
        ("", "python:3.6", {}, "ours"),
        ("", "mirror.example/python:3.8", {}, "ours"),
    ],
)
def test_the_interpreter_of_a_job(
    machine: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    image: str,
    active: dict[str, str],
    chosen: str,
) -> None:
    monkeypatch.setattr(base_interpreter, "_LIBRARIES", ())
    given = {name: str(machine / prefix) for name, prefix in active.items()}
    assert choose(machine, setting.format(machine=machine), image, **given) == chosen


def test_libraries_for_training_beside_prefect_bt_are_used(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_interpreter, "_LIBRARIES", ("nowhere", "pytest"))
    assert choose(machine, image="python:3.8") == "ours"


@pytest.mark.parametrize("setting", ["python3.99", "{machine}/removed/bin/python", "{machine}"])
def test_a_setting_that_cannot_run_is_refused(machine: Path, setting: str) -> None:
    with pytest.raises(PrefectBtError, match="PREFECT_BT_PYTHON is "):
        choose(machine, setting.format(machine=machine))


def test_push_names_the_interpreter_and_the_folder(machine: Path) -> None:
    said = describe_python(
        "python3.8", image="x", variables={"PATH": f"{machine}/bin"}, state_dir=machine / "state"
    )
    assert said == (
        f"The commands run with Python 3.8 of {machine}/bin/python3.8, in the project's "
        f"environment in {machine}/state/cache/environments: pip install stays there."
    )
