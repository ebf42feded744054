"""Scripts with Windows line ends, which Linux cannot run: a push names them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from prefect_bt.workspace.archive import pack_workspace
from prefect_bt.workspace.roots import plan_layout

SHEBANG = "#!/bin/bash\r\necho hi\r\n"
PYTHON = "#!/usr/bin/env python\r\nprint(1)\r\n"
PLAIN = "echo hi\r\n"


def warnings(folder: Path, *commands: str) -> list[str]:
    packed = pack_workspace(plan_layout(folder), folder.parent / "out.tar", commands=commands)
    assert packed.contents
    return packed.contents.warnings


def write(folder: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(mode)


@pytest.mark.parametrize(
    ("name", "text", "mode", "command"),
    [
        ("run.sh", SHEBANG, 0o644, "chmod +x run.sh && ./run.sh"),
        ("run.sh", SHEBANG, 0o644, "true"),
        ("sub/lib.bash", PLAIN, 0o644, "true"),
        ("train.py", PYTHON, 0o755, "./train.py"),
        ("train.py", PYTHON, 0o644, "chmod +x train.py; ./train.py"),
        ("train.py", PYTHON, 0o644, "cd x && $BT_WORKING_DIR/train.py --steps 1"),
        ("start", PLAIN, 0o644, "bash start"),
        ("start", PLAIN, 0o644, ". ./start"),
        ("bin/start", SHEBANG, 0o644, "set -x\n./bin/start"),
        ("start me", PLAIN, 0o644, "bash 'start me'"),
    ],
)
def test_a_script_is_named(tmp_path: Path, name: str, text: str, mode: int, command: str) -> None:
    write(tmp_path / "s", name, text, mode)
    [warning] = warnings(tmp_path / "s", command)
    assert warning.startswith(f"{name!r} has Windows line ends (CRLF)")
    assert ".gitattributes" in warning
    convert = warning.split("`")[1]
    subprocess.run(convert, shell=True, check=True, cwd=tmp_path / "s")
    assert b"\r" not in (tmp_path / "s" / name).read_bytes()
    assert warnings(tmp_path / "s", command) == []


@pytest.mark.parametrize(
    ("name", "text", "mode", "command"),
    [
        ("train.py", PYTHON, 0o644, "python train.py"),
        ("train.py", PYTHON, 0o644, "torchrun --nproc-per-node 2 ./train.py"),
        ("data.csv", "a,b\r\n", 0o755, "python train.py data.csv"),
        ("run.sh", "#!/bin/sh\necho 1\n", 0o755, "./run.sh"),
        ("run.sh", "", 0o755, "./run.sh"),
        ("program", "\x7fELF\r\n", 0o755, "true"),
    ],
)
def test_what_runs_is_not_named(
    tmp_path: Path, name: str, text: str, mode: int, command: str
) -> None:
    write(tmp_path / "s", name, text, mode)
    assert warnings(tmp_path / "s", command) == []


def test_many_scripts_are_one_sentence(tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path / "s", f"{number}.sh", SHEBANG)
    [warning] = warnings(tmp_path / "s")
    assert "'4.sh' and 2 more have Windows line ends" in warning
