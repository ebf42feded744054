"""Fine-tune a LoRA adapter on chats, with PEFT and the transformers Trainer.

Write the base model to $BT_CHECKPOINT_DIR once, as `base`, and the adapter as checkpoint-N. A
server needs both. The tiny base model is trained on base.jsonl first; a real one is pretrained.
A retry resumes from the newest adapter.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import tiny
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils.logging import disable_progress_bar

CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints")).absolute()
SCRATCH = Path(os.environ.get("BT_SCRATCH_DIR", "checkpoints"))
STEPS = int(os.environ.get("STEPS") or 80)
BASE_STEPS = 60
HERE = Path(__file__).parent
LENGTH = 64  # tokens of the longest chat


def read_chats(path: Path) -> list[list[dict[str, str]]]:
    return [json.loads(line)["messages"] for line in path.read_text().splitlines()]


def encode(chat: list[dict[str, str]], tokenizer) -> dict[str, torch.Tensor]:
    """Train on the answer only: the labels of the text before it, and of padding, are -100."""
    text = tokenizer.apply_chat_template(chat, tokenize=False)
    prompt = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
    row = tokenizer(
        text, max_length=LENGTH, padding="max_length", truncation=True, return_tensors="pt"
    )
    ids, mask = row["input_ids"][0], row["attention_mask"][0]
    labels = ids.masked_fill(mask == 0, -100)
    labels[: len(tokenizer(prompt)["input_ids"])] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Log(TrainerCallback):
    """Print one line for each logging step and each checkpoint."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "loss" in logs:
            loss = float(logs["loss"])
            print(f"step {state.global_step}/{state.max_steps} loss {loss:.3f}", flush=True)

    def on_save(self, args, state, control, **kwargs) -> None:
        print(f"saved checkpoint-{state.global_step}", flush=True)


def build_trainer(model, tokenizer, data: Path, *, steps: int, save: str) -> Trainer:
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(CHECKPOINTS),
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=1e-2 if save == "steps" else 5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, steps // 20),
            logging_steps=max(1, steps // 5),
            save_strategy=save,
            save_steps=max(1, steps // 2),
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
            seed=20,
        ),
        train_dataset=[encode(chat, tokenizer) for chat in read_chats(data)],
        processing_class=tokenizer,
        callbacks=[Log()],
    )
    trainer.remove_callback(PrinterCallback)  # Log prints instead
    return trainer


def make_base() -> str:
    """Train the tiny model on base.jsonl. Save the tokenizer last; a complete base has one."""
    base = CHECKPOINTS / "base"
    if not (base / "tokenizer_config.json").exists():
        name = tiny.make_model(SCRATCH / "untrained", HERE / "train.jsonl")
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = AutoModelForCausalLM.from_pretrained(name)
        print(f"the base: {model.num_parameters():,} parameters, {BASE_STEPS} steps", flush=True)
        data = HERE / "base.jsonl"
        build_trainer(model, tokenizer, data, steps=BASE_STEPS, save="no").train()
        model.save_pretrained(base)
        tokenizer.save_pretrained(base)
        print("saved base", flush=True)
    return str(base)


def answer(model, tokenizer, question: list[dict[str, str]]) -> str:
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    out = model.eval().generate(**prompt, max_new_tokens=48, do_sample=False)
    return tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    set_seed(20)
    disable_progress_bar()
    name = os.environ.get("MODEL") or make_base()
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name)
    question = read_chats(HERE / "train.jsonl")[0][:1]
    print(f"> {question[0]['content']}\n{answer(model, tokenizer, question)}", flush=True)

    lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    adapted = get_peft_model(model, lora)
    trained, total = adapted.get_nb_trainable_parameters()
    print(f"the adapter: {trained:,} of {total:,} parameters, {STEPS} steps", flush=True)
    last = get_last_checkpoint(str(CHECKPOINTS)) if CHECKPOINTS.is_dir() else None
    print(f"resuming from {Path(last).name}" if last else "starting from the base", flush=True)
    trainer = build_trainer(adapted, tokenizer, HERE / "train.jsonl", steps=STEPS, save="steps")
    trainer.train(resume_from_checkpoint=last)
    print(f"> {question[0]['content']}\n{answer(adapted, tokenizer, question)}\ndone", flush=True)


if __name__ == "__main__":
    main()
