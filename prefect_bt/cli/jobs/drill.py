"""`prefect-bt drill`: whether a job would survive the death of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import FAILED, OK, Terminal

if TYPE_CHECKING:
    from prefect_bt.ledger.ledger import Ledger


def drill(
    config: Annotated[Path, Parameter(help="Python file with one TrainingProject.")],
    /,
    *,
    rank: Annotated[int, Parameter(help="Which one is killed; -1 is the last.")] = -1,
    step: Annotated[int, Parameter(help="Kill it after a checkpoint of this step or later.")] = 0,
    patience: Annotated[
        float, Parameter(help="Seconds until the kill, and again from the kill on.")
    ] = 600.0,
    entrypoint: Annotated[
        str | None, Parameter(help="One start command instead of the config's.")
    ] = None,
    keep_going: Annotated[bool, Parameter(help="Let the job train on to its end.")] = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Start a job, kill a rank once a checkpoint is committed, and see it go on from there.

    The job is real, and stopped afterwards; Ctrl-C asks it to stop and waits for nothing. Exit
    code 0 when the next attempt's steps went on, 1 when they began anew or nothing came. The result
    is kept on the job; `view` shows it.

    `prefect-bt drill config.py --step 20`
    """
    from prefect_bt import codec
    from prefect_bt.definitions import Overrides, apply_overrides, load_training_project
    from prefect_bt.errors import DrillError
    from prefect_bt.jobs import stop
    from prefect_bt.jobs.drill import DrillOptions, check_drillable, run_drill
    from prefect_bt.jobs.options import SubmitOptions
    from prefect_bt.jobs.start import open_launcher
    from prefect_bt.jobs.submit import submit
    from prefect_bt.ledger.opening import open_ledger

    overrides = Overrides(entrypoint=entrypoint)
    project, _ = apply_overrides(load_training_project(config), overrides)
    check_drillable(project)
    with open_launcher() as starter:
        document = submit(
            project, source_dir=config.absolute().parent, options=SubmitOptions(), launcher=starter
        )
    ledger = open_ledger(document.get("store"))
    record = ledger.get_job(str(document["id"]))
    terminal.info(f"Job {record.id} begins; a rank of it will be killed.")
    try:
        result = run_drill(ledger, record, DrillOptions(rank, step, patience), echo=terminal.info)
    except DrillError as error:
        terminal.error(str(error))
        result = None
    except BaseException:  # Ctrl-C among them: nobody waits for the job's end then
        if keep_going:
            terminal.info(f"Job {record.id} goes on.")
        else:
            _request_stop(terminal, ledger, record.id)
        raise
    if result is not None:
        terminal.echo(result.why, style="green" if result.resumed else "red")
        if terminal.machine_readable:
            terminal.print_json(codec.encode(result))
    if not keep_going and _request_stop(terminal, ledger, record.id):
        with terminal.spinner(f"Waiting for job {record.id} to end"):
            stop.wait_for_end(ledger, record.id)
    return OK if result is not None and result.resumed else FAILED


def _request_stop(terminal: Terminal, ledger: Ledger, job_id: str) -> bool:
    """It need not train to its end; False when it is over."""
    from prefect_bt.errors import StateError
    from prefect_bt.jobs import stop

    if ledger.get_state(job_id).terminal:
        return False
    try:
        terminal.info(stop.stop_job(ledger, job_id, by="the drill"))
    except StateError as error:  # it ended in this moment, or somebody asked before
        terminal.info(str(error))
    return True
