"""Planning is pure: what it refuses, what it notes, and the environment it gives a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from prefect_bt import codec
from prefect_bt.definitions import TrainingProject, training_project_from_json
from prefect_bt.errors import PlanError
from prefect_bt.plan import GangPlan, VolumeKind
from prefect_bt.planning import PlanContext, plan_gang, secret_names
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
            {"weights": [{"source": "s3://b/p", "mount_location": "/w"}]},
            ["weights[0].source", "s3://b/p", "hf://"],
        ),
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
    ],
)
def test_refuses(job: dict[str, object], words: list[str]) -> None:
    found = " ".join(problems(project(**job)))
    for word in words:
        assert word in found


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
