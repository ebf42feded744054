"""Links that were written for the repository lead to pages of the site."""

from __future__ import annotations

import pytest

from docs._generate.links import rewrite_links


@pytest.mark.parametrize(
    ("source", "page", "written", "rewritten"),
    [
        ("docs/gc.md", "gc.md", "[a](logs.md#x)", "[a](logs.md#x)"),
        ("docs/gc.md", "gc.md", "[a](#x) [b](https://example.org/x)", None),
        ("docs/gc.md", "gc.md", "![a](../picture.png)", None),
        ("docs/gc.md", "gc.md", "[a](decisions/)", "[a](decisions/index.md)"),
        (
            "docs/decisions/001-node-agent.md",
            "decisions/001-node-agent.md",
            "[a](../gc.md)",
            "[a](../gc.md)",
        ),
        (
            "docs/guides/docker.md",
            "guides/docker.md",
            "[a](../../SECURITY.md#x)",
            "[a](../security.md#x)",
        ),
        ("SECURITY.md", "security.md", "[a](docs/gc.md#x)", "[a](gc.md#x)"),
        ("docs/gc.md", "gc.md", "[the\nfile](../x/y.py)", "the\nfile (`x/y.py`)"),
        ("docs/gc.md", "gc.md", "[`x/y.py`](../x/y.py#z)", "`x/y.py`"),
        ("docs/gc.md", "gc.md", "```sh\n[a](../x.py)\n```\n", None),
    ],
)
def test_links(source: str, page: str, written: str, rewritten: str | None) -> None:
    assert rewrite_links(written, source, page) == (written if rewritten is None else rewritten)
