"""History may delay a commit, never forbid it; what a file's own bytes prove is never overruled."""

import math

import pytest

from prefect_bt.checkpoints.formats.decision import GAP_QUIET, SIGN_QUIET, Evidence, decide
from prefect_bt.checkpoints.formats.protocol import Inspection
from prefect_bt.checkpoints.formats.table import EarlierCheckpoint, examine
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint
from tests.checkpoints import folders


@pytest.mark.parametrize(
    ("evidence", "wait"),
    [
        (Evidence(), 2.0),
        (Evidence(is_repeated=True, has_ended=True), 0.5),
        (Evidence(sign="s"), SIGN_QUIET),
        (Evidence(gap="g"), GAP_QUIET),
        (Evidence(gap="g", sign="s", has_ended=True), 2.0),
        (Evidence(fault="f"), math.inf),
        (Evidence(fault="f", has_ended=True, is_repeated=True), math.inf),
    ],
)
def test_how_long_each_evidence_delays(evidence, wait):
    assert not decide(evidence, quiet=min(wait, 10**9) - 0.01, rhythm=2.0).is_commit
    if math.isfinite(wait):
        assert decide(evidence, quiet=wait, rhythm=2.0).is_commit
    # The commands have ended with 0: only a missing part still counts.
    assert decide(evidence, quiet=math.inf, rhythm=2.0).is_commit is not bool(evidence.fault)


def test_reason_and_note():
    evidence = Evidence(gap="1 of 2 parts", sign="no end")
    assert decide(evidence, quiet=1, rhythm=2).reason == "1 of 2 parts"
    assert decide(evidence, quiet=GAP_QUIET, rhythm=2).note == "1 of 2 parts"
    assert decide(Evidence(fault="x is cut"), quiet=math.inf, rhythm=2).reason == "x is cut"


def rng_states(count):
    return {f"rng_state_{rank}.pth": folders.torch_zip() for rank in range(count)}


def elastic(processes):
    files = folders.hf_full()
    del files["rng_state.pth"]
    return files | rng_states(processes)


def only_model():
    names = ("config.json", "model.safetensors", "training_args.bin", "trainer_state.json")
    return {path: data for path, data in folders.hf_full().items() if path in names}


def without_marker(files):
    gone = ("trainer_state.json", "training_args.bin")
    return {path: data for path, data in files.items() if path not in gone}


CHANGES = {
    "fewer processes": (elastic(4), elastic(2)),
    "one process": (elastic(4), folders.hf_full()),
    "no optimizer any more": (folders.hf_full(), only_model()),
    "fewer shards of DeepSpeed": (
        folders.deepspeed(10) | folders.zero_shards(10, 4),
        folders.deepspeed(20),
    ),
    "fewer files of DCP": (folders.distributed(ranks=4), folders.distributed(ranks=2)),
    "no random state": (folders.hf_full(), without_marker(folders.hf_full())),
}


@pytest.mark.parametrize("is_same_attempt", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_fewer_files_than_the_last_checkpoint_are_committed_in_the_end(change, is_same_attempt):
    had, has = CHANGES[change]
    checkpoint = LocalCheckpoint("checkpoint-20", folders.tree(has))
    earlier = EarlierCheckpoint("checkpoint-10", folders.tree(had), is_same_attempt)
    evidence = examine(Inspection(checkpoint), [earlier])
    assert not evidence.fault and not evidence.is_repeated
    assert bool(evidence.gap) is is_same_attempt
    assert not decide(evidence, quiet=1.0, rhythm=1.5).is_commit
    late = decide(evidence, quiet=GAP_QUIET, rhythm=1.5)
    assert late.is_commit and bool(late.note) is is_same_attempt
    assert decide(evidence, quiet=math.inf, rhythm=1.5).is_commit


def test_a_finish_marker_overrules_history_at_once():
    had, has = CHANGES["no optimizer any more"]
    files = {path: FileStat(len(data), 1) for path, data in has.items()}
    files["trainer_state.json"] = FileStat(9, 2)
    earlier = EarlierCheckpoint("checkpoint-10", folders.tree(had))
    evidence = examine(Inspection(LocalCheckpoint("checkpoint-20", files)), [earlier])
    assert decide(evidence, quiet=1.5, rhythm=1.5).is_commit


def test_a_part_that_the_files_themselves_name_is_waited_for_without_end():
    files = folders.distributed(ranks=2) | {"rng_state_1.pth": b"x"}
    del files[".metadata"]
    checkpoint = LocalCheckpoint("checkpoint-20", folders.tree(files))
    evidence = examine(Inspection(checkpoint))
    assert not decide(evidence, quiet=math.inf, rhythm=1.5).is_commit
