"""Create the automations of automations.yaml at the Prefect API, or update them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound

from prefect_bt.errors import ServerError
from prefect_bt.prefect_api.client import prefect_client

TEMPLATE: Final = Path(__file__).with_name("automations.yaml")
_NEEDS_BLOCK: Final = (
    "It needs a notification block: make one in the UI (Blocks: Slack Webhook, Email, Custom "
    "Webhook, ...) and give its type and name: --notify slack-webhook/team."
)
_NEEDS_DEPLOYMENT: Final = (
    "It needs the deployment {0}: prefect deploy --prefect-file deployments/prefect.yaml --name {1}"
)


@dataclass(frozen=True)
class AutomationResult:
    """Result for one automation. `status` is created, updated, unchanged or missing.

    `reason` says why an automation is unchanged or missing; `id` is "" for a missing automation.
    """

    name: str
    status: str
    id: str = ""
    reason: str = ""


def ensure_automations(notify: str = "") -> list[AutomationResult]:
    """Create or update each automation whose block and deployment exist. ServerError.

    `notify` names the block that sends notifications: `type/name`. An automation of the same name
    is replaced, but stays disabled if it is.
    """
    documents: list[dict[str, Any]] = yaml.safe_load(TEMPLATE.read_text())["automations"]
    with prefect_client(temporary=False) as client:
        block = _get_notification_block(client, notify) if notify else None
        return [_ensure(client, document, block) for document in documents]


def _ensure(
    client: SyncPrefectClient, document: dict[str, Any], block: UUID | None
) -> AutomationResult:
    name = document["name"]
    existing = next(iter(client.read_automations_by_name(name)), None)
    if reason := _fill_in_ids(client, document, block):
        known = str(existing.id) if existing else ""
        return AutomationResult(name, "unchanged" if existing else "missing", known, reason)
    if existing is None:
        made = client.create_automation(AutomationCore.model_validate(document))
        return AutomationResult(name, "created", str(made))
    document["enabled"] = existing.enabled
    client.update_automation(existing.id, AutomationCore.model_validate(document))
    return AutomationResult(name, "updated", str(existing.id))


def _fill_in_ids(client: SyncPrefectClient, document: dict[str, Any], block: UUID | None) -> str:
    """Replace names in the actions by ids. Return why that is not possible, or ""."""
    for action in document["actions"]:
        if "block_document_id" in action:
            if block is None:
                return _NEEDS_BLOCK
            action["block_document_id"] = block
        elif deployment := action.get("deployment_id"):
            try:
                action["deployment_id"] = client.read_deployment_by_name(deployment).id
            except ObjectNotFound:
                return _NEEDS_DEPLOYMENT.format(deployment, deployment.rpartition("/")[2])
    return ""


def _get_notification_block(client: SyncPrefectClient, notify: str) -> UUID:
    block_type, _, name = notify.partition("/")
    try:
        found = client.read_block_document_by_name(name, block_type, include_secrets=False)
    except ObjectNotFound:
        raise ServerError(
            f"There is no block {notify!r} at {client.api_url}.",
            next_step="Write its type, a slash and its name, as `prefect block ls` lists it.",
        ) from None
    if found.block_schema is None or "notify" not in found.block_schema.capabilities:
        raise ServerError(
            f"The block {notify!r} cannot send notifications.",
            next_step="Name one of type slack-webhook, custom-webhook, pager-duty-webhook, ...",
        )
    return found.id
