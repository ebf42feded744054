"""Definitions that a user writes: the classes of `truss_train.definitions` under the same names.

Begin with `job`; each file has one subject, and each class is strict or open (`base`). The package
`config_file` reads config files, `json_documents` JSON documents; `overrides` applies the options
of push; `truss_compat` stands in for truss. Some names are not in truss: the functions, the error
classes, the classes of checkpoint references, `EnvironmentVariables` and `Overrides`.
"""

from prefect_bt.definitions.checkpoints import (
    BasetenCheckpoint,
    BasetenLatestCheckpoint,
    BasetenNamedCheckpoint,
    CheckpointingConfig,
    CheckpointReference,
    CheckpointReferenceError,
    LoadCheckpointConfig,
    LoopsCheckpoint,
    LoopsCheckpointReference,
)
from prefect_bt.definitions.compute import (
    Accelerator,
    AcceleratorSpec,
    AvailabilityModel,
    Compute,
    parse_memory,
)
from prefect_bt.definitions.config_file.loader import (
    ConfigImportError,
    ConfigValueError,
    load_deploy_checkpoints_config,
    load_training_project,
)
from prefect_bt.definitions.deploy import (
    Checkpoint,
    CheckpointList,
    DeployCheckpointsConfig,
    DeployCheckpointsRuntime,
    FullCheckpoint,
    LoRACheckpoint,
    LoRADetails,
    ModelWeightsFormat,
    TrainingArtifactReference,
    WhisperCheckpoint,
)
from prefect_bt.definitions.environment_variables import (
    EnvironmentVariables,
    SecretReference,
    literal_variables,
    secret_names,
)
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.definitions.image import (
    AWSAssumeRoleDockerAuth,
    AWSIAMDockerAuth,
    AWSOIDCDockerAuth,
    DockerAuth,
    DockerAuthType,
    GCPOIDCDockerAuth,
    GCPServiceAccountJSONDockerAuth,
    Image,
    RegistrySecretDockerAuth,
)
from prefect_bt.definitions.interactive_session import (
    InteractiveSession,
    InteractiveSessionAuthProvider,
    InteractiveSessionProvider,
    InteractiveSessionTrigger,
)
from prefect_bt.definitions.job import TrainingJob, TrainingProject, Workspace
from prefect_bt.definitions.json_documents import (
    deploy_config_document,
    deploy_config_from_json,
    project_document,
    training_project_from_json,
)
from prefect_bt.definitions.overrides import Overrides, apply_overrides, parse_accelerator_option
from prefect_bt.definitions.runtime import CacheConfig, Runtime
from prefect_bt.definitions.weights import WeightsAuth, WeightsAuthMethod, WeightsSource

__all__ = [
    "AWSAssumeRoleDockerAuth",
    "AWSIAMDockerAuth",
    "AWSOIDCDockerAuth",
    "Accelerator",
    "AcceleratorSpec",
    "AvailabilityModel",
    "BasetenCheckpoint",
    "BasetenLatestCheckpoint",
    "BasetenNamedCheckpoint",
    "CacheConfig",
    "Checkpoint",
    "CheckpointList",
    "CheckpointReference",
    "CheckpointReferenceError",
    "CheckpointingConfig",
    "Compute",
    "ConfigImportError",
    "ConfigValueError",
    "DeployCheckpointsConfig",
    "DeployCheckpointsRuntime",
    "DockerAuth",
    "DockerAuthType",
    "EnvironmentVariables",
    "FullCheckpoint",
    "GCPOIDCDockerAuth",
    "GCPServiceAccountJSONDockerAuth",
    "Image",
    "InteractiveSession",
    "InteractiveSessionAuthProvider",
    "InteractiveSessionProvider",
    "InteractiveSessionTrigger",
    "LoRACheckpoint",
    "LoRADetails",
    "LoadCheckpointConfig",
    "LoopsCheckpoint",
    "LoopsCheckpointReference",
    "ModelWeightsFormat",
    "Overrides",
    "RegistrySecretDockerAuth",
    "Runtime",
    "SecretReference",
    "TrainingArtifactReference",
    "TrainingJob",
    "TrainingProject",
    "WeightsAuth",
    "WeightsAuthMethod",
    "WeightsSource",
    "WhisperCheckpoint",
    "Workspace",
    "apply_overrides",
    "definition_error",
    "deploy_config_document",
    "deploy_config_from_json",
    "literal_variables",
    "load_deploy_checkpoints_config",
    "load_training_project",
    "parse_accelerator_option",
    "parse_memory",
    "project_document",
    "secret_names",
    "training_project_from_json",
]
