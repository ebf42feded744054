"""The first process of a node: it waits for the agent, and cleans up if the agent is killed.

Guard and agent together hold the node's lock, so it is free exactly when both have ended, and the
locks of its GPUs until its commands have. While the agent lives, the guard makes sure that a
process watches the job (node_agent.owner_monitor), and publishes the nodes of this machine
(node_agent.publishing). If the agent ends without a final status, the guard ends the commands,
waits for the uploader's final flush (which the closing of its stdin has begun) and writes LOST. An
error of guard or agent itself is the reason (agent_failure).
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

from prefect_bt import codec
from prefect_bt.credentials.redaction import Redactor
from prefect_bt.filesystem.confined import read_regular
from prefect_bt.host import processes, syscalls
from prefect_bt.host.nodes.container_pipes import kill_container, open_pipes
from prefect_bt.host.nodes.files import (
    AGENT_UNRESPONSIVE,
    StatusFile,
    lost_status,
    read_record,
    read_secrets,
)
from prefect_bt.host.state_folder import NodeFolder, NodeRecord
from prefect_bt.ledger.records import Cause, NodePhase, NodeStatus
from prefect_bt.ledger.requests import StopRequest
from prefect_bt.node_agent.agent import Agent, AgentConfig
from prefect_bt.node_agent.agent_failure import report_failure
from prefect_bt.node_agent.commands.stop_signal import TERMINATION_SIGNALS
from prefect_bt.node_agent.log_writer import LogFile
from prefect_bt.node_agent.owner_monitor import RecoveryMonitor
from prefect_bt.node_agent.publishing.host_publisher import HostPublisher
from prefect_bt.planning.plan import NodePlan

AGENT_LOST = "the node's agent died"


def main(arguments: list[str]) -> NoReturn:
    """`arguments`: the node's folder, and the descriptors that hold its lock and port."""
    folder = NodeFolder(Path(arguments[0]))
    for held in arguments[1:]:
        os.set_inheritable(int(held), False)
    try:
        task, gpu_locks = _prepare(folder)
        # A polite signal waits until guard and agent can take it: unhandled, it would end them.
        signal.pthread_sigmask(signal.SIG_BLOCK, TERMINATION_SIGNALS)
        agent = os.fork()
    except BaseException as error:  # outermost handler: the error becomes the node's reason
        _report_unprepared(folder, error)
        raise SystemExit(1) from None
    if agent == 0:
        _run_agent(task)
    os.close(0)
    _forward_signals(agent)
    rescue = RecoveryMonitor(task.record, task.plan.store)
    rescue.start()
    publisher = HostPublisher(folder, task.record, task.plan)
    publisher.start()
    _wait_for_agent(agent)
    _clean_up(task)
    for lock in gpu_locks:  # the next attempt may need them while the end is published
        os.close(lock)
    rescue.recover_before_exit()
    publisher.close()
    _exit_process(0)


def _prepare(folder: NodeFolder) -> tuple[AgentConfig, tuple[int, ...]]:
    """Read the node's files, and acquire what guard and agent hold together.

    Return also the descriptors that hold the locks of its GPUs.
    """
    record = codec.loads(NodeRecord, read_regular(folder.record))
    plan = codec.loads(NodePlan, read_regular(folder.plan))
    _become_subreaper()
    gpus, refusal = dict[str, int](), ""
    if not record.contained:
        gpus, refusal = _reserve_gpus(plan, Path(record.state_dir))
    # Both hold the pipes: a container lives until guard and agent have ended.
    pipes = None
    if record.contained:
        pipes = open_pipes(folder, only_container_reports=record.in_pod)
    cause = Cause.GPUS_MISSING if refusal else None
    task = AgentConfig(folder, record, plan, {}, tuple(gpus), refusal, cause, pipes)
    return task, tuple(gpus.values())


def _report_unprepared(folder: NodeFolder, error: BaseException) -> None:
    """Write the final status of a node without an agent."""
    secrets: dict[str, str] = {}
    with suppress(ValueError):  # its launcher waits until they are read
        secrets = read_secrets(0)
    status = StatusFile(folder.status, NodeStatus(int(folder.path.name.removeprefix("rank-"))))
    report_failure(error, status, LogFile(folder.log, Redactor(secrets.values())), secrets.values())
    status.update(phase=NodePhase.LOST, ended_at=time.time())
    status.save_with_retry()


def _reserve_gpus(plan: NodePlan, state_dir: Path) -> tuple[dict[str, int], str]:
    """Return the devices with the descriptors of their locks, and why there are none."""
    if not plan.resources.gpus:
        return {}, ""
    from prefect_bt.host.gpu_reservation import NotEnoughGpus, reserve_gpus

    try:
        claimed = reserve_gpus(plan.resources.gpus, state_dir=state_dir)
    except (NotEnoughGpus, OSError) as error:
        return {}, str(error)
    return {gpu.device: lock for gpu, lock in claimed}, ""


def _run_agent(task: AgentConfig) -> NoReturn:
    code = 1
    agent: Agent | None = None
    status = StatusFile(task.folder.status, NodeStatus(task.plan.rank))
    try:
        _become_subreaper()
        try:
            task = task._replace(secrets=read_secrets(0))
        except ValueError:
            task = task._replace(startup_error="its launcher died before it was set up", cause=None)
        _close_stdin()
        agent = Agent(task, status)
        agent.run()
        code = 0
    except BaseException as error:  # outermost handler: the error becomes the node's reason
        report_failure(error, status, agent.log if agent else None, task.secrets.values())
        raise
    finally:
        _exit_process(code)


def _exit_process(code: int) -> NoReturn:
    """End this process now: a download in a thread must not keep a finished node alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


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


def _clean_up(task: AgentConfig) -> None:
    """End every process but the uploader after the agent's end, and write the final status."""
    folder, record = task.folder, task.record
    status = read_record(NodeStatus, folder.status) or NodeStatus(task.plan.rank)
    if not status.is_over:
        asked = read_record(StopRequest, folder.stop_request)
        lost = AGENT_UNRESPONSIVE if asked is not None and asked.unanswered else AGENT_LOST
        if status.cause in {Cause.AGENT_FAILED, Cause.NODE_LOST}:  # its own last words
            lost = status.reason
        if task.pipes is not None:
            kill_container(task.pipes)
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
