"""Where things are mounted: which paths a job may have, and how they are spelled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_bt.planning.plan import VolumeKind
from prefect_bt.planning.planner import plan_gang

from .laptop import CONTEXT, LAPTOP, problems, project, runtime


def weights(*places: str) -> list[dict[str, str]]:
    return [{"source": f"hf://a/{i}", "mount_location": p} for i, p in enumerate(places)]


def checkpoints(path: str) -> dict[str, object]:
    return {"checkpointing_config": {"enabled": True, "checkpoint_path": path}}


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"weights": weights("/")}, "weights[0].mount_location is '/'; write an absolute path"),
        ({"weights": weights("/w/../etc")}, "write an absolute path"),
        ({"weights": weights("/w\n")}, "control characters"),
        ({"weights": weights("//proc/x")}, "is '/proc/x'; nothing can be mounted"),
        ({"weights": weights("/usr/")}, "is '/usr'; it would hide"),
        ({"weights": weights("/usr/local/lib")}, "choose a folder such as /data/usr/local/lib"),
        ({"runtime": runtime(**checkpoints("/etc"))}, "checkpoint_path is '/etc'; it would hide"),
        ({"runtime": runtime(cache_config={"enabled": True, "mount_base_path": "/var"})}, "/var"),
        ({"weights": weights("/w", "//w/./")}, "is '/w', which weights[0].mount_location uses"),
        ({"weights": weights("/w/a", "/w")}, "weights[1].mount_location is '/w', which is read-"),
        ({"weights": weights("/b10")}, "read-only and would cover the workspace"),
        ({"weights": weights("/mnt")}, "read-only and would cover the scratch folder"),
        (
            {
                "weights": weights("/root/.cache"),
                "runtime": runtime(cache_config={"enabled": True}),
            },
            "which cache_config.mount_base_path uses already",
        ),
        (
            {"weights": weights("/root"), "runtime": runtime(cache_config={"enabled": True})},
            "would cover cache_config.mount_base_path, '/root/.cache'",
        ),
        (
            {"runtime": runtime(**checkpoints("/mnt"))},
            "the scratch folder is '/mnt/bt-scratch', in",
        ),
        (
            {
                "runtime": runtime(
                    **checkpoints("/o"),
                    load_checkpoint_config={"enabled": True, "download_folder": "/o/l"},
                )
            },
            "load_checkpoint_config.download_folder is '/o/l', inside",
        ),
        (
            {
                "runtime": runtime(
                    **checkpoints("/o"),
                    load_checkpoint_config={"enabled": True, "download_folder": "/o"},
                )
            },
            "download_folder is '/o', which checkpointing_config.checkpoint_path uses",
        ),
    ],
)
def test_refuses_a_place(job: dict[str, object], words: str) -> None:
    assert words in " ".join(problems(project(**job)))


@pytest.mark.parametrize(
    "job",
    [
        {"weights": weights("/b10/workspace/model", "/usr/share/models", "/app/models/o/r")},
        {"runtime": runtime(**checkpoints("/tmp/checkpoints"))},
        {"runtime": runtime(**checkpoints("/b10/workspace/out"))},
        {"runtime": runtime(**checkpoints("/root/.cache/out"), cache_config={"enabled": True})},
        {"weights": weights("/root/.cache/hf"), "runtime": runtime(cache_config={"enabled": True})},
        {"weights": weights("/w", "/w2")},
        {"runtime": runtime(environment_variables={"MY_PORT": "1", "A-B": "2", "X": "ü" * 1000})},
    ],
)
def test_accepts_a_place(job: dict[str, object]) -> None:
    assert len(plan_gang(project(**job), CONTEXT).nodes) == 1


def test_a_path_has_one_spelling_in_volumes_and_stays_as_written_in_variables() -> None:
    given = project(
        weights=weights("//models/./m/"),
        runtime=runtime(
            **checkpoints("/out//ckpts/"),
            cache_config={"enabled": True, "mount_base_path": "/cache/"},
        ),
    )
    node = plan_gang(given, CONTEXT).nodes[0]
    targets = {volume.kind: volume.target for volume in node.volumes}
    assert targets[VolumeKind.WEIGHTS] == "/models/m"
    assert targets[VolumeKind.CHECKPOINTS] == "/out/ckpts"
    assert targets[VolumeKind.CACHE_BASE] == "/cache"
    assert node.environment["BT_CHECKPOINT_DIR"] == "/out//ckpts/"
    assert node.environment["BT_PROJECT_CACHE_DIR"] == "/cache/user_artifacts"


def test_mapped_paths_refuse_only_what_the_definition_pins() -> None:
    mapped = replace(LAPTOP, exact_paths=False, mapped_reason="the kernel refuses namespaces")
    context = replace(CONTEXT, capacity=mapped)
    plan = plan_gang(project(runtime=runtime(checkpointing_config={"enabled": True})), context)
    assert any("the kernel refuses namespaces" in note for note in plan.notes)
    pinned = project(
        runtime=runtime(checkpointing_config={"enabled": True, "checkpoint_path": "/app/out"})
    )
    assert "--substrate docker" in problems(pinned, context)[0]
