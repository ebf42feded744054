"""A pointer file and the checkpoint that it names are restored together, or the text changes."""

import shutil

import pytest

from prefect_bt.checkpoints.committed.restore import RestoreTarget, restore_directory
from prefect_bt.checkpoints.formats.pointers import Restored
from prefect_bt.checkpoints.formats.table import rewrite_pointer
from tests.checkpoints import folders
from tests.checkpoints.folders import JOB, PROJECT, flush
from tests.checkpoints.running import Running, listed, wait_for

MEGATRON = "latest_checkpointed_iteration.txt"
TENSORFLOW = """\
model_checkpoint_path: "ckpt-5"
all_model_checkpoint_paths: "ckpt-3"
all_model_checkpoint_paths: "ckpt-4"
all_model_checkpoint_paths: "ckpt-5"
all_model_checkpoint_timestamps: 3.5
all_model_checkpoint_timestamps: 4.5
all_model_checkpoint_timestamps: 5.5
last_preserved_timestamp: 1.0
"""
TENSORFLOW_4 = """\
model_checkpoint_path: "ckpt-4"
all_model_checkpoint_paths: "ckpt-4"
all_model_checkpoint_timestamps: 4.5
last_preserved_timestamp: 1.0
"""


@pytest.mark.parametrize(
    ("path", "text", "restored", "expected"),
    [
        ("latest", "global_step20", ["global_step10", "global_step20"], "global_step20"),
        ("latest", "global_step20", ["global_step9", "global_step10"], "global_step10"),
        ("latest", " global_step20\n", ["global_step10", "checkpoint-30"], " global_step10\n"),
        ("latest", "global_step20", ["checkpoint-30"], None),
        ("latest_universal", "global_step20_universal", ["global_step20"], None),
        (
            "latest",
            "run/checkpoint-20",
            ["run/checkpoint-10", "checkpoint-15"],
            "run/checkpoint-10",
        ),
        ("run/latest", "global_step20", ["run/global_step10", "global_step15"], "global_step10"),
        ("checkpoint-20/latest", "global_step20", ["checkpoint-20/global_step20"], "global_step20"),
        # A name without a step is a pointer only if there is such a checkpoint.
        ("latest", "left", ["checkpoint-10"], None),
        ("latest", "best", ["best"], "best"),
        ("latest", "some words", ["checkpoint-10"], "some words"),
        ("latest", "two\nlines 10", ["checkpoint-10"], "two\nlines 10"),
        ("latest", "", ["checkpoint-10"], ""),
        (MEGATRON, "20", ["iter_0000010", "iter_0000020"], "20"),
        (MEGATRON, "20\n", ["iter_0000010", "iter_0000005"], "10\n"),
        (MEGATRON, "20", ["global_step_10"], "10"),
        (f"actor/{MEGATRON}", "20", ["actor/global_step_10", "global_step_15"], "10"),
        (MEGATRON, "20", ["checkpoint-10"], None),
        (MEGATRON, "release", ["release"], "release"),
        ("last_checkpoint", "model_0000019.pth", ["model_0000009.pth"], "model_0000009.pth"),
        ("last_checkpoint", "/b/c/epoch_3.pth", ["epoch_2.pth"], "/b/c/epoch_2.pth"),
        (
            "out/last_checkpoint",
            "/b/c/out/epoch_3.pth",
            ["out/epoch_2.pth"],
            "/b/c/out/epoch_2.pth",
        ),
        # Outside the checkpoint directory.
        ("last_checkpoint", "/weights/epoch_3.pth", ["epoch_2.pth"], "/weights/epoch_3.pth"),
        ("latest", "../global_step20", ["global_step10"], "../global_step20"),
        ("checkpoint", TENSORFLOW, [f"ckpt-{n}.index" for n in (3, 4, 5)], TENSORFLOW),
        ("checkpoint", TENSORFLOW, ["ckpt-4.index", "ckpt-4.data-00000-of-00001"], TENSORFLOW_4),
        ("checkpoint", TENSORFLOW, ["other"], None),
        ("checkpoint", "not of TensorFlow", [], "not of TensorFlow"),
    ],
)
def test_a_pointer_names_a_restored_checkpoint(path, text, restored, expected):
    there = Restored(frozenset(restored), frozenset({"left"}), ("/b/c",))
    assert rewrite_pointer(path, text, there) == expected


