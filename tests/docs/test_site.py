"""The documentation site: built without warnings, with working links and a complete reference."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from pydantic import BaseModel

from docs._generate.meanings import MEANINGS
from docs._generate.sections import fill_in
from prefect_bt import definitions
from prefect_bt.blocks import BLOCKS
from prefect_bt.cli.app import make_app
from prefect_bt.cli.command_table import COMMANDS
from prefect_bt.kubernetes_settings import ClusterSettings
from prefect_bt.settings import Settings, variable_name

ROOT = Path(__file__).parents[2]
SITE_URL = "https://prefect-bt.readthedocs.io/en/stable/"
INDEX = "index.html"
ADDRESS_ATTRIBUTES = {"href", "src"}
LOADING_TAGS = {"img", "link", "script", "iframe", "source"}


class PageLinks(HTMLParser):
    """The anchors and addresses of one page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors, self.addresses, self.loaded = {""}, list[str](), list[str]()
        self.feed(page.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        addresses = [value for name, value in found.items() if name in ADDRESS_ATTRIBUTES]
        self.addresses += addresses
        if tag in LOADING_TAGS and found.get("rel") not in {"canonical", "prev", "next"}:
            self.loaded += addresses


def find_broken_links(site: Path) -> Iterator[str]:
    """Yield each address that leads to no file or anchor of the site, and each foreign resource."""
    pages = {page: PageLinks(page) for page in site.rglob("*.html")}
    for page, links in pages.items():
        name = page.relative_to(site).as_posix()
        for address in links.addresses:
            url = urljoin(f"{SITE_URL}{name}", address)
            if urlsplit(url).netloc == urlsplit(SITE_URL).netloc:
                path, _, anchor = unquote(url.removeprefix(SITE_URL)).partition("#")
                target = site / path if path and not path.endswith("/") else site / path / INDEX
                if not target.is_file():
                    yield f"{name}: {address} leads to no file"
                elif target in pages and anchor not in pages[target].anchors:
                    yield f"{name}: {address} leads to no anchor"
            elif address in links.loaded:
                yield f"{name}: {address} is loaded from another host"


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "b.html").write_text('<h2 id="here">', "utf-8")
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here"> <a href="b.html#gone"> <a href="c.html"> <a href="#top">'
        '<a href="https://example.org/x"> <script src="https://example.org/x.js">',
        "utf-8",
    )
    assert list(find_broken_links(tmp_path)) == [
        "a.html: b.html#gone leads to no anchor",
        "a.html: c.html leads to no file",
        "a.html: #top leads to no anchor",
        "a.html: https://example.org/x.js is loaded from another host",
    ]


def build_site(folder: Path) -> Path:
    """Build the site as `make docs` does."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def check_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    broken = list(find_broken_links(site))
    assert not broken, "\n".join(broken)


def check_no_comment_of_the_generator_is_left(site: Path) -> None:
    left = [page for page in site.rglob("*.html") if "<!-- generate:" in page.read_text("utf-8")]
    assert not left


def check_the_reference_has_every_command_and_option(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text("utf-8")
    sections = {part.partition("<")[0]: part for part in page.split('">prefect-bt ')}
    app = make_app()
    assert {"push", "checkpoints list"} <= set(COMMANDS)
    missing = [name for name in COMMANDS if name not in sections]
    for name in COMMANDS:
        command: Any = reduce(lambda group, word: group[word], name.split(), app)
        arguments = command.assemble_argument_collection(default_parameter=app.default_parameter)
        options = [option for one in arguments if one.show for option in one.names]
        shown = sections.get(name, "")
        missing += [f"{name} {option}" for option in options if option not in shown]
    assert not missing


def test_every_field_of_a_record_has_a_meaning() -> None:
    text = fill_in((ROOT / "docs" / "reference" / "files.md").read_text("utf-8"))
    fields = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(fields) > 100
    assert [line for line in fields if re.search(r"\|\s*\|$", line)] == []
    assert [name for name in MEANINGS if f"| `{name.rpartition('.')[2]}` |" not in text] == []


def check_the_reference_has_every_setting(site: Path) -> None:
    page = (site / "reference" / "settings.html").read_text("utf-8")
    names = [*Settings.model_fields, *(f"kubernetes_{one}" for one in ClusterSettings.model_fields)]
    assert [name for name in names if f"<code>{variable_name(name)}</code>" not in page] == []


def check_the_reference_has_every_definition_and_field(site: Path) -> None:
    page = (site / "reference" / "definitions.html").read_text("utf-8")
    exported = [getattr(definitions, name) for name in definitions.__all__]
    models = [one for one in exported if isinstance(one, type) and issubclass(one, BaseModel)]
    assert definitions.TrainingProject in models
    missing = [model for model in models if f">{model.__name__}<" not in page]
    missing += [
        f"{model.__name__}.{name}"
        for model in models
        for name in model.model_fields
        if f"<code>{name}</code>" not in page
    ]
    assert not missing


def check_the_reference_has_every_block_and_field(site: Path) -> None:
    page = (site / "reference" / "blocks.html").read_text("utf-8")
    for block in BLOCKS:
        assert f">{block.get_block_type_name()}<" in page
        assert f"<code>{block.get_block_type_slug()}</code>" in page
        missing = [one for one in block.model_fields if f"<code>{one}</code>" not in page]
        assert not missing, block


def check_block_types_link_to_sections_of_the_site(site: Path) -> None:
    for block in BLOCKS:
        address = urlsplit(str(block._documentation_url))
        page = site / address.path.rpartition("/")[2]
        assert address.fragment in PageLinks(page).anchors, address


CHECKS = [
    check_every_link_of_the_site_leads_somewhere,
    check_no_comment_of_the_generator_is_left,
    check_the_reference_has_every_command_and_option,
    check_the_reference_has_every_setting,
    check_the_reference_has_every_definition_and_field,
    check_the_reference_has_every_block_and_field,
    check_block_types_link_to_sections_of_the_site,
]


@pytest.mark.slow
def test_the_site_is_built_and_complete(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Build the site once for all checks: tests of one file can run in several processes."""
    site = build_site(tmp_path / "site")
    for check in CHECKS:
        with subtests.test(check.__name__):
            check(site)
