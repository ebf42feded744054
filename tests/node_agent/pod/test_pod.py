"""The node of a pod: its real agent and a real shell, without Kubernetes."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.host.state_folder import JobFolder
from prefect_bt.job_metrics.node_metrics import decode_metrics
from prefect_bt.ledger.node_objects import METRICS
from prefect_bt.ledger.records import EXIT_NOT_STARTED, NodePhase, StopReason
from prefect_bt.planning.planner import plan_gang
from tests.node_agent.rig import JOB, wait_until, with_checkpoints
from tests.planning.laptop import CONTEXT, project

from .pod_rig import SOURCE, Pod, children_of, run, why_not

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SHELLS = ("dash", *(pytest.param(name, marks=pytest.mark.extended) for name in ("bash", "busybox")))
DEAF = "trap '' TERM; echo deaf; sleep 60 & while :; do wait; sleep 0.1; done"
POLITE = "trap 'echo bye; exit 7' TERM; echo up; sleep 60 & wait"


@pytest.fixture(scope="module")
def permitted() -> None:
    if why := why_not():
        pytest.skip(why)


@pytest.fixture
def pod(tmp_path: Path, permitted: None) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_exit_code_of_the_commands_is_that_of_the_container(pod: Pod, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    pod.shell, pod.secrets = shell, {"hf": "s3cret-$value 'x'"}
    code, status = run(
        pod,
        'echo "$0 rank $BT_NODE_RANK in $PWD"; echo "token is $TOKEN."; test "$TOKEN" = "$WANTED"',
        "env | grep -c hf_of_the_agent; ls /prefect-bt; sleep 30 & exit 3",
        "echo never",
        secret_environment={"TOKEN": "hf"},
        environment={**pod.plan.environment, "WANTED": "s3cret-$value 'x'", "BT_NODE_RANK": "0"},
    )
    assert (code, status.phase, status.exit_code) == (3, NodePhase.DONE, 3), pod.said()
    assert (status.command, status.reason, status.cause) == (1, "", None)
    lines = pod.own_lines()
    assert lines[0].endswith("rank 0 in /b10/workspace")
    assert "token is ********." in lines
    assert "0" in lines, "no credential of the agent"
    assert "never" not in lines
    shown = (pod.folder / "agent.txt").read_text()
    assert "node is done: exit code 3" in shown, "for kubectl logs"
    assert "s3cret" not in pod.said() + "".join(pod.log())


def test_a_pod_is_sampled_and_its_metrics_are_published(pod: Pod) -> None:
    pod.start("sleep 60 & echo step 3 loss 0.5; sleep 7; kill $!")
    pod.wait()
    data = pod.objects.read_log(0, offset=0, limit=1 << 20, file=METRICS)
    metrics = decode_metrics(data, attempt=0, rank=0)
    assert [(point.step, point.values) for point in metrics.training] == [(3, {"loss": 0.5})]
    assert sum(metrics.columns["lines"]) == 1  # of two samples: the echo may come after the first
    assert metrics.columns["memory_available"][0] > 0
    assert metrics.facts.memory_total > metrics.columns["memory_available"][0]
    assert metrics.columns["disk_size"][0] >= metrics.columns["disk_free"][0] > 0


def test_a_stop_is_polite(pod: Pod) -> None:
    pod.start(POLITE)
    pod.wait_line("up")
    pod.ask(reason="stopped")
    code, status = pod.wait()
    assert "bye" in pod.own_lines()
    assert (status.phase, status.stop_reason) == (NodePhase.DONE, StopReason.STOPPED)
    assert code == status.exit_code == 7


def test_a_stop_does_not_end_tee_before_the_trainer_has_saved(pod: Pod) -> None:
    save = "echo stopping; sleep 0.3; echo saved; exit 7"
    pod.start(f"(trap '{save}' TERM; echo up; while :; do sleep 0.1; done) | tee log")
    pod.wait_line("up")
    pod.ask(reason="stopped")
    pod.wait()
    assert {"stopping", "saved"} <= set(pod.own_lines())


def test_force_ends_what_does_not_listen_and_what_runs_in_the_background(pod: Pod) -> None:
    pod.plan = replace(pod.plan, grace=600.0)
    pod.start(DEAF)
    pod.wait_line("deaf")
    pod.ask(reason="stopped", force=True)
    code, status = pod.wait()
    assert (status.stop_reason, status.exit_code, code) == (StopReason.STOPPED, 137, 137)


def test_a_kill_ends_the_commands_and_nothing_else(pod: Pod) -> None:
    pod.start("echo up; sleep 60")
    pod.wait_line("up")
    pod.ask(kill="1")
    code, status = pod.wait()
    assert (status.reason, status.exit_code, code) == ("", 137, 137)
    assert "node is done: exit code 137" in "\n".join(pod.log())


def test_a_deleted_pod_is_stopped_politely_and_reports_it(pod: Pod) -> None:
    pod.start(POLITE)
    pod.wait_line("up")
    pod.signal(pod.agent, signal.SIGTERM)
    code, status = pod.wait()
    assert (status.stop_reason, code) == (StopReason.POD_DELETED, 7)
    assert "bye" in pod.own_lines()


def test_a_deletion_leaves_the_grace_of_a_stop(pod: Pod) -> None:
    """Kubernetes deletes the pods of a gang once the first of them has ended."""
    pod.plan = replace(pod.plan, grace=0.2)
    save = "echo stopping; sleep 1; echo saved; exit 7"
    pod.start(f"trap '{save}' TERM; echo up; while :; do sleep 0.1; done")
    pod.wait_line("up")
    pod.ask(reason="stopped", grace=60.0)
    pod.wait_line("stopping")
    pod.signal(pod.agent, signal.SIGTERM)
    code, status = pod.wait()
    assert (status.stop_reason, code) == (StopReason.STOPPED, 7)
    assert "saved" in pod.own_lines()


def test_a_deletion_during_the_flush_does_not_change_how_the_commands_ended(pod: Pod) -> None:
    pod.plan = with_checkpoints(pod.plan)
    pod.start("cd $BT_CHECKPOINT_DIR; mkdir checkpoint-1; truncate -s 200M checkpoint-1/model.bin")
    status_file = JobFolder(pod.folder / "state", JOB).node_folder(0, 0).status
    wait_until(lambda: status_file.exists() and "flushing" in status_file.read_text())
    pod.signal(pod.agent, signal.SIGTERM)
    code, status = pod.wait()
    assert (code, status.exit_code, status.reason, status.cause) == (0, 0, "", None)
    assert "committed by this node: checkpoint-1" in "\n".join(pod.log())


def test_the_ranks_of_a_gang_begin_together(pod: Pod) -> None:
    pod.start("echo up", group_size=2)
    wait_until(lambda: pod.objects.count_ready() == 1)
    assert pod.status().started_at is None
    assert pod.own_lines() == []
    pod.objects.rank(1).write_ready()
    code, status = pod.wait()
    assert (code, status.exit_code, pod.own_lines()) == (0, 0, ["up"])


def test_the_end_of_the_container_is_not_taken_for_the_commands_own(pod: Pod) -> None:
    pod.start("echo up; sleep 60")
    pod.wait_line("up")
    pod.signal(pod.container, signal.SIGKILL)
    code, status = pod.wait()
    assert (status.stop_reason, code) == (StopReason.CONTAINER_GONE, 137)


@pytest.mark.extended
def test_it_waits_for_an_image_until_it_is_stopped(pod: Pod) -> None:
    """An image may be pulled for long, and the gang's watcher knows of one that has no shell."""
    pod.shell = "false"
    pod.start("true")
    assert pod.container.wait(600) == 1
    wait_until(lambda: pod.status().phase is NodePhase.STAGING)
    pod.ask(reason="stopped")
    _, status = pod.wait()
    assert (status.phase, status.stop_reason) == (NodePhase.DONE, StopReason.STOPPED)
    assert (status.started_at, status.exit_code) == (None, None)


