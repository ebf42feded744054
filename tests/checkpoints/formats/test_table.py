import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_bt.checkpoints.formats.content import inspect_file
from prefect_bt.checkpoints.formats.inspector import Inspector
from prefect_bt.checkpoints.formats.protocol import SINGLE_NODE, GangPosition, Inspection
from prefect_bt.checkpoints.formats.table import EarlierCheckpoint, find_gap, find_missing
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint
from prefect_bt.checkpoints.volume_links import Volumes
from prefect_bt.checkpoints.watch.grouping import group_by_checkpoint
from prefect_bt.checkpoints.watch.scanner import scan
from tests.checkpoints import folders


def fault_of(files, name="checkpoint-10", place=SINGLE_NODE):
    found = group_by_checkpoint(folders.tree(files, "" if name == "." else name))[name]

    def reader(path):
        return lambda _, *, start, length: files[path][start : start + length]

    reports = {
        p: inspect_file(p, len(data), read=reader(p))
        for p, data in files.items()
        if p in found.files
    }
    return find_missing(Inspection(found, reports, position=place))


STAT = FileStat(1, 1)
WHOLE = {
    "hf full": folders.hf_full(),
    "lora": folders.hf_lora(),
    "sharded": folders.hf_sharded(),
    "deepspeed": folders.deepspeed(),
    "fsdp": folders.fsdp(),
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
    "a mark at the start": {"config.json": b"\xef\xbb\xbf{}", "model.bin": b"x"},
    "settings with comments": {"tsconfig.json": b"// mine\n{}"},
    "no text at all": {"data.json": bytes(range(1, 256))},
    "zip with something appended": {"a.zip": folders.torch_zip() + b"signature"},
    "one shard": {"model-00001-of-00001.safetensors": folders.safetensors()},
    "shards of one process of torch": {
        "shard-00001-model-00001-of-00002.safetensors": folders.safetensors()
    },
    "an optimizer of one's own": {"model.bin": b"x", "optimizer.pt": folders.torch_zip()},
    "a model as json": {"config.json": b'{"depth": 3}', "model.json": b"{}"},
    "stage 0, whose optimizer lies in the model's file": {"mp_rank_00_model_states.pt": b"x"},
    "universal": {"mp_rank_00_model_states.pt": b"x", "zero/w/fp32.pt": folders.torch_zip()},
    "hdf5": {"model.h5": folders.hdf5()},
    "side files that no loader reads": {
        "config.json": folders.text({"model_type": "llama"}),
        "model.safetensors": folders.safetensors(),
        "ds_config.json": b'{\n  // ZeRO stage 2\n  "zero_optimization": {"stage": 2,},\n}\n',
        "run_config.json": '{"author": "André"}'.encode("latin-1"),
        "eval_config.json": b"{'lr': 0.1}\n",
        "metrics.json": b"",
        "half.json": b'{"a": ',
        "lines.json": b'{"a": 1}\n{"a": 2, "b"',
        "scratch.bin": b"",
        "data.zip": b"PK\x03\x04 cut",
    },
    "settings of one's own": {"config.json": b'{\n "lr": 1e-4, // base\n}\n', "model.pt": b"x"},
    "text that is not UTF-8": {
        "config.json": '{"author": "André"}'.encode("latin-1"),
        "a.pt": b"x",
    },
    "utf-16": {"tokenizer_config.json": '{"a": 1}'.encode("utf-16"), "model.bin": b"x"},
    "not a number": {"trainer_state.json": b'{"best_metric": NaN, "log": [-Infinity]}'},
    "an old index beside the whole model": folders.hf_full() | folders.stale_index(),
    "old shards, too": folders.hf_full()
    | folders.stale_index()
    | {"model-00002-of-00002.safetensors": folders.safetensors()},
    "an old index of the other kind": folders.hf_full() | folders.stale_index("pytorch_model.bin"),
    "an old index of a part of a pipeline": {
        "unet/diffusion_pytorch_model.safetensors": folders.safetensors(),
        **folders.stale_index("unet/diffusion_pytorch_model.safetensors"),
    },
    "a shard of a former number": folders.hf_sharded()
    | {"model-00001-of-00002.safetensors": folders.safetensors()},
    "files of a former number of processes": folders.verl()
    | {"actor/model_world_size_4_rank_3.pt": folders.torch_zip()},
    "a file": {".": folders.torch_zip()},
    "hidden leftovers": {"config.json": b"{}", "model.bin": b"x", ".cache/a.incomplete": b""},
}


