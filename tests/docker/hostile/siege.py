"""A machine with a host to protect, a harmless neighbour and a series of hostile jobs."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prefect_bt.filesystem.trees import remove_tree
from tests.docker.job_site import Site
from tests.e2e.conftest import until

from .attack import PRELUDE, Attack

PROJECT = "besieged"
CONFIG = """
import json
from pathlib import Path
from truss_train import definitions as d

given = json.loads((Path(__file__).parent / "given.json").read_text())
secrets = {name: d.SecretReference(name=name) for name in given["secrets"]}
project = d.TrainingProject(
    name=given["project"],
    job=d.TrainingJob(
        image=d.Image(base_image=given["image"]),
        compute=d.Compute(memory="128Mi"),
        runtime=d.Runtime(
            start_commands=["/bin/sh ./run.sh"],
            environment_variables=secrets,
            checkpointing_config=d.CheckpointingConfig(enabled=True),
            cache_config=d.CacheConfig(
                enabled=True, enable_legacy_hf_mount=True, mount_base_path="/mnt/c"
            ),
        ),
    ),
)
"""
NEIGHBOUR = """
. ./prelude.sh
n=0; test -n "$token" || exit 9
save() { mkdir $S/step && cp words $S/step/words && echo $n > $S/step/n && mv $S/step $C/step-$n; }
while [ ! -e $S/finish ]; do
  if [ -e $S/ask-$n ]; then save || exit 8; n=$((n+1)); fi
  sleep 0.1
