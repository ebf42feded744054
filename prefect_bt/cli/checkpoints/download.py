"""`prefect-bt checkpoints download`: write committed checkpoints as folders."""

from __future__ import annotations

from pathlib import Path

from prefect_bt.checkpoints.committed import catalog, download
from prefect_bt.checkpoints.committed.download import DesiredFiles
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.cli.jobs.download import folder_name
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import NO_FILTER, CheckpointNames, InjectedTerminal, JobFilter
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import OK, Terminal, format_count
from prefect_bt.errors import PrefectBtError, WorkspaceError
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.open_ledger import open_ledger
from prefect_bt.ledger.records import JobRecord


def download_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: CheckpointNames = (),
    target_directory: Path | None = None,
    terminal: InjectedTerminal,
) -> int:
    """Write the checkpoints of a job as the job wrote them; default: all of the newest job.

    The digest of every file is verified. The same command, run again, downloads only files that
    are missing or differ. If several ranks wrote checkpoints, the files of each rank are in a
    folder `rank-<n>`.

    Args:
        target_directory: Target folder; default: `<project>_<job>_checkpoints`.

    Examples:

    `prefect-bt checkpoints download --job-id abc1234 --checkpoint-name checkpoint-240`
    """
    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    found = list_committed(ledger, record)
    names = [one.checkpoint_id for one in found]
    chosen = catalog.resolve_names(record.id, names, checkpoint_name or names)
    asked = [one for one in found if one.checkpoint_id in chosen]
    wanted = _map_target_paths(asked)
    target = (target_directory or Path(f"{folder_name(record)}_checkpoints")).absolute()
    download.check_lengths(target, wanted)
    if target.exists() and not target.is_dir():
        raise WorkspaceError(
            f"{str(target)!r} is not a folder.",
            next_step="Give another --target-directory.",
            path=str(target),
        )
    present = {path: entry for path, entry in wanted.items() if (target / path).exists()}
    with byte_progress(terminal, "Comparing", sum(e.size for e in present.values())) as tick:
        matching = download.find_matching(target, present, on_bytes=tick)
    missing = {path: entry for path, entry in wanted.items() if path not in matching}
    with byte_progress(terminal, "Downloading", sum(e.size for e in missing.values())) as tick:
        download.download_files(ledger.store, missing, root=target, on_bytes=tick)
    download.set_folder_times(target, wanted)
    already = f" ({len(matching)} were there already)" if matching else ""
    count = format_count(len(wanted), "checkpoint file")
    terminal.echo(f"{count} in {target}{already}", style="green")
    _warn_incomplete(terminal, asked, newest=catalog.select_newest(found))
    return OK


def _warn_incomplete(
    terminal: Terminal,
    checkpoints: list[catalog.CommittedCheckpoint],
    *,
    newest: catalog.CommittedCheckpoint | None,
) -> None:
    """Warn about checkpoints without the part of a rank."""
    complete = f" The newest complete checkpoint is {newest.checkpoint_id}." if newest else ""
    for one in checkpoints:
        if one.missing_part:
            terminal.warn(
                f"{one.checkpoint_id} is not complete: {one.missing_part} "
                f"The parts of the other ranks were downloaded.{complete}"
            )


def list_committed(ledger: Ledger, record: JobRecord) -> list[catalog.CommittedCheckpoint]:
    """Return the committed checkpoints of a job, at least one."""
    if found := catalog.list_checkpoints(ledger.store, record.project_id, record.id):
        return found
    step = f"Upload status: prefect-bt view --job-id {record.id}"
    raise PrefectBtError(f"Job {record.id} has no committed checkpoint.", next_step=step)


def _map_target_paths(chosen: list[catalog.CommittedCheckpoint]) -> DesiredFiles:
    """Return path below the target -> file, in a folder for each rank unless only rank 0 wrote."""
    manifests = [manifest for checkpoint in chosen for manifest in checkpoint.manifests]
    alone = all(manifest.rank == 0 for manifest in manifests)
    return {
        f"{'' if alone else f'rank-{one.rank}/'}{join_checkpoint_path(one.name, entry.path)}": entry
        for one in manifests
        for entry in one.entries
    }
