"""The training cache, end to end: who shares it, how long it stays, and how it goes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from prefect_bt.flows.train import atrain
from tests.in_process import environment_of

from .conftest import Machine

pytestmark = [pytest.mark.integration]

CONFIG = """
import json
from pathlib import Path
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
project = d.TrainingProject(
    name=given["project"],
    team_name=given.get("team"),
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        compute=d.Compute(node_count=given.get("nodes", 1), memory="64Mi"),
        runtime=d.Runtime(
            start_commands=["sh ./run.sh"],
            cache_config=d.CacheConfig(enabled=True, **given["cache"]),
        ),
    ),
)
"""


def folder(
    machine: Machine, run_sh: str, *, project: str, nodes: int = 1, team: str = "", **cache: Any
) -> Path:
    """A training folder; `cache` are fields of its CacheConfig."""
    given = {"team": team} if team else {}
    config = machine.folder(run_sh, project=project, nodes=nodes, cache=cache, **given)
    config.write_text(CONFIG)
    return config


def together(machine: Machine, *configs: Path) -> None:
    """Run jobs at the same time, in threads of this process; all complete."""

    async def run() -> None:
        await asyncio.gather(*(atrain(str(config)) for config in configs))

    with environment_of(machine.environment):
        asyncio.run(run())


def summary(machine: Machine, project: str) -> dict[str, Any]:
    return json.loads(machine.run("cache", "summarize", project, "-o", "json").stdout)


MEET = """
set -e
cd $BT_PROJECT_CACHE_DIR
echo $ME.$BT_NODE_RANK > .tmp.$ME.$BT_NODE_RANK
mv .tmp.$ME.$BT_NODE_RANK here.$ME.$BT_NODE_RANK
for other in one.0 one.1 two.0 two.1; do
  until [ -e here.$other ]; do sleep 0.1; done
  test "$(cat here.$other)" = $other
done
echo $ME.$BT_NODE_RANK >> log
"""


def test_all_nodes_of_jobs_at_once_write_and_read_it(machine: Machine) -> None:
    """Two jobs of two nodes; nobody goes on before it has seen what the other three renamed."""
    one = folder(machine, f"ME=one\n{MEET}", project="meeting", nodes=2)
    two = folder(machine, f"ME=two\n{MEET}", project="meeting", nodes=2)
    together(machine, one, two)
    files = {file["path"]: file for file in summary(machine, "meeting")["files"]}
    assert set(files) == {"here.one.0", "here.one.1", "here.two.0", "here.two.1", "log"}
    assert files["log"]["size_bytes"] == 4 * len("one.0\n")


@pytest.mark.extended
def test_a_team_shares_its_cache_over_projects_and_with_no_other_team(machine: Machine) -> None:
    ours = """
    set -e
    touch $BT_TEAM_CACHE_DIR/from-$BT_TRAINING_PROJECT_NAME
    until [ $(ls $BT_TEAM_CACHE_DIR | wc -l) = 2 ]; do sleep 0.1; done
    touch $BT_PROJECT_CACHE_DIR/own
    test "$(ls $BT_PROJECT_CACHE_DIR)" = own
    """
    together(
        machine,
        folder(machine, ours, project="red-1", team="red / team"),
        folder(machine, ours, project="red-2", team="red / team"),
    )
    theirs = 'test -z "$(ls $BT_TEAM_CACHE_DIR $BT_PROJECT_CACHE_DIR | grep -v :)"\n'
    together(
        machine,
        folder(machine, theirs, project="blue-1", team="blue " * 60),
        folder(machine, theirs, project="no-team"),
    )


def test_it_stays_until_the_project_is_deleted(machine: Machine) -> None:
    write = """
    set -e
    env | grep _CACHE_DIR
    mkdir -p $BT_PROJECT_CACHE_DIR/model $BT_RW_CACHE_DIR/pip
    printf 12345 > $BT_PROJECT_CACHE_DIR/model/weights.bin
    printf 123 > $BT_RW_CACHE_DIR/pip/wheel
    printf 1 > $BT_TEAM_CACHE_DIR/of-the-team
    printf 12 > /root/.cache/huggingface/blob
    echo gone > $BT_SCRATCH_DIR/file; echo gone > /b10/workspace/file
    """
    settings = {"mount_base_path": "/mnt/cache", "enable_legacy_hf_mount": True}
    job = machine.completed(folder(machine, write, project="kept", team="k", **settings))
    said = machine.logs(job["id"])
    for name, path in (("RW", ""), ("PROJECT", "/user_artifacts"), ("TEAM", "/team_artifacts")):
        assert f"BT_{name}_CACHE_DIR=/mnt/cache{path}\n" in said
    read = """
    set -e
    test $(cat $BT_PROJECT_CACHE_DIR/model/weights.bin) = 12345
    test $(cat $BT_RW_CACHE_DIR/pip/wheel /root/.cache/huggingface/blob) = 12312
    test $(cat $BT_TEAM_CACHE_DIR/of-the-team) = 1
    test ! -e $BT_SCRATCH_DIR/file && test ! -e /b10/workspace/file
    """
    affinity = {"require_cache_affinity": False}
    machine.completed(folder(machine, read, project="kept", team="k", **affinity, **settings))

    found = summary(machine, "kept")
    sizes = {file["path"]: file["size_bytes"] for file in found["files"]}
    assert (sizes["model"], sizes["model/weights.bin"], sizes["../pip"]) == (5, 5, 3)
    assert found["total_size_bytes"] == 10
    assert found["project_id"] == job["training_project"]["id"]

    machine.run("delete", "--project", "kept", "--yes")
    left = [path for path in (machine.state_dir / "cache").glob("*/*") if path.name != "default"]
    assert job["training_project"]["id"] not in {path.name for path in left}
    assert (machine.state_dir / "cache" / "teams" / "k" / "of-the-team").read_text() == "1"
    fresh = machine.completed(folder(machine, "ls $BT_PROJECT_CACHE_DIR\n", project="kept"))
    assert fresh["training_project"]["id"] != job["training_project"]["id"]
    assert summary(machine, "kept")["files"] == []
