"""Messages for what pydantic refused: path, value where it is safe, what is right."""

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    Compute,
    DockerAuthType,
    TrainingJob,
    TrainingProject,
    definition_error,
)
from prefect_bt.errors import DefinitionError


def error_of(kind=TrainingJob, **fields):
    if kind is TrainingJob:
        fields.setdefault("image", {"base_image": "x"})
    with pytest.raises(ValidationError) as caught:
        kind(**fields)
    error = definition_error(caught.value, kind)
    assert isinstance(error, DefinitionError)
    return error


CASES = [
    ({"compute": {"node_count": 2.5}}, "compute.node_count", "2.5 was given; write an integer"),
    (
        {"compute": {"availability_model": "SPOT"}},
        "compute.availability_model",
        "write AvailabilityModel.SPOT",
    ),
    (
        {"compute": {"availability_model": "cheap"}},
        "compute.availability_model",
        "write one of AvailabilityModel.DEDICATED, AvailabilityModel.SPOT",
    ),
    ({"runtime": {"start_commands": "a"}}, "runtime.start_commands", "write a list"),
    ({"runtime": {"start_commands": ["a", 1]}}, "runtime.start_commands[1]", "write a string"),
    (
        {"runtime": {"environment_variables": {"A": 1}}},
        "runtime.environment_variables['A']",
        "numbers and booleans in quotes",
    ),
    (
        {"runtime": {"environment_variables": {"A": {"nme": "x"}}}},
        "runtime.environment_variables['A'].name",
        "is required",
    ),
    (
        {"runtime": {"load_checkpoint_config": {"checkpoints": [{"run_id": "r"}]}}},
        "runtime.load_checkpoint_config.checkpoints[0].checkpoint_name",
        "is required",
    ),
    (
        {"runtime": {"load_checkpoint_config": {"checkpoints": ["latest"]}}},
        "runtime.load_checkpoint_config.checkpoints[0]",
        "from_latest_checkpoint",
    ),
    (
        {"weights": [{"source": "gcs://b/c", "mount_location": "/m"}]},
        "weights[0].source",
        "write gs://",
    ),
    (
        {"weights": [{"source": "hf://a/b", "mount_location": "/m", "auth": "secret"}]},
        "weights[0].auth",
        "write WeightsAuth(...) or a dict of its fields",
    ),
    ({"compute": 3}, "compute", "3 was given; write Compute(...) or a dict"),
    ({"compute": {"accelerator": "h100"}}, "compute.accelerator", 'did you mean "H100"?'),
    (
        {"compute": {"accelerator": {"accelerator": "H100", "count": -1}}},
        "compute.accelerator.count",
        "at least 0",
    ),
    ({"wieghts": []}, "wieghts", "TrainingJob has no such field; did you mean weights?"),
    ({"zzz": 1}, "zzz", "TrainingJob has no such field; it has image, compute"),
    ({"runtime": {"enable_cache": "yes"}}, "runtime.enable_cache", "write True or False"),
    (
        {"image": {"base_image": "x", "docker_auth": {"registry": "r"}}},
        "image.docker_auth.auth_method",
        "is required",
    ),
]


@pytest.mark.parametrize(("fields", "path", "says"), CASES, ids=[case[1] for case in CASES])
def test_one_problem(fields, path, says):
    error = error_of(**fields)
    assert error.field == path
    assert f"{path}: " in str(error)
    assert says in str(error)


def test_several_problems_are_all_listed():
    error = error_of(
        TrainingProject, name=1, job={"image": {"base_image": 2, "tag": "x"}}, team="t"
    )
    lines = str(error).splitlines()
    assert lines[0] == "TrainingProject is not valid:"
    assert [line.strip(" -").partition(":")[0] for line in lines[1:]] == [
        "name",
        "job.image.base_image",
        "job.image.tag",
        "team",
    ]
    assert (error.field, error.value) == ("name", 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"runtime": {"environment_variables": {"TOKEN": 12345678}}},
        {"runtime": {"environment_variables": "12345678"}},
        {"runtime": {"environment_variables": {12345678: ["12345678"]}}},
        {"runtime": {"environment_variable": {"TOKEN": "12345678"}}},
        {"runtime": [{"environment_variables": {"TOKEN": "12345678"}}]},
        {"runtime": {"environment_variables": {"TOKEN": {"name": 12345678}}}},
        {
            "image": {
                "base_image": "x",
                "docker_auth": {
                    "auth_method": DockerAuthType.REGISTRY_SECRET,
                    "registry": "r",
                    "registry_secret_docker_auth": {"secret_ref": "12345678"},
                },
            }
        },
        {"weights": [{"source": "hf://a/b", "mount_location": "/", "auth_secret_name": 12345678}]},
    ],
)
def test_secrets_are_not_shown(fields):
    error = error_of(**fields)
    if "environment_variables" not in str(error.field) or "12345678" not in str(error.field):
        assert "12345678" not in str(error)
    assert error.value is None


def test_long_values_are_cut():
    text = str(error_of(Compute, memory=["x" * 500]))
    assert "…" in text
    assert len(text) < 200
