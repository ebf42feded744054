"""A tiny base model, LoRA adapters of it, and one of them merged: real folders, made in a second.

    python tests/serving/tiny.py FOLDER

writes FOLDER/base, FOLDER/checkpoint-10 and FOLDER/checkpoint-20 (adapters, without tokenizer, as
PEFT leaves them), FOLDER/merged (checkpoint-20 in the base), FOLDER/untokenized (the base's model
alone), FOLDER/plain (the base without a chat template) and FOLDER/whisper. Nothing is trained: the
weights are random, large enough that each answers otherwise.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)

SPECIAL = ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SPACE = "Ġ"  # as a byte-level tokenizer spells it
RANKS = {"checkpoint-10": 4, "checkpoint-20": 8}


def tokenizer(*, template: bool = True) -> PreTrainedTokenizerFast:
    """One token a printable ASCII character, so that a text is its tokens, and the special ones."""
    letters = [chr(code) for code in range(33, 127)] + [SPACE]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *letters])}
    bpe = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[3],
        extra_special_tokens=SPECIAL[1:3],
        chat_template=CHAT_TEMPLATE if template else None,
        model_max_length=256,
        clean_up_tokenization_spaces=False,
    )


def model() -> LlamaForCausalLM:
    """Two layers of two heads of 64, 0.3 M parameters."""
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer()),
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=3,
            pad_token_id=0,
        )
    )


def write_whisper(folder: Path) -> None:
    """Hears nothing, says something."""
    special = ["<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*letters, *special])}
    words = WhisperTokenizer(vocab=vocabulary, merges=[])
    end, start, no_times = (vocabulary[token] for token in special)
    torch.manual_seed(2)
    whisper = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=len(words),
            d_model=64,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=1,
            decoder_attention_heads=1,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_target_positions=32,
            decoder_start_token_id=start,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            init_std=0.2,
        )
    )
    whisper.generation_config.no_timestamps_token_id = no_times
    whisper.generation_config.is_multilingual = False
    whisper.generation_config.max_length = 16
    whisper.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(), words).save_pretrained(folder)


def adapter(base: LlamaForCausalLM, *, rank: int, seed: int) -> PeftModel:
    torch.manual_seed(seed)
    adapted = get_peft_model(
        base, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj", "o_proj"])
    )
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    return adapted


def write(folder: Path) -> None:
    base = folder / "base"
    for name in ("base", "untokenized", "plain"):
        model().save_pretrained(folder / name)
    tokenizer().save_pretrained(base)
    tokenizer(template=False).save_pretrained(folder / "plain")
    for seed, (name, rank) in enumerate(RANKS.items(), start=10):
        adapted = adapter(LlamaForCausalLM.from_pretrained(base), rank=rank, seed=seed)
        adapted.save_pretrained(folder / name)
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    tokenizer().save_pretrained(folder / "merged")
    write_whisper(folder / "whisper")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
