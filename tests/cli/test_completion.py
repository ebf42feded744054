"""`prefect-bt --install-completion`, and what bash then completes."""

import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = [pytest.mark.slow]

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
$(complete -p prefect-bt | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


def complete(script: Path, *words: str) -> list[str]:
    """Return what bash offers for the last word."""
    command = ["bash", "-c", COMPLETE, "bash", str(script), "prefect-bt", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return [line.strip() for line in done.stdout.splitlines()]


def test_installed_for_bash(cli: Cli) -> None:
    done = cli("--install-completion", SHELL="/bin/bash")
    assert done.code == 0, done.err
    home = Path(cli.env["HOME"])
    script = home / ".local/share/bash-completion/completions/prefect-bt"
    assert f"Completion is installed in {script}" in done.out
    assert str(script) in (home / ".bashrc").read_text()
    assert sorted(complete(script, "deploy")) == ["deploy_checkpoints", "deployments"]
    assert complete(script, "checkpoints", "pr") == ["prune"]
    assert "--checkpoint-name" in complete(script, "checkpoints", "prune", "--che")
