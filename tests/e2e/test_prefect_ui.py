"""Blocks, runs, cancelling and retrying in both of Prefect's UIs, as a person uses them.

A headless browser fills in the forms, of which only what has no default, and presses the buttons;
the server, the deployment and the worker are those of `prefect-bt up` (`make browser`).
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.core import Block
from pydantic import BaseModel

from prefect_bt import blocks
from prefect_bt.local_server.password import CLIENT_VARIABLE
from tests.browser import browser
from tests.in_process import environment_of

from .conftest import Machine, call, until
from .ui_pages import UIS, BlockPages, PrefectUI, RunPages

pytestmark = [pytest.mark.slow, pytest.mark.integration]
# The gate shows one page. The requests of the other pages are those of tests/blocks/test_server.py,
# test_worker.py and test_endings.py.


@dataclass(frozen=True)
class Case:
    """A block as the forms make it: the fields without default, and one that is edited later."""

    block: type[Block]
    required: Mapping[str, Any]
    field: str
    edited: Any
    typed: str = ""
    """What the edit form is given instead of `edited`."""


CASES = [
    Case(
        blocks.TrainingSecrets,
        {"values": {"first": "planted-1c7e"}},
        "values",
        {"first": "planted-1c7e", "second": "planted-8a2f"},
        # The form shows the first one masked; it is kept.
        typed='{"first": "********", "second": "planted-8a2f"}',
    ),
    Case(blocks.TrainingCompute, {}, "node_count", 2),
    Case(blocks.TrainingImage, {"base_image": "ghcr.io/team/train:1"}, "base_image", "train:2"),
    Case(blocks.TrainingStore, {"url": "/shared/store"}, "url", "s3://bucket/store"),
    Case(blocks.LocalSubstrate, {}, "grace_seconds", 12.5),
    Case(blocks.DockerSubstrate, {}, "docker_host", "unix:///d.sock"),
    Case(blocks.KubernetesSubstrate, {}, "namespace", "training"),
    Case(blocks.RetryPolicy, {}, "infrastructure", 7),
    Case(blocks.ServingEngine, {}, "patience_seconds", 60.0),
    Case(blocks.ServingDeployment, {"model_name": "stories"}, "host", "127.0.0.1"),
]
FAILS_ONCE = "echo attempt $BT_RETRY_COUNT; test $BT_RETRY_COUNT = 1 || exit 3\n"


@pytest.fixture(scope="module")
def machine(served_machine: Machine) -> Machine:
    return served_machine


@pytest.fixture(
    scope="module", params=[pytest.param("classic", marks=pytest.mark.extended), "react"]
)
def site(request: pytest.FixtureRequest, machine: Machine) -> Iterator[PrefectUI]:
    """One of the UIs in a browser of its own, in which a person has signed in."""
    with browser("--window-size=1300,1600") as page:
        site = PrefectUI(page, machine.api_url.removesuffix("/api"), UIS[request.param])
        site.sign_in(machine.api[CLIENT_VARIABLE])
        yield site


@pytest.fixture
def forms(site: PrefectUI) -> BlockPages:
    return BlockPages(site)


@pytest.fixture
def runs(site: PrefectUI, machine: Machine) -> RunPages:
    deployment = call(machine, "GET", "deployments/name/train/train")
    return RunPages(site, str(deployment["id"]))


def properties(block: type[BaseModel]) -> dict[str, dict[str, Any]]:
    return block.model_json_schema()["properties"]


def label(block: type[BaseModel], field: str) -> str:
    return str(properties(block)[field]["title"])


def type_as(value: Any) -> str:
    """Return what a person types for the value."""
    return value if isinstance(value, str) else json.dumps(value)


def expected(case: Case, **changed: Any) -> dict[str, Any]:
    """Return the values of a block whose other fields have their defaults."""
    shown = {
        name: one["default"] for name, one in properties(case.block).items() if "default" in one
    }
    return values(case.block.model_validate({**shown, **case.required, **changed}))


def values(block: Block) -> dict[str, Any]:
    return {name: getattr(block, name) for name in type(block).model_fields}


@contextmanager
def client_of(machine: Machine) -> Iterator[None]:
    """Let Prefect's client in this process use the machine's server."""
    with environment_of({**machine.environment, **machine.api}):
        yield


def load(machine: Machine, block: type[Block], name: str) -> dict[str, Any]:
    with client_of(machine):
        loaded: Any = block.load(name, validate=True)
    return values(loaded)


def test_every_block_type_has_a_case_with_all_that_a_form_requires() -> None:
    assert [case.block for case in CASES] == list(blocks.BLOCKS)
    for case in CASES:
        schema = case.block.model_json_schema()
        required = [
            name
            for name in schema.get("required", ())
            if "default" not in properties(case.block)[name]
        ]
        assert list(case.required) == required


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=case.block.__name__,
            marks=[] if case.block is blocks.TrainingCompute else pytest.mark.extended,
        )
        for case in CASES
    ],
)
def test_forms_create_and_edit_a_block(case: Case, forms: BlockPages, machine: Machine) -> None:
    name, block = f"ui-{uuid4().hex[:12]}", case.block

    def fill() -> None:
        for field, value in case.required.items():
            forms.ui.fill(label(block, field), type_as(value))

    block_id = forms.create(block.get_block_type_slug(), name, fill)
    assert load(machine, block, name) == expected(case)
    typed = case.typed or type_as(case.edited)
    forms.edit(block_id, name, lambda: forms.ui.fill(label(block, case.field), typed))
    assert load(machine, block, name) == expected(case, **{case.field: case.edited})


@pytest.mark.extended
def test_an_accelerator_is_chosen(forms: BlockPages, machine: Machine) -> None:
    name, block = f"ui-{uuid4().hex[:12]}", blocks.TrainingCompute
    accelerator = label(block, "accelerator")

    def fill() -> None:
        forms.ui.choose_tab(accelerator, "GPU")
        forms.ui.choose(accelerator, "H100")

    forms.create(block.get_block_type_slug(), name, fill)
    assert load(machine, block, name) == expected(Case(block, {}, "", ""), accelerator="H100")


@pytest.mark.extended
def test_an_image_of_a_private_registry(forms: BlockPages, machine: Machine) -> None:
    name, block = f"ui-{uuid4().hex[:12]}", blocks.TrainingImage
    access = {"registry": "ecr.test", "access_key_secret": "key_id", "secret_key_secret": "key"}

    def fill() -> None:
        forms.ui.fill(label(block, "base_image"), "ghcr.io/team/train:1")
        forms.ui.choose_tab(label(block, "registry_access"), "AWS key")
        for field, value in access.items():
            forms.ui.fill(label(blocks.AwsKey, field), value)

    forms.create(block.get_block_type_slug(), name, fill)
    wanted = {"base_image": "ghcr.io/team/train:1", "registry_access": blocks.AwsKey(**access)}
    assert load(machine, block, name) == wanted


def submit(runs: RunPages, machine: Machine, script: str, block: str = "") -> str:
    """Run the script with the form of train/train and open the run's page; return the run's id.

    `block` is the name of a block of compute, which is chosen there.
    """
    config = str(machine.folder(script))

    def fill() -> None:
        runs.ui.choose_tab("config", "str")
        runs.ui.fill("config", config)
        if block:
            runs.ui.choose_tab("compute", "TrainingCompute")
            runs.ui.choose("compute", block)

    run_id = runs.submit(fill)
    parameters = call(machine, "GET", f"flow_runs/{run_id}")["parameters"]
    given = {name for name, value in parameters.items() if value is not None}
    assert parameters["config"] == config
    assert given == ({"config", "compute"} if block else {"config"})
    runs.open(run_id)
    return run_id


def job_of(machine: Machine, run_id: str) -> str:
    return until(lambda: machine.ledger.runs.find_job(run_id), seconds=60, what="the job")


@pytest.mark.extended
def test_a_run_from_the_form_completes(runs: RunPages, machine: Machine) -> None:
    run_id = submit(runs, machine, "echo it runs\n")
    runs.wait_for_state("Completed")
    assert "it runs" in machine.logs(job_of(machine, run_id))


@pytest.mark.extended
def test_a_run_with_a_block_that_is_chosen_in_the_form(runs: RunPages, machine: Machine) -> None:
    name = f"ui-{uuid4().hex[:12]}"
    with client_of(machine):
        blocks.TrainingCompute(node_count=2, memory="64Mi").save(name)
    run_id = submit(runs, machine, "echo $BT_GROUP_SIZE nodes\n", name)
    runs.wait_for_state("Completed")
    assert "2 nodes" in machine.logs(job_of(machine, run_id))


@pytest.mark.extended
def test_a_run_is_cancelled_on_its_page(runs: RunPages, machine: Machine) -> None:
    run_id = submit(runs, machine, "echo ready; exec sleep 600\n")
    job_id = job_of(machine, run_id)
    until(lambda: "ready" in machine.logs(job_id), seconds=60, what="ready")
    runs.wait_for_state("Running")
    runs.cancel(run_id)
    runs.wait_for_state("Cancelled")
    machine.wait(job_id, "STOPPED")
    machine.nothing_left(job_id)


@pytest.mark.extended
def test_a_failed_run_is_retried_on_its_page(runs: RunPages, machine: Machine) -> None:
    run_id = submit(runs, machine, FAILS_ONCE)
    runs.wait_for_state("Failed")
    runs.retry(run_id)
    runs.wait_for_state("Completed")
    job_id = job_of(machine, run_id)
    assert "attempt 1" in machine.logs(job_id)
    assert len(machine.view(job_id)["attempts"]) == 2
