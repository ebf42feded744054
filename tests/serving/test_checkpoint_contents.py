"""What committed checkpoints hold, for the layouts that trainers leave."""

from __future__ import annotations

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.serving.checkpoint_contents import read_contents
from tests.checkpoints import folders
from tests.serving.committed import TEMPLATE, TOKENIZER, Shop, full, lora, whisper


def contents(shop: Shop, files, *, name="checkpoint-10", **ranks):
    job = shop.job()
    shop.commit(job, {name: files})
    for rank, more in ranks.items():
        shop.commit(job, {name: more}, rank=int(rank.removeprefix("rank")))
    (found,) = list_checkpoints(shop.ledger.store, job.project_id, job.id)
    return read_contents(found)


def test_a_full_model(shop):
    held = contents(shop, full() | TEMPLATE)
    assert (held.format, held.has_weights, held.has_tokenizer) == ("full", True, True)
    assert held.chat_template and not held.sharding and held.lora_rank is None


def test_a_full_model_without_its_tokenizer(shop):
    held = contents(shop, folders.hf_full())
    assert (held.format, held.has_tokenizer, held.base_model) == ("full", False, "org/base")
    assert held.chat_template == ""


def test_shards_of_safetensors_are_a_whole_model(shop):
    held = contents(shop, folders.hf_sharded())
    assert (held.format, held.has_weights, held.sharding) == ("full", True, "")


def test_whisper(shop):
    held = contents(shop, whisper())
    assert (held.format, held.has_weights, held.has_tokenizer) == ("whisper", True, True)


def test_an_adapter(shop):
    held = contents(shop, lora("org/base", 24, revision="abc"))
    assert (held.format, held.base_model, held.base_revision) == ("lora", "org/base", "abc")
    assert (held.lora_rank, held.has_weights, held.unsupported_by_vllm) == (24, True, ())


def test_the_highest_rank_of_any_layer_counts(shop):
    assert contents(shop, lora(rank=8, rank_pattern={"q_proj": 64, "k_proj": 4})).lora_rank == 64


@pytest.mark.parametrize("rank", ["many", True, None])
def test_an_adapter_config_without_a_valid_rank(shop, rank):
    assert contents(shop, lora(rank=rank)).lora_rank is None


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"use_dora": True}, ("DoRA",)),
        ({"bias": "all"}, ("trained biases",)),
        ({"bias": "none", "modules_to_save": ["score"]}, ()),
        (
            {"modules_to_save": ["lm_head", "embed_tokens"]},
            ("whole modules beside the adapter (embed_tokens, lm_head)",),
        ),
        ({"peft_type": "IA3"}, ("the method IA3",)),
        ({"use_dora": False, "modules_to_save": None}, ()),
    ],
)
def test_what_vllm_does_not_load(shop, config, told):
    assert contents(shop, lora(**config)).unsupported_by_vllm == told


def test_a_configuration_without_weights(shop):
    files = {"adapter_config.json": lora()["adapter_config.json"], "README.md": b"# card"}
    held = contents(shop, files, name="adapter")
    assert (held.format, held.has_weights) == ("lora", False)


@pytest.mark.parametrize(
    ("files", "by"),
    [
        (folders.fsdp(), "FSDP"),
        (folders.distributed(), "FSDP"),
        (folders.verl(), "FSDP"),
        (folders.megatron(), "Megatron"),
        ({k: v for k, v in folders.deepspeed().items() if k != "model.safetensors"}, "DeepSpeed"),
    ],
)
def test_weights_that_are_spread_over_processes(shop, files, by):
    held = contents(shop, files | TOKENIZER)
    assert (held.has_weights, held.sharding) == (False, by)


def test_gathered_weights_count_beside_the_shards(shop):
    held = contents(shop, folders.deepspeed())
    assert (held.format, held.has_weights, held.sharding) == ("full", True, "")


def test_what_another_rank_has_is_not_served(shop):
    held = contents(shop, {"notes.txt": b"rank 0"}, rank1=full())
    assert (held.has_weights, held.other_ranks) == (False, (1,))


def test_the_lowest_rank_is_served(shop):
    held = contents(shop, full(), rank1={"notes.txt": b"rank 1"})
    assert (held.has_weights, held.other_ranks) == (True, ())


def test_an_optimizer_alone_is_no_model(shop):
    files = {k: v for k, v in folders.hf_full().items() if not k.endswith((".safetensors", "json"))}
    held = contents(shop, files | {"optimizer.bin": files["optimizer.pt"]}, name="rest")
    assert (held.format, held.has_weights) == (None, False)