def test_a_pod_that_is_deleted_while_its_agent_begins_is_stopped(pod: Pod) -> None:
    """A first process does not end by a signal that it does not handle yet.

    The agent can end before the other container has opened its pipes; a kubelet ends that one.
    """
    pod.agent = pod.start_agent()
    wait_until(lambda: holds_signals_back(pod) or pod.agent.poll() is not None)
    pod.signal(pod.agent, signal.SIGTERM)
    pod.container = pod.start_container()
    pod.agent.wait(600)
    status = pod.status()
    assert (status.stop_reason, status.started_at) == (StopReason.POD_DELETED, None)


@pytest.mark.extended
def test_a_command_may_end_the_listener(pod: Pod) -> None:
    code, status = run(pod, "kill -KILL -1; echo alone")
    assert (code, status.exit_code) == (0, 0)
    assert pod.own_lines() == ["alone"]


def test_checkpoints_are_committed_although_only_their_writer_reads_them(pod: Pod) -> None:
    pod.plan = with_checkpoints(pod.plan)
    save = "mkdir $BT_CHECKPOINT_DIR/checkpoint-1; cd $BT_CHECKPOINT_DIR/checkpoint-1"
    code, status = run(pod, f"umask 077; {save}; echo weights > model.bin; id -u")
    assert (code, status.upload_error, status.uncommitted) == (0, "", ()), pod.log()
    assert "checkpoints synced; committed by this node: checkpoint-1" in "\n".join(pod.log())
    stored = [p for p in (pod.folder / "store").rglob("*") if p.is_file()]
    assert any(p.read_bytes() == b"weights\n" for p in stored)


