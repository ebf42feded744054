"""The exit codes of start commands in docs/guides/own-config.md are those of /bin/sh."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "own-config.md"
SECTION = PAGE.read_text().partition("## Let a failure be a failure")[2].partition("\n## ")[0]
ROWS = [
    (command.replace(r"\|", "|"), int(code))
    for command, code in re.findall(r"^\| `(.*)` \| (\d+) \| ", SECTION, re.MULTILINE)
]


@pytest.mark.parametrize(("command", "code"), ROWS)
def test_a_command_exits_as_the_page_says(tmp_path: Path, command: str, code: int):
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    (tmp_path / "run.sh").write_text(SECTION.partition("```sh\n")[2].partition("```")[0])
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == code


def test_the_page_has_commands_of_both_kinds():
    assert {code for _, code in ROWS} == {0, 3}
    assert len(ROWS) >= 7
