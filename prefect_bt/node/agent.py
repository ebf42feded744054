"""One node from its first breath to its last word: STAGING, RUNNING, FLUSHING, DONE."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from prefect_bt.errors import PrefectBtError
from prefect_bt.host import processes, view
from prefect_bt.host.container import CONTAINER_GONE, ContainerRecord, Pipes
from prefect_bt.host.files import StatusFile, read_record
from prefect_bt.host.layout import JobFolder, NodeFolder, NodeRecord
from prefect_bt.host.volumes import NodePaths, ensure_volumes, local_store
from prefect_bt.node import staging
from prefect_bt.node.activity import Activity
from prefect_bt.node.commands import EXIT_NOT_STARTED, Commands, CommandsEnd, Surroundings
from prefect_bt.node.contained import Broken, Container, NotStarted
from prefect_bt.node.environment import (
    Machine,
    command_environment,
    own_virtual_environment,
)
from prefect_bt.node.logfile import LogFile, OutputLog
from prefect_bt.node.paths import kept_folders, local_targets, map_targets
from prefect_bt.node.runner import Runner, Shell
from prefect_bt.node.stopping import StopWatch
from prefect_bt.node.uploader import DEFAULT_COMMAND, Uploader, UploadJob
from prefect_bt.plan import NodePlan, VolumeKind
from prefect_bt.privacy import make_store_folder
from prefect_bt.records import Cause, NodePhase
from prefect_bt.secrets import Redactor


class Assignment(NamedTuple):
    """Everything an agent starts from. `secrets` maps reference names to values."""

    folder: NodeFolder
    record: NodeRecord
    plan: NodePlan
    secrets: dict[str, str]
    gpus: Sequence[str] = ()
    refusal: str = ""
    """Why the node cannot run at all, known before the agent began."""
    cause: Cause | None = None
    """Of the refusal, where the table has it."""
    pipes: Pipes | None = None
    """Into the container that the commands run in."""


class Agent:
    """Lives in one process and has one loop; `run` returns when the node's last word is written."""

    def __init__(self, task: Assignment, status: StatusFile) -> None:
        self.task, self.status = task, status
        values = list(task.secrets.values())
        self.log = LogFile(task.folder.log, Redactor(values))
        self.output = OutputLog(self.log, values)
        self.watch = StopWatch(task.folder, task.record, grace=task.plan.grace)
        self.uploader: Uploader | None = None
        self.mapped: dict[str, Path] | None = None
        self.container: Container | None = None

    def run(self) -> None:
        self.status.update(phase=NodePhase.STAGING)
        self.watch.listen()
        self._greet()
        paths = self._prepare()
        if paths is None:
            return self._finish(CommandsEnd())
        commands = Commands(self._surroundings(paths), self._runner(paths))
        end = commands.run(self.task.plan.commands)
        self._flush(commands, paths, end)
        return self._finish(end)

    # -- staging ----------------------------------------------------------------------------

    def _greet(self) -> None:
        plan = self.task.plan
        self.log.platform(
            f"node {plan.rank} of {plan.group_size} of job {plan.job_id}, attempt {plan.attempt}, "
            f"on {os.uname().nodename}"
        )

    def _prepare(self) -> NodePaths | None:
        """Folders, view and files; None when the commands cannot or must not start."""
        try:
            paths = self._enter()
            self._stage(paths)
            self._enter_container()
        except Exception as error:  # the edge of the node: every cause is named
            ours = isinstance(error, (view.ViewError, NotStarted, PrefectBtError))
            why = str(error) if ours else f"{type(error).__name__}: {error}"
            self._refuse(why, self.task.cause or self._cause_of(error))
            return None
        return None if self.watch.reason else paths

    def _cause_of(self, error: Exception) -> Cause | None:
        if isinstance(error, Broken):
            return Cause.CONTAINER_PROTOCOL
        if isinstance(error, NotStarted):
            return Cause.IMAGE_UNUSABLE
        if isinstance(error, view.FolderRefused):
            return Cause.STAGING_FAILED
        refused = isinstance(error, view.ViewError) and not self.task.refusal
        return Cause.VIEW_REFUSED if refused else None

    def _refuse(self, why: str, cause: Cause | None) -> None:
        if not self.watch.reason:
            why = Redactor(self.task.secrets.values())(why)
            self.log.platform(f"staging failed: {why}")
            self.status.update(
                reason=f"staging failed: {why}", exit_code=EXIT_NOT_STARTED, cause=cause
            )

    def _enter(self) -> NodePaths:
        task = self.task
        if task.refusal:
            raise view.ViewError(task.refusal)
        state_dir = Path(task.record.state_dir)
        paths = ensure_volumes(task.plan, state_dir=state_dir, node=task.folder)
        store = local_store(task.plan.store)
        if store is not None:
            # Made now: in the view it could be a folder that ends with the node.
            make_store_folder(store)
        if task.pipes is None:
            self._have_paths(paths, state_dir)
        for bind in paths.binds:
            only = " (read-only)" if bind.read_only else ""
            self.log.platform(f"{bind.target} is {bind.source}{only}")
        return paths

    def _have_paths(self, paths: NodePaths, state_dir: Path) -> None:
        """The plan's paths for our own processes: in a view, or mapped."""
        task = self.task
        why = "as asked" if task.record.map_paths else self._enter_view(paths, state_dir)
        if why:
            self.mapped = map_targets(task.plan, paths, node=task.folder)
            self.log.platform(
                f"paths are mapped, not mounted ({why}): the BT_* variables lead to folders of "
                "the job, and absolute paths in scripts do not"
            )

    def _enter_container(self) -> None:
        """The container is there already (its launcher made it); now it is told what it needs."""
        task = self.task
        self.watch.look()
        if task.pipes is None or self.watch.reason:
            return
        record = read_record(ContainerRecord, task.folder.container)
        if record is None:
            raise NotStarted("its launcher did not say which container it is")
        self.container = container = Container(record, task.pipes, look=self._goes_on)
        names = task.plan.secret_environment.items()
        container.await_ready({name: task.secrets[reference] for name, reference in names})
        if task.plan.workspace.in_image:
            container.prepare("copy", task.plan.workspace.directory)
        elif record.workdir.strip("/"):
            container.prepare("link", record.workdir)

    def _goes_on(self) -> bool:
        self.watch.look()
        return not self.watch.reason

    def _enter_view(self, paths: NodePaths, state_dir: Path) -> str:
        """Why the kernel refuses; "" when this process now sees the plan's paths."""
        folder = self.task.folder
        plan = view.plan_view(paths.binds, keep=kept_folders(self.task.plan, state_dir))
        folder.root.mkdir()
        folder.mirrors.mkdir()
        try:
            view.enter_view(plan, root=folder.root, mirrors=folder.mirrors)
        except OSError as error:
            return str(error)
        return ""

    def _stage(self, paths: NodePaths) -> None:
        """In a thread, so that a request to stop is heard meanwhile."""
        task = self.task
        job = JobFolder(Path(task.record.state_dir), task.plan.job_id)
        folders = staging.StagingFolders(
            volumes=paths.folders,
            download=task.folder.path,
            aside=job.rank(task.plan.rank) / "set-aside" / f"attempt-{task.plan.attempt}",
            targets=self._targets(paths),
        )
        self.watch.look()
        if self.watch.reason or not staging.needs_staging(task.plan, folders):
            return
        from concurrent.futures import ThreadPoolExecutor

        work = ThreadPoolExecutor(1).submit(staging.stage, task.plan, folders, self.log.platform)
        while not work.done() and not self.watch.reason:
            with suppress(TimeoutError):
                work.exception(timeout=0.05)
            self.watch.look()
        if work.done():
            work.result()

    # -- running ----------------------------------------------------------------------------

    def _surroundings(self, paths: NodePaths) -> Surroundings:
        checkpoints = paths.folders.get(VolumeKind.CHECKPOINTS)
        if self.task.plan.checkpoints is not None and checkpoints is not None:
            self.uploader = Uploader(self._upload_job(checkpoints, paths))
        return Surroundings(
            log=self.log,
            output=self.output,
            status=self.status,
            watch=self.watch,
            uploader=self.uploader,
            activity=Activity(
                self.status,
                last_line=lambda: self.log.written_at,
                tree=self._tree,
                checkpoints=checkpoints,
            ),
        )

    def _runner(self, paths: NodePaths) -> Runner:
        if self.container is not None:
            return self.container
        os.chdir(self._workspace(paths))
        return Shell(
            self._environment(),
            tree=self._tree,
            uploader=lambda: self.uploader.pid if self.uploader else None,
        )

    def _tree(self) -> list[processes.ProcessFacts]:
        if self.container is not None:
            return self.container.tree()
        uploader = self.uploader
        spare = (uploader.pid,) if uploader is not None and uploader.pid is not None else ()
        return processes.descendants(os.getpid(), spare=spare)

    def _targets(self, paths: NodePaths) -> tuple[tuple[str, Path], ...]:
        """Return the folders that links may lead into: in a container, only its own paths."""
        if self.task.pipes is not None:
            return tuple((bind.target, bind.source) for bind in paths.binds)
        return local_targets(paths, self.mapped)

    def _upload_job(self, checkpoints: Path, paths: NodePaths) -> UploadJob:
        task = self.task
        return UploadJob(
            command=task.record.uploader or DEFAULT_COMMAND,
            plan=task.folder.plan,
            directory=checkpoints,
            status=task.folder.upload,
            log=task.folder.agent_log,
            environment={**os.environ, processes.UPLOADER_VARIABLE: task.record.mark},
            rank=task.plan.rank,
            targets=self._targets(paths),
        )

    def _environment(self) -> dict[str, str]:
        machine = Machine(
            environment=os.environ,
            mark=self.task.record.mark,
            gpus=self.task.gpus,
            prefix=own_virtual_environment(),
        )
        return command_environment(
            self.task.plan, machine, secrets=self.task.secrets, mapped=self.mapped
        )

    def _workspace(self, paths: NodePaths) -> Path:
        if self.mapped is not None:
            return paths.folders[VolumeKind.WORKSPACE]
        directory = Path(self.task.plan.workspace.directory)
        return directory if directory.is_dir() else paths.folders[VolumeKind.WORKSPACE]

    # -- the end ----------------------------------------------------------------------------

    def _flush(self, commands: Commands, paths: NodePaths, end: CommandsEnd) -> None:
        uploader = self.uploader
        lost = self._lost_container()
        broken = self.container is not None and bool(self.container.broken)
        self.status.update(
            phase=NodePhase.FLUSHING,
            exit_code=end.exit_code,
            signal=end.signal,
            oom=end.oom,
            reason=self.watch.reason or lost,
            cause=Cause.CONTAINER_PROTOCOL if broken else None,
            ended_at=time.time(),
        )
        if self.container is not None:
            # What it holds (GPUs, memory) is free while we upload.
            written = [v.target for v in self.task.plan.volumes if not v.read_only]
            self.container.close(written)
        if uploader is None:
            return
        if uploader.pid is None and staging.is_empty(paths.folders[VolumeKind.CHECKPOINTS]):
            return
        self.log.platform("job has exited, syncing checkpoints")
        uploader.flush()
        while not uploader.over:
            commands.turn()
        said = uploader.result()
        uncommitted = said.uncommitted if said is not None else ()
        self.status.update(upload_error=uploader.error(), uncommitted=uncommitted)
        self._say_flush(uploader)

    def _lost_container(self) -> str:
        """Return why the commands lost their container too early; "" when they did not."""
        container = self.container
        if container is None:
            return ""
        if container.broken:
            self.log.platform(f"the container was ended: {container.broken}")
            return container.broken
        if not container.gone or container.ended_by_us:
            return ""
        self.log.platform(
            "the container is gone: it was killed or removed, or its Engine restarted"
        )
        return CONTAINER_GONE

    def _say_flush(self, uploader: Uploader) -> None:
        said, error = uploader.result(), uploader.error()
        if error:
            self.log.platform(f"checkpoints could not all be uploaded: {error}")
        elif said is not None:
            names = ", ".join(said.committed) or "none"
            self.log.platform(f"checkpoints synced; committed by this node: {names}")
        for sentence in said.uncommitted if said is not None else ():
            self.log.platform(f"checkpoint left behind: {sentence}")

    def _finish(self, end: CommandsEnd) -> None:
        if self.container is not None:
            self.container.close()
        now = self.status.status
        reason = self.watch.reason or now.reason
        how = reason or f"exit code {end.exit_code}"
        self.log.platform(f"node is done: {how}")
        self.log.close()
        self.status.update(
            phase=NodePhase.DONE, reason=reason, ended_at=now.ended_at or time.time()
        )
        self.status.save_last()


def leave(code: int) -> NoReturn:
    """End this process now: a download in a thread must not keep a finished node alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
