"""Make a tiny model with random weights, in place of a model of the Hub.

    python tiny.py <folder to write> <file to learn a tokenizer from>

For a real model, delete this file and set MODEL in config.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

END = "<|end|>"
SPECIAL = ["<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", END]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE with 512 tokens from `texts`."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL[0],
        eos_token=END,
        extra_special_tokens=SPECIAL[1:4],
        chat_template=CHAT_TEMPLATE,
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build a Llama of 0.4 million parameters, with the same weights every time.

    Attention heads of 64: inference servers have fast kernels for them.
    """
    torch.manual_seed(20)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=(len(tokenizer) + 63) // 64 * 64,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=256,
            tie_word_embeddings=False,
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def make_model(folder: Path, data: Path) -> str:
    """Write a model to `folder` unless it exists. Learn its tokenizer from the lines of `data`.

    Return the path, which transformers accepts in place of a name on the Hub.
    """
    if not folder.exists():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        tokenizer = train_tokenizer(data.read_text(encoding="utf-8").splitlines())
        tokenizer.save_pretrained(unfinished)
        build_model(tokenizer).save_pretrained(unfinished)
        unfinished.rename(folder)
    return str(folder)


if __name__ == "__main__":
    disable_progress_bar()
    make_model(Path(sys.argv[1]), Path(sys.argv[2]))
