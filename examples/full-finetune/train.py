"""Fine-tune every weight of a chat model with the transformers Trainer.

Write checkpoints to $BT_CHECKPOINT_DIR. Before a retry starts, that folder holds the committed
checkpoints of the job, and training resumes from the newest. Without prefect-bt, `python train.py`
writes to ./checkpoints.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import tiny
import torch
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

CHECKPOINTS = os.environ.get("BT_CHECKPOINT_DIR", "checkpoints")
SCRATCH = Path(os.environ.get("BT_SCRATCH_DIR", "checkpoints"))
ATTEMPT = int(os.environ.get("BT_RETRY_COUNT", "0"))
STEPS = int(os.environ.get("STEPS") or 100)
KILL_AT_STEP = int(os.environ.get("KILL_AT_STEP") or 0)
DATA = Path(__file__).with_name("train.jsonl")
LENGTH = 48  # tokens of the longest chat


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


class KillOnce(TrainerCallback):
    """Kill the process at a step, as the loss of a machine does, to show a resume."""

    def on_step_end(self, args, state, control, **kwargs) -> None:
        if ATTEMPT == 0 and state.global_step == KILL_AT_STEP:
            print(f"killed after step {state.global_step}, as KILL_AT_STEP asks", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    set_seed(20)
    disable_progress_bar()
    chats = read_chats(DATA)
    name = os.environ.get("MODEL") or tiny.make_model(SCRATCH / "base", DATA)
    tokenizer = AutoTokenizer.from_pretrained(name)
    model = AutoModelForCausalLM.from_pretrained(name)
    print(f"{model.num_parameters():,} parameters, {len(chats)} chats, attempt {ATTEMPT}")

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=CHECKPOINTS,
            max_steps=STEPS,
            per_device_train_batch_size=8,
            learning_rate=5e-3,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, STEPS // 20),
            logging_steps=max(1, STEPS // 8),
            save_steps=max(1, STEPS // 4),
            save_total_limit=2,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
            disable_tqdm=True,
            report_to="none",
            seed=20,
        ),
        train_dataset=[encode(chat, tokenizer) for chat in chats],
        processing_class=tokenizer,
        callbacks=[Log(), KillOnce()],
    )
    trainer.remove_callback(PrinterCallback)  # Log prints instead

    last = get_last_checkpoint(CHECKPOINTS) if Path(CHECKPOINTS).is_dir() else None
    print(f"resuming from {Path(last).name}" if last else "starting from the base", flush=True)
    trainer.train(resume_from_checkpoint=last)

    question = chats[0][:1]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    ).to(model.device)
    out = model.eval().generate(**prompt, max_new_tokens=32, do_sample=False)
    answer = tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"> {question[0]['content']}\n{answer}\ndone", flush=True)


if __name__ == "__main__":
    main()
