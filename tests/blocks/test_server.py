"""The blocks on a real Prefect server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.cli.block import register
from prefect.client.orchestration import get_client
from prefect.flow_engine import run_flow
from prefect.utilities.callables import parameter_schema

from prefect_bt.blocks import (
    BLOCKS,
    GPU,
    AwsRole,
    LocalSubstrate,
    RetryPolicy,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from tests.e2e.conftest import call_url
from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.integration]

PLANTED = "planted-5f3a-value"

EXAMPLES = [
    TrainingCompute(node_count=2, accelerator=GPU.H100, accelerator_count=8),
    TrainingImage(
        base_image="team/train:1",
        registry_access=AwsRole(registry="ecr", role_arn="arn", region="us-east-1"),
    ),
    TrainingStore(url="s3://bucket/prefix"),
    LocalSubstrate(state_dir="/scratch/state", grace_seconds=5),
    TrainingSecrets.model_validate({"values": {"token": PLANTED}}),
    RetryPolicy(user=1, first_delay_seconds=5),
]


def ask(server: PrefectServer, path: str) -> str:
    return json.dumps(call_url(server.auth, "GET", f"{server.api_url}{path}"))


def test_prefects_own_command_registers_them(prefect_server, prefect_api):
    """As `prefect block register -m prefect_bt.blocks` does."""
    asyncio.run(register(module_name="prefect_bt.blocks"))
    for block in BLOCKS:
        kind = json.loads(ask(prefect_server, f"/block_types/slug/{block.get_block_type_slug()}"))
        assert kind["name"] == block.get_block_type_name()


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda block: type(block).__name__)
def test_saved_and_loaded_it_is_the_same(prefect_api, block):
    block.save("same", overwrite=True)
    assert type(block).load("same") == block


def test_secrets_are_masked_and_encrypted(prefect_server, prefect_api):
    secrets = TrainingSecrets.model_validate({"values": {"token": PLANTED}})
    document = secrets.save("masked", overwrite=True)
    shown = ask(prefect_server, f"/block_documents/{document}")
    assert "token" in shown
    assert PLANTED not in shown
    loaded = TrainingSecrets.load("masked")
    assert isinstance(loaded, TrainingSecrets)
    assert loaded.build().find("token") == PLANTED
    with sqlite3.connect(prefect_server.home / "prefect.db") as database:
        database.execute("pragma wal_checkpoint(full)")
        stored = "\n".join(database.iterdump())
    assert "masked" in stored
    assert PLANTED not in stored
    for file in prefect_server.home.glob("prefect.db*"):
        assert PLANTED.encode() not in file.read_bytes()


def test_masked_values_sent_back_by_the_form_change_nothing(prefect_server, prefect_api):
    """What the UI's edit form does: it sends what it was shown."""
    document = TrainingSecrets.model_validate({"values": {"token": PLANTED}}).save(
        "edited", overwrite=True
    )
    shown = json.loads(ask(prefect_server, f"/block_documents/{document}"))
    url = f"{prefect_api}/block_documents/{document}"
    call_url(prefect_server.auth, "PATCH", url, data=shown["data"])
    loaded = TrainingSecrets.load("edited")
    assert isinstance(loaded, TrainingSecrets)
    assert loaded.build().find("token") == PLANTED


@flow
def takes_blocks(
    compute: TrainingCompute | None = None,
    image: TrainingImage | None = None,
    secrets: TrainingSecrets | None = None,
    store: TrainingStore | str | None = None,
    substrate: LocalSubstrate | str = "local",
    policy: RetryPolicy | None = None,
) -> list[Any]:
    return [compute, image, store, substrate, secrets, policy]


def test_as_flow_parameters_by_reference(prefect_api):
    parameters = {
        name: {"$ref": {"block_document_id": str(block.save(f"as-{name}", overwrite=True))}}
        for name, block in zip(
            ["compute", "image", "store", "substrate", "secrets", "policy"],
            EXAMPLES,
            strict=True,
        )
    }
    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(
            flow_id=client.create_flow(takes_blocks),
            name="blocks",
            parameter_openapi_schema=parameter_schema(takes_blocks).model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
        created = client.create_flow_run_from_deployment(deployment, parameters=parameters)
        assert PLANTED not in json.dumps(created.parameters)
        run = client.read_flow_run(UUID(str(created.id)))
    assert run_flow(takes_blocks, flow_run=run) == EXAMPLES
