"""Open the virtual environment in which the local nodes of a project run their commands.

<state_dir>/cache/environments/<project id>/
    lock                    flock of the process that writes an environment
    python3.11-<digest>/    environment on one base interpreter
        pyvenv.cfg  bin/  lib/python3.11/site-packages/
        prefect-bt.json     EnvironmentRecord; a folder without it is not complete
        .lock               flock of the pip or uv that changes it (pip_lock)

The packages of the base can be imported too, after those of the environment. The files are written
here, in milliseconds: neither venv nor uv adds the packages of a base that is an environment
itself, and venv needs seconds for pip, which the base has.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import zlib
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from prefect_bt import codec
from prefect_bt.errors import PrefectBtError
from prefect_bt.filesystem.confined import open_folder
from prefect_bt.filesystem.directories import find_paths
from prefect_bt.filesystem.trees import remove_tree
from prefect_bt.host.nodes.files import read_record, write_text_atomic
from prefect_bt.host.python.base_interpreter import PYTHON_VARIABLE, find_version
from prefect_bt.host.state_folder import environments_folder

RECORD_NAME: Final = "prefect-bt.json"
PROBE_TIMEOUT: Final = 60.0
KEPT_SCRIPTS: Final = frozenset({"prefect-bt", "conda"})
"""Scripts that keep the base's interpreter: ours needs its dependencies, conda its own prefix."""
MAX_SCRIPT_BYTES: Final = 64 * 1024
_PROBE: Final = Path(__file__).with_name("probe.py")
_PIP_LOCK: Final = Path(__file__).with_name("pip_lock.py")
_HOOK: Final = "zz_prefect_bt.pth"
"""Its name is the last one: what pip makes importable by a .pth file comes before the base."""
_SCRIPT_HEAD: Final = re.compile(
    rb"#!\s*(?P<direct>/\S+)[^\n]*\n"
    rb"|#!\s*/bin/sh\n'''exec' \"?(?P<quoted>[^\"\n]+?)\"? \"\$0\" \"\$@\"\n' '''\n"
)
_PIP_TARGETS: Final = ("PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON")
"""Variables of a machine that lead pip into another folder."""
_PIP: Final = b"import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n"


class BaseFacts(NamedTuple):
    """Facts of a base interpreter, from `probe`."""

    binary: str
    """Path without links, outside of any environment."""
    version: str
    library: str
    """Name of its folder in `lib`."""
    packages: list[str]
    """Folders with the packages of the environment that it belongs to, if to one."""
    system: bool
    """Whether the packages of the system can be imported."""
    scripts: str
    pip_wheel: str
    """Path of the wheel of pip; "" if pip can be imported, or if there is no wheel."""


@dataclass(frozen=True)
class EnvironmentRecord:
    """Record of a complete environment. `python`: the interpreter that was chosen as its base."""

    python: str
    version: str
    scripts: str
    """Folder with the console scripts of the base."""
    scripts_changed: int = 0
    """Time of that folder's last change when its scripts were adopted, in nanoseconds."""


@dataclass(frozen=True)
class ProjectEnvironment:
    """A complete environment."""

    path: Path
    record: EnvironmentRecord

    def enter(self, variables: dict[str, str]) -> None:
        """Put its programs first in PATH, and those of its base after them; pip installs here."""
        path = variables["PATH"].split(":")
        base = [self.record.scripts] if self.record.scripts not in path else []
        variables["PATH"] = ":".join([str(self.path / "bin"), *base, *path])
        variables["VIRTUAL_ENV"] = str(self.path)
        for name in _PIP_TARGETS:
            variables.pop(name, None)

    def __str__(self) -> str:
        return f"Python {_shorten(self.record.version)} of the project's environment {self.path}"


def open_environment(state_dir: Path, project_id: str, python: Path) -> ProjectEnvironment:
    """Return the project's environment on `python`; create it if it is missing or damaged.

    Raises OSError, and PrefectBtError if `python` is not a Python interpreter.
    """
    folder = environments_folder(state_dir, project_id)
    path = folder / _make_name(python)
    environment = _read_complete(path)
    if environment is not None and _has_current_scripts(environment.record):
        return environment
    with _lock_folder(state_dir, folder):
        return _adopt_scripts(_read_complete(path) or _create(path, python))


def _make_name(python: Path) -> str:
    """Return the name of the environment: another one after the interpreter was replaced."""
    real, version = os.path.realpath(python), find_version(python)
    changed = "" if version else _read_change(real)
    digest = zlib.crc32(os.fsencode(f"{python}\n{real}\n{changed}"))
    return f"python{version}-{digest:08x}"


def _read_change(path: str) -> int:
    with suppress(OSError):
        return Path(path).stat().st_mtime_ns
    return 0


def _read_complete(path: Path) -> ProjectEnvironment | None:
    """Return the environment; None if it is missing, incomplete or damaged."""
    record = read_record(EnvironmentRecord, path / RECORD_NAME)
    if record is None or path.is_symlink() or (path / "bin").is_symlink():
        return None
    usable = (
        os.access(path / "bin" / "python", os.X_OK)
        and (path / "pyvenv.cfg").is_file()
        and bool(find_paths(path, f"lib/*/site-packages/{_HOOK}"))
    )
    return ProjectEnvironment(path, record) if usable else None


