"""Events of mkdocs: files of the repository as pages, lists in the navigation, generated sections.

Run mkdocs in the root folder as `python -m mkdocs` (`make docs`), so that `docs` and `prefect_bt`
are those of this folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs._generate.links import BROUGHT, rewrite_links
from docs._generate.sections import describe_api, fill_in

_SOURCES = {page: source for source, page in BROUGHT.items()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace `folder/*.md` in the navigation by the pages of the folder."""
    config.nav = _expand(config.nav, Path(config.docs_dir))
    return config


def _expand(nav: Any, docs: Path) -> Any:
    if isinstance(nav, dict):
        return {title: _expand(below, docs) for title, below in nav.items()}
    if isinstance(nav, list):
        return [one for item in nav for one in _expand_item(item, docs)]
    return nav


def _expand_item(item: Any, docs: Path) -> list[Any]:
    if isinstance(item, str) and "*" in item:
        return sorted(path.relative_to(docs).as_posix() for path in docs.glob(item))
    return [_expand(item, docs)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files of the repository that are pages, the list of decisions, and openapi.json."""
    docs = Path(config.docs_dir)
    for source, page in BROUGHT.items():
        files.append(File.generated(config, page, content=(docs.parent / source).read_text()))
    files.append(File.generated(config, "decisions/index.md", content=_list_decisions(docs)))
    openapi = json.dumps(describe_api(), indent=1)
    files.append(File.generated(config, "reference/openapi.json", content=openapi))
    return files


def _list_decisions(docs: Path) -> str:
    decisions = sorted((docs / "decisions").glob("[0-9]*.md"))
    titles = {path.name: path.read_text().partition("\n")[0].lstrip("# ") for path in decisions}
    lines = [f"- [{title}]({name})" for name, title in titles.items()]
    return "# Decisions\n\n" + "\n".join(lines) + "\n"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in the generated sections of a page, and rewrite its links."""
    path = page.file.src_uri
    return fill_in(rewrite_links(markdown, _SOURCES.get(path, f"docs/{path}"), path))
