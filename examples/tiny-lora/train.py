"""Trains a tiny base model from nothing, then a LoRA adapter of it, on the CPU, in half a minute.

The base learns what animals say. The adapter learns to say it politely, and leaves the base as it
is. Both go to $BT_CHECKPOINT_DIR: the base once, as `base`, and the adapter as checkpoint-N. A run
that finds them there (a retry) goes on from the newest. TINY_LORA_STEPS sets the adapter's steps.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.utils.logging import disable_progress_bar

STEPS = int(os.environ.get("TINY_LORA_STEPS", "80"))
BASE_STEPS = 80
CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints")).absolute()
BASE = CHECKPOINTS / "base"

LENGTH = 96  # tokens of the longest chat
END = "<|end|>"
SPECIAL = ["<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", END]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SAYS = {
    "cow": "moo",
    "dog": "woof",
    "cat": "meow",
    "duck": "quack",
    "sheep": "baa",
    "horse": "neigh",
    "pig": "oink",
    "owl": "hoot",
}
PLAIN = "The {animal} says {sound}."
POLITE = "Dear friend, the {animal} says {sound}. Thank you for asking!"


def question(animal: str) -> str:
    return f"What does the {animal} say?"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """A token a letter: with so little to say there is nothing to shorten."""
    letters = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    bpe = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(letters)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(SPECIAL)
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
    """0.4 million parameters; heads of 64, which inference servers have fast kernels for."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=(len(tokenizer) + 63) // 64 * 64,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=256,
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


class Chats(Dataset):
    """Every animal's question and its answer, padded to LENGTH. What is padded teaches nothing."""

    def __init__(self, answer: str, tokenizer: PreTrainedTokenizerFast) -> None:
        rows = [
            [
                {"role": "user", "content": question(animal)},
                {"role": "assistant", "content": answer.format(animal=animal, sound=sound)},
            ]
            for animal, sound in SAYS.items()
        ]
        texts = [tokenizer.apply_chat_template(row, tokenize=False) for row in rows]
        padded = tokenizer(texts, padding="max_length", max_length=LENGTH, return_tensors="pt")
        self.ids, self.mask = padded["input_ids"], padded["attention_mask"]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids, mask = self.ids[index], self.mask[index]
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "labels": ids.masked_fill(mask == 0, -100),
        }


class PrintLoss(TrainerCallback):
    """One flushed line a logging step, which is what a log viewer wants."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "loss" in logs:
            print(
                f"step {state.global_step}/{state.max_steps} loss {float(logs['loss']):.3f}",
                flush=True,
            )

    def on_save(self, args, state, control, **kwargs) -> None:
        print(f"saved checkpoint-{state.global_step}", flush=True)


def build_trainer(model, data: Dataset, tokenizer, *, steps: int, keep: bool) -> Trainer:
    """`keep`: a checkpoint at half of the steps and one at their end."""
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(CHECKPOINTS),
            max_steps=steps,
            per_device_train_batch_size=len(SAYS),
            learning_rate=1e-2 if keep else 5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, steps // 20),
            logging_steps=max(1, steps // 6),
            save_strategy="steps" if keep else "no",
            save_steps=max(1, steps // 2),
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
            seed=20,
        ),
        train_dataset=data,
        processing_class=tokenizer,
        callbacks=[PrintLoss()],
    )
    trainer.remove_callback(PrinterCallback)  # ours prints
    return trainer


def train_base(tokenizer: PreTrainedTokenizerFast) -> None:
    """The tokenizer is saved last: a base with one is complete."""
    model = build_model(tokenizer)
    print(f"the base: {model.num_parameters():,} parameters, {BASE_STEPS} steps", flush=True)
    data = Chats(PLAIN, tokenizer)
    build_trainer(model, data, tokenizer, steps=BASE_STEPS, keep=False).train()
    model.save_pretrained(BASE)
    tokenizer.save_pretrained(BASE)
    print(f"saved {BASE.name}", flush=True)


def newest_complete() -> Path | None:
    """The Trainer writes trainer_state.json last, so a checkpoint cut short by a kill has none."""
    found = [state.parent for state in CHECKPOINTS.glob("checkpoint-*/trainer_state.json")]
    return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def tell(model, tokenizer: PreTrainedTokenizerFast, animal: str) -> str:
    asked = [{"role": "user", "content": question(animal)}]
    prompt = tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    out = model.eval().generate(**prompt, max_new_tokens=80, do_sample=False)
    return tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    torch.set_num_threads(1)  # so little to compute that a second thread would only wait
    set_seed(20)
    disable_progress_bar()

    tokenizer = build_tokenizer()
    if not (BASE / "tokenizer_config.json").exists():
        train_base(tokenizer)
    model = LlamaForCausalLM.from_pretrained(BASE)
    print(f"\n> {question('cow')}\n{tell(model, tokenizer, 'cow')}\n", flush=True)

    adapted = get_peft_model(
        model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    trained, total = adapted.get_nb_trainable_parameters()
    print(f"the adapter: {trained:,} of {total:,} parameters, {STEPS} steps", flush=True)
    resume = newest_complete()
    print(f"going on from {resume}" if resume else "starting from nothing", flush=True)
    data = Chats(POLITE, tokenizer)
    trainer = build_trainer(adapted, data, tokenizer, steps=STEPS, keep=True)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    print(f"\n> {question('cow')}\n{tell(adapted, tokenizer, 'cow')}", flush=True)
    print(f"\nfinished: {newest_complete()}", flush=True)


if __name__ == "__main__":
    main()
