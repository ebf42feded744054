"""Whole jobs in containers: pushed, pulled, run, killed, stopped; nothing stays on the Engine."""

from __future__ import annotations

import json

import pytest

from tests.beside import complete_beside
from tests.e2e.conftest import until

from .conftest import BASE, push
from .job_site import Site
from .registry import Registry
from .removal import remove_image

pytestmark = [pytest.mark.integration]

RESUMES = """
n=$(ls $BT_CHECKPOINT_DIR | wc -l)
echo attempt $BT_RETRY_COUNT finds $n
mkdir -p $BT_CHECKPOINT_DIR/checkpoint-$n && echo "{}" > $BT_CHECKPOINT_DIR/checkpoint-$n/a.json
[ $BT_RETRY_COUNT = 1 ] || while :; do sleep 0.1; done
"""


def test_a_gang_of_two_meets_and_commits(site: Site) -> None:
    """Rank 1 hears from the leader by its name; both save; no word of a secret's is needed."""
    script = """
    set -e
    if [ $BT_NODE_RANK = 0 ]; then
      echo "from the leader" | nc -l -p $BT_LEADER_PORT
    else
      until nc $BT_LEADER_ADDR $BT_LEADER_PORT > heard; do sleep 0.1; done
      cat heard
    fi
    mkdir -p $BT_CHECKPOINT_DIR/last && echo "{}" > $BT_CHECKPOINT_DIR/last/a.json
    echo '{"step": 3, "reward": 0.5}' >> $BT_METRICS_FILE
    sleep 3
    """
    code, job = site.machine.finish(site.folder(script, nodes=2))
    assert code == 0, job["error_message"]
    assert job["substrate"] == "docker"
    assert job["image"]["reference"] == BASE
    assert job["image"]["pinned"] == site.engine.inspect_image(BASE)["Id"]
    assert "(rank-1) from the leader" in site.machine.logs(job["id"])
    assert site.machine.checkpoints(job["id"]) == ["last"]
    done = site.machine.run("metrics", "--job-id", job["id"], "-o", "json")
    metrics = json.loads(done.stdout)
    assert [point["value"] for point in metrics["training"]["reward"]] == [0.5]
    for node in metrics["per_node_metrics"]:
        memory = [point["value"] for point in node["metrics"]["cpu_memory_usage_bytes"]]
        assert max(memory) < 500e6, "of the container, not of the machine"
    site.nothing_left(job["id"])
    _leave_a_container(site, job["id"])
    found = json.loads(site.machine.run("gc", "--dry-run", "-o", "json").stdout)
    assert f"left-{job['id']}" in json.dumps(found)
    site.machine.run("gc", "--yes")
    site.nothing_left(job["id"])


def test_check_runs_two_containers(site: Site) -> None:
    done = site.machine.run("check", "--image", BASE, "-o", "json")
    statuses = {one["name"]: one["status"] for one in json.loads(done.stdout)["checks"]}
    assert statuses["Docker Engine"] == statuses["Two nodes"] == "passed"
    assert statuses["Store from a node"] == "passed"
    assert statuses["Network of two nodes"] == "skipped", "busybox has no Python"
    missing = site.machine.run("check", "--image", "nowhere.invalid/x:1", check=False)
    assert missing.returncode == 1
    assert "FAILED   Two nodes" in missing.stdout


def test_a_private_registry_wants_the_right_password(site: Site, registry: Registry) -> None:
    name = f"{registry.host}/team/private:1"
    site.engine.tag(BASE, f"{registry.host}/team/private", "1")
    digest = push(site.engine, name, registry)
    config = site.folder("echo inside\n", image=name, registry=registry.host)
    wrong = {"PREFECT_BT_SECRET_REGISTRY_LOGIN": "someone:wrong-password"}
    code, job = site.machine.finish(config, extra=wrong)
    assert (code, job["current_status"]) == (1, "TRAINING_JOB_DEPLOY_FAILED")
    assert job["attempts"][-1]["cause"] == "registry_refused"
    assert "registry_login" in job["error_message"]
    assert "wrong-password" not in json.dumps(job)
    site.nothing_left(job["id"])
    right = {"PREFECT_BT_SECRET_REGISTRY_LOGIN": registry.login}
    code, job = site.machine.finish(config, extra=right)
    assert code == 0, job["error_message"]
    assert job["image"]["pinned"] == f"{registry.host}/team/private@{digest}"
    assert registry.login.partition(":")[2] not in json.dumps(job)
    remove_image(site.engine, job["image"]["pinned"])
    site.nothing_left(job["id"])


