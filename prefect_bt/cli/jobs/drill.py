"""`prefect-bt drill`: prove that a job resumes after the death of a rank."""

from __future__ import annotations

from pathlib import Path

from prefect_bt import codec
from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import FAILED, OK
from prefect_bt.definitions import Overrides, apply_overrides, load_training_project
from prefect_bt.jobs.drill import check_drillable, run_drill, stop_drill
from prefect_bt.jobs.options import SubmitOptions
from prefect_bt.jobs.starting.launcher import open_launcher
from prefect_bt.jobs.submit import submit
from prefect_bt.ledger.open_ledger import open_ledger


def drill(
    config: Path,
    /,
    *,
    rank: int = -1,
    step: int = 0,
    patience: float = 600.0,
    entrypoint: str | None = None,
    keep_going: bool = False,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Start a real job, kill a rank after a committed checkpoint, and compare the steps.

    The job is stopped at the end, also after Ctrl-C. The exit code is 0 if the next attempt
    continued from the checkpoint, and 1 if it started again or nothing could be seen.

    Args:
        config: Python file that defines one TrainingProject.
        rank: Rank to kill; -1 is the last.
        step: Kill it after a checkpoint of this step or later.
        patience: Seconds to wait for that checkpoint, and for the first one after the kill.
        entrypoint: One start command that replaces those of the config.
        keep_going: Let the job run to its end.

    Examples:

    `prefect-bt drill config.py --step 20`
    """
    project, _ = apply_overrides(load_training_project(config), Overrides(entrypoint=entrypoint))
    check_drillable(project)
    folder = config.absolute().parent
    with open_launcher() as launcher:
        document = submit(project, source_dir=folder, options=SubmitOptions(), launcher=launcher)
    ledger = open_ledger(document.get("store"))
    record = ledger.get_job(str(document["id"]))
    terminal.info(f"Job {record.id} is started; one of its ranks will be killed.")
    wait = True
    try:
        result = run_drill(
            ledger, record, rank=rank, step=step, timeout=patience, echo=terminal.info
        )
    except KeyboardInterrupt:
        wait = False
        raise
    finally:
        if not keep_going:
            with terminal.spinner(f"Stopping job {record.id}"):
                stop_drill(ledger, record.id, echo=terminal.info, wait=wait)
    style = "green" if result.resumed else "red"
    terminal.print_result(codec.encode(result), lambda: terminal.echo(result.why, style=style))
    return OK if result.resumed else FAILED
