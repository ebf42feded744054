"""Print the oldest and the newest Python of this machine that the package supports, a path a line.

The version that runs this is left out: `make test` uses it. Looks on PATH, where the system and
pyenv install, and skips pre-releases and versions without the modules that make environments.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
PROBE = """
import sys, ensurepip, venv
assert sys.version_info[3] == 'final'
print(*sys.version_info[:3])
"""


def version_of(python: Path) -> tuple[int, ...]:
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def main() -> None:
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += [Path("/usr/bin"), Path("/usr/local/bin")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += pyenv.glob("versions/*/bin")
    found: dict[tuple[int, ...], Path] = {}
    for folder in folders:
        if folder == pyenv / "shims":  # names of versions that may not be chosen
            continue
        for python in sorted(folder.glob("python3*")):
            if re.fullmatch(r"python3(\.\d+)?", python.name) and (version := version_of(python)):
                found.setdefault(version, python)
    versions = sorted(version for version in found if version >= OLDEST)
    for version in dict.fromkeys([*versions[:1], *versions[-1:]]):
        if version != sys.version_info[:3]:
            print(found[version])


main()
