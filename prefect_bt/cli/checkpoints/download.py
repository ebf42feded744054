"""`prefect-bt checkpoints download`: write committed checkpoints as folders."""

from __future__ import annotations

from pathlib import Path

from prefect_bt import codec
from prefect_bt.checkpoints.committed import download
from prefect_bt.checkpoints.manifest import ManifestEntry
from prefect_bt.cli.jobs.download import folder_name
from prefect_bt.cli.jobs.selection import open_jobs, select_project
from prefect_bt.cli.ui.options import NO_FILTER, CheckpointNames, InjectedTerminal, JobFilter
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import OK, format_count
from prefect_bt.errors import WorkspaceError


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
    jobs = open_jobs(terminal, which.remote)
    job = jobs.find_job(which.job_id, select_project(which, terminal))
    listed = jobs.list_files(job.id, checkpoint_name)
    wanted = {path: codec.decode(ManifestEntry, one) for path, one in listed["files"].items()}
    target = (target_directory or Path(f"{folder_name(job)}_checkpoints")).absolute()
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
        objects = jobs.open_objects(job.id)
        download.download_files(objects, missing, root=target, on_bytes=tick)
    download.set_folder_times(target, wanted)
    already = f" ({len(matching)} were there already)" if matching else ""
    count = format_count(len(wanted), "checkpoint file")
    terminal.echo(f"{count} in {target}{already}", style="green")
    newest = listed["newest"]
    complete = f" The newest complete checkpoint is {newest}." if newest else ""
    for name, missing_part in listed["incomplete"].items():
        terminal.warn(
            f"{name} is not complete: {missing_part} "
            f"The parts of the other ranks were downloaded.{complete}"
        )
    return OK
