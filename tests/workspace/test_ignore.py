"""Check what the built-in list and a `.truss_ignore` leave out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from prefect_bt.errors import WorkspaceError
from prefect_bt.workspace.ignore import BUILT_IN_PATTERNS, IgnoreRules, load_ignore_rules


def rules_of(tmp_path: Path, text: str) -> IgnoreRules:
    ignore_file = tmp_path / ".truss_ignore"
    ignore_file.write_text(text)
    return load_ignore_rules(ignore_file)


def kept(rules: IgnoreRules, name: str) -> bool:
    """Ask as the walk does: each folder on the way first."""
    parts = name.split("/")
    folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
    return not any(rules.ignores(folder, is_folder=True) for folder in folders) and (
        not rules.ignores(name, is_folder=False)
    )


DROPPED = """
lib/a.py build/a.py downloads/a parts/a target/a var/a dist/a .git/config .env .venv/bin/x
src/__pycache__/m.pyc m.pyo native.so x.egg-info/PKG-INFO .DS_Store deep/.cache/x run.log
a.tmp a.swp .ipynb_checkpoints/n.ipynb MANIFEST app.manifest app.spec db.sqlite3
local_settings.py .ruff_cache/x .mypy_cache/x venv/x ENV/x docs/_build/x .coverage.host
share/python-wheels/x
"""
KEPT = """
config.py run.sh src/train.py lib build data/x.json mylib/a.py .gitignore .truss_ignore
requirements.txt checkpoints/a.bin library/lib.py
"""
NAMES_FOR_GIT = """
a.bin keep.bin top sub/top data/keep.txt data/x a/b.py a/b.txt a/z a/q/z a/q/r/z b.py
a/q/r/s.py #odd !odd
"""


@pytest.mark.parametrize("name", DROPPED.split())
def test_the_built_in_list_drops(name: str) -> None:
    assert not kept(load_ignore_rules(None), name)


@pytest.mark.parametrize("name", KEPT.split())
def test_the_built_in_list_keeps(name: str) -> None:
    assert kept(load_ignore_rules(None), name)


def test_the_built_in_list_is_complete_and_has_no_duplicates() -> None:
    assert len(BUILT_IN_PATTERNS) == len(set(BUILT_IN_PATTERNS)) == 80


def test_an_ignore_file_replaces_the_built_in_list(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "# ours\n\n*.bin\n")
    assert rules.origin == ".truss_ignore"
    assert kept(rules, "lib/a.py")
    assert kept(rules, ".git/config")
    assert not kept(rules, "a/b.bin")


def test_an_empty_ignore_file_keeps_everything(tmp_path: Path) -> None:
    assert kept(rules_of(tmp_path, ""), "__pycache__/x.pyc")


def test_a_missing_ignore_file_means_the_built_in_list(tmp_path: Path) -> None:
    assert load_ignore_rules(tmp_path / ".truss_ignore").origin == "the built-in list"


@pytest.mark.parametrize(
    "text",
    [
        "*.bin\n!keep.bin\n",
        "/top\n",
        "data/\n",
        "data/*\n!data/keep.txt\n",
        "*\n!*/\n!*.py\n",
        "a/**/z\n",
        "data\n!data/keep.txt\n",
        "\\#odd\n\\!odd\n",
        "name\\ \n",
        "/*\n!/a/\n",
    ],
)
def test_patterns_have_the_meaning_that_git_gives_them(tmp_path: Path, text: str) -> None:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    names = [*NAMES_FOR_GIT.split(), "name ", "name"]
    rules = rules_of(tmp_path, text)
    (tmp_path / ".gitignore").write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    answer = subprocess.run(
        ["git", "-C", str(tmp_path), "check-ignore", "--no-index", "-z", "--stdin"],
        input="\0".join(names),
        check=False,
        capture_output=True,
        text=True,
    )
    ignored_by_git = set(answer.stdout.split("\0")) - {""}
    assert {name for name in names if not kept(rules, name)} == ignored_by_git


def test_indentation_windows_line_ends_and_a_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "\ufeff*.bin\r\n   *.dat\r\n  # comment\r\n")
    assert not kept(rules, "a.bin")
    assert not kept(rules, "a.dat")


@pytest.mark.parametrize("bad", ["!", "name\\", "[z-a]"])
def test_a_malformed_pattern_is_refused_with_its_line(tmp_path: Path, bad: str) -> None:
    with pytest.raises(WorkspaceError, match=r"Line 2 of .*not a gitignore pattern") as caught:
        rules_of(tmp_path, f"*.bin\n{bad}\n")
    assert caught.value.path == str(tmp_path / ".truss_ignore")


def test_an_ignore_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".truss_ignore").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WorkspaceError, match="not UTF-8 text"):
        load_ignore_rules(tmp_path / ".truss_ignore")


def test_an_ignore_file_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".truss_ignore").mkdir()
    with pytest.raises(WorkspaceError, match="cannot be read"):
        load_ignore_rules(tmp_path / ".truss_ignore")
