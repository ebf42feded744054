"""No beginning of what a framework writes is taken for all of it, wherever its files can tell."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from prefect_bt.checkpoints.formats.inspector import Inspector
from prefect_bt.checkpoints.formats.table import EarlierCheckpoint
from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch.grouping import group_by_checkpoint
from prefect_bt.checkpoints.watch.scanner import scan
from tests.checkpoints import folders
from tests.checkpoints.writers import ONCE, SINGLE_NODE, WRITERS, Writing
from tests.optional import needs

TOLD, SILENT = "told", "silent"


class Stage:
    """A checkpoint directory that a writer fills, and its judge."""

    def __init__(self, root, place):
        self.root, self.clock = root, 1_000_000_000
        self.inspector = Inspector(Volumes(root), position=place)

    def write(self, writing, path):
        target = self.root / os.path.normpath(f"{writing.name}/{path}")
        folders.write(target.parent, {target.name: writing.files[path]})
        self.clock += 1_000_000_000
        os.utime(target, ns=(self.clock, self.clock))

    def found(self, writing):
        """The checkpoints at or below the writer's folder."""
        below = {writing.name, *(f"{writing.name}/vae",)}
        checkpoints = group_by_checkpoint(scan(Volumes(self.root)))
        return [one for name, one in checkpoints.items() if name in below]

    def verdict(self, writing, examples=()):
        found = self.found(writing)
        evidence = [self.inspector.examine(one, examples) for one in found]
        held = [one.fault or one.sign or one.gap for one in evidence]
        return TOLD if all(held) else SILENT

    def finished(self, writing, examples=()):
        found = self.found(writing)
        return all(self.inspector.examine(one, examples).is_repeated for one in found)

    def commit(self, writing, **more):
        [found] = self.found(writing)
        return EarlierCheckpoint(found.name, dict(found.files), **more)


def play(stage, writing, *, silent, early, examples=()):
    """Write file by file; `silent` and `early` name the files after which it is told otherwise."""
    own = [path for path in writing.files if not path.startswith("../")]
    for path in writing.files:
        stage.write(writing, path)
        if path == list(writing.files)[-1] or (examples and path == own[-1]):
            return
        expected = SILENT if path in silent else TOLD
        assert stage.verdict(writing, examples) == expected, path
        assert stage.finished(writing, examples) is (path in early), path


@pytest.mark.parametrize("writer", [*WRITERS, *ONCE])
def test_the_first_checkpoint(tmp_path, writer):
    writing = WRITERS[writer](10) if writer in WRITERS else ONCE[writer]
    stage = Stage(tmp_path, writing.place)
    play(stage, writing, silent=writing.silent, early=writing.early)
    assert len(stage.found(writing)) == 1
    assert stage.verdict(writing) == SILENT
    assert stage.finished(writing) is writing.finished


@pytest.mark.parametrize("writer", WRITERS)
def test_the_second_is_measured_against_the_first(tmp_path, writer):
    first, second = (WRITERS[writer](step) for step in (10, 20))
    stage = Stage(tmp_path, first.place)
    for path in first.files:
        stage.write(first, path)
    examples = [stage.commit(first)]
    play(stage, second, silent=second.silent_again, early=(), examples=examples)
    [found] = stage.found(second)
    assert stage.inspector.examine(found, examples).fault == ""
    assert stage.finished(second, examples)


def test_the_end_of_a_former_save_proves_nothing_about_the_next(tmp_path):
    writing = WRITERS["trainer"](10)
    stage = Stage(tmp_path, writing.place)
    for path in writing.files:
        stage.write(writing, path)
    assert stage.finished(writing)
    examples = [stage.commit(writing)]
    for path in [*writing.files][:-1]:
        stage.write(writing, path)
        assert not stage.finished(writing)
        assert not stage.finished(writing, examples)
    stage.write(writing, "trainer_state.json")
    assert stage.finished(writing) and stage.finished(writing, examples)


def test_files_of_one_tick_of_the_clock_do_not_hide_the_end(tmp_path):
    """Whichever order the clock can tell: the file that ends a save may be as old as the others."""
    writing = WRITERS["trainer"](10)
    stage = Stage(tmp_path, writing.place)
    for path in writing.files:
        stage.write(writing, path)
        os.utime(tmp_path / writing.name / path, ns=(5, 5))
        assert stage.finished(writing) is (path == "trainer_state.json")
    os.utime(tmp_path / writing.name / "trainer_state.json", ns=(4, 4))
    assert not stage.finished(writing), "it is of a former save"


def test_a_sibling_that_is_shorter_is_not_proved_to_be_done(tmp_path):
    # No format tells where this one ends.
    first, second = (Writing(f"step-{n}", {"weights.raw": b"x" * 1000}) for n in (1, 2))
    stage = Stage(tmp_path, SINGLE_NODE)
    stage.write(first, "weights.raw")
    examples = [stage.commit(first)]
    short = Writing("step-2", {"weights.raw": b"x" * 500})
    stage.write(short, "weights.raw")
    assert not stage.finished(short, examples)
    stage.write(second, "weights.raw")
    assert stage.finished(second, examples)


