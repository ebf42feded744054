"""The Python environment of a project: what pip does in it, and when it is created."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_bt.errors import PrefectBtError
from prefect_bt.host.python.environment import ProjectEnvironment, open_environment
from tests.host.python.wheels import install_into, make_source_archive, make_wheel

VERSION = "import shade; print(shade.VERSION)"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A virtual environment with `shade` 2.0, and without pip."""
    prefix = tmp_path / "base"
    venv.create(prefix, with_pip=False, symlinks=True)
    install_into(prefix, "2.0")
    return prefix


@pytest.fixture
def environment(tmp_path: Path, base: Path) -> ProjectEnvironment:
    return open_base(tmp_path, base)


def open_base(tmp_path: Path, base: Path) -> ProjectEnvironment:
    state = tmp_path / "state folder"
    state.mkdir(exist_ok=True)
    return open_environment(state, "proj123", base / "bin" / "python")


def variables(environment: ProjectEnvironment) -> dict[str, str]:
    entered = {"PATH": "/usr/bin:/bin", "HOME": str(environment.path.parent)}
    environment.enter(entered)
    return entered


def run(environment: ProjectEnvironment, command: str) -> str:
    done = subprocess.run(
        ["/bin/sh", "-ec", command],
        env=variables(environment),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def list_tree(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.name != "__pycache__"}


@pytest.mark.parametrize("pip", ["pip", "python3 -m pip"])
def test_an_installed_package_wins_only_in_its_environment(
    tmp_path: Path, base: Path, environment: ProjectEnvironment, pip: str
) -> None:
    wheel, before = make_wheel(tmp_path, "1.0"), list_tree(base)
    assert run(environment, f"python -c '{VERSION}'; shade-version") == "2.0\n2.0"
    assert "2.0" in run(environment, f"{pip} list | grep shade")
    run(environment, f"{pip} install --no-index {wheel}")
    assert run(environment, f"python -c '{VERSION}'; shade-version") == "1.0\n1.0"
    assert {path for path in list_tree(base) if "pyc" not in path} == before
    assert run(environment, f"{base}/bin/shade-version") == "2.0"
    again = open_base(tmp_path, base)
    assert (again.path, run(again, "shade-version")) == (environment.path, "1.0")


def test_a_script_of_the_base_is_adopted_when_the_base_gets_it(
    tmp_path: Path, base: Path, environment: ProjectEnvironment
) -> None:
    for name in ("later", "prefect-bt"):
        shutil.copy(base / "bin" / "shade-version", base / "bin" / name)
    path = environment.path / "bin"
    assert not (path / "later").exists()
    assert open_base(tmp_path, base).path == environment.path
    assert [
        run(environment, f"command -v {name}") for name in ("later", "shade-version", "prefect-bt")
    ] == [
        str(path / "later"),
        str(path / "shade-version"),
        str(base / "bin" / "prefect-bt"),  # with our dependencies, whatever the job installs
    ]


def test_one_pip_at_a_time_changes_the_environment(
    tmp_path: Path, environment: ProjectEnvironment
) -> None:
    wheel = make_wheel(tmp_path, "1.0")
    with (environment.path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = subprocess.Popen(
            ["pip", "install", "--no-index", str(wheel)],
            executable=environment.path / "bin" / "pip",
            env=variables(environment),
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith("pip waits: another process installs")
        assert "2.0" in run(environment, "pip show shade | grep Version")
    assert waiting.wait(60) == 0
    assert run(environment, "shade-version") == "1.0"


def test_a_build_that_requires_packages_does_not_wait_for_itself(
    tmp_path: Path, environment: ProjectEnvironment
) -> None:
    make_wheel(tmp_path, "1.0")
    archive = make_source_archive(tmp_path)
    run(environment, f"pip install --no-index --find-links '{tmp_path}' '{archive}'")
    assert run(environment, "python -c 'import built; print(built.VERSION)'") == "1.0"
    assert run(environment, "shade-version") == "2.0"


def break_link(path: Path) -> None:
    (path / "bin" / "python").unlink()
    (path / "bin" / "python").symlink_to("/nonexistent/python3.11")


def leave_half(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.new"))
    (path.with_name(f"{path.name}.new") / "prefect-bt.json").unlink()


def put_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def put_link_to_programs(path: Path) -> None:
    (path / "bin").rename(path / "programs")
    (path / "bin").symlink_to("programs")


@pytest.mark.parametrize(
    "damage",
    [
        break_link,
        leave_half,
        put_link,
        put_link_to_programs,
        shutil.rmtree,
        lambda path: (path / "prefect-bt.json").write_text("{"),  # pyright: ignore
        lambda path: (path / "pyvenv.cfg").unlink(),  # pyright: ignore
        lambda path: next(path.glob("lib/*/site-packages/zz_*")).unlink(),  # pyright: ignore
        lambda path: (shutil.rmtree(path), path.write_text("a file")),  # pyright: ignore
    ],
)
def test_a_damaged_environment_is_created_again(
    tmp_path: Path, base: Path, environment: ProjectEnvironment, damage: Callable[[Path], object]
) -> None:
    damage(environment.path)
    assert open_base(tmp_path, base) == environment
    assert not environment.path.is_symlink()
    assert not (environment.path / "bin").is_symlink()
    assert run(environment, f"python -c '{VERSION}'") == "2.0"
    assert {path.name for path in environment.path.parent.glob("*.new")} == set()


def test_nodes_that_start_together_have_one_environment(tmp_path: Path, base: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        opened = list(threads.map(lambda _: open_base(tmp_path, base), range(4)))
    assert len({one.path for one in opened}) == 1
    assert run(opened[0], f"python -c '{VERSION}'") == "2.0"


def test_another_interpreter_has_another_environment(
    tmp_path: Path, base: Path, environment: ProjectEnvironment
) -> None:
    python = base / "bin" / "python"
    real = python.resolve()
    replaced = tmp_path / "python3.99"
    replaced.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    replaced.chmod(0o755)
    python.unlink()
    python.symlink_to(replaced)
    later = open_base(tmp_path, base)
    assert later.path != environment.path
    assert later.path.name.startswith("python3.99-")
    python.unlink()
    with pytest.raises(PrefectBtError, match=r"cannot be the Python of the job"):
        open_base(tmp_path, base)


def test_a_program_that_is_no_python_is_refused_with_its_words(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    with pytest.raises(PrefectBtError) as refused:
        open_environment(tmp_path, "proj123", shim)
    assert "pyenv: python3.12: command not found" in str(refused.value)
    assert "PREFECT_BT_PYTHON" in str(refused.value)


def test_the_folder_is_not_opened_through_a_link(tmp_path: Path, base: Path) -> None:
    (tmp_path / "state folder" / "cache").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "state folder" / "cache" / "environments").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"[Nn]ot a directory|[Tt]oo many levels"):
        open_base(tmp_path, base)
    assert os.listdir(tmp_path / "elsewhere") == []  # noqa: PTH208
