"""The nodes of a plan: how many, what each may use, and the environment that it gets."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt import codec
from prefect_bt.planning.plan import GangPlan, VolumeKind
from prefect_bt.planning.planner import list_job_secret_names, plan_gang
from prefect_bt.substrates.protocol import Enforcement

from .laptop import CONTEXT, LAPTOP, problems, project, runtime


def test_many_nodes_on_one_machine_have_a_note() -> None:
    plan = plan_gang(project(compute={"node_count": 6}), CONTEXT)
    assert any("All 6 nodes share this machine's 4 CPUs and 8.0Gi" in note for note in plan.notes)
    assert not any("nodes share" in note for note in plan_gang(project(), CONTEXT).notes)
    far = replace(CONTEXT, substrate="kubernetes")
    assert len(plan_gang(project(compute={"node_count": 100}), far).nodes) == 100
    assert "at most 4096" in problems(project(compute={"node_count": 10**9}), far)[0]


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("cd data\r\npython train.py\r\n", 2),
        ("python train.py\r", 2),
        ("python train.py\n", None),
        ("printf 'a\rb'", None),
    ],
)
def test_a_command_with_windows_line_ends_has_a_note(command: str, number: int | None) -> None:
    given = project()
    given.job.runtime.start_commands = ["true", command]
    told = [note for note in plan_gang(given, CONTEXT).notes if "line ends" in note]
    assert [note.partition(" has ")[0] for note in told] == (
        [f"Start command {number}"] if number else []
    )


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
        "BT_METRICS_FILE": "/mnt/bt-scratch/metrics.jsonl",
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


def test_disabled_options_set_no_variable() -> None:
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
    assert list_job_secret_names(given.job) == ("a", "w")


@pytest.mark.parametrize(
    ("name", "exported"),
    [
        ("job-12", "job-12"),
        ("Llama 3 (8B), lr=1e-4", "Llama 3 (8B), lr=1e-4"),
        ("ünï / cödé", "ünï - cödé"),
        ("owner/model/v2", "owner-model-v2"),
        ("../../etc", "__-..-etc"),
        (".", "_"),
        (" .hidden ", "__hidden"),
        ("-rf", "-rf"),
        ("é" * 200, "é" * 119 + "-" + hashlib.sha256(("é" * 200).encode()).hexdigest()[:16]),
    ],
)
@pytest.mark.parametrize("kind", ["JOB", "PROJECT"])
def test_a_name_is_exported_as_the_name_of_a_folder(
    kind: str, name: str, exported: str, tmp_path: Path
) -> None:
    given = project()
    if kind == "PROJECT":
        given.name = name
    plan = plan_gang(given, replace(CONTEXT, job_name=name if kind == "JOB" else "job-1"))
    assert name in {plan.job_name, plan.project_name}
    assert plan.nodes[0].environment[f"BT_TRAINING_{kind}_NAME"] == exported
    (tmp_path / exported).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [exported]
    notes = [note for note in plan.notes if note.startswith(f"BT_TRAINING_{kind}_NAME")]
    assert bool(notes) == (name != exported)


def test_fields_without_effect_are_noted_and_no_others() -> None:
    session = {"timeout_minutes": 30}
    spot = {"availability_model": "spot"}
    given = project(priority=5, compute=spot, interactive_session=session)
    ineffective = [note for note in plan_gang(given, CONTEXT).notes if "no effect yet" in note]
    assert [note.split()[0] for note in ineffective] == ["interactive_session"]
    on_cluster = plan_gang(given, replace(CONTEXT, substrate="kubernetes")).notes
    assert [note.split()[0] for note in on_cluster if "no effect yet" in note] == [
        "priority",
        "availability_model",
        "interactive_session",
    ]
    in_image = plan_gang(given, replace(CONTEXT, supports_images=True)).notes
    assert any("use prefect-bt shell instead" in note for note in in_image)
    assert not any("no effect" in note for note in plan_gang(project(), CONTEXT).notes)


CLUSTER = replace(
    LAPTOP,
    cpus=1 << 60,
    memory=1 << 60,
    gpus=1 << 60,
    enforcement=Enforcement.REQUESTS,
    is_machine=False,
)
IN_PODS = replace(CONTEXT, substrate="kubernetes", capacity=CLUSTER, store="s3://bucket/prefix")


def test_a_store_that_nodes_cannot_use_is_refused() -> None:
    capacity = replace(CLUSTER, store_problem="The store is a folder of this machine.")
    assert problems(project(), replace(IN_PODS, capacity=capacity)) == (capacity.store_problem,)


def test_a_pod_requests_the_values_of_its_definition() -> None:
    """There is no machine whose share it could get."""
    compute = {"node_count": 3, "cpu_count": 6, "memory": "24Gi", "accelerator": "H100:8"}
    [*nodes] = plan_gang(project(compute=compute), IN_PODS).nodes
    for rank, node in enumerate(nodes):
        given = node.resources
        assert (node.rank, given.cpus, given.memory) == (rank, 6, 24 * 1024**3)
        assert (given.gpus, given.gpu_type) == (8, "H100")
        assert (given.shared_memory, given.limits) == (0, False)
        assert "they are requests of its pod, not limits" in given.why
    assert nodes[0].for_rank(2) == nodes[2]


def test_limits_of_a_pod_have_shared_memory() -> None:
    limits = replace(CLUSTER, enforcement=Enforcement.LIMITS)
    compute = {"cpu_count": 6, "memory": "24Gi"}
    [node] = plan_gang(project(compute=compute), replace(IN_PODS, capacity=limits)).nodes
    assert (node.resources.cpus, node.resources.memory) == (6, 24 * 1024**3)
    assert node.resources.limits
    assert 0 < node.resources.shared_memory < node.resources.memory


def test_limits_of_a_pod_with_gpus_are_its_requests() -> None:
    limits = replace(CLUSTER, enforcement=Enforcement.LIMITS)
    compute = {"cpu_count": 6, "memory": "24Gi", "accelerator": "H100:8"}
    [node] = plan_gang(project(compute=compute), replace(IN_PODS, capacity=limits)).nodes
    assert (node.resources.cpus, node.resources.memory) == (6, 24 * 1024**3), node.resources.why
