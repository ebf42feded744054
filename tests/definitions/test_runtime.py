"""Check the deprecated cache switch and the checkpoint references."""

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    BasetenCheckpoint,
    BasetenLatestCheckpoint,
    BasetenNamedCheckpoint,
    CacheConfig,
    CheckpointList,
    CheckpointReferenceError,
    FullCheckpoint,
    LoopsCheckpoint,
    LoopsCheckpointReference,
    LoRACheckpoint,
    Runtime,
    SecretReference,
    literal_variables,
    secret_names,
)
from prefect_bt.errors import DefinitionError


@pytest.mark.parametrize("enabled", [True, False])
def test_enable_cache_becomes_cache_config(enabled):
    runtime = Runtime(enable_cache=enabled)
    assert runtime.enable_cache is None
    assert runtime.model_dump()["enable_cache"] is None
    expected = CacheConfig(enabled=enabled, enable_legacy_hf_mount=enabled)
    assert runtime.cache_config == expected
    assert runtime == Runtime(cache_config=expected)
    assert runtime.model_dump(exclude_unset=True).keys() == {"cache_config"}


def test_enable_cache_and_cache_config_exclude_each_other():
    with pytest.raises(ValidationError, match="cannot both be given"):
        Runtime(enable_cache=True, cache_config=CacheConfig())
    assert Runtime(enable_cache=None, cache_config=CacheConfig()).cache_config == CacheConfig()


def test_enable_cache_by_assignment():
    runtime = Runtime()
    runtime.enable_cache = True
    assert runtime == Runtime(enable_cache=True)
    with pytest.raises(ValidationError):
        runtime.enable_cache = False
    assert runtime == Runtime(enable_cache=True)
    runtime.start_commands = ["a"]
    assert runtime.enable_cache is None


def test_checkpoint_references():
    latest = BasetenCheckpoint.from_latest_checkpoint
    assert latest("p") == BasetenLatestCheckpoint(project_name="p")
    assert latest(job_id="j") == BasetenLatestCheckpoint(job_id="j")
    assert BasetenCheckpoint.from_named_checkpoint("c", "j") == BasetenNamedCheckpoint(
        checkpoint_name="c", job_id="j"
    )
    assert LoopsCheckpoint.from_checkpoint("r", "c") == LoopsCheckpointReference(
        run_id="r", checkpoint_name="c", target="trainer"
    )
    assert latest("p").model_dump() == {
        "typ": "baseten_latest_checkpoint",
        "job_id": None,
        "project_name": "p",
    }


@pytest.mark.parametrize("kind", [TypeError, ValueError, DefinitionError, CheckpointReferenceError])
def test_a_reference_to_nothing(kind):
    with pytest.raises(kind, match="project_name") as caught:
        BasetenCheckpoint.from_latest_checkpoint()
    assert caught.value.next_step


def test_variables():
    variables = Runtime(
        environment_variables={"A": "1", "T": SecretReference(name="token"), "U": {"name": "u"}}
    ).environment_variables
    assert literal_variables(variables) == {"A": "1"}
    assert secret_names(variables) == {"T": "token", "U": "u"}


def test_deploy_lists():
    full = FullCheckpoint(training_job_id="j", checkpoint_name="checkpoint-1")
    with pytest.raises(ValidationError, match="together"):
        CheckpointList(checkpoints=[full], loops_checkpoint_ids=["x"])
    reference = full.to_truss_config()
    assert (reference.training_job_id, reference.paths) == ("j", ["rank-0/checkpoint-1/"])
    artifacts = CheckpointList(checkpoints=[full]).to_truss_config()
    assert artifacts.artifact_references == [reference]
    with pytest.raises(ValidationError, match="together"):
        artifacts.loops_checkpoint_ids = ["x"]


def test_checkpoint_dicts_become_their_format():
    fields = {"training_job_id": "j", "checkpoint_name": "c", "model_weight_format": "lora"}
    listed = CheckpointList(checkpoints=[{**fields, "lora_details": {"rank": 64}}])
    assert listed.checkpoints == [
        LoRACheckpoint(training_job_id="j", checkpoint_name="c", lora_details={"rank": 64})
    ]
    assert listed.model_dump()["checkpoints"][0]["lora_details"] == {"rank": 64}
    with pytest.raises(ValidationError, match="model_weight_format"):
        CheckpointList(checkpoints=[{"training_job_id": "j", "checkpoint_name": "c"}])
    with pytest.raises(ValidationError, match="rank"):
        CheckpointList(checkpoints=[{**fields, "lora_details": {"rank": "x"}}])