STEPS = {
    "DeepSpeed": ("latest", "global_step{}", "global_step{}"),
    "Megatron-LM": (MEGATRON, "{}", "iter_{:07d}"),
    "verl": (MEGATRON, "{}", "global_step_{}"),
    "below a run": ("run/latest", "global_step{}", "run/global_step{}"),
    "MMEngine": ("last_checkpoint", "/b/c/epoch_{}", "epoch_{}"),
}


def save(pointer, text, name, step, rank):
    files = {f"{name.format(step)}/part_{rank}.dat": b"%d %d" % (step, rank)}
    return files | ({pointer: text.format(step).encode()} if rank == 0 else {})


def restore(store, directory, rank=0):
    target = RestoreTarget(
        rank, directory, directory.parent / "aside", attempt=1, group_size=2, roots=("/b/c",)
    )
    return restore_directory(store, project_id=PROJECT, job_id=JOB, target=target)


@pytest.mark.parametrize("framework", STEPS)
def test_a_pointer_to_a_step_that_lacks_a_rank_goes_back(store, tmp_path, framework):
    pointer, text, name = STEPS[framework]
    ranks = [tmp_path / f"rank-{rank}" for rank in range(2)]
    for step, writers in ((10, (0, 1)), (20, (0,))):
        for rank in writers:
            files = save(pointer, text, name, step, rank)
            flush(store, ranks[rank], files, rank=rank, group_size=2, attempt=0)
    restored = restore(store, ranks[0])
    assert (ranks[0] / pointer).read_text() == text.format(10)
    assert [path.name for path in ranks[0].rglob("*.dat")] == ["part_0.dat"]
    (said,) = restored.pointers
    assert said == f"{pointer} names {text.format(10)} now instead of {text.format(20)}"
    # The changed text is committed once.
    assert flush(store, ranks[0], group_size=2, attempt=1).committed in {(".",), ("run",)}
    assert flush(store, ranks[0], group_size=2, attempt=2).committed == ()
    assert restore(store, ranks[0]).pointers == ()
    assert (ranks[0] / pointer).read_text() == text.format(10)


def test_a_pointer_without_any_restored_checkpoint_is_left_out(store, ckpts):
    flush(store, ckpts, {"latest": b"global_step10", "log.txt": b"1", "best/x": b"1"}, attempt=0)
    restored = restore(store, ckpts)
    assert {path.name for path in ckpts.iterdir()} == {"log.txt", "best"}
    (said,) = restored.pointers
    assert said == "latest is left out: nothing is restored of what it names (global_step10)"
    for attempt in (1, 2):
        assert flush(store, ckpts, attempt=attempt).committed == ()


def test_a_link_is_content(store, ckpts):
    folders.write(
        ckpts, {"checkpoint-10/latest": b"global_step10", "checkpoint-10/global_step10/x": b"1"}
    )
    (ckpts / "latest").symlink_to("checkpoint-10")
    flush(store, ckpts, attempt=0)
    restored = restore(store, ckpts)
    assert (restored.pointers, restored.moved_aside) == ((), ())
    assert (ckpts / "latest").is_symlink()


def test_a_changed_pointer_is_committed_at_once(store, ckpts):
    """A lost node has no final flush, and a retry must not resume from an older checkpoint."""
    options = folders.FAST.__class__(settle=0.05, scan=0.02, recommit_interval=3600)
    with Running(store, ckpts, options) as uploader:
        for step in (10, 20, 30):
            files = {f"global_step{step}/x.dat": b"%d" % step, "latest": b"global_step%d" % step}
            folders.write(ckpts, files | {"train.log": b"%d" % step})
            wait_for(lambda step=step: _committed_pointer(store) == b"global_step%d" % step, 10)
        assert not uploader.status.error
    shutil.rmtree(ckpts)
    restore(store, ckpts)
    assert (ckpts / "latest").read_bytes() == b"global_step30"


def _committed_pointer(store):
    root = listed(store).get(".")
    keys = [file.key for file in root.files() if file.path == "latest"] if root else []
    return store.get(keys[0]) if keys else b""
