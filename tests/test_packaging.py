"""What an installed prefect-bt holds: the package with both linked folders, and nothing generic.

Built with the backend of pyproject.toml in this environment, so that no network is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="hatchling is not installed: make setup")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


def build(kind: str, tree: Path, into: Path) -> Path:
    """`kind` is wheel or sdist; the archive's path. In a process of its own: it needs a chdir."""
    into.mkdir(parents=True, exist_ok=True)
    code = f"import hatchling.build as b, sys; print(b.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, os.fspath(into)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    shutil.unpack_archive(build("sdist", ROOT, folder / "dist"), folder)
    return next(path for path in folder.iterdir() if path.name.startswith("prefect_bt-"))


def files_in(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return {name for name in opened.namelist() if not name.endswith("/")}


def source_files() -> Iterator[str]:
    """As they should be named in an archive."""
    for folder in ("prefect_bt", "flows", "blocks"):
        prefix = Path("prefect_bt") if folder == "prefect_bt" else Path("prefect_bt", folder)
        for where, _, found in os.walk(ROOT / folder, followlinks=False):
            below = Path(where).relative_to(ROOT / folder)
            yield from ((prefix / below / f).as_posix() for f in found if f.endswith(".py"))


def test_the_wheel_holds_every_module_under_the_package(wheel: Path) -> None:
    files = files_in(wheel)
    assert set(source_files()) <= files
    assert "prefect_bt/py.typed" in files
    tops = {name.partition("/")[0] for name in files}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"prefect_bt"}
    assert not [name for name in files if "__pycache__" in name or name.endswith(".pyc")]


def test_the_wheel_gives_its_examples(wheel: Path, tmp_path: Path) -> None:
    """From the files of the wheel alone, in a folder that has no checkout around it."""
    names = sorted(readme.parent.name for readme in (ROOT / "examples").glob("*/README.md"))
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path / "installed")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from prefect_bt.cli.app import main; sys.exit(main(sys.argv[1:]))\n"
    )
    words = ["init", "--examples", ",".join(names), "--target-directory", "mine"]
    command = [sys.executable, "-I", "-c", code, os.fspath(tmp_path / "installed"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in names:
        shipped = {path.name for path in (ROOT / "examples" / name).iterdir()}
        copied = {path.name for path in (tmp_path / "mine" / name).iterdir()}
        assert copied == shipped - {"__pycache__", "checkpoints"}


def test_the_sdist_builds_the_same_wheel(wheel: Path, unpacked_sdist: Path, tmp_path: Path) -> None:
    assert not [path for path in unpacked_sdist.rglob("*") if path.is_symlink()]
    assert files_in(build("wheel", unpacked_sdist, tmp_path)) == files_in(wheel)


def test_the_wheel_names_its_command_and_its_blocks(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        info = next(n.partition("/")[0] for n in opened.namelist() if ".dist-info/" in n)
        points = ConfigParser()
        points.read_string(opened.read(f"{info}/entry_points.txt").decode())
        assert f"{info}/licenses/LICENSE" in opened.namelist()
    assert points["console_scripts"]["prefect-bt"] == "prefect_bt.cli.entry:main"
    assert points["prefect.collections"]["prefect_bt"] == "prefect_bt.blocks"


def test_the_wheel_imports_from_its_own_files(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(tmp_path)
    code = (
        "import sys, importlib.util as u; sys.path.insert(0, sys.argv[1])\n"
        "for n in ('prefect_bt', 'prefect_bt.blocks', 'prefect_bt.flows'):\n"
        "    print(u.find_spec(n).origin)\n"
    )
    command = [sys.executable, "-I", "-c", code, os.fspath(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(Path(origin).is_relative_to(tmp_path) for origin in done.stdout.split())
