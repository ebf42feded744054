"""Planning is pure: what it refuses, what it notes, and the environment it gives a node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.definitions import (
    TrainingProject,
    load_training_project,
    training_project_from_json,
)
from prefect_bt.errors import DefinitionError, PlanError
from prefect_bt.plan import GangPlan, VolumeKind
from prefect_bt.planning import (
    PlanContext,
    plan_gang,
    plan_sources,
    plan_weights,
    secret_names,
)
from prefect_bt.refusals import find_weights_problems
from prefect_bt.substrates.protocol import Capacity

GIB = 1024**3
LAPTOP = Capacity(cpus=4, memory=8 * GIB, gpus=0, disk=100 * GIB)
CONTEXT = PlanContext(
    job_id="abc1234",
    job_name="job-1",
    project_id="pr0j3ct",
    store="file:///store",
    capacity=LAPTOP,
)


def project(**job: object) -> TrainingProject:
    document = {"image": {"base_image": "python:3.11"}, "runtime": {"start_commands": ["true"]}}
    return training_project_from_json({"name": "p", "job": {**document, **job}})


def runtime(**fields: object) -> dict[str, object]:
    return {"start_commands": ["true"], **fields}


def problems(given: TrainingProject, context: PlanContext = CONTEXT) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        plan_gang(given, context)
    return caught.value.problems


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"compute": {"node_count": 0}}, ["node_count is 0", "at least 1"]),
        ({"compute": {"cpu_count": 64}}, ["64 CPUs", "has 4"]),
        ({"compute": {"cpu_count": 0}}, ["cpu_count is 0"]),
        ({"compute": {"memory": "lots"}}, ["compute.memory", "lots"]),
        ({"compute": {"memory": "64Gi"}}, ["64Gi", "8.0Gi"]),
        ({"compute": {"accelerator": "H100:8"}}, ["8 H100", "no GPU", "--accelerator none"]),
        ({"runtime": runtime(start_commands=[])}, ["start_commands is empty"]),
        ({"runtime": runtime(start_commands=["  "])}, ["start_commands[0]"]),
        ({"runtime": runtime(environment_variables={"BT_X": "1"})}, ["BT_X", "platform's"]),
        ({"runtime": runtime(environment_variables={"A=B": "1"})}, ["A=B"]),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "checkpoint_path": "rel"})},
            ["checkpoint_path", "absolute"],
        ),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "volume_size_gib": 9000})},
            ["volume_size_gib", "9000"],
        ),
        ({"interactive_session": {"trigger": "on_startup"}}, ["interactive_session", "on_startup"]),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/proc/x"}]},
            ["weights[0].mount_location", "/proc"],
        ),
        (
            {
                "weights": [
                    {"source": "hf://a/b", "mount_location": "/w"},
                    {"source": "hf://a/c", "mount_location": "/w/"},
                ]
            },
            ["weights[1].mount_location", "weights[0].mount_location uses already"],
        ),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/b10/workspace"}]},
            ["weights[0].mount_location", "the workspace uses already"],
        ),
        ({"compute": {"node_count": 10**9}}, ["1000000000 nodes", "at most 256"]),
        ({"compute": {"memory": "99999999999999999999Ei"}}, ["compute.memory", "8.0Gi"]),
        ({"runtime": runtime(start_commands=["x" * 200_000])}, ["200000 characters", "script"]),
        ({"runtime": runtime(environment_variables={"A": "x\0"})}, ["'A'", "zero byte"]),
        ({"runtime": runtime(environment_variables={"A": "x" * 200_000})}, ["200000", "file"]),
        ({"runtime": runtime(environment_variables={"A": {"name": ""}})}, ["'A'", "no secret"]),
        (
            {"runtime": runtime(checkpointing_config={"enabled": True, "volume_size_gib": 0})},
            ["volume_size_gib is 0", "at least 1"],
        ),
        (
            {"weights": [{"source": "hf://a/b@", "mount_location": "/w"}]},
            ["weights[0].source", "after the @"],
        ),
        (
            {"weights": [{"source": "hf://a/b", "mount_location": "/w", "allow_patterns": []}]},
            ["weights[0].allow_patterns", "no file matches"],
        ),
        (
            {
                "weights": [
                    {
                        "source": "hf://a/b",
                        "mount_location": "/w",
                        "auth": {
                            "auth_method": "AWS_OIDC",
                            "aws_oidc_role_arn": "arn",
                            "aws_oidc_region": "eu",
                        },
                    }
                ]
            },
            ["weights[0].auth.auth_method is AWS_OIDC", "CUSTOM_SECRET"],
        ),
        (
            {"weights": [{"source": "file:///a", "mount_location": "/w", "auth_secret_name": "s"}]},
            ["weights[0].source 'file:///a'", "no auth"],
        ),
    ],
)
def test_refuses(job: dict[str, object], words: list[str]) -> None:
    found = " ".join(problems(project(**job)))
    for word in words:
        assert word in found


def weights(*places: str) -> list[dict[str, str]]:
    return [{"source": f"hf://a/{i}", "mount_location": p} for i, p in enumerate(places)]


def checkpoints(path: str) -> dict[str, object]:
    return {"checkpointing_config": {"enabled": True, "checkpoint_path": path}}


@pytest.mark.parametrize("source", ["hf://a/b/c", "hf://a/", "hf://a//b", "hf://@main"])
def test_refuses_what_is_no_repository(source: str) -> None:
    given = project(weights=[{"source": source, "mount_location": "/w"}])
    assert "is no repository; write hf://owner/repo" in problems(given)[0]


@pytest.mark.parametrize(
    "source", ["hf://a/b", "hf://single", "hf://a/b@refs/pr/1", "hf://a/b@v@2"]
)
def test_accepts_a_repository(source: str) -> None:
    plan_gang(project(weights=[{"source": source, "mount_location": "/w"}]), CONTEXT)


def test_problems_of_weights_by_source() -> None:
    sources = [
        {"source": "hf://a/b", "mount_location": "/w"},
        {"source": "hf://a/b@", "mount_location": "/w"},
        {"source": "s3://b/p", "mount_location": "/b10/workspace"},
        {"source": "s3://b/p", "mount_location": "/fine"},
    ]
    given = project(weights=sources, compute={"node_count": 0})
    assert [
        [each.partition(";")[0] for each in one] for one in find_weights_problems(given.job)
    ] == [
        [],
        [
            "weights[1].source 'hf://a/b@' has no revision after the @",
            "weights[1].mount_location is '/w', which weights[0].mount_location uses already",
        ],
        ["weights[2].mount_location is '/b10/workspace', which the workspace uses already"],
        [],
    ]


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
        ({"weights": weights("/b10")}, "read-only and would lie over the workspace"),
        ({"weights": weights("/mnt")}, "read-only and would lie over the scratch folder"),
        (
            {
                "weights": weights("/root/.cache"),
                "runtime": runtime(cache_config={"enabled": True}),
            },
            "which cache_config.mount_base_path uses already",
        ),
        (
            {"weights": weights("/root"), "runtime": runtime(cache_config={"enabled": True})},
            "would lie over cache_config.mount_base_path, '/root/.cache'",
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
        {"runtime": runtime(environment_variables={"PORT": "1", "A-B": "2", "X": "ü" * 1000})},
    ],
)
def test_accepts_a_place(job: dict[str, object]) -> None:
    plan_gang(project(**job), CONTEXT)


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


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0"])
def test_refuses_a_name_that_no_variable_can_hold(name: str) -> None:
    given = project()
    given.name = name
    assert "project.name is" in problems(given)[0]
    given.name = "Team / Modell 👩‍💻"
    assert plan_gang(given, CONTEXT).project_name == given.name


def test_many_nodes_on_one_machine_are_told_so() -> None:
    plan = plan_gang(project(compute={"node_count": 6}), CONTEXT)
    assert any("All 6 nodes share this machine's 4 CPUs and 8.0Gi" in note for note in plan.notes)
    assert not any("nodes share" in note for note in plan_gang(project(), CONTEXT).notes)
    far = replace(CONTEXT, substrate="kubernetes")
    assert len(plan_gang(project(compute={"node_count": 100}), far).nodes) == 100
    assert "at most 4096" in problems(project(compute={"node_count": 10**9}), far)[0]


def test_names_every_problem_at_once() -> None:
    given = project(
        compute={"node_count": 0, "memory": "lots"},
        runtime=runtime(start_commands=[], environment_variables={"BT_X": "1"}),
    )
    found = problems(given, replace(CONTEXT, missing=("Secret 'x' not found.",)))
    assert len(found) == 5
    assert found[-1] == "Secret 'x' not found."


def test_gpus_are_counted_over_all_nodes() -> None:
    given = project(compute={"node_count": 2, "accelerator": "H100:4"})
    two = replace(CONTEXT, capacity=replace(LAPTOP, gpus=8, gpu_types=("A100",)))
    plan = plan_gang(given, two)
    assert [node.resources.gpus for node in plan.nodes] == [4, 4]
    assert any("this machine has A100" in note for note in plan.notes)
    assert "8 H100" in problems(given, replace(two, capacity=replace(LAPTOP, gpus=7)))[0]


def test_every_row_of_5_1_on_a_single_node() -> None:
    given = project(
        runtime=runtime(
            checkpointing_config={"enabled": True},
            cache_config={"enabled": True},
            load_checkpoint_config={"enabled": True},
            environment_variables={"A": "1", "TOKEN": {"name": "hf_access_token"}},
        )
    )
    node = plan_gang(given, replace(CONTEXT, attempt=2)).nodes[0]
    assert node.environment == {
        "A": "1",
        "BT_TRAINING_JOB_ID": "abc1234",
        "BT_TRAINING_PROJECT_ID": "pr0j3ct",
        "BT_TRAINING_JOB_NAME": "job-1",
        "BT_TRAINING_PROJECT_NAME": "p",
        "BT_NUM_GPUS": "0",
        "BT_WORKING_DIR": "/b10/workspace",
        "BT_SCRATCH_DIR": "/mnt/bt-scratch",
        "BT_CHECKPOINT_DIR": "/mnt/ckpts",
        "BT_LOAD_CHECKPOINT_DIR": "/tmp/loaded_checkpoints",
        "BT_PROJECT_CACHE_DIR": "/root/.cache/user_artifacts",
        "BT_TEAM_CACHE_DIR": "/root/.cache/team_artifacts",
        "BT_RW_CACHE_DIR": "/root/.cache",
        "BT_RETRY_COUNT": "2",
        "BT_GROUP_SIZE": "1",
        "BT_LEADER_ADDR": "127.0.0.1",
        "BT_NODE_RANK": "0",
    }
    assert node.secret_environment == {"TOKEN": "hf_access_token"}


def test_what_is_off_sets_no_variable() -> None:
    node = plan_gang(project(enable_baseten_workdir=False), CONTEXT).nodes[0]
    absent = {"BT_WORKING_DIR", "BT_CHECKPOINT_DIR", "BT_LOAD_CHECKPOINT_DIR", "BT_RW_CACHE_DIR"}
    assert not absent & set(node.environment)
    assert node.checkpoints is None


def test_a_plan_survives_its_json() -> None:
    plan = plan_gang(
        project(
            compute={"node_count": 3},
            weights=[{"source": "hf://a/b", "mount_location": "/w", "auth_secret_name": "t"}],
        ),
        CONTEXT,
    )
    assert codec.loads(GangPlan, codec.dumps(plan)) == plan
    assert plan.secret_names == ("t",)
    assert [node.rank for node in plan.nodes] == [0, 1, 2]
    weights = [v for v in plan.nodes[0].volumes if v.kind is VolumeKind.WEIGHTS]
    assert [(v.target, v.read_only) for v in weights] == [("/w", True)]


def test_a_node_mounts_the_revision_that_was_mirrored() -> None:
    given = project(
        weights=[
            {"source": "hf://a/b", "mount_location": "/w"},
            {"source": "hf://a/c", "mount_location": "/x"},
        ]
    )
    one, two = (weights.key for weights in plan_weights(given.job))
    plan = plan_gang(given, replace(CONTEXT, revisions={one: "rev-1"}))
    volumes = [v.key for v in plan.nodes[0].volumes if v.kind is VolumeKind.WEIGHTS]
    assert volumes == [f"{one}-rev-1", two]


def test_a_source_outside_of_a_job_has_the_key_that_it_has_in_one() -> None:
    source = {
        "source": "s3://bucket/prefix",
        "allow_patterns": ["*.bin"],
        "auth_secret_name": "keys",
    }
    [inside] = plan_weights(project(weights=[{**source, "mount_location": "/w"}]).job)
    [outside, plain] = plan_sources([source, "s3://bucket/prefix"])
    assert replace(inside, mount_location=outside.mount_location) == outside
    assert plain.key != outside.key
    with pytest.raises(DefinitionError, match="write gs://"):
        plan_sources(["gcs://bucket/prefix"])


def test_mapped_paths_refuse_only_what_the_definition_pins() -> None:
    mapped = replace(LAPTOP, exact_paths=False, why_mapped="the kernel refuses namespaces")
    context = replace(CONTEXT, capacity=mapped)
    plan = plan_gang(project(runtime=runtime(checkpointing_config={"enabled": True})), context)
    assert any("the kernel refuses namespaces" in note for note in plan.notes)
    pinned = project(
        runtime=runtime(checkpointing_config={"enabled": True, "checkpoint_path": "/app/out"})
    )
    assert "--substrate docker" in problems(pinned, context)[0]


def test_secret_names_are_those_of_environment_and_weights() -> None:
    given = project(
        runtime=runtime(environment_variables={"A": {"name": "a"}, "B": {"name": "a"}}),
        weights=[
            {
                "source": "hf://a/b",
                "mount_location": "/w",
                "auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "w"},
            }
        ],
    )
    assert secret_names(given.job) == ("a", "w")


RECIPES = Path(__file__).parent / "fixtures" / "recipes"
REFUSED = {
    "train_and_deploy/config.py": "interactive_session.trigger is on_failure",
}
"""What this version cannot do yet, and nothing else."""


@pytest.mark.parametrize(
    "name", sorted(path.relative_to(RECIPES).as_posix() for path in RECIPES.glob("*/config*.py"))
)
def test_recipes_plan_for_a_machine_that_has_what_they_ask_for(name: str) -> None:
    given = load_training_project(RECIPES / name)
    spec = given.job.compute.accelerator
    gpus = given.job.compute.node_count * (spec.count if spec else 0)
    big = Capacity(cpus=192, memory=2048 * GIB, gpus=gpus, gpu_types=("H200",), disk=10**15)
    context = replace(CONTEXT, capacity=big)
    if name in REFUSED:
        [problem] = problems(given, context)
        assert problem.startswith(REFUSED[name])
        return
    plan = plan_gang(given, context)
    assert len(plan.nodes) == given.job.compute.node_count
    assert codec.loads(GangPlan, codec.dumps(plan)) == plan
