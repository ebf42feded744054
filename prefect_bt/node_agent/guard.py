"""The first process of a node: it waits for the agent, and cleans up if the agent is killed.

Guard and agent together hold the node's lock (and its GPUs'), so the lock is free exactly when both
have ended. While the agent lives, the guard only makes sure that a process watches the job
(node_agent.owner_monitor). If the agent ends without a final status, the guard ends the commands,
waits for the uploader's final flush (which the closing of its stdin has begun) and writes LOST.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from prefect_bt.host import processes, syscalls
from prefect_bt.host.nodes.container_pipes import Pipes, kill_container, open_pipes
from prefect_bt.host.nodes.files import (
    AGENT_UNRESPONSIVE,
    NodeStopRequest,
    StatusFile,
    lost_status,
    read_record,
    read_secrets,
)
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus
from prefect_bt.node_agent.agent import Agent, AgentConfig, exit_process
from prefect_bt.node_agent.commands.stop_signal import TERMINATION_SIGNALS
from prefect_bt.node_agent.owner_monitor import RecoveryMonitor
from prefect_bt.planning.plan import NodePlan

AGENT_LOST = "the node's agent died"


def main(arguments: list[str]) -> NoReturn:
    """`arguments`: the node's folder, and the descriptors that hold its lock and port."""
    folder = NodeFolder(Path(arguments[0]))
    for held in arguments[1:]:
        os.set_inheritable(int(held), False)
    record = read_record(NodeRecord, folder.record)
    plan = read_record(NodePlan, folder.plan)
    if record is None or plan is None:
        sys.stderr.write(f"{folder.path}: node.json or plan.json cannot be read\n")
        exit_process(1)
    _become_subreaper()
    gpus, refusal = (
        _reserve_gpus(plan, Path(record.state_dir)) if not record.contained else ((), "")
    )
    # Both hold the pipes: a container lives until guard and agent have ended.
    pipes = None
    if record.contained:
        pipes = open_pipes(folder, only_container_reports=record.in_pod)
    # A polite signal waits until guard and agent can take it: unhandled, it would end them.
    signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
    agent = os.fork()
    if agent == 0:
        cause = Cause.GPUS_MISSING if refusal else None
        _run_agent(AgentConfig(folder, record, plan, {}, gpus, refusal, cause, pipes))
    os.close(0)
    _forward_signals(agent)
    rescue = RecoveryMonitor(record, plan.store)
    rescue.start()
    _wait_for_agent(agent)
    _clean_up(folder, record, plan.rank, pipes)
    rescue.recover_before_exit()
    exit_process(0)


def _reserve_gpus(plan: NodePlan, state_dir: Path) -> tuple[tuple[str, ...], str]:
    if not plan.resources.gpus:
        return (), ""
    from prefect_bt.host.gpu_reservation import NotEnoughGpus, reserve_gpus

    try:
        claimed = reserve_gpus(plan.resources.gpus, state_dir=state_dir)
    except (NotEnoughGpus, OSError) as error:
        return (), str(error)
    return tuple(gpu.device for gpu, _ in claimed), ""


def _run_agent(task: AgentConfig) -> NoReturn:
    code = 1
    try:
        _become_subreaper()
        status = StatusFile(task.folder.status, NodeStatus(task.plan.rank))
        try:
            task = task._replace(secrets=read_secrets(0))
        except ValueError:
            task = task._replace(startup_error="its launcher died before it was set up", cause=None)
        _close_stdin()
        Agent(task, status).run()
        code = 0
    except BaseException:  # outermost handler: the traceback goes to agent.log
        import traceback

        traceback.print_exc()
        raise
    finally:
        exit_process(code)


def _become_subreaper() -> None:
    with suppress(OSError):  # without it, daemons are found by their mark
        syscalls.set_subreaper()


def _close_stdin() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _forward_signals(agent: int) -> None:
    def forward(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(agent, number)

    for number in TERMINATION_SIGNALS:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TERMINATION_SIGNALS)


def _wait_for_agent(agent: int) -> None:
    while True:
        try:
            if os.wait()[0] == agent:
                return
        except ChildProcessError:
            return


def _clean_up(folder: NodeFolder, record: NodeRecord, rank: int, pipes: Pipes | None) -> None:
    """End every process but the uploader after the agent's end, and write the final status."""
    status = read_record(NodeStatus, folder.status) or NodeStatus(rank)
    if not status.is_over:
        asked = read_record(NodeStopRequest, folder.stop_request)
        lost = AGENT_UNRESPONSIVE if asked is not None and asked.unanswered else AGENT_LOST
        if pipes is not None:
            kill_container(pipes)
        _kill_commands(folder, record)
        if status.phase is not NodePhase.FLUSHING:
            status = replace(status, phase=NodePhase.FLUSHING, reason=lost, ended_at=time.time())
        StatusFile(folder.status, status).save_with_retry()
        _wait_for_children(record.mark)
        StatusFile(folder.status, lost_status(folder, status, lost)).save_with_retry()
    processes.kill_until_gone(
        lambda: [p.pid for p in processes.list_descendants(os.getpid())],
        reap=processes.reap_children,
    )


def _kill_commands(folder: NodeFolder, record: NodeRecord) -> None:
    def find() -> list[int]:
        spare = processes.find_uploader_processes(record.mark)
        return [p.pid for p in processes.list_descendants(os.getpid(), exclude=spare)]

    processes.kill_until_gone(find, reap=processes.reap_children)
    processes.kill_until_gone(
        lambda: processes.find_marked_processes(record.mark, folder.root, exclude_uploader=True),
        reap=processes.reap_children,
    )


def _wait_for_children(mark: str) -> None:
    """An uploader that lost its agent while a rescue began (owner_monitor) is not our child."""
    while processes.reap_children() or processes.find_uploader_processes(mark):
        time.sleep(0.1)
