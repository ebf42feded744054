"""`weights mirror --dry-run`: what it says is what the mirror after it transfers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefect_bt import codec
from prefect_bt.errors import PrefectBtError
from prefect_bt.weights.cache.eviction import evict
from prefect_bt.weights.dry_run import MirrorPlan, plan_mirror
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest, summarize
from prefect_bt.weights.sources.protocol import SourceRequest
from prefect_bt.weights.store_copy.copies import StoreMirror, manifest_key
from tests.weights.kept import LARGE, Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def planned(shelf: Shelf, source: str, **given: Any) -> MirrorPlan:
    request = SourceRequest(shelf.plan(source, **given), store=shelf.store)
    return plan_mirror(request, shelf.cache)


def test_nothing_is_here_and_nothing_is_written(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=LARGE, b_txt=100)
    found = planned(shelf, source)
    assert (found.here, found.from_store, found.from_source) == ((0, 0), (0, 0), (2, LARGE + 100))
    assert not shelf.state_dir.exists()
    done = shelf.mirror(source)
    assert (done.revision, done.fetched_bytes) == (found.revision, LARGE + 100)
    again = planned(shelf, source)
    assert (again.here, again.from_store, again.from_source) == ((2, LARGE + 100), (0, 0), (0, 0))


def test_only_changed_files_come_from_the_source(shelf: Shelf) -> None:
    source = shelf.folder("model", same_bin=5000, other_bin=3000)
    shelf.mirror(source)
    shelf.folder("model", other_bin=2000, new_txt=7)
    found = planned(shelf, source)
    assert (found.here, found.from_source) == ((1, 5000), (2, 2007))
    assert shelf.mirror(source).fetched_bytes == 2007


def test_contents_are_found_under_other_patterns_and_keys(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=5000, b_txt=10)
    shelf.mirror(source, allow_patterns=["*.bin"])
    found = planned(shelf, source)
    assert (found.here, found.from_source) == ((1, 5000), (1, 10))
    assert planned(shelf, source, ignore_patterns=["*.txt"]).here == (1, 5000)
    renamed = replace(shelf.plan(source), key="another", secret="renamed")
    assert plan_mirror(SourceRequest(renamed, store=shelf.store), shelf.cache).here == (1, 5000)


def test_the_copy_of_the_store(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path), Shelf(tmp_path, state="other")
    source = one.folder("model", a_bin=LARGE)
    done = one.mirror(source)
    found = planned(other, source)
    assert (found.here, found.from_store, found.from_source) == ((0, 0), (1, LARGE), (0, 0))
    request = SourceRequest(other.plan(source), store=other.store)
    assert plan_mirror(request, other.cache, use_copy=False).from_source == (1, LARGE)
    assert plan_mirror(replace(request, store=None), other.cache).from_source == (1, LARGE)
    evict(one.cache, StoreMirror(one.store), done.name)
    assert planned(one, source).from_source == (1, LARGE)


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        ("file:///no/such/folder", {}, "is not a folder"),
        ("MODEL", {"allow_patterns": ["*.gguf"]}, "the patterns match none of its 1 files"),
        ("bt://nothing", {}, "No project 'nothing'"),
    ],
)
def test_the_errors_of_a_mirror(shelf: Shelf, source: str, given: Any, words: str) -> None:
    model = shelf.folder("model", a_bin=10)
    with pytest.raises(PrefectBtError, match=words) as refused:
        planned(shelf, source.replace("MODEL", model), **given)
    assert refused.value.next_step


def test_the_signature_of_a_url_is_not_shown(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_bt.weights.dry_run.RETRY_DELAYS", (0.01,))
    with pytest.raises(PrefectBtError) as refused:
        planned(shelf, "https://127.0.0.1:1/file?sig=planted")
    assert "planted" not in str(refused.value)


def test_a_broken_tree_is_not_here(shelf: Shelf) -> None:
    """A commit needs no listing when the store has a copy of it."""
    commit = "c" * 40
    plan = shelf.plan(f"hf://o/r@{commit}")
    entries = (FileEntry("a.bin", 5, "d" * 64),)
    manifest = WeightsManifest(plan.source, plan.key, commit, entries, 0.0)
    shelf.store.create(manifest_key(manifest.name), dump_manifest(manifest))
    broken = shelf.cache.tree_path(manifest.name)
    broken.mkdir(parents=True)
    (broken / "used").touch()
    (broken / "summary.json").write_text("garbage")
    found = plan_mirror(SourceRequest(plan, store=shelf.store), shelf.cache)
    assert (found.revision, found.from_store) == (commit, (1, 5))
    (broken / "summary.json").write_text(codec.dumps(summarize(manifest)))
    found = plan_mirror(SourceRequest(plan, store=shelf.store), shelf.cache)
    assert (found.here, found.from_store) == ((1, 5), (0, 0))