def test_a_container_removed_behind_our_back(site: Site) -> None:
    """Infrastructure: the next attempt goes on from what the first had committed."""

    def remove(job_id: str) -> None:
        until(lambda: site.machine.checkpoints(job_id), seconds=90, what="a checkpoint")
        for one in site.containers(job_id):
            site.engine.remove_container(one, force=True)

    job = complete_beside(site.machine, site.folder(RESUMES), remove)
    assert [one["failure"] for one in job["attempts"]] == ["infrastructure", None]
    assert "attempt 1 finds 1" in site.machine.logs(job["id"])
    site.nothing_left(job["id"])


@pytest.mark.extended
def test_the_flow_is_killed_and_the_container_goes_on(site: Site) -> None:
    script = """
    echo begun
    mkdir -p $BT_CHECKPOINT_DIR/c && echo "{}" > $BT_CHECKPOINT_DIR/c/a.json
    while [ ! -e $BT_SCRATCH_DIR/go ]; do sleep 0.1; done
    """
    job_id = _begun(site, script)
    before = site.containers(job_id)
    for process in site.machine.processes("prefect_bt.supervisor.run_flow", job_id):
        process.kill()
    until(
        lambda: (
            "continues: its" in (site.machine.state_dir / "jobs" / job_id / "flow.log").read_text()
        ),
        seconds=60,
        what="another flow",
    )
    assert site.containers(job_id) == before
    scratch = site.machine.state_dir / "jobs" / job_id / "attempt-0" / "rank-0" / "scratch"
    (scratch / "go").touch()
    site.machine.wait(job_id, "COMPLETED")
    assert len(site.machine.view(job_id)["attempts"]) == 1
    site.nothing_left(job_id)


@pytest.mark.extended
def test_stop_saves_and_leaves_nothing(site: Site) -> None:
    script = """
    trap 'mkdir -p $BT_CHECKPOINT_DIR/last; echo "{}" > $BT_CHECKPOINT_DIR/last/a.json; exit 0' TERM
    mkdir -p $BT_CHECKPOINT_DIR/c && echo "{}" > $BT_CHECKPOINT_DIR/c/a.json
    while :; do sleep 0.1; done
    """
    job_id = _begun(site, script, PREFECT_BT_GRACE="120")
    site.machine.run("stop", "--job-id", job_id)
    site.machine.wait(job_id, "STOPPED")
    assert "last" in site.machine.checkpoints(job_id)
    site.nothing_left(job_id)


@pytest.mark.extended
def test_garbage_of_a_dead_machine_is_found(site: Site) -> None:
    """Everything of a job is killed at once, its record says that it failed: gc clears the rest."""
    job_id = _begun(site)
    site.machine.kill_all(job_id)
    site.machine.run("stop", "--job-id", job_id, check=False)
    site.machine.wait(job_id, "STOPPED")
    job = site.machine.state_dir / "jobs" / job_id
    _leave_a_container(site, job_id)
    found = json.loads(site.machine.run("gc", "--dry-run", "-o", "json").stdout)
    assert f"left-{job_id}" in json.dumps(found)
    site.machine.run("gc", "--yes", "--include-unsaved")
    assert not job.exists()
    site.nothing_left(job_id)


def _leave_a_container(site: Site, job_id: str) -> None:
    """Create a container of the job's, as an attempt of an earlier process might leave it."""
    from prefect_bt.host.state_folder import make_mark
    from prefect_bt.substrates.docker.container_arguments import render_labels

    mark = make_mark(site.machine.state_dir, job_id=job_id, attempt=7, rank=0)
    labels = render_labels(job_id, 7, 0, mark)
    site.engine.create_container(BASE, "true", name=f"left-{job_id}", labels=labels)


def _begun(site: Site, script: str = RESUMES, **extra: str) -> str:
    """A job whose first checkpoint is committed. `extra` are environment variables."""
    job_id = str(site.machine.push(site.folder(script), **extra)["id"])
    until(lambda: site.machine.checkpoints(job_id), seconds=90, what="a checkpoint")
    return job_id