done
"""
ENVIRONMENT = {
    "PREFECT_BT_DOCKER_PROCESSES": "256",
    "PREFECT_BT_DOCKER_ENFORCE_LIMITS": "1",
    "PREFECT_BT_GRACE": "2",
}
MOST_KB = 700 * 1024
"""Largest memory of any process of a job, in kB. One that believes a flood takes gigabytes."""
ALLOWED_OUTSIDE = {"state", "store", "prefect", "downloads"}


@dataclass
class Siege:
    """Site of hostile jobs. `words` are the neighbour's, which no other job may see.

    `secret` is the host's.
    """

    site: Site
    image: str
    scale: int = 1
    neighbour: str = ""
    steps: int = 0
    secret: str = field(default_factory=lambda: f"of-the-host-{uuid.uuid4().hex}")
    words: str = field(default_factory=lambda: f"of-the-neighbour-{uuid.uuid4().hex}")
    token: str = field(default_factory=lambda: f"token-{uuid.uuid4().hex}")
    mark: str = field(default_factory=lambda: f"pwned-{uuid.uuid4().hex}")

    def not_to_be_shown(self) -> tuple[str, ...]:
        """Return secrets that a job may not see. The server's password is this user's own."""
        password = self.site.machine.environment["PREFECT_API_AUTH_STRING"].partition(":")[2]
        return self.secret, self.words, self.token, password

    @property
    def root(self) -> Path:
        return self.site.machine.root

    @property
    def host(self) -> Path:
        return self.root / "of-the-host"

    def lay_out(self) -> None:
        """Create a folder of the host with all kinds of files, beside the state folder."""
        (self.host / "deep").mkdir(parents=True)
        for name in ("secret", "a.json", "deep/secret", "deep/a.json"):
            (self.host / name).write_text(self.secret)
        (self.host / "program").write_text(self.secret)
        (self.host / "program").chmod(0o4755)
        (self.host / "closed").mkdir(mode=0)
        (self.host / "link").symlink_to("secret")
        os.mkfifo(self.host / "pipe")
        os.utime(self.host, ns=(10**18, 10**18))
        self.before = self.outside()

    def outside(self) -> dict[str, tuple[int, ...]]:
        """Return the files beside the state folder and the store, with facts that show a change."""
        found: dict[str, tuple[int, ...]] = {}
        for entry in sorted(self.root.iterdir()):
            if entry.name in ALLOWED_OUTSIDE or entry.name.startswith("work-"):
                continue
            for path in (entry, *sorted(entry.rglob("*"))):
                seen = path.lstat()
                found[str(path)] = (
                    *(seen.st_ino, seen.st_mode, seen.st_uid, seen.st_nlink),
                    *(seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns),
                )
        return found

    def push(self, attacks: Sequence[Attack], script: str = "") -> str:
        """Push a job that runs the attacks, or `script` (a later job or attempt); return its id."""
        config = self._folder(run_script(attacks) if not script else f". ./prelude.sh\n{script}")
        for attack in attacks:
            for name, text in attack.files.items():
                path = config.parent / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text)
        return self._push(config)

    def _folder(self, script: str, **given: object) -> Path:
        config = self.site.folder(script)
        config.write_text(CONFIG)
        told = {"image": self.image, "project": PROJECT, "secrets": [], **given}
        (config.parent / "given.json").write_text(json.dumps(told))
        port = self.site.machine.api_url.rpartition(":")[2].partition("/")[0]
        state, other = self.site.machine.state_dir, self.neighbour or "none"
        prelude = PRELUDE.format(
            host=self.host, mark=self.mark, state=state, other=other, port=port, scale=self.scale
        )
        (config.parent / "prelude.sh").write_text(prelude)
        return config

    def _push(self, config: Path, **extra: str) -> str:
        return str(self.site.machine.push(config, **{**ENVIRONMENT, **extra})["id"])

    # -- the neighbour ----------------------------------------------------------------------

    def settle_neighbour(self) -> None:
        config = self._folder(NEIGHBOUR, secrets=["token"])
        (config.parent / "words").write_text(self.words)
        self.neighbour = self._push(config, PREFECT_BT_SECRET_token=self.token)
        self.ask_neighbour()

    def ask_neighbour(self) -> None:
        """Make the neighbour commit one more checkpoint, whatever runs beside it."""
        scratch = self.scratch(self.neighbour)
        until(scratch.is_dir, seconds=60, what="the neighbour's scratch folder")
        (scratch / f"ask-{self.steps}").touch()
        name = f"step-{self.steps}"
        until(
            lambda: name in self.site.machine.checkpoints(self.neighbour) or self._fail(),
            seconds=60,
            what=f"{name} of the neighbour",
        )
        self.steps += 1

    def _fail(self) -> bool:
        state = self.site.machine.ledger.get_state(self.neighbour)
        assert not state.terminal, self.site.machine.logs(self.neighbour)[-3000:]
        return False

    def send_neighbour_home(self) -> None:
        machine = self.site.machine
        (self.scratch(self.neighbour) / "finish").touch()
        machine.wait(self.neighbour, "COMPLETED")
        assert len(machine.view(self.neighbour)["attempts"]) == 1
        assert len(machine.checkpoints(self.neighbour)) == self.steps
        machine.run("checkpoints", "verify", "--job-id", self.neighbour)
        target = self.root / "downloads" / "neighbour"
        download = ("checkpoints", "download", "--job-id", self.neighbour)
        machine.run(*download, "--target-directory", str(target))
        found = sorted(path.read_text() for path in target.rglob("words"))
        assert found == [self.words] * self.steps
        self.site.nothing_left(self.neighbour)

    def delete_project(self) -> None:
        """Delete the project, with its caches, which the attacks have filled; the team's stays."""
        machine = self.site.machine
        machine.run("delete", "--project", PROJECT, "--yes")
        kinds = [kind for kind in (machine.state_dir / "cache").iterdir() if kind.name != "teams"]
        assert [path for kind in kinds for path in kind.iterdir()] == []

    # -- a hostile job -----------------------------------------------------------------------

    def scratch(self, job_id: str, attempt: int = 0) -> Path:
        jobs = self.site.machine.state_dir / "jobs"
        return jobs / job_id / f"attempt-{attempt}" / "rank-0" / "scratch"

    def run(self, attacks: Sequence[Attack]) -> list[str]:
        """Run every job of the attacks to its end; return their ids."""
        job_id = self.push(attacks)
        self._see_out(job_id, [one.name for one in attacks if one.endless])
        jobs = [job_id]
        for attack in attacks:
            if attack.again:
                self._again(job_id, attack)
            if attack.then:
                jobs.append(self.push([], attack.then))
                self._see_out(jobs[-1], [])
        return jobs

    def _again(self, job_id: str, attack: Attack) -> None:
        """Retry twice: with the second attempt's script, and to see that its work was in vain."""
        for _ in range(2):
            self.site.machine.run("retry", "--job-id", job_id, **ENVIRONMENT)
            self._see_out(job_id, [])

    def _see_out(self, job_id: str, endless: Sequence[str]) -> None:
        """Wait until the job is over; stop it once each endless attack is running."""
        machine = self.site.machine
        waited = {f"up-{name}" for name in endless}
        asked = False

        def over() -> bool:
            nonlocal asked
            self.watch_memory(job_id)
            state = machine.ledger.get_state(job_id)
            if not state.terminal and waited and not asked and self._is_up(job_id, waited):
                machine.run("stop", "--job-id", job_id, **ENVIRONMENT)
                asked = True
            return state.terminal

        until(over, seconds=60, what=lambda: f"{job_id}: {machine.logs(job_id)[-2000:]}")

    def _is_up(self, job_id: str, waited: set[str]) -> bool:
        with suppress(OSError):
            return waited <= {entry.name for entry in self.scratch(job_id).iterdir()}
        return False

    def watch_memory(self, job_id: str) -> None:
        for pid in self.site.machine.job_processes(job_id):
            with suppress(OSError, IndexError, ValueError):
                status = Path(f"/proc/{pid}/status").read_text()
                most = int(status.partition("VmHWM:")[2].split()[0])
                if self._is_ours(pid):
                    assert most < MOST_KB, (pid, most, Path(f"/proc/{pid}/cmdline").read_bytes())

    def _is_ours(self, pid: int) -> bool:
        """Return whether it is our process, not one of a container in another pid namespace."""
        return Path(f"/proc/{pid}/ns/pid").readlink() == Path("/proc/self/ns/pid").readlink()


