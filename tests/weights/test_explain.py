"""`weights why`: what a mirror would find, told before, and true of the mirror that comes after."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefect_bt import codec
from prefect_bt.host.job_lock import JobLock
from prefect_bt.planning.plan import WeightsAuthPlan, WeightsPlan
from prefect_bt.weights.download.disk_space import evict
from prefect_bt.weights.explain import (
    Explanation,
    FileTotals,
    SourceStatus,
    describe_auth,
    explain_source,
)
from prefect_bt.weights.inventory import list_entries
from prefect_bt.weights.manifest import FileEntry, WeightsManifest, dump_manifest, summarize
from prefect_bt.weights.store_copy.copies import StoreMirror, manifest_key
from tests.weights.kept import LARGE, Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def why(shelf: Shelf, source: str, **given: Any) -> Explanation:
    return explain_source(shelf.plan(source, **given), cache=shelf.cache, store=shelf.store)


def test_nothing_is_here_and_asking_leaves_nothing_behind(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=LARGE, b_txt=100)
    answer = why(shelf, source)
    assert answer.status is SourceStatus.UPSTREAM
    assert (answer.files, answer.bytes) == (2, LARGE + 100)
    assert answer.upstream == FileTotals(2, LARGE + 100)
    assert (answer.here, answer.store, answer.again, answer.error) == (
        FileTotals(),
        FileTotals(),
        "",
        "",
    )
    assert answer.largest == (("a.bin", LARGE), ("b.txt", 100))
    assert (answer.disk.needed, answer.disk.fits) == (LARGE + 100, True)
    assert not shelf.state_dir.exists()
    done = shelf.mirror(source)
    assert (done.name, done.revision) == (answer.name, answer.revision)
    assert done.fetched_bytes == answer.upstream.bytes


def test_what_is_published_is_staged(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=1000)
    shelf.mirror(source)
    answer = why(shelf, source)
    assert (answer.status, answer.here) == (SourceStatus.STAGED, FileTotals(1, 1000))
    assert (answer.again, answer.disk.needed) == ("", 0)


def test_a_source_that_changed(shelf: Shelf) -> None:
    source = shelf.folder("model", same_bin=5000, other_bin=3000, gone_txt=10)
    old = shelf.mirror(source)
    shelf.folder("model", other_bin=2000, new_txt=7)
    (shelf.root / "model" / "gone.txt").unlink()
    answer = why(shelf, source)
    assert answer.status is SourceStatus.PARTIAL
    assert (answer.here, answer.upstream) == (FileTotals(1, 5000), FileTotals(2, 2007))
    moved = f"The revision moved from {old.revision[:12]} to {answer.revision[:12]}"
    assert answer.again == f"{moved}: 1 file changed, 1 new, 1 gone."
    assert shelf.mirror(source).fetched_bytes == answer.upstream.bytes


def test_other_patterns_are_another_key_with_the_same_contents(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=5000, b_txt=10)
    shelf.mirror(source, allow_patterns=["*.bin"])
    answer = why(shelf, source)
    assert (answer.status, answer.here, answer.upstream) == (
        SourceStatus.PARTIAL,
        FileTotals(1, 5000),
        FileTotals(1, 10),
    )
    assert answer.again == "Here it is with other patterns: 1 new."
    narrower = why(shelf, source, ignore_patterns=["*.txt"])
    assert (narrower.status, narrower.again) == (SourceStatus.CACHED, "")


def test_another_secrets_name_is_another_key(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=5000, b_txt=10)
    shelf.mirror(source)
    shelf.folder("model", a_bin=4000)
    renamed = replace(shelf.plan(source), key="another", secret="renamed")
    answer = explain_source(renamed, cache=shelf.cache, store=shelf.store)
    assert answer.here == FileTotals(1, 10)
    spelled = "patterns, auth or the secret's name were others"
    assert answer.again == f"Here it is under another key ({spelled}): 1 file changed."


def test_the_stores_copy_of_what_was_evicted(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    source = shelf.folder("model", a_bin=LARGE)
    done = shelf.mirror(source)
    assert shelf.cache.evict(done.name)
    answer = why(shelf, source)
    assert (answer.status, answer.store) == (SourceStatus.IN_STORE, FileTotals(1, LARGE))
    assert answer.upstream == answer.here == FileTotals()
    assert answer.again == "It was here before and was evicted; the store has it."
    assert answer.disk.needed == 0  # the store is on the same disk: it is linked
    assert shelf.mirror(source).fetched_bytes == 0


def test_another_machines_copy_and_what_is_nowhere_any_more(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path), Shelf(tmp_path, state="other")
    source = one.folder("model", a_bin=1000)
    done = one.mirror(source)
    answer = why(other, source)
    assert answer.status is SourceStatus.IN_STORE
    assert answer.again == "The store has it, from another machine or from before."
    copied = other.mirror(source)
    assert (copied.fetched_bytes, answer.disk.needed) == (0, 0)
    assert other.cache.evict(copied.name)
    evict(one.cache, StoreMirror(one.store), done.name)
    assert why(Shelf(tmp_path, state="third"), source).again == ""
    assert why(one, source).again == "It was here before and was evicted."
    assert why(one, source).status is SourceStatus.UPSTREAM


def test_what_the_budget_lets_go(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, budget=LARGE + LARGE // 2)
    first = shelf.mirror(shelf.folder("first", a_bin=LARGE))
    second = shelf.folder("second", a_bin=LARGE)
    answer = why(shelf, second)
    assert (answer.evicts, answer.disk.fits) == ((first.name,), True)
    shelf.mirror(second)
    assert [tree.name for tree in shelf.cache.list_trees()] == [answer.name]


def test_what_a_living_job_uses_is_never_counted_on(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, budget=LARGE)
    claim = JobLock(shelf.state_dir)
    claim.acquire("abc1234")
    try:
        shelf.mirror(shelf.folder("first", a_bin=LARGE), holder="abc1234")
        assert why(shelf, shelf.folder("second", a_bin=LARGE)).evicts == ()
    finally:
        claim.release()
    assert len(why(shelf, shelf.folder("second", a_bin=LARGE)).evicts) == 1


def test_more_than_the_disk_has(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=10)
    os.truncate(shelf.root / "model" / "a.bin", 1 << 43)
    answer = why(shelf, source)
    assert (answer.status, answer.disk.fits) == (SourceStatus.REFUSED, False)
    assert "needs 8796.1 GB more" in answer.error
    assert "weights prune" in answer.next_step
    assert answer.files == 1


@pytest.mark.parametrize(
    ("source", "given", "words"),
    [
        ("file:///no/such/folder", {}, "is not a folder"),
        ("MODEL", {"allow_patterns": ["*.gguf"]}, "the patterns match none of its 1 files"),
        ("bt://nothing", {}, "No project 'nothing'"),
    ],
)
def test_what_a_job_would_fail_with(shelf: Shelf, source: str, given: Any, words: str) -> None:
    model = shelf.folder("model", a_bin=10)
    answer = why(shelf, source.replace("MODEL", model), **given)
    assert answer.status is SourceStatus.REFUSED
    assert words in answer.error
    assert answer.next_step
    assert answer.files == 0


@pytest.mark.parametrize(
    ("source", "auth", "secret", "words"),
    [
        ("hf://o/r", WeightsAuthPlan(), "", "nobody"),
        ("hf://o/r", WeightsAuthPlan("CUSTOM_SECRET"), "token", "the secret 'token'"),
        ("file:///x", WeightsAuthPlan(), "", "this machine"),
        ("bt://p", WeightsAuthPlan(), "", "this store"),
        ("s3://b", WeightsAuthPlan(), "", "no credentials"),
        ("s3://b", WeightsAuthPlan("AWS_OIDC", role_arn="arn:x"), "", "the role arn:x"),
    ],
)
def test_with_what_it_is_read(
    source: str,
    auth: WeightsAuthPlan,
    secret: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    assert words in describe_auth(WeightsPlan(source, "/w", "k", secret=secret, auth=auth))


def test_credentials_of_the_machine_come_before_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    said = describe_auth(WeightsPlan("s3://b", "/w", "k"))
    assert said == "the credentials of this machine, then no credentials"


def test_the_signature_of_a_url_is_not_shown(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefect_bt.weights.explain.LISTING_RETRY_DELAYS", (0.01,))
    answer = why(shelf, "https://127.0.0.1:1/file?sig=planted")
    assert answer.status is SourceStatus.REFUSED
    assert "planted" not in repr(answer)


def test_where_a_source_is_kept(shelf: Shelf) -> None:
    source = shelf.folder("model", a_bin=1000)
    done = shelf.mirror(source)
    mirror = StoreMirror(shelf.store)
    assert [(one.name, one.location) for one in list_entries(shelf.cache, mirror)] == [
        (done.name, "both")
    ]
    assert [one.location for one in list_entries(shelf.cache, None)] == ["here"]
    shelf.cache.evict(done.name)
    assert [one.location for one in list_entries(shelf.cache, mirror)] == ["store"]
    shelf.mirror(source)
    evict(shelf.cache, mirror, done.name)  # a store on the same disk holds the same bytes
    assert list_entries(shelf.cache, mirror) == []


def test_a_tree_that_somebody_broke_is_asked_for_elsewhere(shelf: Shelf) -> None:
    commit = "c" * 40
    plan = shelf.plan(f"hf://o/r@{commit}")
    manifest = WeightsManifest(
        plan.source, plan.key, commit, (FileEntry("a.bin", 5, "d" * 64),), 0.0
    )
    shelf.store.create(manifest_key(manifest.name), dump_manifest(manifest))
    broken = shelf.cache.tree_path(manifest.name)
    broken.mkdir(parents=True)
    (broken / "used").touch()
    (broken / "manifest.json").write_text("garbage")
    (broken / "summary.json").write_text(codec.dumps(summarize(manifest)))
    answer = explain_source(plan, cache=shelf.cache, store=shelf.store)
    assert (answer.error, answer.revision, answer.files) == ("", commit, 1)


def test_a_signature_is_in_no_answer(shelf: Shelf) -> None:
    plan = shelf.plan("https://127.0.0.1:9/?sig=s3cret")
    answer = explain_source(plan, cache=shelf.cache, store=shelf.store)
    assert answer.status is SourceStatus.REFUSED
    assert "s3cret" not in repr(answer)
