"""The blocks on a real Prefect server."""

import asyncio
import json
import sqlite3
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.blocks.core import Block
from prefect.cli.block import register
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import BlockDocumentCreate
from prefect.flow_engine import run_flow
from prefect.utilities.callables import parameter_schema

from prefect_bt.blocks import (
    BLOCKS,
    GPU,
    AwsRole,
    DockerSubstrate,
    KubernetesSubstrate,
    LocalSubstrate,
    RetryPolicy,
    ServingEngine,
    TrainingCompute,
    TrainingImage,
    TrainingSecrets,
    TrainingStore,
)
from prefect_bt.definitions import Image
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
    KubernetesSubstrate(namespace="training", node_selector={"pool": "a"}, run_as_user=None),
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
    secrets = TrainingSecrets.model_validate({"values": {"token": PLANTED}})
    document = secrets.save("edited", overwrite=True)
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
    engine: ServingEngine | None = None,
    docker: DockerSubstrate | None = None,
    cluster: KubernetesSubstrate | None = None,
) -> list[Any]:
    return [compute, image, store, substrate, secrets, policy, cluster, engine, docker]


def run_with_documents(documents: dict[str, Any]) -> list[Any]:
    """Run the flow as its form does: each parameter is a reference to a stored document."""
    parameters = {
        name: {"$ref": {"block_document_id": str(document)}} for name, document in documents.items()
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
    result = run_flow(takes_blocks, flow_run=run)
    assert isinstance(result, list)
    return result


def test_as_flow_parameters_by_reference(prefect_api):
    names = ["compute", "image", "store", "substrate", "secrets", "policy", "cluster"]
    documents = {
        name: block.save(f"as-{name}", overwrite=True)
        for name, block in zip(names, EXAMPLES, strict=True)
    }
    assert run_with_documents(documents)[: len(names)] == EXAMPLES


def submit_form(block: type[Block], data: dict[str, Any]) -> tuple[str, UUID]:
    """Store a document as the form does, which validates nothing in Python; its name and id."""
    block.register_type_and_schema()
    name = f"form-{uuid4().hex}"
    with get_client(sync_client=True) as client:
        kind = client.read_block_type_by_slug(block.get_block_type_slug())
        schema = client.read_block_schema_by_checksum(block._calculate_schema_checksum())
        document = BlockDocumentCreate(
            name=name, data=data, block_type_id=kind.id, block_schema_id=schema.id
        )
        return name, client.create_block_document(document).id


def values(block: Block) -> dict[str, Any]:
    """The fields alone: a loaded block also knows its document."""
    return {name: getattr(block, name) for name in type(block).model_fields}


PREFILLED: dict[str, type[Block]] = {
    "compute": TrainingCompute,
    "substrate": LocalSubstrate,
    "policy": RetryPolicy,
    "cluster": KubernetesSubstrate,
    "engine": ServingEngine,
    "docker": DockerSubstrate,
}


def test_forms_in_which_nothing_was_changed(prefect_api):
    """The first UI stores `{}` for them."""
    fields = {block: block.model_fields.values() for block in BLOCKS}
    optional = {block for block in BLOCKS if not any(f.is_required() for f in fields[block])}
    assert set(PREFILLED.values()) == optional
    forms = {name: submit_form(block, {}) for name, block in PREFILLED.items()}
    for name, block in PREFILLED.items():
        loaded = block.load(forms[name][0])
        assert isinstance(loaded, block)
        assert values(loaded) == values(block())
    taken = run_with_documents({name: document for name, (_, document) in forms.items()})
    assert [values(one) for one in taken if one] == [values(b()) for b in PREFILLED.values()]


@pytest.mark.parametrize("data", [{}, {"registry_access": None}], ids=["untouched", "null"])
def test_a_public_image_from_the_form(prefect_api, data):
    name, document = submit_form(TrainingImage, {"base_image": "python:3.12", **data})
    loaded = TrainingImage.load(name)
    assert isinstance(loaded, TrainingImage)
    taken = run_with_documents({"image": document})[1]
    assert loaded.build() == taken.build() == Image(base_image="python:3.12")
