"""`checkpoints show`: a tensor table for people and programs."""

from __future__ import annotations

import json

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from tests.cli.conftest import Cli, Shop

HEADER = {
    "__metadata__": {"format": "pt"},
    "w\x1b[2J": {"dtype": "BF16", "shape": [3, 2], "data_offsets": [0, 12]},
    "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
}


def packed(header: object, data: int = 0) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data)


@pytest.fixture
def job(shop: Shop, ended):
    record = shop.job("tiny", *ended)
    one = packed(HEADER, 16)
    shop.checkpoint(record, "whole", size=len(one), at=1, files=["sub/model.safetensors"])
    shop.checkpoint(record, "text", size=4, at=2, files=["config.json"])
    files = ["a.safetensors", "b.safetensors", "config.json"]
    for rank in (0, 1):
        shop.checkpoint(record, "parts", size=3 * len(one), at=3, files=files, rank=rank)
    for checkpoint in list_checkpoints(shop.ledger.store, record.project_id, record.id):
        for file in checkpoint.files():
            shop.ledger.store.put(file.key, one)
    return record


def test_the_table(cli: Cli, job):
    done = cli("checkpoints", "show", "--checkpoint-name", "whole")
    assert (done.code, done.err) == (0, "")
    assert (
        done.out
        == """\
Tensors of whole/sub/model.safetensors
Tensor  Type  Shape   Parameters  Size
w�[2J   BF16  3 x 2   6           12 bytes
b       F32   scalar  1           4 bytes
2 tensors, 7 parameters, 16 bytes
format: pt
"""
    )


@pytest.mark.parametrize("name", ["sub/model.safetensors", "whole/sub/model.safetensors"])
def test_json(cli: Cli, job, name: str):
    arguments = ["--checkpoint-name", "whole", "--file", name, "-o", "json"]
    assert cli("checkpoints", "show", "--job-id", job.id, *arguments).json == {
        "job_id": job.id,
        "checkpoint_id": "whole",
        "relative_file_name": "whole/sub/model.safetensors",
        "node_rank": 0,
        "size_bytes": len(packed(HEADER, 16)),
        "metadata": {"format": "pt"},
        "total_tensors": 2,
        "total_parameters": 7,
        "total_bytes": 16,
        "tensors": [
            {
                "name": "w\x1b[2J",
                "dtype": "BF16",
                "shape": [3, 2],
                "parameters": 6,
                "size_bytes": 12,
            },
            {"name": "b", "dtype": "F32", "shape": [], "parameters": 1, "size_bytes": 4},
        ],
    }


def test_of_a_rank(cli: Cli, job):
    arguments = ["--checkpoint-name", "parts", "--file", "b.safetensors", "-o", "json"]
    assert cli("checkpoints", "show", *arguments).json["node_rank"] == 0
    assert cli("checkpoints", "show", *arguments, "--rank", "1").json["node_rank"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["whole", "--file", "nope"], "No file 'nope' in this store. Its .safetensors files: sub/"),
        (["whole", "--rank", "7"], "Checkpoint 'whole' has no .safetensors file of rank 7."),
        (["text", "--file", "config.json"], "text/config.json is no .safetensors file."),
        (["text"], "has no .safetensors file"),
        (["parts"], "Say which: --file. Its .safetensors files: a.safetensors, b.safetensors."),
        (["nope"], "has: whole, text, parts."),
    ],
)
def test_what_there_is_not(cli: Cli, job, arguments: list[str], said: str):
    done = cli("checkpoints", "show", "--checkpoint-name", *arguments)
    assert (done.code, done.out) == (1, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_file_that_is_broken(cli: Cli, shop: Shop, job):
    whole = list_checkpoints(shop.ledger.store, job.project_id, job.id)[0]
    (file,) = whole.files()
    shop.ledger.store.put(file.key, b"\xff" * 60)
    done = cli("checkpoints", "show", "--checkpoint-name", "whole")
    assert done.code == 1
    assert "whole/sub/model.safetensors has a header of 18446744073709551615 bytes" in done.err
