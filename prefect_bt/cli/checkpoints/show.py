"""`prefect-bt checkpoints show`: the tensors of a file of a checkpoint, without fetching it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from prefect_bt.cli.checkpoints.list import get_checkpoint
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter, Output
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import NotFoundError, PrefectBtError

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.catalog import CheckpointFile, CommittedCheckpoint


def show_checkpoint(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: Annotated[str, Parameter(help="The checkpoint, by its name or id.")],
    file: Annotated[
        str | None, Parameter(help="A .safetensors file in it; may be left out if there is one.")
    ] = None,
    rank: Annotated[
        int | None, Parameter(help="Of which node; the first that has the file if left out.")
    ] = None,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Show the tensors of a .safetensors file: names, types, shapes, sizes. Reads its header only.

    `prefect-bt checkpoints show --checkpoint-name checkpoint-240 --file model.safetensors`
    """
    from prefect_bt.checkpoints.committed.catalog import list_checkpoints
    from prefect_bt.checkpoints.committed.safetensors_header import read_tensors
    from prefect_bt.cli.checkpoints import render_tensors as render
    from prefect_bt.ledger.opening import open_ledger

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    found = list_checkpoints(ledger.store, record.project_id, record.id)
    checkpoint = get_checkpoint(found, checkpoint_name, record.id)
    chosen = _select_file(checkpoint, file, rank)
    table = read_tensors(ledger.store, chosen.key, path=chosen.path, size=chosen.size)
    if terminal.machine_readable:
        terminal.print_json(
            render.tensors_document(record.id, checkpoint.checkpoint_id, chosen, table)
        )
    else:
        render.show_tensors(terminal, chosen, table)
    return OK


def _select_file(
    checkpoint: CommittedCheckpoint, name: str | None, rank: int | None
) -> CheckpointFile:
    """The file meant: by its path in the checkpoint, or with the checkpoint's name before it."""
    inside = "" if checkpoint.checkpoint_id == "." else f"{checkpoint.checkpoint_id}/"
    here = [one for one in checkpoint.files() if rank is None or one.rank == rank]
    tables = [one for one in here if one.path.endswith(".safetensors")]
    wanted = [one for one in here if name in (one.path, one.path.removeprefix(inside))]
    if name is None and len({one.path for one in tables}) == 1:
        wanted = tables
    listed = ", ".join(sorted({one.path.removeprefix(inside) for one in tables})) or "none"
    step = f"Its .safetensors files: {listed}."
    if name is None and not wanted:
        whose = f"Checkpoint {checkpoint.checkpoint_id!r}"
        if not tables:
            raise PrefectBtError(
                f"{whose} has no .safetensors file{'' if rank is None else f' of rank {rank}'}.",
                next_step="Its files: prefect-bt checkpoints list --checkpoint-name "
                f"{checkpoint.checkpoint_id} --non-interactive",
            )
        raise PrefectBtError(
            f"{whose} has several .safetensors files.", next_step=f"Say which: --file. {step}"
        )
    if not wanted:
        raise NotFoundError("file", name or "", next_step=step)
    if not wanted[0].path.endswith(".safetensors"):
        raise PrefectBtError(f"{wanted[0].path} is no .safetensors file.", next_step=step)
    return wanted[0]
