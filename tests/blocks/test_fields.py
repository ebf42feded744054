"""What the blocks build, and that nobody renames what is stored."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from prefect_bt import definitions as d
from prefect_bt.blocks import (
    BLOCKS,
    GPU,
    AwsKey,
    AwsRole,
    DockerSubstrate,
    GcpIdentity,
    GcpKey,
    LocalSubstrate,
    RegistryLogin,
    RetryPolicy,
    ServingDeployment,
    ServingEngine,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.blocks.serving import Engine
from prefect_bt.flows.tasks.train_request import JobRequest
from prefect_bt.host.container_privileges import Privileges
from prefect_bt.ledger.records import RetryBudget
from prefect_bt.serving.engines.command_lines import ENGINES

GOLDEN = Path(__file__).with_name("fields.json")


def described() -> dict[str, object]:
    found = dict[str, object]()
    for block in BLOCKS:
        required = block.model_json_schema().get("required", [])
        found[block.get_block_type_slug()] = {
            "name": block.get_block_type_name(),
            "required": required,
            "optional": [name for name in block.model_fields if name not in required],
        }
    return found


def test_slugs_and_fields_are_for_ever():
    """To add an optional field, add it to fields.json too; renaming one breaks stored blocks."""
    assert described() == json.loads(GOLDEN.read_text())


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_every_block_can_be_referenced_and_shown(block):
    # Prefect answers 409 to a reference to a block without a required field.
    schema = block.model_json_schema()
    assert schema["required"]
    # Prefect stores the form of a reference under the title (schema_tools.preprocess_schema).
    assert schema["title"] == block.__name__
    assert all(field.title for field in block.model_fields.values())


def test_only_what_has_no_sensible_default_must_be_filled_in():
    required = [n for b in BLOCKS for n, f in b.model_fields.items() if f.is_required()]
    assert required == ["values", "base_image", "url", "model_name"]


@pytest.mark.slow
def test_importing_the_blocks_reaches_nothing():
    code = (
        "import socket, subprocess\n"
        "def no(*a, **k): raise AssertionError('a connection or process at import')\n"
        "socket.socket.connect = no; subprocess.Popen.__init__ = no\n"
        "import prefect_bt.blocks\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_the_gpus_offered_are_those_of_definitions_without_the_internal_one():
    assert {gpu.value for gpu in GPU} == {a.value for a in d.Accelerator} - {"B10"}


def test_compute():
    assert TrainingCompute(node_count=1).build() == d.Compute()
    block = TrainingCompute(
        node_count=2,
        cpu_count=8,
        memory="64Gi",
        accelerator=GPU.H100,
        accelerator_count=8,
        availability=d.AvailabilityModel.SPOT,
    )
    assert block.build() == d.Compute(
        node_count=2,
        cpu_count=8,
        memory="64Gi",
        accelerator=d.AcceleratorSpec(accelerator=d.Accelerator.H100, count=8),
        availability_model=d.AvailabilityModel.SPOT,
    )


@pytest.mark.parametrize("enforced", [False, True])
def test_a_docker_substrate_enforces_limits_only_when_configured(tmp_path, enforced):
    given = {"enforce_limits": True} if enforced else {}
    block = DockerSubstrate(state_dir=str(tmp_path), **given)
    assert block.build().enforce_limits is enforced
    settings = JobRequest(definition={}, substrate=block).settings()
    assert settings.substrate_options("docker")["enforce_limits"] is enforced


def test_docker_substrate_passes_privileges_and_limits(tmp_path):
    block = DockerSubstrate(
        state_dir=str(tmp_path),
        capabilities=["cap_sys_ptrace"],
        allow_new_privileges=True,
        process_limit=500,
    )
    asked = Privileges(("SYS_PTRACE",), allow_new_privileges=True, max_processes=500)
    assert block.build().privileges == asked
    settings = JobRequest(definition={}, substrate=block).settings()
    assert settings.substrate_options("docker")["privileges"] == asked
    with pytest.raises(ValidationError, match="no capability of Linux"):
        DockerSubstrate(state_dir=str(tmp_path), capabilities=["EVERYTHING"])


ACCESS = {
    "REGISTRY_SECRET": RegistryLogin(registry="ghcr.io", login_secret="login"),
    "AWS_IAM": AwsKey(registry="ecr", access_key_secret="id", secret_key_secret="key"),
    "AWS_OIDC": AwsRole(registry="ecr", role_arn="arn", region="us-east-1"),
    "AWS_ASSUME_ROLE": AwsRole.model_validate(
        {"registry": "ecr", "role_arn": "arn", "region": "us-east-1", "method": "AWS_ASSUME_ROLE"}
    ),
    "GCP_SERVICE_ACCOUNT_JSON": GcpKey(registry="pkg.dev", key_secret="key"),
    "GCP_OIDC": GcpIdentity(
        registry="pkg.dev", service_account="sa", workload_identity_provider="projects/1"
    ),
}


def test_every_way_into_a_registry_has_a_form():
    assert set(ACCESS) == {method.value for method in d.DockerAuthType}


@pytest.mark.parametrize("method", ACCESS)
def test_image(method):
    block = TrainingImage(base_image="team/train:1", registry_access=ACCESS[method])
    image = block.build()
    assert image.base_image == "team/train:1"
    assert image.docker_auth is not None
    assert image.docker_auth.auth_method == method
    # What the API stores comes back as the same form, though nothing in it names the form.
    stored = json.loads(block.model_dump_json())
    assert TrainingImage.model_validate(stored).registry_access == ACCESS[method]


def test_a_public_image():
    assert TrainingImage(base_image="python:3.12").build() == d.Image(base_image="python:3.12")


def test_secrets():
    block = TrainingSecrets.model_validate({"values": {"token": "0123", "key": {"a": 1}}})
    built = block.build()
    assert built.find("token") == "0123"
    assert json.loads(built.find("key") or "") == {"a": 1}
    assert built.find("other") is None
    assert "0123" not in repr(block) + str(block) + block.model_dump_json() + repr(built)


def test_store(tmp_path):
    store = TrainingStore(url=str(tmp_path)).build()
    store.put("a/b", b"1")
    assert store.get("a/b") == b"1"


def test_local_substrate(tmp_path):
    block = LocalSubstrate(state_dir=str(tmp_path))
    assert block.build().name == "local"
    assert not LocalSubstrate(state_dir="~/x").settings().state_dir.is_relative_to("~")


def test_a_retry_policy():
    assert RetryPolicy(user=0).build() == RetryBudget(), "its defaults are those of a job"
    block = RetryPolicy(
        user=1,
        infrastructure=9,
        out_of_memory=2,
        without_progress=0,
        first_delay_seconds=5,
        factor=3,
        longest_delay_seconds=60,
        jitter=0,
    )
    assert block.build() == RetryBudget(1, 9, 2, 0, 5.0, 3.0, 60.0, 0.0)


LONGER = "longest_retry_delay is 30. Give the first delay, 60"


@pytest.mark.parametrize(
    ("block", "wrong", "said"),
    [
        (TrainingCompute, {"node_count": 0}, None),
        (TrainingCompute, {"node_count": 1, "memory": "2 sheep"}, None),
        (TrainingCompute, {"node_count": 1, "accelerator": "h1"}, None),
        (RetryPolicy, {"user": -1}, "greater than or equal to 0"),
        (RetryPolicy, {"factor": 0.5}, "greater than or equal to 1"),
        (RetryPolicy, {"jitter": 2}, "less than or equal to 1"),
        (RetryPolicy, {"first_delay_seconds": 60}, LONGER),
        (RetryPolicy, {"longest_delay_seconds": float("inf")}, "longest_retry_delay is inf."),
        (ServingDeployment, {"model_name": "a b"}, None),
        (ServingDeployment, {"model_name": "stories", "port": 0}, None),
        (ServingDeployment, {"model_name": "stories", "port": 70000}, None),
    ],
)
def test_a_block_refuses_in_the_form(block, wrong, said):
    with pytest.raises(ValidationError, match=said):
        block(**wrong)


def test_serving_engine():
    plain = ServingEngine(engine="auto").build()
    assert (plain.engine, plain.compute, plain.image) == ("", d.Compute(), None)
    built = ServingEngine(
        engine="vllm",
        accelerator="H100",
        accelerator_count=2,
        image="team/vllm:1",
        environment={"A": "b"},
        hf_token_secret="hf",
    ).build()
    assert built.engine == "vllm"
    assert built.compute.accelerator == d.AcceleratorSpec(accelerator="H100", count=2)
    assert built.image == d.Image(base_image="team/vllm:1")
    assert dict(built.environment) == {"A": "b", "HF_TOKEN": d.SecretReference(name="hf")}


def test_serving_engines_are_those_there_are():
    offered = {one.value for one in Engine}
    assert offered == {"auto", *ENGINES}