@pytest.mark.parametrize("case", WHOLE)
def test_complete(case):
    assert fault_of(WHOLE[case]) == ""


def test_a_stray_temporary_file_beside_logs_holds_nothing_back():
    files = {"events.out.tfevents.1": b"x", "notes.txt.tmp": b"x"}
    assert fault_of(files, "runs") == ""
    assert fault_of(files, "step-1")


def cut(files, path, keep=0.6):
    return files | {path: files[path][: int(len(files[path]) * keep)]}


def without(files, *paths):
    return {path: data for path, data in files.items() if path not in paths}


BROKEN = {
    "an old index, and the model cut": (
        cut(folders.hf_full() | folders.stale_index(), "model.safetensors"),
        "model.safetensors",
    ),
    "an index whose shards are gone": (folders.stale_index(), "names model-00001-of-00002"),
    "safetensors cut": (cut(folders.hf_full(), "model.safetensors"), "model.safetensors"),
    "safetensors one byte short": (
        {"a.safetensors": folders.safetensors()[:-1]},
        "a.safetensors has",
    ),
    "safetensors one byte long": (
        {"a.safetensors": folders.safetensors() + b"x"},
        "a.safetensors has",
    ),
    "safetensors empty": ({"a.safetensors": b""}, "truncated"),
    "safetensors zeros": ({"a.safetensors": b"\0" * 500}, "invalid header"),
    "zip cut": (cut(folders.hf_full(), "optimizer.pt"), "optimizer.pt is truncated"),
    "zip one byte short": ({"a.pt": folders.torch_zip()[:-1]}, "a.pt is truncated"),
    "zip empty": ({"a.pt": b""}, "empty"),
    "json cut": (cut(folders.hf_full(), "trainer_state.json"), "trainer_state.json is cut off"),
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
    "hdf5 cut": ({"model.h5": folders.hdf5()[:-1]}, "model.h5 has"),
    "index cut": (cut(folders.hf_sharded(), "model.safetensors.index.json"), "not JSON"),
    "trainer's state missing": (
        without(folders.hf_full(), "trainer_state.json"),
        "trainer_state.json is missing",
    ),
    "distributed without metadata": (
        without(folders.fsdp(), "pytorch_model_fsdp_0/.metadata"),
        ".metadata is missing",
    ),
    "shards whose index is not there": (
        without(folders.hf_sharded(), "model.safetensors.index.json"),
        "model.safetensors.index.json is missing",
    ),
    "json of zeros": ({"config.json": b"{" + b"\0" * 100}, "cut off"),
    "json that ends too soon": ({"config.json": b'{"a": "b'}, "cut off"),
    "json cut in a literal": ({"adapter_config.json": b'{"a": tru'}, "cut off"),
    "json cut in a letter": ({"config.json": '{"a": "é'.encode()[:-1]}, "cut off"),
    "impossible offsets": ({"a.safetensors": folders.safetensors_with([-9, -1])}, "invalid header"),
    "an archive inside one that is cut": ({"a.pt": folders.nested_zip()[:200]}, "truncated"),
    "distributed, rank 0 not there yet": ({"__1_0.distcp": b"x"}, ".metadata is missing"),
    "distributed, a file gone": (
        without(folders.distributed(), "__1_0.distcp"),
        ".metadata names __1_0.distcp",
    ),
    "one of two processes": ({"a/optim_world_size_2_rank_1.pt": b"x"}, "1 of 2 files"),
    "zero without a model": (
        without(folders.deepspeed(), "global_step10/mp_rank_00_model_states.pt"),
        "no model states",
    ),
    "zero with a gap": (
        {"mp_rank_00_model_states.pt": b"x"}
        | {f"zero_pp_rank_{n}_mp_rank_00_optim_states.pt": b"x" for n in (0, 2)},
        "data rank 1",
    ),
    "stage 3, a process without its optimizer": (
        {f"zero_pp_rank_{n}_mp_rank_00_model_states.pt": b"x" for n in (0, 1)}
        | {"zero_pp_rank_0_mp_rank_00_optim_states.pt": b"x"},
        "no optimizer states of data rank 1",
    ),
    "random states with a gap": (
        {f"rng_state_{n}.pth": b"x" for n in (0, 1, 3)},
        "rng_state_2.pth is missing",
    ),
    "fewer random states than processes": (
        folders.deepspeed() | {"rng_state_0.pth": b"x"},
        "1 of 2 rng_state files",
    ),
    "a configuration without weights": (
        {"config.json": folders.text({"model_type": "llama"}), "merges.txt": b"x"},
        "weights that config.json describes",
    ),
    "a file still under its temporary name": ({"a.json": b"{}", "b.pt.tmp": b"x"}, "b.pt is still"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_incomplete(case):
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
    gap = find_gap(has, checkpoint=EarlierCheckpoint("checkpoint-10", dict.fromkeys(had, STAT)))
    assert what in gap and bool(gap) is bool(what)


def test_torchtitan_may_end_with_another_kind_of_save():
    index = ("model.safetensors", "model.safetensors.index.json")
    earlier = EarlierCheckpoint("step-10", dict.fromkeys(folders.distributed(), STAT))
    assert find_gap(index, checkpoint=earlier) == ""


@pytest.mark.parametrize(
    "files",
    [
        {"__8_0.distcp": b"x"},
        {"zero_pp_rank_9_mp_rank_00_optim_states.pt": b"x"},
        {"actor/model_world_size_16_rank_8.pt": b"x"},
        {"rng_state_1.pth": b"x", "rng_state_3.pth": b"x"},
    ],
)
def test_another_node_has_what_its_own_processes_wrote(files):
    assert fault_of(files, place=GangPosition(1, 2)) == ""
    assert fault_of(files)


U64 = st.integers(min_value=0, max_value=2**64 - 1)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["weight_map", "model_type", "r", "global_step", "architectures"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=5,
)
JUNK = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda n, rest: n.to_bytes(8, "little") + rest, U64, st.binary(max_size=99)),
    st.builds(lambda rest: b"PK\x03\x04" + rest + b"PK\x05\x06" + rest, st.binary(max_size=99)),
    st.builds(lambda value: json.dumps(value).encode(), VALUES),
    st.builds(folders.safetensors_with, VALUES),
)
NAMES = st.sampled_from(
    [
        *("a.safetensors", "a.pt", "a.json", "config.json", "m.safetensors.index.json"),
        *(".metadata", "__0_0.distcp", "trainer_state.json", "adapter_config.json", "latest"),
        *("model_world_size_0_rank_00.pt", "zero_pp_rank_99_mp_rank_1_optim_states.pt"),
        *("rng_state_0.pth", "a-00000-of-00000.bin", "new\nline.json", "bad\udcff.json"),
    ]
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.dictionaries(NAMES, JUNK, min_size=1, max_size=6))
def test_whatever_lies_there_is_judged(files):
    with TemporaryDirectory() as folder:
        folders.write(Path(folder), {f"checkpoint-1/{path}": data for path, data in files.items()})
        inspector = Inspector(Volumes(Path(folder)))
        for found in group_by_checkpoint(scan(Volumes(Path(folder)))).values():
            evidence = inspector.examine(found)
            assert (evidence.fault + evidence.sign).isprintable()
            assert not (evidence.fault and evidence.has_ended)
            assert inspector.read_metadata(found).step is not None


def test_what_nests_too_deep_for_the_parser_is_judged_by_its_ends(tmp_path):
    deep = b"[" * 200_000
    assert fault_of({"tokenizer.json": deep + b"]" * 200_000}) == ""
    assert "cut off" in fault_of({"tokenizer.json": deep})
    assert fault_of({"a.safetensors": len(deep).to_bytes(8, "little") + deep})
    assert fault_of({"model.safetensors.index.json": deep})


@pytest.mark.slow
def test_a_file_that_has_not_changed_is_not_read_again(tmp_path):
    files = {f"{n}/config.json": FileStat(2, 1) for n in range(1000)}
    folders.write(tmp_path / "checkpoint-1", dict.fromkeys(files, b"{}"))
    inspector = Inspector(Volumes(tmp_path))
    assert inspector.examine(LocalCheckpoint("checkpoint-1", dict(files))).fault == ""
    shutil.rmtree(tmp_path / "checkpoint-1")
    assert inspector.examine(LocalCheckpoint("checkpoint-1", dict(files))).fault == ""
    with pytest.raises(FileNotFoundError):
        inspector.examine(
            LocalCheckpoint("checkpoint-1", files | {"7/config.json": FileStat(3, 2)})
        )
