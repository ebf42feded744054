"""`prefect-bt checkpoints download`: committed checkpoints as the folders the job wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from prefect_bt.cli.jobs.selection import select_job
from prefect_bt.cli.ui.options import NO_FILTER, InjectedTerminal, JobFilter
from prefect_bt.cli.ui.progress_bars import byte_progress
from prefect_bt.cli.ui.terminal import OK
from prefect_bt.errors import NotFoundError, PrefectBtError, WorkspaceError

if TYPE_CHECKING:
    from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
    from prefect_bt.checkpoints.committed.download import DesiredFiles


def download_checkpoints(
    *,
    which: JobFilter = NO_FILTER,
    checkpoint_name: Annotated[
        tuple[str, ...], Parameter(help="Only this one; may be given several times.")
    ] = (),
    target_directory: Annotated[
        Path | None,
        Parameter(help="Folder to put them in; `<project>_<job>_checkpoints` when left out."),
    ] = None,
    terminal: InjectedTerminal,
) -> int:
    """Get committed checkpoints as folders, by default all of the newest job.

    Every file is hashed on arrival. Run again, it fetches what is missing or differs. Where not
    only rank 0 wrote, each rank's part is in a folder `rank-<n>`.

    `prefect-bt checkpoints download --job-id abc1234 --checkpoint-name checkpoint-240`
    """
    from prefect_bt.checkpoints.committed import catalog, download
    from prefect_bt.cli.jobs.download import folder_name
    from prefect_bt.ledger.opening import open_ledger

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
    here = {path: entry for path, entry in wanted.items() if (target / path).exists()}
    with byte_progress(terminal, "Comparing", sum(entry.size for entry in here.values())) as tick:
        right = download.find_matching(target, here, on_bytes=tick)
    missing = {path: entry for path, entry in wanted.items() if path not in right}
    with byte_progress(
        terminal, "Downloading", sum(entry.size for entry in missing.values())
    ) as tick:
        download.download_files(ledger.store, missing, root=target, on_bytes=tick)
    download.set_folder_times(target, wanted)
    already = f" ({len(right)} were there already)" if right else ""
    files = "1 checkpoint file is" if len(wanted) == 1 else f"{len(wanted)} checkpoint files are"
    terminal.echo(f"{files} in {target}{already}", style="green")
    return OK


def _select_checkpoints(
    found: list[CommittedCheckpoint], names: tuple[str, ...], job_id: str
) -> list[CommittedCheckpoint]:
    if not found:
        raise PrefectBtError(
            f"Job {job_id} has no committed checkpoint.",
            next_step=f"How far its upload is: prefect-bt view --job-id {job_id}",
        )
    listed = ", ".join(checkpoint.checkpoint_id for checkpoint in found) or "none"
    for name in names:
        if all(name not in (one.checkpoint_id, one.id) for one in found):
            raise NotFoundError("checkpoint", name, next_step=f"Job {job_id} has: {listed}.")
    return [one for one in found if not names or one.checkpoint_id in names or one.id in names]


def _map_target_paths(chosen: list[CommittedCheckpoint]) -> DesiredFiles:
    """Path below the target -> what lies there; with a folder a rank if not only rank 0 wrote."""
    from prefect_bt.checkpoints.layout import join_checkpoint_path

    manifests = [manifest for checkpoint in chosen for manifest in checkpoint.manifests]
    alone = {manifest.rank for manifest in manifests} == {0}
    folders = {manifest.rank: "" if alone else f"rank-{manifest.rank}/" for manifest in manifests}
    return {
        folders[manifest.rank] + join_checkpoint_path(manifest.name, entry.path): entry
        for manifest in manifests
        for entry in manifest.entries
    }
