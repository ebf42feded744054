"""From a definition to a gang plan. Pure: everything it looks at is an argument.

What cannot work is refused here, all problems in one message, before anything is written or
launched. Fields that a substrate ignores become notes; fields it cannot honour become problems.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace

from prefect_bt.definitions import (
    SecretReference,
    TrainingJob,
    TrainingProject,
    WeightsAuthMethod,
    WeightsSource,
    parse_memory,
    training_project_from_json,
)
from prefect_bt.errors import PlanError
from prefect_bt.node_paths import SCRATCH_DIR, WORKSPACE_DIR
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.planning.allocation import allocate_resources
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.ignored_fields import iter_ineffective_fields
from prefect_bt.planning.node_variables import platform_variables
from prefect_bt.planning.plan import (
    CheckpointPlan,
    GangPlan,
    ImagePlan,
    NodePlan,
    Volume,
    VolumeKind,
    WeightsAuthPlan,
    WeightsPlan,
)
from prefect_bt.planning.translation import (
    checkpoint_dir,
    gpu_type,
    iter_cache_volumes,
    iter_checkpoint_volumes,
    iter_hf_cache_volumes,
    iter_load_volumes,
    normalize_path,
    to_directory_name,
)
from prefect_bt.planning.validation import validate_job, validate_names
from prefect_bt.registries.credentials import list_login_secrets
from prefect_bt.registries.pull_errors import PullError
from prefect_bt.registries.reference import parse_reference
from prefect_bt.substrates.protocol import Capacity


def plan_gang(project: TrainingProject, context: PlanContext) -> GangPlan:
    """The frozen plan of one attempt; PlanError names every reason why there is none."""
    names = {"project.name": project.name, "job.name": context.job_name}
    if project.team_name:
        names["project.team_name"] = project.team_name
    problems = [
        *validate_names(names),
        *validate_job(project.job, context.capacity, substrate=context.substrate),
        *(_validate_image(project.job) if context.supports_images else ()),
        *([context.capacity.store_problem] if context.capacity.store_problem else ()),
        *context.missing_references,
    ]
    if problems:
        raise PlanError(problems)
    weights = plan_weights(project.job)
    first = _plan_node(project, context, weights=weights)
    nodes = tuple(first.for_rank(rank) for rank in range(project.job.compute.node_count))
    return GangPlan(
        job_id=context.job_id,
        job_name=context.job_name,
        project_id=context.project_id,
        project_name=project.name,
        attempt=context.attempt,
        substrate=context.substrate,
        nodes=nodes,
        weights=weights,
        image_secrets=list_image_secret_names(project.job) if context.supports_images else (),
        notes=tuple(_iter_notes(project.job, context)),
    )


def _validate_image(job: TrainingJob) -> Iterator[str]:
    try:
        parse_reference(job.image.base_image)
    except PullError as trouble:
        yield (
            f"image.base_image is {job.image.base_image!r}, which is not an image reference: "
            f"{trouble.message}."
        )


def plan_weights(job: TrainingJob) -> tuple[WeightsPlan, ...]:
    """What is to be mirrored before any node exists, in the definition's order."""
    return tuple(_plan_weights_source(source) for source in job.weights)


def plan_weights_sources(sources: Sequence[str | Mapping[str, object]]) -> tuple[WeightsPlan, ...]:
    """For sources outside of any job, each a URI or an entry of a definition's `weights`.

    `mount_location` may be left out. The same source has the same key as in a job. DefinitionError.
    """
    given = ({"source": one} if isinstance(one, str) else one for one in sources)
    project = training_project_from_json(
        {
            "name": "weights",
            "job": {
                "image": {"base_image": "none"},
                "runtime": {"start_commands": ["true"]},
                "weights": [{"mount_location": "/weights", **one} for one in given],
            },
        }
    )
    return plan_weights(project.job)


def list_job_secret_names(job: TrainingJob, *, supports_images: bool = False) -> tuple[str, ...]:
    """Every secret reference that running the job needs, sorted; where it runs in its image, those
    of docker_auth too."""
    names = {
        value.name
        for value in job.runtime.environment_variables.values()
        if isinstance(value, SecretReference)
    }
    names |= {source.secret_name for source in job.weights if source.secret_name}
    names |= set(list_image_secret_names(job)) if supports_images else set()
    return tuple(sorted(names))


def plan_image(job: TrainingJob, pinned: str = "") -> ImagePlan:
    """`pinned`: what an earlier attempt of the job ran in."""
    auth = job.image.docker_auth
    return ImagePlan(pinned or job.image.base_image, auth.model_dump(mode="json") if auth else None)


def list_image_secret_names(job: TrainingJob) -> tuple[str, ...]:
    """The references of the job's docker_auth."""
    return list_login_secrets(plan_image(job).auth)


# -- the plan -------------------------------------------------------------------------------


