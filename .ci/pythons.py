"""Print Pythons of this machine that the package supports, one path per line.

`--oldest` prints the oldest, with which CI runs the gate. `--others` prints the oldest and the
newest except the version that runs this program. Looks on PATH, where the system and pyenv install.
Skips pre-releases and versions without the modules that make environments.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11, 2)
PROBE = """
import sys, ensurepip, venv
assert sys.version_info[3] == 'final'
print(*sys.version_info[:3])
"""


def version_of(python: Path) -> tuple[int, ...]:
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def list_pythons() -> dict[tuple[int, ...], Path]:
    """Return the supported Pythons by version, the oldest first."""
    folders = [Path(folder) for folder in os.environ["PATH"].split(os.pathsep)]
    folders += [Path("/usr/bin"), Path("/usr/local/bin")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders += pyenv.glob("versions/*/bin")
    pythons: dict[tuple[int, ...], Path] = {}
    for folder in folders:
        if folder == pyenv / "shims":  # names of versions that may not be chosen
            continue
        for python in sorted(folder.glob("python3*")):
            if re.fullmatch(r"python3(\.\d+)?", python.name) and (version := version_of(python)):
                pythons.setdefault(version, python)
    return {version: pythons[version] for version in sorted(pythons) if version >= OLDEST}


def main() -> None:
    pythons = list_pythons()
    versions = list(pythons)
    if sys.argv[1:] == ["--oldest"]:
        print(*[pythons[version] for version in versions[:1]], sep="\n")
    elif sys.argv[1:] == ["--others"]:
        for version in dict.fromkeys([*versions[:1], *versions[-1:]]):
            if version != sys.version_info[:3]:
                print(pythons[version])
    else:
        sys.exit("usage: pythons.py --oldest | --others")


main()
