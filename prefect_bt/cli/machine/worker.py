"""`prefect-bt worker`: run jobs of the store's queue on this machine."""

from __future__ import annotations

import time

from prefect_bt.cli.ui.options import InjectedTerminal, MetricsListen
from prefect_bt.errors import PrefectBtError
from prefect_bt.jobs.reconcile import RecoveryPoller
from prefect_bt.jobs.starting.poller import POLL_INTERVAL, QueuePoller
from prefect_bt.ledger.job_objects import DAMAGED
from prefect_bt.settings import Settings


def worker(*, metrics_listen: MetricsListen = None, terminal: InjectedTerminal) -> int:
    """Take queued jobs of the store as soon as this machine has room for them.

    Every machine with a worker takes jobs of the queue, whichever machine they were pushed from.
    `prefect-bt up` does the same. With Ctrl-C the worker ends; its jobs continue.

    Examples:

    `PREFECT_BT_STORE=s3://bucket/team prefect-bt worker`
    """
    if address := metrics_listen or Settings().metrics_listen:
        from prefect_bt.open_metrics.endpoint import serve_metrics

        port = serve_metrics(address)
        terminal.echo(f"Metrics: http://{address.rpartition(':')[0]}:{port}/metrics")
    queue, jobs = QueuePoller(), RecoveryPoller(Settings().state_dir)
    machine = queue.machine
    gpus = "".join(f", {count} {kind}" for kind, count in sorted(machine.gpus.items()))
    terminal.echo(f"{machine.name} takes jobs: {machine.cpus} CPUs{gpus}. Ctrl-C ends the worker.")
    told = ""
    while True:
        try:
            for news in [*queue.poll(), *jobs.poll()]:
                terminal.echo(f"{news[:1].upper()}{news[1:]}.")
            told = ""
        except (PrefectBtError, OSError, *DAMAGED) as error:
            if (text := str(error) or repr(error)) != told:  # it may last
                terminal.warn(text)
            told = text
        time.sleep(POLL_INTERVAL)
