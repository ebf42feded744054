import json

import pytest

from prefect_bt.checkpoints.formats.hugging_face import CheckpointMetadata, read_metadata
from prefect_bt.checkpoints.layout import FileStat, get_series, parse_step
from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch.grouping import group_by_checkpoint
from prefect_bt.checkpoints.watch.scanner import scan

from . import folders

LAYOUTS = {
    "hf full": ("checkpoint-10", folders.hf_full(), "full", 10),
    "hf lora": ("checkpoint-10", folders.hf_lora(), "lora", 10),
    "hf sharded": ("checkpoint-10", folders.hf_sharded(), "full", 10),
    "whisper": ("checkpoint-10", folders.whisper(), "whisper", 10),
    "deepspeed in trainer": ("checkpoint-10", folders.deepspeed(), "full", 10),
    "ms-swift": ("v0-20250101-101010/checkpoint-10", folders.hf_lora(), "lora", 10),
    "client's second number": ("checkpoint-20-3", {"x.pt": b"1"}, "", 20),
    "megatron": ("iter_0000010", folders.megatron(), "", 10),
    "verl": ("global_step_10", folders.verl(), "", 10),
    "verl nested": ("exp/global_step_10", folders.verl(), "", 10),
    "fsdp": ("checkpoint-5", folders.fsdp(), "", 5),
    "torchtitan": ("step-40", {"__0_0.distcp": b"", ".metadata": b""}, "", 40),
    "merged": ("merged", folders.hf_full(7), "full", 7),
    "deep": ("a/b/merged", {"config.json": b"{}", "model.safetensors": b""}, "full", None),
    "any folder": ("runs", {"events.out.tfevents.1": b"", "sub/x": b""}, "", None),
    "lightning, spread over processes": (
        "logs/checkpoints/epoch=1-step=30.ckpt",
        {"__0_0.distcp": b"", ".metadata": b"", "meta.pt": b""},
        "",
        30,
    ),
    "orbax": ("run/100", {"_CHECKPOINT_METADATA": b"{}", "default/d/ab": b""}, "", None),
    "line breaks": ("a\nb/checkpoint-7", {"config.json": b"{}", "c\nd.bin": b""}, "full", 7),
    "root": (".", {"config.json": b"{}", "model.safetensors": b""}, "full", None),
    "pipeline": (
        "checkpoint-2",
        {
            "model_index.json": b"{}",
            "unet/config.json": b"{}",
            "unet/diffusion_pytorch_model.safetensors": b"",
        },
        "",
        2,
    ),
    "best with a deepspeed tag": (
        "best",
        {"config.json": b"{}", "model.safetensors": b"", "global_step9/mp_rank_00.pt": b""},
        "full",
        None,
    ),
    "adapters inside a folder of a step": (
        "checkpoint-3",
        {"a/adapter_config.json": b"{}", "b/adapter_config.json": b"{}"},
        "",
        3,
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_what_trainers_write_is_one_checkpoint(case):
    name, files, kind, step = LAYOUTS[case]
    found = group_by_checkpoint(folders.tree(files, "" if name == "." else name))
    assert list(found) == [name]
    assert set(found[name].files) == set(files)
    described = read_metadata(name, files, lambda path: json.loads(files[path]))
    assert (described.type, described.step) == (kind, step)


RUNS = ("qwen-sft-lr2e-5-epoch3", "llama_step2", "exp-ckpt-1/v0-2025", "run.epoch_10")
INSIDE = {
    "checkpoint-10": folders.hf_full(),
    "checkpoint-20/": folders.deepspeed(20),
    "global_step10": {"mp_rank_00_model_states.pt": b""},
    "iter_0000010": folders.megatron(),
    "epoch=1-step=30.ckpt/": {".metadata": b"", "__0_0.distcp": b""},
    "model--val_loss=0.50-step=9-consumed_samples=40.0-last": {"weights/__0_0.distcp": b""},
    "step-40": folders.distributed(),
    "final": {"config.json": b"{}", "model.safetensors": b""},
}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("inside", INSIDE)
def test_a_run_whose_name_has_a_number_is_not_the_checkpoint(run, inside):
    name = f"{run}/{inside}".rstrip("/")
    trees = folders.tree({"args.json": b"", "runs/events.out.tfevents.1": b""}, run)
    trees |= folders.tree(INSIDE[inside], name)
    assert set(group_by_checkpoint(trees)[name].files) == set(INSIDE[inside])


FILES = {
    "epoch=3-step=30.ckpt": 30,
    "epoch=02-val_loss=0.32.ckpt": 2,
    "last.ckpt": None,
    "lightning_logs/version_0/checkpoints/epoch=0-step=10-v1.ckpt": 10,
    "weights.03-0.25.keras": 3,
    "model.keras": None,
    "model-10.weights.h5": 10,
    "model_10.pt": 10,
    "out/ckpt_100.pth": 100,
    "checkpoint_epoch_7.pth.tar": 7,
    "RESNET_epoch_5_acc_0.91.pth": 5,
    "lora/my-lora-000010.safetensors": 10,
}


@pytest.mark.parametrize("path", FILES)
def test_a_file_can_be_a_checkpoint(path):
    tree = {path: FileStat(1, 1), "train.log": FileStat(1, 1), "notes/hparams.yaml": FileStat(1, 1)}
    found = group_by_checkpoint(tree)
    assert set(found) == {path, ".", "notes"}
    assert found[path].files == {".": FileStat(1, 1)}
    assert parse_step(path) == FILES[path]


@pytest.mark.parametrize(
    ("names", "checkpoints"),
    [
        (("model_10.pt", "best.pt"), {"model_10.pt", "best.pt"}),
        (("model_10.pt", "optimizer.pt"), {"model_10.pt", "."}),
        (("model.pt", "optimizer.pt"), {"."}),
        (("rank0_step10.pt", "rank1_step10.pt"), {"."}),
        (("hf_model_0001_0.pt", "adapter_0.pt", "recipe_state.pt"), {"."}),
        (("consolidated.00.pth", "params.json"), {"."}),
        (("cut/model-1.safetensors", "cut/model.safetensors.index.json"), {"cut"}),
        (("cut/model-1.safetensors", "cut/model-2.safetensors"), {"cut"}),
        (("cut/step_1.pt", "cut/pytorch_model.bin.index.json"), {"cut"}),
        (("config.json", "model.safetensors", "epoch_1.pt"), {"."}),
        (("epoch=1-step=10.ckpt.tmp",), {"."}),
        (("checkpoint-10/epoch=1-step=10.ckpt", "checkpoint-10/x"), {"checkpoint-10"}),
    ],
)
def test_which_files_are_checkpoints(names, checkpoints):
    assert set(group_by_checkpoint(dict.fromkeys(names, FileStat(1, 1)))) == checkpoints


def test_files_of_one_series():
    assert get_series("epoch=1-step=10.ckpt") == get_series("epoch=20-step=200.ckpt")
    assert get_series("model_1.pt") == "model_#.pt" != get_series("model_1.pth")
    assert get_series("last.ckpt") == "last.ckpt"


def test_everything_at_once():
    tree = {
        **folders.tree(folders.hf_full(), "out/checkpoint-10"),
        **folders.tree(folders.hf_full(), "out"),
        **folders.tree({"args.json": b"", "events/1": b""}, "v0"),
        **folders.tree(folders.hf_lora(), "v0/checkpoint-5"),
        **folders.tree({"latest_checkpointed_iteration.txt": b"10"}),
        **folders.tree(folders.megatron(), "iter_0000010"),
        **folders.tree({"model.safetensors": b""}, "tmp-checkpoint-20"),
        **folders.tree({"x.pt.tmp": b""}, "best"),
    }
    found = group_by_checkpoint(tree)
    assert set(found) == {
        *("out", "out/checkpoint-10", "v0", "v0/checkpoint-5", ".", "iter_0000010"),
        *("tmp-checkpoint-20", "best"),
    }
    assert set(found["v0"].files) == {"args.json", "events/1"}
    assert not found["tmp-checkpoint-20"].files and found["tmp-checkpoint-20"].temporary_files
    assert not found["best"].files and set(found["best"].temporary_files) == {"x.pt.tmp"}
    assert sum(len(c.files) + len(c.temporary_files) for c in found.values()) == len(tree)


def test_a_final_model_above_does_not_move_the_steps():
    steps = folders.tree(folders.hf_full(), "out/checkpoint-10")
    before = group_by_checkpoint(steps)["out/checkpoint-10"]
    after = group_by_checkpoint(steps | folders.tree(folders.hf_full(), "out"))
    assert after["out/checkpoint-10"] == before


@pytest.mark.parametrize(
    ("name", "temporary"),
    [
        ("tmp-checkpoint-10", True),
        ("model.safetensors.tmp", True),
        ("a.incomplete", True),
        ("a.part", True),
        (".tmp123", True),
        ("a\nb.tmp", True),
        ("template.json", False),
        ("temperature", False),
        ("part.safetensors", False),
    ],
)
def test_temporary_names(name, temporary):
    found = group_by_checkpoint({f"{name}/x": FileStat(1, 1), f"best/{name}": FileStat(1, 1)})
    assert bool(found["best"].temporary_files) is temporary
    assert bool(found[name].files) is not temporary


def test_kinds():
    adapter = {"base_model_name_or_path": "org/base", "r": 8}
    assert read_metadata("x", ["adapter_config.json"], lambda _: adapter) == CheckpointMetadata(
        "lora", "org/base", adapter, None
    )
    # Broken or surprising content is no reason to fall over.
    assert read_metadata("x", ["adapter_config.json"], lambda _: None).type == "lora"
    assert read_metadata("x", ["config.json", "pytorch_model.bin"], lambda _: []).type == "full"
    assert read_metadata("x", ["config.json", "training_args.bin"], lambda _: {}).type == ""
    state = {"global_step": "x"}
    assert read_metadata("checkpoint-4", ["trainer_state.json"], lambda _: state).step == 4


def test_steps_and_stems():
    assert get_series("v1/checkpoint-10") == get_series("v1/checkpoint-200") == "v1/checkpoint-#"
    assert get_series("v1/checkpoint-10") != get_series("v2/checkpoint-10")
    assert get_series("best") == "best"
    found = [parse_step(n) for n in ("epoch_3", "best", "llama3", "epoch_1/merged")]
    assert found == [3, None, None, 1]


def test_scan_follows_links_and_survives_loops(tmp_path):
    root, outside = tmp_path / "ckpts", tmp_path / "outside"
    folders.write(root / "checkpoint-10", {"a.bin": b"one"})
    folders.write(outside, {"deep/b.bin": b"three"})
    (root / "last").symlink_to("checkpoint-10")
    (root / "far").symlink_to(outside)
    (root / "one.bin").symlink_to(outside / "deep/b.bin")
    (root / "checkpoint-10/loop").symlink_to("..")
    (root / "everything").symlink_to("/")
    (root / "up").symlink_to(tmp_path)
    (root / "dangling").symlink_to("nowhere")
    found = scan(Volumes(root, [(str(outside), outside)]))
    assert set(found) == {"checkpoint-10/a.bin", "last/a.bin", "far/deep/b.bin", "one.bin"}
    assert found["one.bin"].size == 5
    assert found["one.bin"].link
    assert scan(Volumes(tmp_path / "missing")) == {}
