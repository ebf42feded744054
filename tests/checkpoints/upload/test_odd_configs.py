"""Values that trainers write into JSON files: none of them keeps a checkpoint from its commit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prefect_bt import codec
from prefect_bt.checkpoints.portable_json import MAX_DEPTH
from prefect_bt.object_store.disk import DiskStore
from tests.checkpoints import folders
from tests.checkpoints.folders import flush
from tests.checkpoints.running import listed

DEEP = 200


def nested(levels: int, leaf: str, *, as_list: bool = False) -> str:
    before, after = ("[", "]") if as_list else ('{"a":', "}")
    return before * levels + leaf + after * levels


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("NaN", "NaN"),
        ("1e999", "Infinity"),
        ('[0.0, [Infinity, {"deep": NaN}]]', [0.0, ["Infinity", {"deep": "NaN"}]]),
        (str(2**64), str(2**64)),
        (str(-(10**300)), str(-(10**300))),
        (str(2**63 - 1), 2**63 - 1),
        ('"half \\ud800 pair"', "half \ufffd pair"),
        ('{"key \\udfff": 1}', {"key \ufffd": 1}),
        ('"whole \\ud83d\\ude00 pair"', "whole \U0001f600 pair"),
        ("null", None),
    ],
)
def test_a_value_that_is_not_portable_is_stored_as_text(
    store: DiskStore, ckpts: Path, written: str, stored: Any
) -> None:
    config = f'{{"peft_type": "LORA", "r": 8, "base_model_name_or_path": "a/b", "x": {written}}}'
    folders.write(ckpts / "lora", folders.hf_lora() | {"adapter_config.json": config.encode()})
    status = flush(store, ckpts)
    assert (status.error, status.uncommitted) == ("", ())
    (one,) = listed(store).values()
    assert one.lora_adapter_config is not None
    assert one.lora_adapter_config["x"] == stored
    assert (one.lora_adapter_config["r"], one.base_model) == (8, "a/b")
    assert codec.dumps(one.lora_adapter_config)


@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH, DEEP, 900, 5000, 200_000])
def test_nesting_of_any_depth_is_cut(
    store: DiskStore, ckpts: Path, levels: int, as_list: bool
) -> None:
    config = f'{{"peft_type": "LORA", "x": {nested(levels, "1", as_list=as_list)}}}'
    folders.write(ckpts / "lora", folders.hf_lora() | {"adapter_config.json": config.encode()})
    status = flush(store, ckpts)
    assert (status.error, status.uncommitted) == ("", ())
    kept = listed(store)["lora"].lora_adapter_config
    # A document that Python's own parser refuses is content, like any other file.
    text = json.dumps(kept)
    assert ("nested deeper" in text) is (levels >= MAX_DEPTH and kept is not None)
    assert kept is not None or levels > DEEP


@pytest.mark.parametrize(
    ("base", "stored"),
    [
        ('"org/\\ud800"', "org/\ufffd"),
        ("Infinity", None),
        ("3", None),
        ('["a", NaN]', None),
        ('{"a": 1}', None),
        ('""', None),
        ("null", None),
        ("true", None),
    ],
)
@pytest.mark.parametrize("kind", ["lora", "full"])
def test_any_base_model_can_be_committed(
    store: DiskStore, ckpts: Path, kind: str, base: str, stored: str | None
) -> None:
    file, key, files = {
        "lora": ("adapter_config.json", "base_model_name_or_path", folders.hf_lora()),
        "full": ("config.json", "_name_or_path", folders.hf_full()),
    }[kind]
    config = f'{{"{key}": {base}, "time_step_limit": [0.0, Infinity]}}'
    folders.write(ckpts / "a", files | {file: config.encode()})
    status = flush(store, ckpts)
    assert (status.error, status.uncommitted) == ("", ())
    one = listed(store)["a"]
    assert (one.type, one.base_model) == (kind, stored)


def test_a_huge_config_can_be_committed(store: DiskStore, ckpts: Path) -> None:
    config = {"peft_type": "LORA", "x": [float("inf"), *range(200_000)]}
    files = folders.hf_lora() | {"adapter_config.json": json.dumps(config).encode()}
    folders.write(ckpts / "lora", files)
    assert not flush(store, ckpts).error
    kept = listed(store)["lora"].lora_adapter_config
    assert kept is not None and kept["x"][0] == "Infinity"
