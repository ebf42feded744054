import pytest

from prefect_bt.checkpoints.layout import checkpoints_in
from prefect_bt.checkpoints.wholeness import inspect, sibling_fault, tree_fault

from . import folders


def fault_of(files, name="checkpoint-10"):
    found = checkpoints_in(folders.tree(files, "" if name == "." else name))[name]

    def reader(path):
        return lambda _, *, start, length: files[path][start : start + length]

    reports = {
        p: inspect(p, len(data), read=reader(p)) for p, data in files.items() if p in found.files
    }
    return tree_fault(found, reports)


WHOLE = {
    "hf full": folders.hf_full(),
    "lora": folders.hf_lora(),
    "sharded": folders.hf_sharded(),
    "deepspeed": folders.deepspeed(),
    "fsdp": folders.fsdp(),
    "fsdp of another node": {"__8_0.distcp": b"x"},
    "megatron": folders.megatron(),
    "whisper": folders.whisper(),
    "verl": folders.verl(),
    "old torch format": {"model.bin": b"\x80\x02pickle"},
    "json lines": {"data.json": b'{"a": 1}\n{"a": 2}\n'},
    "nan in json": {"trainer_state.json": b'{"loss": NaN}'},
    "big json": {"tokenizer.json": b"{" + b" " * 5_000_000 + b"}\n"},
    "empty safetensors": {"a.safetensors": (2).to_bytes(8, "little") + b"{}"},
    "zip with a comment": {"a.zip": folders.torch_zip()[:-2] + b"\x03\x00abc"},
    "a temporary copy beside the file": {"a.pt": folders.torch_zip(), "a.pt.tmp": b"x"},
    "hidden leftovers": {"config.json": b"{}", "model.bin": b"x", ".cache/a.incomplete": b""},
}


@pytest.mark.parametrize("case", WHOLE)
def test_whole(case):
    assert fault_of(WHOLE[case]) == ""


def cut(files, path, keep=0.6):
    return files | {path: files[path][: int(len(files[path]) * keep)]}


def without(files, *paths):
    return {path: data for path, data in files.items() if path not in paths}


BROKEN = {
    "safetensors cut": (cut(folders.hf_full(), "model.safetensors"), "model.safetensors"),
    "safetensors one byte short": (
        {"a.safetensors": folders.safetensors()[:-1]},
        "a.safetensors has",
    ),
    "safetensors one byte long": (
        {"a.safetensors": folders.safetensors() + b"x"},
        "a.safetensors has",
    ),
    "safetensors empty": ({"a.safetensors": b""}, "cut off"),
    "safetensors zeros": ({"a.safetensors": b"\0" * 500}, "does not parse"),
    "zip cut": (cut(folders.hf_full(), "optimizer.pt"), "optimizer.pt is cut off"),
    "zip one byte short": ({"a.pt": folders.torch_zip()[:-1]}, "a.pt is cut off"),
    "zip empty": ({"a.pt": b""}, "empty"),
    "json cut": (cut(folders.hf_full(), "trainer_state.json"), "trainer_state.json is not JSON"),
    "json empty": ({"config.json": b""}, "empty"),
    "big json cut": ({"tokenizer.json": b"{" + b" " * 5_000_000}, "cut off"),
    "a shard missing": (
        without(folders.hf_sharded(), "model-00002-of-00003.safetensors"),
        "names model-00002-of-00003.safetensors",
    ),
    "shards without an index yet": (
        without(
            folders.hf_sharded(), "model-00003-of-00003.safetensors", "model.safetensors.index.json"
        ),
        "2 of 3 shards",
    ),
    "index cut": (cut(folders.hf_sharded(), "model.safetensors.index.json"), "not JSON"),
    "trainer's state missing": (
        without(folders.hf_full(), "trainer_state.json"),
        "trainer_state.json is missing",
    ),
    "distributed without metadata": (
        without(folders.fsdp(), "pytorch_model_fsdp_0/.metadata"),
        ".metadata is missing",
    ),
    "a file still under its temporary name": ({"a.json": b"{}", "b.pt.tmp": b"x"}, "b.pt is still"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_not_whole(case):
    files, what = BROKEN[case]
    assert what in fault_of(files)


def test_every_prefix_of_a_trainers_writing_is_refused():
    order = [
        *("config.json", "generation_config.json", "model.safetensors", "training_args.bin"),
        *("optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"),
    ]
    files = folders.hf_full()
    for count in range(4, len(order)):
        assert fault_of({path: files[path] for path in order[:count]})


def test_saving_a_model_by_hand_is_not_a_trainers_checkpoint():
    files = without(folders.hf_full(), "trainer_state.json", "optimizer.pt")
    assert fault_of(files, "final") == ""


@pytest.mark.parametrize(
    ("had", "has", "what"),
    [
        (folders.hf_full(), folders.hf_full(20), ""),
        (folders.hf_full(), folders.hf_sharded(), ""),
        (folders.hf_sharded(), folders.hf_full(), ""),
        (folders.hf_full(), without(folders.hf_full(), "optimizer.pt"), "optimizer.pt is missing"),
        (folders.hf_full(), without(folders.hf_full(), "model.safetensors"), "weights is missing"),
        (folders.deepspeed(10), folders.deepspeed(20), ""),
        (
            folders.deepspeed(10),
            without(
                folders.deepspeed(20),
                "global_step20/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            ),
            "1 of 2",
        ),
        (
            folders.megatron(),
            without(folders.megatron(), "mp_rank_01/model_optim_rng.pt"),
            "1 of 2",
        ),
        ({"rng_state_0.pth": b"", "rng_state_1.pth": b""}, {"rng_state_0.pth": b""}, "1 of 2"),
        # What has no part to play may come and go.
        ({"README.md": b"", "a.pt": b"", "config.json": b""}, {"config.json": b""}, ""),
    ],
)
def test_siblings(had, has, what):
    fault = sibling_fault(has, earlier=had, of="checkpoint-10")
    assert what in fault and bool(fault) is bool(what)
