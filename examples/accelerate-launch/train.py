"""Run a custom training loop under `accelerate launch`, on one node or several.

Every node saves the complete state (model, optimizer, random numbers) to its own
$BT_CHECKPOINT_DIR, because nodes share no disk. Before a retry starts, that folder holds the
committed checkpoints of the job.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration, set_seed
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints"))
MODEL = os.environ["MODEL"]
ATTEMPT = int(os.environ.get("BT_RETRY_COUNT", "0"))
STEPS = int(os.environ.get("STEPS") or 40)
KILL_AT_STEP = int(os.environ.get("KILL_AT_STEP") or 0)
SAVE_EVERY = max(1, STEPS // 4)
DATA = Path(__file__).with_name("train.jsonl")
BATCH = 4  # per process


def read_texts(path: Path, tokenizer) -> list[str]:
    chats = [json.loads(line)["messages"] for line in path.read_text().splitlines()]
    return [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]


def newest_step(accelerator: Accelerator) -> int:
    """Return the newest step that every process finds on its node; 0 for none."""
    found = [int(folder.name.split("-")[1]) for folder in CHECKPOINTS.glob("checkpoint-*")]
    mine = torch.tensor([max(found, default=0)], device=accelerator.device)
    return int(accelerator.gather(mine).min())


def save(accelerator: Accelerator, step: int, model, tokenizer) -> None:
    """Save the state for a resume, and configuration and tokenizer, so that it loads as a model."""
    folder = CHECKPOINTS / f"checkpoint-{step}"
    accelerator.save_state(str(folder))
    if accelerator.is_local_main_process:
        tokenizer.save_pretrained(folder)
        accelerator.unwrap_model(model).config.save_pretrained(folder)
    accelerator.print(f"saved checkpoint-{step}", flush=True)


def main() -> None:
    accelerator = Accelerator(project_config=ProjectConfiguration(save_on_each_node=True))
    set_seed(20)
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL)

    def collate(texts: list[str]):
        rows = tokenizer(texts, padding=True, return_tensors="pt")
        rows["labels"] = rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)
        return rows

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    data = DataLoader(
        read_texts(DATA, tokenizer), batch_size=BATCH, shuffle=True, collate_fn=collate
    )
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    accelerator.print(f"attempt {ATTEMPT}: {accelerator.num_processes} processes", flush=True)

    step = newest_step(accelerator)
    if step:
        accelerator.load_state(str(CHECKPOINTS / f"checkpoint-{step}"))
    accelerator.print(f"resuming from checkpoint-{step}" if step else "starting from the base")
    model.train()
    while step < STEPS:
        for batch in data:
            step += 1
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step % max(1, STEPS // 8) == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"step {step}/{STEPS} loss {mean:.3f}", flush=True)
            if step % SAVE_EVERY == 0:
                save(accelerator, step, model, tokenizer)
            if ATTEMPT == 0 and step == KILL_AT_STEP and accelerator.is_main_process:
                print(f"killed after step {step}, as KILL_AT_STEP asks", flush=True)
                os.kill(os.getppid(), signal.SIGKILL)  # the launcher, which otherwise exits with 1
                os.kill(os.getpid(), signal.SIGKILL)
            if step == STEPS:
                break
    accelerator.print("done", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
