"""`prefect-bt drill`: whether a job would survive the death of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.cli.options import Here, Output
from prefect_bt.cli.terminal import FAILED, OK


def drill(
    config: Annotated[Path, Parameter(help="Python file with one TrainingProject.")],
    /,
    *,
    rank: Annotated[int, Parameter(help="Which one is killed; -1 is the last.")] = -1,
    step: Annotated[int, Parameter(help="Kill it after a checkpoint of this step or later.")] = 0,
    patience: Annotated[float, Parameter(help="Seconds that each half may take.")] = 600.0,
    entrypoint: Annotated[
        str | None, Parameter(help="One start command instead of the config's.")
    ] = None,
    keep_going: Annotated[bool, Parameter(help="Let the job train on to its end.")] = False,
    output: Output = "cli-table",
    terminal: Here,
) -> int:
    """Start a job, kill a rank once a checkpoint is committed, and see it go on from there.

    The job is real, and stopped afterwards. Exit code 0 when the next attempt's steps went on, 1
    when they began anew or nothing came. The result is kept on the job; `view` shows it.

    `prefect-bt drill config.py --step 20`
    """
    from prefect_bt import codec, drilling
    from prefect_bt.definitions import Overrides, apply_overrides, load_training_project
    from prefect_bt.jobs import open_ledger
    from prefect_bt.starting import starting
    from prefect_bt.submission import SubmitOptions, submit

    beside = terminal.beside(output)
    with starting() as starter:
        overrides = Overrides(entrypoint=entrypoint)
        project, _ = apply_overrides(load_training_project(config), overrides)
        document = submit(
            project, source_dir=config.absolute().parent, options=SubmitOptions(), starter=starter
        )
    ledger = open_ledger(document.get("store"))
    record = ledger.job(str(document["id"]))
    beside.note(f"Job {record.id} begins; a rank of it will be killed.")
    try:
        result = drilling.run_drill(
            ledger, record, drilling.Drill(rank, step, patience), say=beside.note
        )
    finally:
        if not keep_going:
            drilling.stop_after(ledger, record.id)
    beside.say(result.why, style="green" if result.resumed else "red")
    if beside.documents:
        beside.document(codec.encode(result))
    return OK if result.resumed else FAILED