def test_a_tracker_that_names_another_one_proves_nothing(tmp_path):
    writing = WRITERS["megatron"](20)
    stage = Stage(tmp_path, writing.place)
    for path in writing.files:
        stage.write(writing, path)
    [found] = stage.found(writing)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    for text, doubted in {"10": True, "release": True, "": True, "30": False, "20": False}.items():
        tracker.write_text(text)
        assert bool(stage.inspector.examine(found).sign) is doubted, text
        assert stage.finished(writing) is (text == "20")
    # Older than the files: it is of a former save.
    os.utime(tracker, ns=(1, 1))
    assert not stage.finished(writing)
    tracker.unlink()
    tracker.mkdir()
    assert stage.inspector.examine(found).sign and not stage.finished(writing)


def test_orbax_renames_a_folder_when_it_is_done(tmp_path):
    files = {"default/d/abc": b"x", "default/_METADATA": b"{}", "_CHECKPOINT_METADATA": b"{}"}
    inspector = Inspector(Volumes(tmp_path))
    folders.write(tmp_path / "run/100.orbax-checkpoint-tmp-1", files)
    [found] = group_by_checkpoint(scan(Volumes(tmp_path))).values()
    assert inspector.examine(found).fault
    (tmp_path / "run/100.orbax-checkpoint-tmp-1").rename(tmp_path / "run/100")
    [found] = group_by_checkpoint(scan(Volumes(tmp_path))).values()
    assert found.name == "run/100" and inspector.examine(found).fault == ""


LAYOUTS = Path(__file__).parents[2] / "fixtures" / "layouts.tar.gz"
"""What the frameworks themselves wrote, in that order; real_writers.py makes it anew."""


def as_written(archive):
    """Framework -> its checkpoints by name, each as it was written."""
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            framework, name, path = member.name.split("/", 2)
            one = found.setdefault(framework, {}).setdefault(name, Writing(name, {}))
            one.files[path] = tar.extractfile(member).read()
    return found


@pytest.mark.soak
@needs("torch", "transformers", "accelerate", "peft")
def test_the_frameworks_write_what_they_wrote(tmp_path):
    """When this fails, look at what changed, and make tests/fixtures/layouts.tar.gz anew."""
    program = Path(__file__).parents[1] / "real_writers.py"
    now = tmp_path / "layouts.tar.gz"
    subprocess.run([sys.executable, program, now], check=True, capture_output=True)

    def names(archive):
        return {
            framework: {name: sorted(one.files) for name, one in saved.items()}
            for framework, saved in as_written(archive).items()
        }

    assert names(now) == names(LAYOUTS)


REAL = {
    # What was written when nothing can tell -> whether the end is proved.
    "trainer": ({"model.safetensors"}, True),
    "only-model": ({"model.safetensors"}, True),
    "trainer-lora": ({"adapter_config.json"}, True),
    "save_pretrained": (set(), False),
    "sharded": (set(), False),
    "lora": ({"README.md"}, False),
    "distributed": (set(), True),
    "accelerate": ({"model.safetensors"}, False),
}


@pytest.mark.parametrize("framework", REAL)
def test_files_of_the_framework_itself(tmp_path, framework):
    silent, finished = REAL[framework]
    saved = as_written(LAYOUTS)[framework]
    first, *others = (saved[name] for name in sorted(saved))
    stage = Stage(tmp_path, SINGLE_NODE)
    play(stage, first, silent=silent, early=())
    assert len(stage.found(first)) == 1
    assert stage.verdict(first) == SILENT
    assert stage.finished(first) is finished
    examples = [stage.commit(first)]
    for second in others:
        play(stage, second, silent=(), early=(), examples=examples)
        [found] = stage.found(second)
        assert stage.inspector.examine(found, examples).fault == ""
        assert stage.finished(second, examples)


@pytest.mark.parametrize("name", ["m--step=9-last", "m--val_loss=0.50-epoch=1-step=9"])
def test_nemo_removes_a_marker_at_the_end(tmp_path, name):
    files = {f"weights/{path}": data for path, data in folders.distributed().items()}
    writing = Writing(f"results/checkpoints/{name}", files)
    stage = Stage(tmp_path, SINGLE_NODE)
    marker = tmp_path / f"results/checkpoints/{name.removesuffix('-last')}-unfinished"
    folders.write(marker.parent, {marker.name: b""})
    for path in writing.files:
        stage.write(writing, path)
    assert [one.name for one in stage.found(writing)] == [writing.name]
    assert stage.verdict(writing) == TOLD
    marker.unlink()
    assert stage.verdict(writing) == SILENT


def test_a_later_tag_of_deepspeed_ends_the_former(tmp_path):
    stage = Stage(tmp_path, SINGLE_NODE)
    for step in (10, 20):
        for path in (writing := WRITERS["deepspeed"](step)).files:
            stage.write(writing, path)
    assert stage.verdict(WRITERS["deepspeed"](10)) == SILENT
    (tmp_path / "latest").write_text("global_step5")
    assert stage.verdict(WRITERS["deepspeed"](10)) == TOLD