def holds_signals_back(pod: Pod) -> bool:
    """Return whether the agent is there, and blocks SIGTERM, or handles it already."""
    for first in children_of(pod.agent.pid):
        process = Path(f"/proc/{first}")
        status = (process / "status").read_text()
        begun = (process / "cmdline").read_text().startswith(sys.executable)
        fields = [status.partition(f"{name}:")[2].split()[0] for name in ("SigBlk", "SigCgt")]
        return begun and any(int(mask, 16) & 1 << signal.SIGTERM - 1 for mask in fields)
    return False


# -- weights --------------------------------------------------------------------------------


def stage(pod: Pod, source: str, **revisions: str) -> int:
    """Run the init container; return its exit code."""
    definition = project(weights=[{"source": source, "mount_location": "/models"}])
    plan = plan_gang(definition, replace(CONTEXT, revisions=revisions))
    pod.weights = plan.weights
    volumes = (*pod.plan.volumes[:2], *(v for v in plan.nodes[0].volumes if v.read_only))
    pod.plan = replace(pod.plan, volumes=volumes)
    return pod.start_agent("weights").wait(600)


def test_weights_are_mirrored_before_the_node_begins(pod: Pod) -> None:
    (pod.folder / "source" / "model.bin").write_bytes(b"w" * 5000)
    assert stage(pod, f"file://{SOURCE}") == 0, (pod.log(), pod.said())
    assert (pod.status().phase, pod.status().is_over) == (NodePhase.STAGING, False)
    [tree] = (pod.folder / "weights" / "trees").iterdir()
    assert (tree / "files" / "model.bin").read_bytes() == b"w" * 5000
    key, _, revision = tree.name.partition("-")
    assert stage(pod, f"file://{SOURCE}", **{key: revision}) == 0
    assert tree.name == pod.plan.volumes[-1].key, "what the commands' container mounts"
    before = pod.log()
    assert [line.rpartition(": ")[2] for line in before][-1] == "already on this machine"
    code, _ = run(pod, "true")
    assert code == 0
    assert pod.log()[: len(before)] == before, "one log for both containers"


def test_a_failed_source_has_its_reason(pod: Pod) -> None:
    assert stage(pod, "file:///bt-nothing") == EXIT_NOT_STARTED
    status = pod.status()
    assert (status.phase, status.cause) == (NodePhase.DONE, "staging_failed")
    assert (status.exit_code, status.reason.partition(":")[0]) == (125, "staging failed")
    assert "/bt-nothing" in status.reason
    assert "/bt-nothing" in "\n".join(pod.log())


def test_an_error_of_ours_while_weights_are_mirrored_is_the_reason(pod: Pod) -> None:
    definition = project(weights=[{"source": f"file://{SOURCE}", "mount_location": "/models"}])
    pod.weights = plan_gang(definition, CONTEXT).weights  # the pod's plan has no volume for it
    assert pod.start_agent("weights").wait(600) == EXIT_NOT_STARTED
    status = pod.status()
    assert (status.phase, status.cause) == (NodePhase.DONE, "agent_failed")
    assert "StopIteration" in status.reason
