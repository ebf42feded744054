"""Check what strict classes accept and refuse, and what open classes keep."""

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    AcceleratorSpec,
    AvailabilityModel,
    CacheConfig,
    Compute,
    DockerAuth,
    FullCheckpoint,
    Image,
    InteractiveSession,
    LoadCheckpointConfig,
    LoRADetails,
    Runtime,
    SecretReference,
    TrainingArtifactReference,
    TrainingJob,
    TrainingProject,
    WeightsAuth,
    WeightsSource,
)

JOB = {"image": {"base_image": "x"}}

REFUSED = {
    "enum as text": lambda: Compute(availability_model="spot"),
    "trigger as text": lambda: InteractiveSession(trigger="on_startup"),
    "auth method as text": lambda: DockerAuth(auth_method="AWS_IAM", registry="x"),
    "number in environment": lambda: Runtime(environment_variables={"A": 8}),
    "bool in environment": lambda: Runtime(environment_variables={"A": True}),
    "float in environment": lambda: Runtime(environment_variables={"A": 1.0}),
    "None in environment": lambda: Runtime(environment_variables={"A": None}),
    "list in environment": lambda: Runtime(environment_variables={"A": ["b"]}),
    "number as variable name": lambda: Runtime(environment_variables={1: "b"}),
    "int as text": lambda: Compute(node_count="2"),
    "int as bool": lambda: Compute(node_count=True),
    "int as float": lambda: Compute(cpu_count=2.0),
    "bool as int": lambda: CacheConfig(enabled=1),
    "memory as int": lambda: Compute(memory=2),
    "commands as tuple": lambda: Runtime(start_commands=("a",)),
    "commands as text": lambda: Runtime(start_commands="a"),
    "unknown keyword": lambda: Runtime(foo=1),
    "unknown keyword inside": lambda: TrainingJob(image={"base_image": "x", "tag": "y"}),
    "positional": lambda: Image("x"),
    "positional, open class": lambda: AcceleratorSpec("H100"),
    "no image": TrainingJob,
    "no job": lambda: TrainingProject(name="x"),
    "unknown checkpoint typ": lambda: LoadCheckpointConfig(checkpoints=[{"typ": "x"}]),
    "named checkpoint without job": lambda: LoadCheckpointConfig(
        checkpoints=[{"checkpoint_name": "x"}]
    ),
    "unknown loops target": lambda: LoadCheckpointConfig(
        checkpoints=[{"run_id": "r", "checkpoint_name": "c", "target": "both"}]
    ),
}


@pytest.mark.parametrize("build", REFUSED.values(), ids=REFUSED.keys())
def test_refused(build):
    with pytest.raises((ValidationError, TypeError)):
        build()


def test_nested_models_may_be_dicts():
    job = TrainingJob(
        image={"base_image": "x"},
        compute={"node_count": 2, "accelerator": "H100:8"},
        runtime={"environment_variables": {"T": {"name": "t"}}},
        weights=[
            {
                "source": "hf://a/b",
                "mount_location": "/m",
                "auth": {"auth_method": "CUSTOM_SECRET", "auth_secret_name": "s"},
            }
        ],
    )
    assert job.compute.accelerator == AcceleratorSpec(accelerator="H100", count=8)
    assert job.runtime.environment_variables["T"] == SecretReference(name="t")
    assert job.weights[0].auth.auth_secret_name == "s"


def test_dicts_of_checkpoint_references_are_distinguished():
    config = LoadCheckpointConfig(
        checkpoints=[
            {},
            {"job_id": "a"},
            {"job_id": "a", "checkpoint_name": "c"},
            {"run_id": "a", "checkpoint_name": "c"},
        ]
    )
    assert [type(one).__name__ for one in config.checkpoints] == [
        "BasetenLatestCheckpoint",
        "BasetenLatestCheckpoint",
        "BasetenNamedCheckpoint",
        "LoopsCheckpointReference",
    ]


def test_assignment_is_accepted_and_validated():
    job = TrainingJob(**JOB)
    job.compute.node_count = 2
    job.compute.accelerator = "H100:2"
    assert (job.compute.node_count, job.compute.accelerator.count) == (2, 2)
    with pytest.raises(ValidationError):
        job.compute.node_count = "3"
    with pytest.raises(ValidationError):
        job.compute.availability_model = "spot"
    with pytest.raises(ValidationError):
        job.compute.nodes = 3
    assert job.compute.node_count == 2
    assert job.compute.availability_model is AvailabilityModel.DEDICATED


def test_assignment_that_fails_changes_nothing():
    auth = WeightsAuth(auth_method="CUSTOM_SECRET", auth_secret_name="s")
    before = auth.model_copy()
    with pytest.raises(ValidationError):
        auth.auth_secret_name = None
    assert auth == before
    assert auth.model_fields_set == before.model_fields_set


def test_open_classes_convert_and_keep():
    spec = AcceleratorSpec(accelerator="H100", count="2", zone="a")
    assert (spec.count, spec.zone) == (2, "a")
    assert LoRADetails(rank="8", alpha=16).alpha == 16
    checkpoint = FullCheckpoint(
        training_job_id="j", checkpoint_name="c", model_weight_format="full", note="n"
    )
    assert checkpoint.note == "n"
    assert TrainingArtifactReference(training_job_id="j", more=1).more == 1
    source = WeightsSource(
        source="hf://a/b", mount_location="/m", allow_patterns=("*.json",), more=1
    )
    assert source.model_dump()["more"] == 1
    assert source.allow_patterns == ["*.json"]


def test_defaults_are_not_shared():
    one, two = TrainingJob(**JOB), TrainingJob(**JOB)
    one.runtime.start_commands.append("a")
    one.compute.node_count = 5
    LoadCheckpointConfig().checkpoints.clear()
    assert two == TrainingJob(**JOB)
    assert len(LoadCheckpointConfig().checkpoints) == 1


def test_a_refused_value_is_not_printed():
    for build in (
        lambda: Runtime(environment_variables={"A": "ok", "B": 12345678}),
        lambda: Runtime(environment_variable={"A": "12345678"}),
        lambda: TrainingJob(**JOB, runtime={"environment_variables": "12345678"}),
    ):
        with pytest.raises(ValidationError) as caught:
            build()
        assert "12345678" not in str(caught.value)
