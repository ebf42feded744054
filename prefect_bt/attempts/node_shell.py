"""Open a shell in a node of a running job."""

from __future__ import annotations

import os
from dataclasses import replace

from prefect_bt.attempts.job_context import JobContext
from prefect_bt.definitions import secret_names
from prefect_bt.errors import StateError, UsageError
from prefect_bt.host.job_lock import host_id, is_this_host
from prefect_bt.host.terminal import ShellRequest
from prefect_bt.ledger.fencing_epochs import describe_holder
from prefect_bt.ledger.records import NodePhase, NodeStatus
from prefect_bt.ledger.states import JobState
from prefect_bt.logs.logins import Login, write_login
from prefect_bt.substrates import CLUSTERS, run_shell
from prefect_bt.substrates.protocol import NodeHandle


def open_shell(site: JobContext, rank: int, request: ShellRequest, *, user: str) -> int:
    """Run the request in a node of the newest attempt; return its exit code.

    The login is recorded first, and if it cannot be, nothing is run. StateError for a node that
    does not run commands now; UsageError for an unknown rank; StoreError, SubstrateError.
    """
    node = find_running_node(site, rank)
    login = Login(
        at=site.ledger.now(),
        user=user,
        machine=os.uname().nodename,
        rank=rank,
        attempt=node.attempt,
        command=os.path.basename(request.command[0]) if request.command else "",  # noqa: PTH119
        with_secrets=request.with_secrets,
    )
    write_login(site.ledger, site.record, login)
    secrets = secret_names(site.project.job.runtime.environment_variables)
    request = replace(request, secret_variables=tuple(secrets))
    return run_shell(site.substrate.name, node, request)


def find_running_node(site: JobContext, rank: int) -> NodeHandle:
    """Return the node if its commands run; UsageError or StateError if not."""
    count = site.project.job.compute.node_count
    if rank >= count:
        ranks = "only rank 0" if count == 1 else f"ranks 0 to {count - 1}"
        raise UsageError(f"Job {site.job_id} has {ranks}, not {rank}.")
    state = site.ledger.get_state(site.job_id)
    _check_state(site, state)
    _check_machine(site, state, rank)
    nodes = [node for node in site.substrate.list_nodes(site.job_id) if node.rank == rank]
    if not nodes:
        raise _not_running(site, state, f"rank {rank} has not started")
    newest = max(nodes, key=lambda node: node.attempt)
    status = newest.observe()
    if status.phase is not NodePhase.RUNNING:
        raise _not_running(site, state, f"rank {rank} {_describe(status)}")
    return newest


def _check_state(site: JobContext, state: JobState) -> None:
    if state.terminal:
        raise StateError(
            f"Job {site.job_id} has ended ({state.value}), so no shell can be opened in it.",
            state=state.value,
            next_step=f"See its log: prefect-bt logs --job-id {site.job_id}",
        )
    if state is JobState.PENDING:
        raise StateError(
            f"Job {site.job_id} waits, so it has no nodes yet.",
            state=state.value,
            next_step="See what it waits for: prefect-bt queue",
        )


def _check_machine(site: JobContext, state: JobState, rank: int) -> None:
    """Raise StateError that names the machine of the nodes, if it is another one."""
    folder, job_id = site.settings.state_dir, site.job_id
    begun = site.ledger.list_attempts(job_id)
    holder = begun[-1].host if begun else ""
    if site.record.substrate in CLUSTERS or is_this_host(folder, holder):
        return
    machine = holder.partition(":")[0]
    where = describe_holder(holder, host_id(folder))
    command = f"prefect-bt shell --job-id {job_id} --rank {rank}"
    raise StateError(
        f"Job {job_id} runs on {where}.",
        state=state.value,
        next_step=f"Log in there: ssh {machine}, then: {command}"
        if where == machine
        else f"Set PREFECT_BT_STATE_DIR to that folder, then: {command}",
    )


def _describe(status: NodeStatus) -> str:
    if status.commands_ended:
        return "has ended its commands"
    return {
        NodePhase.LAUNCHED: "has not started",
        NodePhase.STAGING: "still stages its files",
    }[status.phase]


def _not_running(site: JobContext, state: JobState, why: str) -> StateError:
    return StateError(
        f"No shell can be opened in job {site.job_id} now: {why}.",
        state=state.value,
        next_step=f"Follow it: prefect-bt logs --tail --job-id {site.job_id}",
    )
