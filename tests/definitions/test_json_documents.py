"""Documents: what is lax in JSON, and that they say the same as the objects."""

import json
from pathlib import Path

import pytest

from prefect_bt import definitions as d
from prefect_bt.definitions import (
    deploy_config_document,
    deploy_config_from_json,
    load_deploy_checkpoints_config,
    load_training_project,
    project_document,
    training_project_from_json,
)
from prefect_bt.errors import DefinitionError

RECIPES = Path(__file__).parents[1] / "fixtures" / "recipes"

FULL = d.TrainingProject(
    name="owner/name",
    team_name="team",
    job=d.TrainingJob(
        name="n",
        priority=2,
        enable_baseten_workdir=False,
        image=d.Image(
            base_image="x",
            docker_auth=d.DockerAuth(
                auth_method=d.DockerAuthType.AWS_OIDC,
                registry="r",
                aws_oidc_docker_auth=d.AWSOIDCDockerAuth(role_arn="a", region="r"),
            ),
        ),
        compute=d.Compute(
            node_count=2, accelerator="H100:8", availability_model=d.AvailabilityModel.SPOT
        ),
        runtime=d.Runtime(
            start_commands=["a 'b' \"c\" é"],
            environment_variables={"A": "1", "T": d.SecretReference(name="t")},
            enable_cache=True,
            load_checkpoint_config=d.LoadCheckpointConfig(
                enabled=True,
                checkpoints=[
                    d.BasetenCheckpoint.from_latest_checkpoint(job_id="j"),
                    d.LoopsCheckpoint.from_checkpoint("r", "c"),
                ],
            ),
        ),
        interactive_session=d.InteractiveSession(trigger=d.InteractiveSessionTrigger.ON_STARTUP),
        workspace=d.Workspace(external_dirs=["../a"]),
        weights=[
            d.WeightsSource(
                source="s3://b/c",
                mount_location="/m",
                auth=d.WeightsAuth(auth_method="CUSTOM_SECRET", auth_secret_name="s"),
                extra_field=3,
            )
        ],
    ),
)


def minimal(**job):
    return {"name": "p", "job": {"image": {"base_image": "x"}, **job}}


def test_round_trip():
    document = project_document(FULL)
    text = json.dumps(document)
    assert document == json.loads(text)
    assert training_project_from_json(text) == FULL
    assert training_project_from_json(text.encode()) == FULL
    assert training_project_from_json(document) == FULL
    assert project_document(training_project_from_json(text)) == document


def test_the_plain_dump_leaves_the_job_out():
    assert FULL.model_dump() == {"name": "owner/name", "team_name": "team"}


@pytest.mark.parametrize(
    "spec",
    [
        None,
        d.AcceleratorSpec(),
        d.AcceleratorSpec(count=3),
        d.AcceleratorSpec(accelerator="H100", count=0),
        d.AcceleratorSpec(accelerator="H100", count=2, zone="a"),
    ],
)
def test_accelerators_round_trip(spec):
    project = FULL.model_copy(deep=True)
    project.job.compute.accelerator = spec
    assert training_project_from_json(project_document(project)) == project


def test_json_is_not_strict():
    project = training_project_from_json(
        minimal(
            compute={"availability_model": "spot", "accelerator": "H100:2", "node_count": "2"},
            interactive_session={"trigger": "on_failure"},
            runtime={"environment_variables": {"T": {"name": "t"}}},
        )
    )
    assert project.job.compute == d.Compute(
        availability_model=d.AvailabilityModel.SPOT, accelerator="H100:2", node_count=2
    )
    assert project.job.interactive_session.trigger is d.InteractiveSessionTrigger.ON_FAILURE


def test_code_json_and_file_agree(tmp_path):
    config = tmp_path / "config.py"
    config.write_text(
        "from truss_train import *\n"
        "p = TrainingProject(name='p', job=TrainingJob(image=Image(base_image='x'),"
        " compute=Compute(accelerator='H100:2'), runtime=Runtime(enable_cache=True)))\n"
    )
    in_code = d.TrainingProject(
        name="p",
        job=d.TrainingJob(
            image=d.Image(base_image="x"),
            compute=d.Compute(accelerator=d.AcceleratorSpec(accelerator="H100", count=2)),
            runtime=d.Runtime(
                cache_config=d.CacheConfig(enabled=True, enable_legacy_hf_mount=True)
            ),
        ),
    )
    in_json = minimal(compute={"accelerator": "H100:2"}, runtime={"enable_cache": True})
    assert load_training_project(config) == in_code == training_project_from_json(in_json)


def refused(document):
    with pytest.raises(DefinitionError) as caught:
        training_project_from_json(document)
    return caught.value


def test_unknown_fields_are_refused():
    error = refused(minimal(computer={}))
    assert error.field == "job.computer"
    assert "did you mean compute?" in str(error)
    assert "job.runtime.start_command" in str(refused(minimal(runtime={"start_command": "x"})))


def test_unknown_enum_values():
    error = refused(minimal(compute={"availability_model": "spt"}))
    assert "job.compute.availability_model: 'spt' was given; write \"spot\"" in str(error)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("job.priority", True),
        ("job.compute.node_count", True),
        ("job.compute.cpu_count", False),
        ("job.compute.accelerator.count", True),
        ("job.runtime.checkpointing_config.volume_size_gib", True),
        ("job.interactive_session.timeout_minutes", True),
        ("job.priority", "1" * 5000),
        ("job.priority", 2**63),
        pytest.param("job.compute.node_count", 10**5000, id="5000 digits"),
    ],
)
def test_values_that_are_no_integers(path, value):
    document = value
    for name in reversed(path.split(".")[1:]):
        document = {name: document}
    error = refused(minimal(**document))
    assert error.field == path
    assert "integer" in str(error) and "unable" not in str(error)


def test_missing_and_several():
    error = refused({"job": {}})
    assert "name: is required" in str(error)
    assert "job.image: is required" in str(error)


def test_not_json():
    error = refused('{"name": "p",\n "job": }')
    assert "is not JSON" in str(error)
    assert error.line == 2
    assert "is a list" in str(refused("[]"))
    assert "is not JSON" in str(refused(b"\xff"))


def test_deploy_round_trip():
    config = load_deploy_checkpoints_config(RECIPES / "train_and_deploy" / "config.py")
    document = deploy_config_document(config)
    assert document["checkpoint_details"]["checkpoints"][0]["lora_details"] == {"rank": 32}
    assert document["compute"]["accelerator"] == {"accelerator": "H100", "count": 1}
    again = deploy_config_from_json(json.dumps(document))
    assert again == config
    assert type(again.checkpoint_details.checkpoints[0]) is d.LoRACheckpoint
