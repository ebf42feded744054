"""A package `shade` of any version, as a wheel, a source archive, and installed in a base."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

_SCRIPT = "import sys, shade\nprint(shade.VERSION)\n"
_BACKEND = """
import shutil, shade

def build_wheel(folder, config_settings=None, metadata_directory=None):
    shutil.copy("built.whl", folder + "/built-1.0-py3-none-any.whl")
    return "built-1.0-py3-none-any.whl"
"""


def make_wheel(folder: Path, version: str, name: str = "shade") -> Path:
    """Write a wheel of `name`, which has VERSION, and the console script `<name>-version`."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in _list_files(name, version).items():
            wheel.writestr(file, text)
    return path


def make_source_archive(folder: Path) -> Path:
    """Write the source of `built` 1.0, whose build requires `shade`."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["shade"]\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "PKG-INFO": "Metadata-Version: 2.1\nName: built\nVersion: 1.0\n",
        "backend.py": _BACKEND,
    }
    contents = {name: text.encode() for name, text in files.items()}
    contents["built.whl"] = make_wheel(folder, "1.0", name="built").read_bytes()
    path = folder / "built-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"built-1.0/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    (folder / "built-1.0-py3-none-any.whl").unlink()
    return path


def install_into(prefix: Path, version: str) -> None:
    """Install `shade` and its console script into the virtual environment, as pip does."""
    (packages,) = prefix.glob("lib/python*/site-packages")
    for file, text in _list_files("shade", version).items():
        (packages / file).parent.mkdir(exist_ok=True)
        (packages / file).write_text(text)
    script = prefix / "bin" / "shade-version"
    script.write_text(f"#!{prefix}/bin/python3\n{_SCRIPT}")
    script.chmod(0o755)


def _list_files(name: str, version: str) -> dict[str, str]:
    facts = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f"VERSION = {version!r}\ndef main():\n    print(VERSION)\n",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return {**files, f"{facts}/RECORD": "".join(f"{file},,\n" for file in files)}
