"""Privacy of our folders: another user of the machine reads nothing of them."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from prefect_bt.cli.jobs.submission_result import warn_of_open_folders
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.filesystem.permissions import ensure_private_folder, find_exposed
from prefect_bt.host.job_lock import JobLock, host_id
from prefect_bt.host.mounts.volumes import ensure_volumes
from prefect_bt.host.state_folder import NodeFolder
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.plan import Volume, VolumeKind
from prefect_bt.weights.cache.node_cache import NodeCache
from tests.node_agent.rig import make_plan

NOBODY = 65534


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """Create a folder that every user can enter, as /data is."""
    with tempfile.TemporaryDirectory(prefix="pbt-privacy-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def run_as_other_user(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=NOBODY, group=NOBODY, capture_output=True, text=True, check=False, cwd="/"
    )


@pytest.mark.parametrize("first", ["host_of", "claim", "weights", "volumes"])
def test_the_state_folder_is_private_whatever_code_creates_it(tmp_path: Path, first: str) -> None:
    state = tmp_path / "missing" / "state"
    match first:
        case "host_of":
            host_id(state)
        case "claim":
            JobLock(state).acquire("abc1234")
        case "weights":
            with NodeCache(state / "weights").try_lock_staging("tree"):
                pass
        case _:
            node = NodeFolder(state / "jobs/abc1234/attempt-0/rank-0")
            ensure_volumes(make_plan(state, ("true",)), state_dir=state, node=node)
    assert mode(state) == 0o700
    assert mode(state.parent) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_reads_nothing(reachable: Path) -> None:
    """Read a job's folders, its checkpoints and caches, and the store."""
    state, store = reachable / "state", reachable / "store"
    plan = make_plan(state, ("true",))
    kinds = (VolumeKind.CHECKPOINTS, VolumeKind.PROJECT_CACHE, VolumeKind.CACHE_BASE)
    volumes = (*plan.volumes, *(Volume(kind, f"/x/{kind}", "k") for kind in kinds))
    plan = make_plan(state, ("true",), volumes=volumes)
    node = NodeFolder(state / "jobs" / plan.job_id / "attempt-0/rank-0")
    for bind in ensure_volumes(plan, state_dir=state, node=node).binds:
        (bind.source / "secret").write_text("secret")
        # In a container, commands that are not root's can still enter.
        assert mode(bind.source) == 0o755
    node.log.write_text("secret")
    DiskStore(store).put("jobs/log", b"secret")
    for path in (state, store):
        told = run_as_other_user("find", str(path), "-type", "f")
        assert told.stdout.strip() == ""
        assert "Permission denied" in told.stderr
    assert run_as_other_user("cat", str(node.log)).returncode != 0
    assert run_as_other_user("cat", str(store / "jobs/log")).returncode != 0


def test_below_a_state_folder_that_was_open_before(tmp_path: Path) -> None:
    """Keep the folder's mode; what is created in it afterwards is private all the same."""
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    node = NodeFolder(state / "jobs/abc1234/attempt-0/rank-0")
    ensure_volumes(make_plan(state, ("true",)), state_dir=state, node=node)
    assert mode(state) == 0o755
    assert mode(state / "jobs") == 0o700


def test_a_shared_store_is_made_by_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_BT_SHARED_STORE", "1")
    DiskStore(tmp_path / "shared").put("key", b"x")
    assert mode(tmp_path / "shared") == 0o755
    monkeypatch.setenv("PREFECT_BT_SHARED_STORE", "0")
    DiskStore(tmp_path / "own").create("key", b"x")
    assert mode(tmp_path / "own") == 0o700


def test_folders_that_others_can_enter_are_named(reachable: Path) -> None:
    state, store = reachable / "state", reachable / "store"
    state.mkdir(mode=0o755)
    ensure_private_folder(store)
    said = find_exposed(state, store)
    assert len(said) == 1
    assert f"chmod 700 {state}." in said[0]
    store.chmod(0o770)
    assert "PREFECT_BT_SHARED_STORE=1" in find_exposed(state, store)[1]
    assert len(find_exposed(state, None)) == 1
    closed = reachable / "closed"
    (closed / "state").mkdir(parents=True)
    closed.chmod(0o700)
    assert find_exposed(closed / "state", None) == []


@dataclass
class Warned:
    """A terminal that keeps its warnings."""

    said: list[str] = field(default_factory=list[str])

    def warn(self, text: str) -> None:
        self.said.append(text)


def test_a_push_warns_of_folders_of_an_older_release(
    reachable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, variable in (("state", "PREFECT_BT_STATE_DIR"), ("store", "PREFECT_BT_STORE")):
        (reachable / name).mkdir(mode=0o755)
        monkeypatch.setenv(variable, str(reachable / name))
    terminal = Warned()
    warn_of_open_folders(cast("Terminal", terminal))
    assert [
        f"chmod 700 {reachable / name}" in said
        for name, said in zip(("state", "store"), terminal.said, strict=True)
    ] == [True, True]
    assert mode(reachable / "store") == 0o755
    terminal.said.clear()
    monkeypatch.setenv("PREFECT_BT_SHARED_STORE", "1")
    warn_of_open_folders(cast("Terminal", terminal), (reachable / "store").as_uri())
    assert len(terminal.said) == 1
