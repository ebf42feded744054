"""The four GraphQL operations of `truss train`, whose texts are constant.

Errors are answers with status 200 and `errors`, as GraphQL has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError

from prefect_bt.definitions import Accelerator, AcceleratorSpec, Compute, SecretReference
from prefect_bt.definitions.environment_variables import EnvironmentVariables
from prefect_bt.errors import NotFoundError, PrefectBtError, UsageError
from prefect_bt.http_api.access import (
    ApiSite,
    Caller,
    CallerDep,
    ForbiddenError,
    SiteDep,
    find_any_job,
)
from prefect_bt.http_api.routes.teams import list_teams
from prefect_bt.job_index.entries import Document
from prefect_bt.serving.checkpoint_selection import (
    CheckpointRequest,
    check_model_name,
    select_models,
)
from prefect_bt.serving.deployment_records import DeploymentLedger
from prefect_bt.serving.engines.truss_config import truss_config
from prefect_bt.serving.rollout.deploy import DeployOptions, deploy, plan_serving
from prefect_bt.serving.serving_job import ServerOptions
from prefect_bt.substrates import open_substrate

router = APIRouter(tags=["graphql"])
_FIELD: Final = re.compile(r"\b(teams|listed_instances|organization|user|create_\w+)\b")
_CPU: Final = "CPU"


class GraphqlRequest(BaseModel):
    """A GraphQL request."""

    query: str
    variables: dict[str, Any] | None = None


class _Variable(BaseModel):
    name: str
    value: str
    is_secret_reference: bool = False


class _Metadata(BaseModel):
    oracle_name: str


class _InferenceStack(BaseModel):
    environment_variables: list[_Variable] = Field(default_factory=list[_Variable])


class _CheckpointName(BaseModel):
    training_job_id: str
    checkpoint_name: str


class _CheckpointSource(BaseModel):
    checkpoint: _CheckpointName


class _WeightsSource(BaseModel):
    b10_training_checkpoint_weights_source: _CheckpointSource


class _DeployRequest(BaseModel):
    """The request of the mutation."""

    metadata: _Metadata
    weights_sources: list[_WeightsSource]
    inference_stack: _InferenceStack = Field(default_factory=_InferenceStack)
    instance_type_id: str = ""
    dry_run: bool = False


@router.post("/graphql/")
@router.post("/graphql", include_in_schema=False)
def answer_graphql(body: GraphqlRequest, site: SiteDep, caller: CallerDep) -> Document:
    """Answer one of the operations that `truss train` sends."""
    try:
        names = list(dict.fromkeys(_FIELD.findall(body.query)))
        if not names or not all(name in _FIELDS for name in names):
            raise UsageError("This GraphQL operation is none of those of `truss train`.")
        variables = body.variables or {}
        data = {_ALIASES.get(name, name): _FIELDS[name](site, caller, variables) for name in names}
    except PrefectBtError as error:
        return {"errors": [{"message": str(error), "extensions": {"code": type(error).__name__}}]}
    return {"data": data}


def _list_teams(site: ApiSite, caller: Caller, _: Document) -> list[Document]:
    return [
        {key: team[key] for key in ("id", "name", "default")} for team in list_teams(site, caller)
    ]


def _list_instances(site: ApiSite, caller: Caller, _: Document) -> list[Document]:
    """Return the sizes of nodes on this machine, which serves the models, the smallest first."""
    settings, name = site.settings, site.settings.substrate
    capacity = open_substrate(name, **settings.substrate_options(name)).capacity()
    kinds = [kind for kind in dict.fromkeys(capacity.gpu_types) if kind in set(Accelerator)]
    offers = [(kind, count) for kind in kinds for count in range(1, capacity.gpus + 1)]
    return [
        _instance_document(kind, count, capacity.cpus, capacity.memory)
        for kind, count in [(_CPU, 0), *offers]
    ]


def _instance_document(kind: str, gpus: int, cpus: float, memory: int) -> Document:
    """Return one node with all CPUs and the memory (bytes) of its machine."""
    gib = memory // 1024**3
    name = f"{kind}:1x{gpus}x{cpus:g}x{gib}"
    return {
        "id": name,
        "name": name,
        "displayName": f"{gpus} x {kind}" if gpus else f"{cpus:g} vCPU, {gib} GiB",
        "gpuCount": gpus,
        "gpuType": kind if gpus else None,
        "gpuMemory": None,
        "default": False,
        "nodeCount": 1,
        "millicpuLimit": round(cpus * 1000),
        "memoryLimit": memory,
        "price": None,
        "limitedCapacity": None,
    }


def _deploy(site: ApiSite, caller: Caller, variables: Document) -> Document:
    """Deploy checkpoints, or plan it for a dry run."""
    try:
        request = _DeployRequest.model_validate(variables.get("request"))
    except ValidationError as error:
        raise UsageError(f"The request is not complete: {error.errors()[0]['loc']}.") from None
    chosen = [
        source.b10_training_checkpoint_weights_source.checkpoint
        for source in request.weights_sources
    ]
    name = request.metadata.oracle_name
    _check_owner(site, caller, name)
    for one in chosen:
        find_any_job(one.training_job_id, site, caller)
    selection = select_models(
        site.ledger, [CheckpointRequest(one.training_job_id, one.checkpoint_name) for one in chosen]
    )
    if selection.base and (base := selection.base.required_checkpoint):
        find_any_job(base.job_id, site, caller)
    environment = EnvironmentVariables()
    for one in request.inference_stack.environment_variables:
        is_secret = one.is_secret_reference
        environment[one.name] = SecretReference(name=one.value) if is_secret else one.value
    compute = _parse_instance(request.instance_type_id)
    server = ServerOptions(compute=compute, environment=environment)
    options = DeployOptions(name, server, by=caller.name)
    config = truss_config(selection, name, compute, environment)
    version = None
    if request.dry_run:
        plan_serving(selection, options)
    else:
        deployed = deploy(selection, options)
        number = str(deployed.revision.number)
        version = {"id": number, "name": f"{deployed.name}-{number}", "model_id": deployed.name}
    return {"model_version": version, "truss_config": json.dumps(config)}


def _check_owner(site: ApiSite, caller: Caller, name: str) -> None:
    """Raise ForbiddenError if a deployment of that name serves checkpoints of another team."""
    check_model_name(name)
    served = DeploymentLedger(site.ledger).list_revisions(name)
    jobs = {job_id for revision in served for job_id, _ in revision.required_checkpoints}
    try:
        for job_id in jobs if caller.team is not None else ():
            find_any_job(job_id, site, caller)
    except NotFoundError:
        raise ForbiddenError(
            f"The key {caller.name!r} gives no access to a deployment {name!r}.",
            next_step="Choose another name.",
        ) from None


def _parse_instance(instance_id: str) -> Compute:
    """Return the GPUs of an instance such as `H100:1x2x16x128`; the machine decides the rest."""
    match = re.fullmatch(r"(\w+):1x(\d+)x[\d.]+x\d+", instance_id)
    kind, count = match.groups() if match else ("", "")
    try:
        spec = None if kind == _CPU else AcceleratorSpec.model_validate(f"{kind}:{count}")
    except ValidationError:
        raise UsageError(f"No instance type is called {instance_id!r}.") from None
    return Compute(cpu_count=0, memory="0Mi", accelerator=spec)


def _describe_organization(site: ApiSite, caller: Caller, _: Document) -> Document:
    return {"id": "prefect-bt", "workspace_name": "prefect-bt"}


def _describe_user(site: ApiSite, caller: Caller, _: Document) -> Document:
    return {"email": caller.name}


_ALIASES: Final = {"listed_instances": "listedInstances"}
_FIELDS: Final[dict[str, Callable[[ApiSite, Caller, Document], Any]]] = {
    "teams": _list_teams,
    "listed_instances": _list_instances,
    "create_model_version_from_inference_template": _deploy,
    "organization": _describe_organization,
    "user": _describe_user,
}
