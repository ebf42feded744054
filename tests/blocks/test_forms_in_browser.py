"""Forms of both Prefect UIs in a real browser: what they store, and that it loads."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Generator

import pytest
from prefect.blocks.core import Block

from prefect_bt.blocks import TrainingCompute, TrainingImage
from prefect_bt.definitions import Compute, Image
from tests.browser import Page, browser
from tests.prefect_server import PrefectServer

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow, pytest.mark.integration]

INPUTS = "[...document.querySelectorAll('form input, form textarea')]"
BUTTONS = "[...document.querySelectorAll('form button')]"


@pytest.fixture(scope="module")
def page(prefect_server: PrefectServer) -> Generator[Page]:
    with browser("--window-size=1200,3000") as page:
        page.open(prefect_server.api_url.removesuffix("/api"))
        password = b64encode(prefect_server.auth.encode()).decode()
        page.run(f"localStorage.setItem('prefect-password', {json.dumps(password)})")
        yield page


def submit(page: Page, version: str, block: type[Block], *texts: str) -> tuple[str, Block]:
    """Type a name and texts into the first fields of a new block's form and submit it.

    Returns what the form showed, and the block as it loads then.
    """
    block.register_type_and_schema()
    name = f"browser{version.replace('/', '-')}"
    url = f"{page.run('location.origin')}{version}/blocks/catalog/{block.get_block_type_slug()}"
    page.open_app(f"{url}/create", f"{INPUTS}.length > 1")
    shown = page.run("document.body.innerText")
    for number, text in enumerate((name, *texts)):
        page.run(f"{INPUTS}[{number}].focus()")
        page.call("Input.insertText", text=text)
    page.run(f"{BUTTONS}.find(one => ['Save', 'Create'].includes(one.innerText.trim())).click()")
    page.wait_for(f"location.href != {json.dumps(f'{url}/create')}")
    loaded = block.load(name)
    assert isinstance(loaded, block)
    return shown, loaded


@pytest.mark.parametrize("version", ["", "/v2"])
def test_an_untouched_form_and_a_public_image(page: Page, prefect_api: str, version: str) -> None:
    _, compute = submit(page, version, TrainingCompute)
    assert isinstance(compute, TrainingCompute)
    assert compute.build() == Compute()
    shown, image = submit(page, version, TrainingImage, "python:3.12")
    assert isinstance(image, TrainingImage)
    assert image.build() == Image(base_image="python:3.12")
    assert "None (public image)" in shown
