"""Mirror weights to a machine and into the store before a job needs them: flow `mirror-weights`.

    mirror-weights (one a source, two at a time) -> a table of the mirrored sources

Schedule it (deployments/prefect.yaml) on the machines that train. A job with the same sources then
starts without a download.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from prefect.artifacts import create_table_artifact
from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Cancelled

from prefect_bt.blocks import TrainingSecrets, TrainingStore
from prefect_bt.definitions import load_training_project, training_project_from_json
from prefect_bt.errors import DefinitionError, PrefectBtError, WeightsError
from prefect_bt.flows.tasks.job_flow import interrupted_state, job_flow
from prefect_bt.flows.tasks.job_task import failed_state
from prefect_bt.flows.tasks.mirror import KEPT, MirrorContext, mirror_all
from prefect_bt.flows.tasks.reporting.report import API_ERRORS
from prefect_bt.flows.tasks.train_request import JobRequest, SubstrateChoice
from prefect_bt.jobs.asynchronous import asynchronous, is_stop_requested
from prefect_bt.planning.given_weights import plan_given_sources, plan_job_weights
from prefect_bt.planning.plan import WeightsPlan
from prefect_bt.text.quantities import format_size
from prefect_bt.text.url_redaction import redact_url
from prefect_bt.weights import MirrorResult

ARTIFACT = "mirrored-weights"


@job_flow("mirror-weights")
def mirror_weights(
    config: str | None = None,
    *,
    definition: dict[str, Any] | None = None,
    sources: list[str] | None = None,
    allow_patterns: list[str] | None = None,
    ignore_patterns: list[str] | None = None,
    auth_secret_name: str | None = None,
    secrets: TrainingSecrets | None = None,
    store: TrainingStore | None = None,
    substrate: SubstrateChoice = None,
) -> list[dict[str, Any]] | State[Any]:
    """Mirror weights, so that later jobs start without a download.

    Give one of `config`, `definition` and `sources`. If a source fails, the others are mirrored
    nevertheless, and the run fails at its end.

    Args:
        config: Path of a config file on the machine that runs the flow: all sources of its job.
        definition: Instead of a path: a training project as JSON.
        sources: Instead of both: URIs, such as hf://owner/repo@main.
        allow_patterns: With `sources`: globs of the files to mirror; by default all files.
        ignore_patterns: With `sources`: globs of the files to leave out.
        auth_secret_name: With `sources`: name of the secret with the token or key.
        secrets: Secrets that have precedence over Prefect's Secret blocks and the environment.
        store: Store that keeps the copy for other machines; by default PREFECT_BT_STORE.
        substrate: Substrate whose state folder keeps the weights on this machine; by default
            PREFECT_BT_SUBSTRATE.

    Returns:
        One document for each source: source, name, revision, files, bytes, fetched, from_store,
            seconds, hit.
    """
    patterns = {
        "allow_patterns": allow_patterns,
        "ignore_patterns": ignore_patterns,
        "auth_secret_name": auth_secret_name,
    }
    request = JobRequest(store=store, substrate=substrate, secrets=secrets)
    try:
        plans = _plans(config, definition, sources, patterns)
        records = request.ledger().store
        site = MirrorContext(request.settings(), records, request.secret_sources())
    except PrefectBtError as error:
        return failed_state(error)
    try:
        futures = mirror_all(site, plans, stop_requested=is_stop_requested, keep_going=True)
    except KeyboardInterrupt as interrupt:
        return interrupted_state(interrupt)
    if is_stop_requested():
        return Cancelled(message=KEPT)
    outcomes = [_outcome(futures[plan.key]) for plan in plans]
    rows = [_row(plan, one) for plan, one in zip(plans, outcomes, strict=True)]
    _show(rows)
    for one in outcomes:
        if isinstance(one, PrefectBtError):
            return failed_state(one)
        if not isinstance(one, MirrorResult):
            raise one
    return rows


amirror_weights = asynchronous(mirror_weights)


def _plans(
    config: str | None,
    definition: dict[str, Any] | None,
    sources: list[str] | None,
    patterns: dict[str, Any],
) -> list[WeightsPlan]:
    if sum(given is not None for given in (config, definition, sources)) != 1:
        raise DefinitionError(
            "mirror-weights needs exactly one of `config`, `definition` and `sources`.",
            next_step="For example: sources=['hf://owner/repo@main'].",
        )
    if sources is not None:
        plans = plan_given_sources(sources, **patterns)
    else:
        project = (
            training_project_from_json(definition or {})
            if config is None
            else load_training_project(Path(config).expanduser())
        )
        plans = plan_job_weights(project.job)
    if not plans:
        raise DefinitionError(
            "No weights source was given.", next_step="Add one to the config, or give `sources`."
        )
    return list({plan.key: plan for plan in plans}.values())


def _outcome(future: PrefectFuture[Any]) -> MirrorResult | Exception:
    found: Any = future.result(raise_on_failure=False)
    if isinstance(found, MirrorResult | PrefectBtError):
        return found
    if isinstance(found, State):
        found = cast("State[Any]", found).message
    return found if isinstance(found, Exception) else WeightsError(f"{found}", source="")


def _row(plan: WeightsPlan, one: MirrorResult | Exception) -> dict[str, Any]:
    if not isinstance(one, MirrorResult):
        return {"source": redact_url(plan.source), "error": str(one)}
    return {
        "source": redact_url(plan.source),
        "name": one.name,
        "revision": one.revision,
        "files": one.files,
        "bytes": one.bytes,
        "fetched": one.fetched_bytes,
        "from_store": one.store_bytes,
        "seconds": round(one.seconds, 1),
        "hit": one.cache_hit,
    }


def _show(rows: list[dict[str, Any]]) -> None:
    table = [
        {
            "source": row["source"],
            "revision": row.get("revision", "")[:12],
            "files": row.get("files", ""),
            "size": format_size(row["bytes"]) if "bytes" in row else "",
            "fetched": format_size(row["fetched"]) if "fetched" in row else "",
            "from the store": format_size(row["from_store"]) if "from_store" in row else "",
            "seconds": row.get("seconds", ""),
            "error": row.get("error", ""),
        }
        for row in rows
    ]
    try:
        create_table_artifact(table=table, key=ARTIFACT, description="Mirrored weights")
    except API_ERRORS as error:
        get_run_logger().warning("The table of what was mirrored cannot be shown: %s", error)