def run_script(attacks: Sequence[Attack]) -> str:
    lines = [". ./prelude.sh", 'test "$BT_RETRY_COUNT" != 0 || checkpoint honest']
    quick = [one for one in attacks if not one.endless]
    for attack in quick:
        if attack.again:
            again = f". ./prelude.sh\n{attack.again}"
            lines += [f'if [ "$BT_RETRY_COUNT" = 1 ]; then {again}\nfi']
            lines += ['if [ "$BT_RETRY_COUNT" = 2 ]; then ls -la $C; exit 1; fi']
        lines.append(attack.command)
    if len(quick) == len(attacks):
        lines.append("exit $?")
    lines += [f"{one.command} &" for one in attacks if one.endless]
    return "\n".join([*lines, "wait; while :; do sleep 1; done", ""])


def files_with(text: str, *folders: Path) -> list[str]:
    """Return regular files with the text; links are not followed, holes not read."""
    command = ["grep", "-rlF", "-D", "skip", "-e", text, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout.splitlines()


def devices_in(*folders: Path) -> list[str]:
    command = ["find", *map(str, folders), "(", "-type", "b", "-o", "-type", "c", ")"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return done.stdout.splitlines()


@contextmanager
def besieged(site: Site, image: str, scale: int = 1) -> Iterator[Siege]:
    siege = Siege(site, image, scale)
    siege.lay_out()
    siege.settle_neighbour()
    try:
        yield siege
        siege.send_neighbour_home()
        siege.delete_project()
    finally:
        remove_tree(site.machine.state_dir)  # pytest cannot remove the deep folders in it
