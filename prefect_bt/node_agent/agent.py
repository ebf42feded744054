"""Run one node through its phases: STAGING, RUNNING, FLUSHING, DONE."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt.credentials.redaction import Redactor
from prefect_bt.errors import PrefectBtError
from prefect_bt.filesystem.permissions import ensure_store_folder
from prefect_bt.host import processes
from prefect_bt.host.mounts.namespace import enter_view
from prefect_bt.host.mounts.namespace_plan import ViewError, plan_view
from prefect_bt.host.mounts.volumes import (
    NodePaths,
    ensure_volumes,
    local_store_folder,
    mounted_volumes,
)
from prefect_bt.host.nodes.container_pipes import ContainerRecord, Pipes
from prefect_bt.host.nodes.files import StatusFile, read_record, read_upload_end
from prefect_bt.host.python.environment import ProjectEnvironment
from prefect_bt.host.state_folder import JobFolder, NodeFolder, NodeRecord
from prefect_bt.ledger.records import EXIT_NOT_STARTED, Cause, NodePhase, StopReason
from prefect_bt.node_agent import staging
from prefect_bt.node_agent.activity_monitor import ActivityMonitor
from prefect_bt.node_agent.agent_failure import classify_staging_error, has_message
from prefect_bt.node_agent.command_environment import (
    HostEnvironment,
    build_command_environment,
    open_node_environment,
)
from prefect_bt.node_agent.commands.container_runner import ContainerRunner, ContainerStartError
from prefect_bt.node_agent.commands.loop import (
    CommandContext,
    CommandLoop,
    CommandsResult,
)
from prefect_bt.node_agent.commands.pod_runner import PodRunner
from prefect_bt.node_agent.commands.runner import Runner, ShellRunner
from prefect_bt.node_agent.commands.stop_signal import StopMonitor
from prefect_bt.node_agent.log_writer import LogFile, OutputLog
from prefect_bt.node_agent.paths import list_protected_folders, list_volume_mounts, map_volume_paths
from prefect_bt.node_agent.sampling.node import create_sampler
from prefect_bt.node_agent.sampling.sampler import NodeSampler
from prefect_bt.node_agent.upload_watchdog import DEFAULT_COMMAND, UploaderConfig, UploaderProcess
from prefect_bt.planning.plan import NodePlan, VolumeKind

GANG_POLL_INTERVAL: Final = 0.1
GANG_TIMEOUT: Final = 6 * 3600.0
"""Longest wait for the other nodes of the gang, in seconds, if no process watches it."""


class AgentConfig(NamedTuple):
    """Arguments of an agent. `secrets` maps reference names to values."""

    folder: NodeFolder
    record: NodeRecord
    plan: NodePlan
    secrets: dict[str, str]
    gpus: Sequence[str] = ()
    startup_error: str = ""
    """Reason why the node cannot run, if it is known before the agent starts."""
    cause: Cause | None = None
    """Cause of `startup_error`, if the table of causes has it."""
    pipes: Pipes | None = None
    """Pipes into the container of the commands."""


class Agent:
    """The agent's process and its loop; `run` returns after the final status is written."""

    def __init__(self, task: AgentConfig, status: StatusFile) -> None:
        self.task, self.status = task, status
        values = list(task.secrets.values())
        self.log = LogFile(task.folder.log, Redactor(values))
        self.output = OutputLog(self.log, values)
        self.stop_monitor = StopMonitor(task.folder, task.record, grace=task.plan.grace)
        self.uploader: UploaderProcess | None = None
        self.mapped: dict[str, Path] | None = None
        self.container: ContainerRunner | None = None
        self.python: ProjectEnvironment | None = None
        self.sampler: NodeSampler | None = None

    def run(self) -> None:
        self.status.update(phase=NodePhase.STAGING, clock=processes.read_boot_id())
        self.stop_monitor.install_signal_handlers()
        self._log_start()
        paths = self._prepare()
        if paths is None:
            return self._finish(CommandsResult())
        runner = self._create_runner(paths)
        commands = CommandLoop(self._command_context(paths, runner), runner)
        end = commands.run(self.task.plan.commands)
        self._flush(commands, paths, end)
        return self._finish(end)

    # -- staging ----------------------------------------------------------------------------

    def _log_start(self) -> None:
        plan = self.task.plan
        self.log.write_platform(
            f"node {plan.rank} of {plan.group_size} of job {plan.job_id}, attempt {plan.attempt}, "
            f"on {os.uname().nodename}"
        )

    def _prepare(self) -> NodePaths | None:
        """Prepare folders, view and files; return None if the commands cannot or must not start."""
        try:
            paths = self._prepare_paths()
            self._stage(paths)
            self._open_python_environment()
            self._enter_container()
            self._wait_for_gang()
        except Exception as error:  # every other error is ours
            cause = self.task.cause if self.task.startup_error else classify_staging_error(error)
            if cause is Cause.AGENT_FAILED:
                raise
            why = str(error) if has_message(error) else f"{type(error).__name__}: {error}"
            self._record_staging_failure(why, cause)
            return None
        return None if self.stop_monitor.reason else paths

    def _record_staging_failure(self, why: str, cause: Cause | None) -> None:
        if not self.stop_monitor.reason:
            why = Redactor(self.task.secrets.values())(why)
            self.log.write_platform(f"staging failed: {why}")
            self.status.update(
                reason=f"staging failed: {why}", exit_code=EXIT_NOT_STARTED, cause=cause
            )

    def _prepare_paths(self) -> NodePaths:
        task = self.task
        if task.startup_error:
            raise ViewError(task.startup_error)
        state_dir = Path(task.record.state_dir)
        if task.record.in_pod:
            paths = mounted_volumes(task.plan, task.record.mounts)
        else:
            paths = ensure_volumes(task.plan, state_dir=state_dir, node=task.folder)
        store = local_store_folder(task.plan.store)
        if store is not None:
            # Created before the view: in the view, it could be a folder that ends with the node.
            ensure_store_folder(store)
        if task.pipes is None:
            self._provide_paths(paths, state_dir)
        for bind in paths.binds:
            only = " (read-only)" if bind.read_only else ""
            self.log.write_platform(f"{bind.target} is {bind.source}{only}")
        return paths

    def _provide_paths(self, paths: NodePaths, state_dir: Path) -> None:
        """Provide the plan's paths to the node's own processes: in a view, or mapped."""
        task = self.task
        why = "as asked" if task.record.map_paths else self._enter_view(paths, state_dir)
        if why:
            self.mapped = map_volume_paths(task.plan, paths, node=task.folder)
            self.log.write_platform(
                f"paths are mapped, not mounted ({why}): the BT_* variables name the folders of "
                "the job, but absolute paths in scripts do not lead there"
            )

    def _open_python_environment(self) -> None:
        self.python = open_node_environment(self.task.record, self.task.plan, os.environ)
        if self.python is not None:
            self.log.write_platform(f"{self.python}: pip install stays there")

    def _enter_container(self) -> None:
        """Wait for the container, which its launcher made, and send it what it needs."""
        task = self.task
        self.stop_monitor.poll()
        if task.pipes is None or self.stop_monitor.reason:
            return
        self.container = container = self._create_container_runner(task.pipes)
        names = task.plan.secret_environment.items()
        container.wait_until_ready({name: task.secrets[reference] for name, reference in names})
        workdir = container.workdir
        if task.plan.workspace.in_image:
            container.prepare_workdir("copy", task.plan.workspace.directory)
        elif workdir is None or workdir.strip("/"):
            container.prepare_workdir("link", workdir or "")

    def _create_container_runner(self, pipes: Pipes) -> ContainerRunner:
        if self.task.record.in_pod:
            return PodRunner(pipes, should_continue=self._should_continue)
        record = read_record(ContainerRecord, self.task.folder.container_record)
        if record is None:
            raise ContainerStartError("its launcher did not report its container")
        return ContainerRunner(record, pipes, should_continue=self._should_continue)

    def _wait_for_gang(self) -> None:
        """Wait until all nodes of a gang of pods can start their commands. PrefectBtError."""
        if not self.task.record.in_pod or self.task.plan.group_size == 1:
            return
        self.task.folder.ready.touch()
        deadline = time.monotonic() + GANG_TIMEOUT
        while self._should_continue() and not self.task.folder.go.exists():
            if time.monotonic() > deadline:
                raise PrefectBtError("not all nodes of its gang were ready within 6 hours")
            time.sleep(GANG_POLL_INTERVAL)

    def _should_continue(self) -> bool:
        self.stop_monitor.poll()
        return not self.stop_monitor.reason

    def _enter_view(self, paths: NodePaths, state_dir: Path) -> str:
        """Return why the kernel refuses the view; "" if this process has the plan's paths now."""
        folder = self.task.folder
        protected = list_protected_folders(self.task.plan, state_dir)
        plan = plan_view(paths.binds, protected=protected)
        folder.root.mkdir()
        folder.mirrors.mkdir()
        try:
            enter_view(plan, root=folder.root, mirrors=folder.mirrors)
        except OSError as error:
            return str(error)
        return ""

    def _stage(self, paths: NodePaths) -> None:
        """Stage the files in a thread, so that a stop request is noticed meanwhile."""
        task = self.task
        job = JobFolder(Path(task.record.state_dir), task.plan.job_id)
        folders = staging.StagingFolders(
            volumes=paths.folders,
            download=task.folder.path,
            aside_dir=job.rank_folder(task.plan.rank) / f"set-aside/attempt-{task.plan.attempt}",
            mounts=self._volume_mounts(paths),
            neighbors={} if task.record.in_pod else job.neighbor_folders(task.plan),
        )
        if not self._should_continue() or not staging.needs_staging(task.plan, folders):
            return
        from concurrent.futures import ThreadPoolExecutor

        work = ThreadPoolExecutor(1).submit(
            staging.stage, task.plan, folders, self.log.write_platform
        )
        while not work.done() and not self.stop_monitor.reason:
            with suppress(TimeoutError):
                work.exception(timeout=0.05)
            self.stop_monitor.poll()
        if work.done():
            work.result()

    # -- running ----------------------------------------------------------------------------

    def _command_context(self, paths: NodePaths, runner: Runner) -> CommandContext:
        checkpoints = paths.folders.get(VolumeKind.CHECKPOINTS)
        if self.task.plan.checkpoints is not None and checkpoints is not None:
            self.uploader = UploaderProcess(self._uploader_config(checkpoints, paths))
        self.sampler = sampler = create_sampler(self.task, paths, runner)
        self.output.on_text = sampler.add_text
        sampler.start()
        return CommandContext(
            log=self.log,
            output=self.output,
            status=self.status,
            stop_monitor=self.stop_monitor,
            uploader=self.uploader,
            activity=ActivityMonitor(
                self.status,
                last_line=lambda: self.log.written_at,
                checkpoints=checkpoints,
                on_processes=sampler.offer,
            ),
        )

    def _create_runner(self, paths: NodePaths) -> Runner:
        if self.container is not None:
            return self.container
        os.chdir(self._workspace_folder(paths))
        return ShellRunner(
            self._command_environment(),
            list_processes=self._list_processes,
            uploader_pid=lambda: self.uploader.pid if self.uploader else None,
        )

    def _list_processes(self) -> list[processes.ProcessStat]:
        uploader = self.uploader
        spare = (uploader.pid,) if uploader is not None and uploader.pid is not None else ()
        return processes.list_descendants(os.getpid(), exclude=spare)

    def _volume_mounts(self, paths: NodePaths) -> tuple[tuple[str, Path], ...]:
        """Return the folders that links may lead into: in a container, only its own paths."""
        if self.task.pipes is not None:
            return tuple((bind.target, bind.source) for bind in paths.binds)
        return list_volume_mounts(paths, self.mapped)

    def _uploader_config(self, checkpoints: Path, paths: NodePaths) -> UploaderConfig:
        task = self.task
        return UploaderConfig(
            command=task.record.uploader or DEFAULT_COMMAND,
            plan=task.folder.plan,
            directory=checkpoints,
            status=task.folder.upload_status,
            log=task.folder.agent_log,
            environment={**os.environ, processes.UPLOADER_VARIABLE: task.record.mark},
            rank=task.plan.rank,
            mounts=self._volume_mounts(paths),
            log_repeat=self.log.write_platform,
        )

    def _command_environment(self) -> dict[str, str]:
        machine = HostEnvironment(
            variables=os.environ,
            mark=self.task.record.mark,
            gpus=self.task.gpus,
            virtual_environment=sys.prefix if sys.prefix != sys.base_prefix else "",
            python=self.python,
        )
        return build_command_environment(
            self.task.plan, machine, secrets=self.task.secrets, mapped_paths=self.mapped
        )

    def _workspace_folder(self, paths: NodePaths) -> Path:
        if self.mapped is not None:
            return paths.folders[VolumeKind.WORKSPACE]
        directory = Path(self.task.plan.workspace.directory)
        return directory if directory.is_dir() else paths.folders[VolumeKind.WORKSPACE]

    # -- the end ----------------------------------------------------------------------------

    def _flush(self, commands: CommandLoop, paths: NodePaths, end: CommandsResult) -> None:
        if self.sampler is not None:
            self.sampler.close()
        uploader = self.uploader
        lost = self._container_loss_reason()
        broken = self.container is not None and bool(self.container.protocol_error)
        self.status.update(
            phase=NodePhase.FLUSHING,
            exit_code=end.exit_code,
            signal=end.signal,
            oom=end.oom_killed,
            reason=self.stop_monitor.reason or lost,
            ended_processes=tuple(map(Redactor(self.task.secrets.values()), end.ended_processes)),
            cause=Cause.CONTAINER_PROTOCOL if broken else None,
            ended_at=time.time(),
        )
        if self.container is not None:
            # Its GPUs and memory are free during the upload.
            written = [v.target for v in self.task.plan.volumes if not v.read_only]
            self.container.close(written)
        if uploader is None:
            return
        if uploader.pid is None and staging.is_empty(paths.folders[VolumeKind.CHECKPOINTS]):
            return
        self.log.write_platform("job has exited, syncing checkpoints")
        uploader.flush(succeeded=end.exit_code == 0)
        while not uploader.is_finished:
            if self.stop_monitor.reason:
                uploader.end_repeats()
            commands.run_once()
        found = read_upload_end(self.task.folder)
        self.status.update(**{**found, "upload_error": uploader.failure_reason()})
        self._log_flush_result(uploader)

    def _container_loss_reason(self) -> str:
        """Return why the commands lost their container too early; "" if they did not."""
        container = self.container
        if container is None:
            return ""
        if container.protocol_error:
            self.log.write_platform(f"the container was ended: {container.protocol_error}")
            return container.protocol_error
        if not container.gone or container.ended_by_us:
            return ""
        self.log.write_platform(
            "the container is gone: it was killed or removed, or its Engine restarted"
        )
        return StopReason.CONTAINER_GONE

    def _log_flush_result(self, uploader: UploaderProcess) -> None:
        report, error = uploader.read_status(), uploader.failure_reason()
        if error:
            self.log.write_platform(f"checkpoints could not all be uploaded: {error}")
        elif report is not None:
            names = ", ".join(report.committed) or "none"
            self.log.write_platform(f"checkpoints synced; committed by this node: {names}")
        for reason in report.uncommitted if report is not None else ():
            self.log.write_platform(f"checkpoint not committed: {reason}")

    def _finish(self, end: CommandsResult) -> None:
        if self.container is not None:
            self.container.close()
        now = self.status.status
        # A stop during the final flush only ends its repeats: the commands had ended before.
        flushed = now.phase is NodePhase.FLUSHING
        reason = now.reason if flushed else self.stop_monitor.reason or now.reason
        how = reason or f"exit code {end.exit_code}"
        self.log.write_platform(f"node is done: {how}")
        self.log.close()
        self.status.update(
            phase=NodePhase.DONE, reason=reason, ended_at=now.ended_at or time.time()
        )
        self.status.save_with_retry()
