"""Check the references of sources and pages: they lead to files and headings of this repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = (
    "prefect_bt",
    "flows",
    "blocks",
    "tests",
    "benchmarks",
    "examples",
    "deployments",
    "docs",
)
SUFFIXES = {".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".json", ".txt", ".sql", ".js"}
SECTION_SIGN = chr(0xA7)
"""The sign of a section, spelled so that this file does not contain it."""
PAGE = re.compile(r"(?<![\w./-])docs/[\w./-]+\.md\b")
DECISION_FILE = re.compile(r"\bdocs/decisions/(\d+)\b(?!-)")
DECISION = re.compile(r"\bdecisions?\s+(?:number\s+)?(\d+)\b", re.IGNORECASE)
HEADING_REFERENCE = re.compile(r"docs/(?P<page>[\w-]+)\.md,\s+(?P<heading>[A-Z].*)", re.DOTALL)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#[^)]*)?\)")


def list_texts() -> list[Path]:
    """Return the text files of the repository that hold references."""
    found = [path for path in ROOT.glob("*") if path.is_file() and path.suffix in SUFFIXES]
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in found if "__pycache__" not in path.parts and path.is_file())


def find_faults(text: str, root: Path = ROOT) -> Iterator[str]:
    """Yield a sentence for each reference in the text that leads nowhere."""
    numbers = {path.name[:3] for path in (root / "docs/decisions").glob("*.md")}
    if SECTION_SIGN in text:
        yield f"has {SECTION_SIGN}: name a heading of docs/compatibility.md instead"
    for page in PAGE.findall(text):
        if not (root / page).is_file():
            yield f"names {page}, which does not exist"
    for number in (*DECISION_FILE.findall(text), *DECISION.findall(text)):
        if number not in numbers:
            yield f"names decision {number}, which is no file of docs/decisions"
    for found in HEADING_REFERENCE.finditer(re.sub(r"\s+", " ", text)):
        page = root / "docs" / f"{found['page']}.md"
        headings = HEADING.findall(page.read_text("utf-8")) if page.is_file() else []
        if not any(_begins_with(found["heading"], heading) for heading in headings):
            yield f"names {found['page']}.md, {found['heading'][:40]!r}, which is no heading of it"


def _begins_with(text: str, heading: str) -> bool:
    """Return whether the text begins with the heading and does not go on in the same word."""
    return re.match(rf"{re.escape(heading)}(?!\w)", text) is not None


def find_broken_links(page: Path) -> Iterator[str]:
    """Yield the targets of links to files that do not exist."""
    for target in LINK.findall(page.read_text("utf-8")):
        if target and not (page.parent / target).exists():
            yield target


def test_references_lead_somewhere():
    faults = [
        f"{path.relative_to(ROOT)} {fault}"
        for path in list_texts()
        if path != Path(__file__)
        for fault in find_faults(path.read_text("utf-8"))
    ]
    assert not faults, "\n".join(faults)


def test_links_of_pages_lead_to_files():
    pages = [path for path in list_texts() if path.suffix == ".md"]
    broken = [f"{p.relative_to(ROOT)}: {t}" for p in pages for t in find_broken_links(p)]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (f"the table of {SECTION_SIGN}5.1", "name a heading"),
        ("see docs/nowhere.md", "docs/nowhere.md, which does not exist"),
        ("see docs/decisions/001-elsewhere.md", "which does not exist"),
        ("see docs/decisions/999.", "no file of docs/decisions"),
        ("(decision 6)", "no file of docs/decisions"),
        ("Decision\n13: a worker", "no file of docs/decisions"),
        ("docs/compatibility.md, Astrology.", "no heading"),
        ("docs/compatibility.md,\n    Logsheets", "no heading"),
        ("docs/nowhere.md, Logs", "no heading"),
    ],
)
def test_broken_reference_is_found(text: str, fault: str):
    assert any(fault in found for found in find_faults(text))


def test_good_references_are_no_faults():
    text = (
        "docs/compatibility.md, Weights sources and\n    their authentication. See docs/logs.md, "
        "and docs/decisions/003, (docs/compatibility.md, Logs); decision 016."
    )
    assert list(find_faults(text)) == []


def test_broken_link_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text("[a](page.md#top) [b](https://example.org) [c](#here) [d](gone.md)", "utf-8")
    assert list(find_broken_links(page)) == ["gone.md"]
