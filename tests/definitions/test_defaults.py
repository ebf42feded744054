"""Check every field and its default, so that a renamed or moved field is noticed."""

import pytest

from prefect_bt import definitions as d

CHECKPOINT = {"training_job_id": "j", "checkpoint_name": "c"}
SECRET = {"name": "s"}

CASES = [
    (d.SecretReference, SECRET, {}),
    (
        d.Compute,
        {},
        {
            "node_count": 1,
            "cpu_count": 1,
            "memory": "2Gi",
            "accelerator": None,
            "availability_model": d.AvailabilityModel.DEDICATED,
        },
    ),
    (d.AcceleratorSpec, {}, {"accelerator": None, "count": 1}),
    (d.Image, {"base_image": "x"}, {"docker_auth": None}),
    (
        d.DockerAuth,
        {
            "auth_method": d.DockerAuthType.REGISTRY_SECRET,
            "registry": "r",
            "registry_secret_docker_auth": {"secret_ref": SECRET},
        },
        {
            "aws_iam_docker_auth": None,
            "gcp_service_account_json_docker_auth": None,
            "aws_oidc_docker_auth": None,
            "aws_assume_role_docker_auth": None,
            "gcp_oidc_docker_auth": None,
        },
    ),
    (
        d.AWSIAMDockerAuth,
        {"access_key_secret_ref": SECRET, "secret_access_key_secret_ref": SECRET},
        {},
    ),
    (d.GCPServiceAccountJSONDockerAuth, {"service_account_json_secret_ref": SECRET}, {}),
    (d.RegistrySecretDockerAuth, {"secret_ref": SECRET}, {}),
    (d.AWSOIDCDockerAuth, {"role_arn": "a", "region": "r"}, {}),
    (d.AWSAssumeRoleDockerAuth, {"role_arn": "a", "region": "r"}, {}),
    (d.GCPOIDCDockerAuth, {"service_account": "a", "workload_identity_provider": "p"}, {}),
    (
        d.Runtime,
        {},
        {
            "start_commands": [],
            "environment_variables": {},
            "enable_cache": None,
            "checkpointing_config": d.CheckpointingConfig(),
            "load_checkpoint_config": None,
            "cache_config": None,
        },
    ),
    (
        d.CheckpointingConfig,
        {},
        {"enabled": False, "checkpoint_path": None, "volume_size_gib": None},
    ),
    (
        d.CacheConfig,
        {},
        {
            "enabled": False,
            "enable_legacy_hf_mount": False,
            "require_cache_affinity": True,
            "mount_base_path": "/root/.cache",
        },
    ),
    (
        d.LoadCheckpointConfig,
        {},
        {
            "enabled": False,
            "checkpoints": [d.BasetenLatestCheckpoint()],
            "download_folder": "/tmp/loaded_checkpoints",
        },
    ),
    (
        d.InteractiveSession,
        {},
        {
            "trigger": d.InteractiveSessionTrigger.ON_DEMAND,
            "timeout_minutes": 480,
            "session_provider": d.InteractiveSessionProvider.VS_CODE,
            "auth_provider": d.InteractiveSessionAuthProvider.MICROSOFT,
        },
    ),
    (d.Workspace, {}, {"workspace_root": None, "external_dirs": [], "exclude_dirs": []}),
    (
        d.WeightsSource,
        {"source": "hf://a/b", "mount_location": "/m"},
        {"auth": None, "auth_secret_name": None, "allow_patterns": None, "ignore_patterns": None},
    ),
    (
        d.WeightsAuth,
        {"auth_method": d.WeightsAuthMethod.CUSTOM_SECRET, "auth_secret_name": "s"},
        {
            "aws_oidc_role_arn": None,
            "aws_oidc_region": None,
            "gcp_oidc_service_account": None,
            "gcp_oidc_workload_id_provider": None,
            "aws_assume_role_arn": None,
            "aws_assume_role_region": None,
        },
    ),
    (
        d.TrainingJob,
        {"image": {"base_image": "x"}},
        {
            "compute": d.Compute(),
            "runtime": d.Runtime(),
            "interactive_session": None,
            "name": None,
            "priority": None,
            "workspace": None,
            "weights": [],
            "enable_baseten_workdir": True,
        },
    ),
    (d.TrainingProject, {"name": "p", "job": {"image": {"base_image": "x"}}}, {"team_name": None}),
    (d.LoRADetails, {}, {"rank": 16}),
    (d.FullCheckpoint, CHECKPOINT, {"model_weight_format": d.ModelWeightsFormat.FULL}),
    (d.WhisperCheckpoint, CHECKPOINT, {"model_weight_format": d.ModelWeightsFormat.WHISPER}),
    (
        d.LoRACheckpoint,
        CHECKPOINT,
        {"model_weight_format": d.ModelWeightsFormat.LORA, "lora_details": d.LoRADetails()},
    ),
    (
        d.CheckpointList,
        {},
        {
            "download_folder": "/tmp/training_checkpoints",
            "base_model_id": None,
            "checkpoints": [],
            "loops_checkpoint_ids": [],
        },
    ),
    (d.DeployCheckpointsRuntime, {}, {"environment_variables": {}}),
    (
        d.DeployCheckpointsConfig,
        {},
        {"checkpoint_details": None, "model_name": None, "runtime": None, "compute": None},
    ),
    (d.TrainingArtifactReference, {"training_job_id": "j"}, {"paths": []}),
]


@pytest.mark.parametrize(("kind", "required", "defaults"), CASES, ids=lambda v: str(v)[:30])
def test_fields_and_defaults(kind, required, defaults):
    made = kind(**required)
    assert set(kind.model_fields) == {*required, *defaults}
    assert {name: getattr(made, name) for name in defaults} == defaults


ENUMS = {
    d.AvailabilityModel: {"DEDICATED": "dedicated", "SPOT": "spot"},
    d.InteractiveSessionTrigger: {
        "ON_STARTUP": "on_startup",
        "ON_FAILURE": "on_failure",
        "ON_DEMAND": "on_demand",
    },
    d.InteractiveSessionProvider: {"VS_CODE": "vs_code", "CURSOR": "cursor", "SSH": "ssh"},
    d.InteractiveSessionAuthProvider: {"GITHUB": "github", "MICROSOFT": "microsoft"},
    d.ModelWeightsFormat: {"LORA": "lora", "FULL": "full", "WHISPER": "whisper"},
}


@pytest.mark.parametrize(("enum", "members"), ENUMS.items())
def test_enum_values(enum, members):
    assert {member.name: member.value for member in enum} == members


@pytest.mark.parametrize(
    ("enum", "names"),
    [
        (
            d.DockerAuthType,
            "GCP_SERVICE_ACCOUNT_JSON AWS_IAM AWS_OIDC GCP_OIDC REGISTRY_SECRET AWS_ASSUME_ROLE",
        ),
        (d.WeightsAuthMethod, "CUSTOM_SECRET AWS_OIDC GCP_OIDC AWS_ASSUME_ROLE"),
        (
            d.Accelerator,
            "B10 T4 L4 A10G V100 A100 A100_40GB H100 H200 H100_40GB B200 L40S RTX_PRO_6000 "
            "B300 GB300",
        ),
    ],
)
def test_enum_values_that_are_their_names(enum, names):
    assert [member.value for member in enum] == names.split()