def _has_current_scripts(record: EnvironmentRecord) -> bool:
    return record.scripts_changed == _read_change(record.scripts)


@contextmanager
def _lock_folder(state_dir: Path, folder: Path) -> Generator[None]:
    """Hold the lock of the project's folder, which is not opened through a link."""
    opened = open_folder(state_dir, str(folder.relative_to(state_dir)), create=True)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open("lock", flags, 0o600, dir_fd=opened)
    finally:
        os.close(opened)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _create(path: Path, python: Path) -> ProjectEnvironment:
    facts = _read_facts(python)
    new = path.with_name(f"{path.name}.new")
    for old in (path, new):
        remove_tree(old)
    packages = new / "lib" / facts.library / "site-packages"
    packages.mkdir(parents=True)
    (new / "lib64").symlink_to("lib")
    (new / "pyvenv.cfg").write_text(
        f"home = {Path(facts.binary).parent}\n"
        f"include-system-site-packages = {str(facts.system).lower()}\n"
        f"version = {facts.version}\n"
    )
    _write_packages(packages, facts)
    _write_programs(new / "bin", path / "bin", facts)
    record = EnvironmentRecord(str(python), facts.version, facts.scripts)
    write_text_atomic(new / RECORD_NAME, codec.dumps(record))
    new.rename(path)
    return ProjectEnvironment(path, record)


def _read_facts(python: Path) -> BaseFacts:
    import subprocess

    try:
        answer = subprocess.run(
            [str(python), "-I", str(_PROBE)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT,
            check=True,
        )
        return BaseFacts(**json.loads(answer.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, TypeError) as error:
        output = str(getattr(error, "stderr", None) or error).strip().splitlines() or [""]
        why = output[-1] if output[0].startswith("Traceback") else output[0]
        raise PrefectBtError(
            f"{str(python)!r} cannot be the Python of the job: {why.rstrip('.')}.",
            next_step=f"Set {PYTHON_VARIABLE} to a Python interpreter of this machine.",
        ) from error


def _write_packages(packages: Path, facts: BaseFacts) -> None:
    """Write what makes the packages of the base importable, and pip if the base lacks it."""
    (packages / "_prefect_bt_pip.py").write_bytes(_PIP_LOCK.read_bytes())
    folders = dict.fromkeys(facts.packages)
    lines = [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (packages / _HOOK).write_text("\n".join(["import _prefect_bt_pip", *lines, ""]))
    if facts.pip_wheel:
        import zipfile

        with zipfile.ZipFile(facts.pip_wheel) as wheel:
            wheel.extractall(packages)


def _write_programs(folder: Path, final: Path, facts: BaseFacts) -> None:
    """Write the links to the interpreter, and pip. `final`: path of the folder later."""
    folder.mkdir()
    short = _shorten(facts.version)
    (folder / "python").symlink_to(facts.binary)
    for name in ("python3", f"python{short}"):
        (folder / name).symlink_to("python")
    for name in ("pip", "pip3", f"pip{short}"):
        _write_script(folder / name, final / "python", _PIP)


def _adopt_scripts(environment: ProjectEnvironment) -> ProjectEnvironment:
    """Copy the console scripts of the base, with the interpreter of the environment.

    The scripts of the base would not see the packages of the environment.
    """
    record, binaries = environment.record, environment.path / "bin"
    changed = _read_change(record.scripts)
    for script in find_paths(Path(record.scripts), "*"):
        if script.name in KEPT_SCRIPTS or os.path.lexists(binaries / script.name):
            continue
        with suppress(OSError):
            body = _read_script(script, record)
            if body is not None:
                _write_script(binaries / script.name, binaries / "python", body)
    record = replace(record, scripts_changed=changed)
    write_text_atomic(environment.path / RECORD_NAME, codec.dumps(record))
    return ProjectEnvironment(environment.path, record)


def _read_script(script: Path, record: EnvironmentRecord) -> bytes | None:
    """Return a script of the base's interpreter without its head; None for another file."""
    if not script.is_file():
        return None
    with script.open("rb") as file:
        content = file.read(MAX_SCRIPT_BYTES + 1)
    head = _SCRIPT_HEAD.match(content)
    if head is None or len(content) > MAX_SCRIPT_BYTES:
        return None
    python = Path(os.fsdecode(head["direct"] or head["quoted"]))
    of_base = python.parent in {Path(record.scripts), Path(record.python).parent}
    return content[head.end() :] if of_base and python.name.startswith("python") else None


def _write_script(path: Path, python: Path, body: bytes) -> None:
    # The path may be too long for the kernel, or contain blanks; pip writes the same lines then.
    head = f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
    with path.open("xb") as file:  # never through a link
        file.write(os.fsencode(head) + body)
        os.fchmod(file.fileno(), 0o755)


def _shorten(version: str) -> str:
    return ".".join(version.split(".")[:2])
