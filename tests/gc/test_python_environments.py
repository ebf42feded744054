"""Python environments of projects whose interpreter is gone."""

import shutil
import sys
import venv
from pathlib import Path

from prefect_bt.gc.findings import OrphanKind
from prefect_bt.host.python.environment import open_environment
from tests.gc.conftest import Site


def test_an_environment_is_garbage_once_its_interpreter_is_removed(
    site: Site, tmp_path: Path
) -> None:
    site.state.mkdir()
    venv.create(tmp_path / "base", symlinks=True)
    python = tmp_path / "base" / "bin" / "python"
    left = open_environment(site.state, "proj123", python)
    kept = open_environment(site.state, "proj123", Path(sys.executable))
    assert site.kinds() == []
    shutil.rmtree(tmp_path / "base")
    (orphan,) = site.look().orphans
    assert (orphan.kind, orphan.location) == (OrphanKind.PYTHON_ENVIRONMENT, str(left.path))
    assert orphan.bytes > 0
    assert orphan.reason == f"its interpreter {python} is gone"
    assert site.clear() == []
    assert (left.path.exists(), kept.path.exists()) == (False, True)