def _plan_node(
    project: TrainingProject,
    context: PlanContext,
    *,
    weights: tuple[WeightsPlan, ...],
) -> NodePlan:
    """Return the plan of rank 0."""
    job = project.job
    variables = job.runtime.environment_variables
    literal = {name: value for name, value in variables.items() if isinstance(value, str)}
    load = job.runtime.load_checkpoint_config
    return NodePlan(
        job_id=context.job_id,
        project_id=context.project_id,
        attempt=context.attempt,
        rank=0,
        group_size=job.compute.node_count,
        store=context.store,
        image=plan_image(job, context.pinned_image),
        commands=tuple(job.runtime.start_commands),
        environment={**literal, **platform_variables(project, context)},
        secret_environment={
            name: value.name
            for name, value in variables.items()
            if isinstance(value, SecretReference)
        },
        volumes=_plan_volumes(project, context, weights),
        resources=allocate_resources(job, context.capacity),
        workspace=replace(context.workspace, in_image=not job.enable_baseten_workdir),
        checkpoints=_plan_checkpoints(job, context),
        load=context.loaded_checkpoints,
        load_directory=load.download_folder if load and load.enabled else "",
        grace=context.grace,
        epoch=context.epoch,
    )


def _plan_volumes(
    project: TrainingProject, context: PlanContext, weights: tuple[WeightsPlan, ...]
) -> tuple[Volume, ...]:
    job = project.job
    volumes = (
        Volume(VolumeKind.WORKSPACE, context.workspace.directory),
        Volume(VolumeKind.SCRATCH, SCRATCH_DIR),
        *iter_checkpoint_volumes(job),
        *iter_load_volumes(job),
        *iter_cache_volumes(job, context.project_id, project.team_name or ""),
        *(_plan_weights_volume(source, context) for source in weights),
    )
    taken = {volume.target for volume in volumes}
    return (*volumes, *iter_hf_cache_volumes(job, context.project_id, taken))


def _plan_weights_volume(source: WeightsPlan, context: PlanContext) -> Volume:
    revision = context.revisions.get(source.key)
    key = weights_tree_name(source.key, revision) if revision else source.key
    return Volume(VolumeKind.WEIGHTS, source.mount_location, key, read_only=True)


def _plan_checkpoints(job: TrainingJob, context: PlanContext) -> CheckpointPlan | None:
    if not job.runtime.checkpointing_config.enabled:
        return None
    directory = checkpoint_dir(job)
    return CheckpointPlan(directory, settle=context.settle, retention=context.retention)


def _plan_weights_source(source: WeightsSource) -> WeightsPlan:
    allow, ignore = source.allow_patterns, source.ignore_patterns
    auth, secret = _plan_auth(source), source.secret_name or ""
    # The key covers all that decides which bytes a job may read; the mount location does not.
    identity = json.dumps([source.source, allow, ignore, astuple(auth), secret])
    return WeightsPlan(
        source=source.source,
        mount_location=normalize_path(source.mount_location),
        key=hashlib.sha256(identity.encode()).hexdigest()[:32],
        allow_patterns=tuple(allow) if allow is not None else None,
        ignore_patterns=tuple(ignore) if ignore is not None else None,
        secret=secret,
        auth=auth,
    )


def _plan_auth(source: WeightsSource) -> WeightsAuthPlan:
    auth = source.auth
    if auth is None:
        method = WeightsAuthMethod.CUSTOM_SECRET if source.secret_name else ""
        return WeightsAuthPlan(method=str(method))
    return WeightsAuthPlan(
        method=auth.auth_method.value,
        role_arn=auth.aws_assume_role_arn or auth.aws_oidc_role_arn or "",
        region=auth.aws_assume_role_region or auth.aws_oidc_region or "",
        service_account=auth.gcp_oidc_service_account or "",
        identity_provider=auth.gcp_oidc_workload_id_provider or "",
    )


def _iter_notes(job: TrainingJob, context: PlanContext) -> Iterator[str]:
    if not context.supports_images:
        yield from _iter_mapping_notes(job, context)
    yield from _iter_crowding_notes(job, context.capacity)
    wanted, have = gpu_type(job), context.capacity.gpu_types
    if wanted and have and wanted not in have:
        yield f"The job asks for {wanted}; this machine has {', '.join(have)} and runs it on those."
    yield from iter_ineffective_fields(job, in_image=context.supports_images)
    if (safe := to_directory_name(context.job_name)) != context.job_name:
        yield f"BT_TRAINING_JOB_NAME is {safe!r}: scripts use it as the name of a folder."


def _iter_mapping_notes(job: TrainingJob, context: PlanContext) -> Iterator[str]:
    """Where the commands run on this machine itself."""
    yield (
        f"The image {job.image.base_image} is not used: the local substrate runs the commands "
        "with what this machine has installed."
    )
    if not context.capacity.exact_paths:
        yield (
            "This machine cannot give a job its own view of the file system "
            f"({context.capacity.mapped_reason}): the BT_* variables point at folders of the job."
        )
    if not job.enable_baseten_workdir:
        yield f"There is no image WORKDIR here: the commands start in {WORKSPACE_DIR}."


def _iter_crowding_notes(job: TrainingJob, capacity: Capacity) -> Iterator[str]:
    compute = job.compute
    if compute.node_count < 2:
        return
    wanted = compute.node_count * parse_memory(compute.memory)
    if compute.node_count * compute.cpu_count > capacity.cpus or wanted > capacity.memory:
        yield (
            f"All {compute.node_count} nodes share this machine's {capacity.cpus} CPUs and "
            f"{capacity.memory / 1024**3:.1f}Gi, which is less than they ask for together."
        )
