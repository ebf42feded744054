"""Make a gang plan from a definition. Pure: everything that it reads is an argument.

A job that cannot run is refused, with all problems in one message, before anything is written or
launched. A field that a substrate ignores becomes a note; one that it cannot honour, a problem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace

from prefect_bt.definitions import (
    TrainingJob,
    TrainingProject,
    WeightsAuthMethod,
    WeightsSource,
    literal_variables,
    secret_names,
)
from prefect_bt.errors import PlanError
from prefect_bt.object_keys import weights_tree_name
from prefect_bt.planning.context import PlanContext
from prefect_bt.planning.machine_offers import THIS_MACHINE
from prefect_bt.planning.node_layout import (
    checkpoint_dir,
    iter_hf_cache_volumes,
    iter_volumes,
    load_directory,
    normalize_path,
)
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
from prefect_bt.planning.plan_notes import iter_notes
from prefect_bt.planning.platform_variables import platform_variables
from prefect_bt.planning.resource_amounts import allocate_resources
from prefect_bt.planning.text_validation import ensure_usable_texts
from prefect_bt.planning.validation import validate_job, validate_names
from prefect_bt.planning.weights_validation import parse_weights_source
from prefect_bt.registries.credentials import list_login_secrets
from prefect_bt.registries.pull_errors import PullError
from prefect_bt.registries.reference import parse_reference


def plan_gang(project: TrainingProject, context: PlanContext) -> GangPlan:
    """Return the plan of one attempt. Raise PlanError with every reason why there is none."""
    ensure_usable_texts(project)
    names = {"project.name": project.name, "job.name": context.job_name}
    if project.team_name:
        names["project.team_name"] = project.team_name
    problems = [
        *validate_names(names),
        *validate_job(
            project.job,
            context.capacity,
            substrate=context.substrate,
            refused=context.refused,
        ),
        *(_validate_image(project.job) if context.supports_images else ()),
        *([context.capacity.store_problem] if context.capacity.store_problem else ()),
        *context.missing_references,
    ]
    if problems:
        raise PlanError(problems, next_step=context.remedy)
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
        notes=tuple(iter_notes(project, context)),
        machine="" if context.machine == THIS_MACHINE else context.machine,
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
    """Return plans of the job's weights, in the definition's order."""
    return tuple(_plan_weights_source(source) for source in job.weights)


def plan_weights_sources(sources: Sequence[str | Mapping[str, object]]) -> tuple[WeightsPlan, ...]:
    """Return plans of sources outside of a job: URIs, or entries of a definition's `weights`.

    `mount_location` may be left out. A source has the same key as in a job. Raise DefinitionError.
    """
    given = ({"source": one} if isinstance(one, str) else one for one in sources)
    return tuple(_plan_weights_source(parse_weights_source(one)) for one in given)


def list_job_secret_names(job: TrainingJob, *, supports_images: bool = False) -> tuple[str, ...]:
    """Return every secret reference that the job needs, sorted.

    `supports_images`: whether it runs in its image, and needs those of docker_auth.
    """
    names = set(secret_names(job.runtime.environment_variables).values())
    names |= {source.secret_name for source in job.weights if source.secret_name}
    names |= set(list_image_secret_names(job)) if supports_images else set()
    return tuple(sorted(names))


def plan_image(job: TrainingJob, pinned: str = "") -> ImagePlan:
    """Return the image of the nodes: `pinned`, that of an earlier attempt, if there is one."""
    auth = job.image.docker_auth
    return ImagePlan(pinned or job.image.base_image, auth.model_dump(mode="json") if auth else None)


def list_image_secret_names(job: TrainingJob) -> tuple[str, ...]:
    """Return the secret references of the job's docker_auth."""
    return list_login_secrets(plan_image(job).auth)


# -- the plan -------------------------------------------------------------------------------


def _plan_node(
    project: TrainingProject, context: PlanContext, *, weights: tuple[WeightsPlan, ...]
) -> NodePlan:
    """Return the plan of rank 0."""
    job = project.job
    variables = job.runtime.environment_variables
    return NodePlan(
        job_id=context.job_id,
        project_id=context.project_id,
        attempt=context.attempt,
        rank=0,
        group_size=job.compute.node_count,
        store=context.store,
        image=plan_image(job, context.pinned_image),
        commands=tuple(job.runtime.start_commands),
        environment={**literal_variables(variables), **platform_variables(project, context)},
        secret_environment=secret_names(variables),
        volumes=_plan_volumes(project, context, weights),
        resources=allocate_resources(job, context.capacity),
        workspace=replace(context.workspace, in_image=not job.enable_baseten_workdir),
        checkpoints=_plan_checkpoints(job, context),
        load=context.loaded_checkpoints,
        load_directory=load_directory(job) or "",
        grace=context.grace,
        epoch=context.epoch,
    )


def _plan_volumes(
    project: TrainingProject, context: PlanContext, weights: tuple[WeightsPlan, ...]
) -> tuple[Volume, ...]:
    volumes = [*iter_volumes(project.job, context.project_id, project.team_name or "")]
    for source in weights:
        revision = context.revisions.get(source.key)
        key = weights_tree_name(source.key, revision) if revision else source.key
        volumes.append(Volume(VolumeKind.WEIGHTS, source.mount_location, key, read_only=True))
    return (*volumes, *iter_hf_cache_volumes(volumes))


def _plan_checkpoints(job: TrainingJob, context: PlanContext) -> CheckpointPlan | None:
    if not job.runtime.checkpointing_config.enabled:
        return None
    directory = checkpoint_dir(job)
    return CheckpointPlan(
        directory,
        settle=context.settle,
        retention=context.retention,
        repeat_delays=context.repeat_delays,
    )


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
