"""`weights why`: what would be fetched, and why again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.sources import LARGE, mirrored
from tests.weights.hub_server import Hub

pytestmark = [pytest.mark.slow]


def test_why_fetches_nothing(cli: Cli, hub: Hub) -> None:
    cli.env |= {"HF_ENDPOINT": hub.url}
    done = cli("weights", "why", "--source", "hf://o/base", "--allow", "*.safetensors")
    assert done.code == 0
    assert "nothing of it is here; all of it comes from the source" in done.out
    commit = hub.repos["o/base"].branches["main"]
    assert re.search(rf"Pinned By +main -> {commit}", done.out)
    assert re.search(r"From The Source +1 file, 41.9 MB", done.out)
    assert hub.bodies() == 0
    assert not Path(cli.env["PREFECT_BT_STATE_DIR"]).exists()
    [answer] = cli("weights", "why", "--source", "hf://o/base", "-o", "json").json["weights"]
    assert set(answer) == {
        *("source", "mount_location", "key", "name", "revision", "pinned_by", "status", "files"),
        *("bytes", "here", "store", "upstream", "partial_bytes", "largest", "disk", "evicts"),
        *("again", "auth", "error", "next_step"),
    }
    assert answer["largest"][0] == {"path": "model.safetensors", "bytes": LARGE}
    assert answer["auth"] == "nobody"


def test_why_it_is_fetched_again(cli: Cli, hub: Hub) -> None:
    cli.env |= {"HF_ENDPOINT": hub.url}
    [old] = mirrored(cli, "hf://o/base")
    files = {**hub.repos["o/base"].commits[old["revision"]], "config.json": b"[]", "new": b"n"}
    new = hub.repos["o/base"].commit(files)
    done = cli("weights", "why", "--source", "hf://o/base")
    moved = f"The revision moved from {old['revision'][:12]} to {new[:12]}"
    assert re.search(rf"Fetched Again +{moved}: 1 file changed, 1 new\.", done.out)
    assert re.search(r"Here +1 file, 41.9 MB", done.out)
