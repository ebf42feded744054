"""Sources of weights, and what the command made of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect_bt.weights import NodeCache

if TYPE_CHECKING:  # its fixtures are made of these
    from .conftest import Cli

LARGE = 12 << 20

CONFIG = """
from truss_train import WeightsSource, definitions as d

project = d.TrainingProject(
    name="weights",
    job=d.TrainingJob(
        image=d.Image(base_image="none"),
        runtime=d.Runtime(start_commands=["true"]),
        weights=[{sources}],
    ),
)
"""


def folder(tmp_path: Path, name: str, files: dict[str, bytes]) -> str:
    for path, data in files.items():
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / path).write_bytes(data)
    return f"file://{tmp_path / name}"


def cache_of(cli: Cli) -> NodeCache:
    return NodeCache(Path(cli.env["PREFECT_BT_STATE_DIR"]) / "weights")


def mirrored(cli: Cli, *sources: str) -> list[dict[str, Any]]:
    given = [word for source in sources for word in ("--source", source)]
    done = cli("weights", "mirror", *given, "-o", "json")
    assert (done.code, done.err) == (0, ""), done.err
    return done.json["weights"]
