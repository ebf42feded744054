"""What the Prefect UI shows of the blocks and the flows, read from their JSON schemas."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.core import Block
from prefect.testing.standard_test_suites.blocks import BlockStandardTestSuite
from prefect.utilities.callables import parameter_schema

from prefect_bt.blocks import BLOCKS
from prefect_bt.blocks.forms import DOCUMENTATION
from prefect_bt.flows.deploy_checkpoints import deploy_checkpoints
from prefect_bt.flows.mirror_weights import mirror_weights
from prefect_bt.flows.reconcile import reconcile
from prefect_bt.flows.serve import serve
from prefect_bt.flows.train import train

ROOT = Path(__file__).parents[2]
FLOWS = (train, mirror_weights, deploy_checkpoints, serve, reconcile)
SCHEMAS: dict[str, dict[str, Any]] = {
    **{block.__name__: block.model_json_schema() for block in BLOCKS},
    **{flow.name: parameter_schema(flow).model_dump_for_openapi() for flow in FLOWS},
}
REGISTRY_ACCESS = {
    "RegistryLogin": "Docker Hub, GHCR, NGC and other registries with a user name and a password.",
    "AwsKey": "Amazon ECR with an access key.",
    "AwsRole": "Amazon ECR with an IAM role, without a secret.",
    "GcpKey": "Google Artifact Registry with the key of a service account.",
    "GcpIdentity": "Google Artifact Registry with a federated identity, without a secret.",
}
"""The only docstrings that forms show."""


class TestEveryBlock(BlockStandardTestSuite):
    @pytest.fixture(params=BLOCKS, ids=lambda block: block.__name__)
    def block(self, request: pytest.FixtureRequest) -> type[Block]:
        return request.param

    def test_has_a_valid_image(self, block: type[Block]) -> None:
        """The suite downloads it to measure it; Prefect's own pictures are square."""
        assert block._logo_url


def read_sections() -> dict[str, str]:
    """Anchor -> text of the sections of docs/blocks.md."""
    text = (ROOT / "docs" / "blocks.md").read_text()
    sections = re.findall(r"^#+ (.+)\n((?:(?!#+ ).*\n)*)", text, re.MULTILINE)
    return {heading.lower().replace(" ", "-"): section for heading, section in sections}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_every_block_links_to_its_section(block):
    page, _, anchor = str(block._documentation_url).partition("#")
    assert page == DOCUMENTATION
    section = read_sections()[anchor]
    assert [name for name in block.model_fields if f"`{name}`" not in section] == []


def test_the_package_links_to_the_same_documentation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION.removesuffix("blocks.html")


@pytest.mark.parametrize("name", SCHEMAS)
def test_forms_show_no_docstring_for_maintainers(name):
    blocks = {block.__name__: block.get_description() for block in BLOCKS}
    for key, definition in SCHEMAS[name].get("definitions", {}).items():
        assert definition.get("description") == {**blocks, **REGISTRY_ACCESS}.get(key), key


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.__name__)
def test_everything_in_the_form_of_a_block_has_a_name_and_a_help_text(block):
    schema = SCHEMAS[block.__name__]
    forms = [schema, *schema.get("definitions", {}).values()]
    for field in (field for form in forms for field in form.get("properties", {}).values()):
        assert field["title"][0].isupper() and "_" not in field["title"]
        assert field["description"].endswith(".")
        assert "const" not in field, "a Literal is a free text box"
        choices = [_resolve(choice, schema) for choice in field.get("anyOf", [])]
        assert all("title" in choice for choice in choices), "a choice needs a name of its own"
        if choices:
            assert choices[0]["type"] == "null", "the first UI opens with the first choice"


def _resolve(choice: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    name = choice.get("$ref", "").rpartition("/")[2]
    return {**schema["definitions"][name], **choice} if name else choice
