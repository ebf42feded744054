"""Check the table of missing `truss train` commands in docs/differences.md."""

import re
from pathlib import Path

from prefect_bt.cli.app import make_app

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
TRUSS_TRAIN = {
    *("cache summarize", "capacity update", "capacity view", "checkpoints list", "download"),
    *("deploy_checkpoints", "get_checkpoint_urls", "init", "isession", "logs", "metrics", "push"),
    *("recreate", "stop", "update", "update_session", "view", "workstation"),
}
"""Every command of `truss train` 0.18.36."""
COME_LATER = {"isession", "update_session", "workstation"}
"""Commands that only say so."""


def test_each_command_of_truss_is_here_or_named_as_missing():
    section = PAGE.read_text().partition("## Commands of `truss train` that are not here")[2]
    rows = re.findall(r"^\| (`[^|]+) \|", section, flags=re.MULTILINE)
    missing = {name for row in rows for name in re.findall(r"`([a-z_ ]+)`", row)}
    here = {name for name in TRUSS_TRAIN if _is_registered(name)} - COME_LATER
    assert here & missing == set()
    assert here | missing == TRUSS_TRAIN


def _is_registered(command: str) -> bool:
    app = make_app()
    for word in command.split():
        if word not in app:
            return False
        app = app[word]
    return True
