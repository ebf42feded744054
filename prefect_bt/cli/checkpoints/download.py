"""`prefect-bt checkpoints download`: write committed checkpoints as folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from prefect_bt.checkpoints.committed import catalog, download
from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.committed.download import DesiredFiles
from prefect_bt.checkpoints.layout import join_checkpoint_path
from prefect_bt.cli.checkpoints.list import get_checkpoint
from prefect_bt.cli.jobs.download import folder_name
from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import NO_FILTER, CheckpointNames, InjectedTerminal, JobFilter
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import OK, format_count
from prefect_bt.errors import PrefectBtError, WorkspaceError
from prefect_bt.ledger.opening import open_ledger


def download_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: CheckpointNames = (),
    target_directory: Annotated[
        Path | None,
        Parameter(help="Target folder; default: `<project>_<job>_checkpoints`."),
    ] = None,
    terminal: InjectedTerminal,
) -> int:
    """Write the checkpoints of a job as the job wrote them; default: all of the newest job.

    The digest of every file is verified. The same command, run again, downloads only files that
    are missing or differ. If several ranks wrote checkpoints, the files of each rank are in a
    folder `rank-<n>`.

    Examples:

    `prefect-bt checkpoints download --job-id abc1234 --checkpoint-name checkpoint-240`
    """

    ledger = open_ledger()
    record = select_job(ledger, which, terminal)
    found = catalog.list_checkpoints(ledger.store, record.project_id, record.id)
    wanted = _map_target_paths(_select_checkpoints(found, checkpoint_name, record.id))
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
    return OK


def _select_checkpoints(
    found: list[CommittedCheckpoint], names: tuple[str, ...], job_id: str
) -> list[CommittedCheckpoint]:
    if not found:
        raise PrefectBtError(
            f"Job {job_id} has no committed checkpoint.",
            next_step=f"Upload status: prefect-bt view --job-id {job_id}",
        )
    for name in names:
        get_checkpoint(found, name, job_id)
    return [one for one in found if not names or one.checkpoint_id in names or one.id in names]


def _map_target_paths(chosen: list[CommittedCheckpoint]) -> DesiredFiles:
    """Return path below the target -> file; with a folder for each rank if others than 0 wrote."""

    manifests = [manifest for checkpoint in chosen for manifest in checkpoint.manifests]
    alone = {manifest.rank for manifest in manifests} == {0}
    folders = {manifest.rank: "" if alone else f"rank-{manifest.rank}/" for manifest in manifests}
    return {
        folders[manifest.rank] + join_checkpoint_path(manifest.name, entry.path): entry
        for manifest in manifests
        for entry in manifest.entries
    }
