"""Train in a plain PyTorch loop with FSDP; save with torch.distributed.checkpoint (DCP).

Every process saves its own shard of the model and of the optimizer to step-N in
$BT_CHECKPOINT_DIR. A resume may have another number of processes. At the end the complete model is
saved to `model`, in the format that transformers and inference servers load.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints"))
MODEL = os.environ["MODEL"]
ATTEMPT = int(os.environ.get("BT_RETRY_COUNT", "0"))
STEPS = int(os.environ.get("STEPS") or 40)
KILL_AT_STEP = int(os.environ.get("KILL_AT_STEP") or 0)
SAVE_EVERY = max(1, STEPS // 4)
DATA = Path(__file__).with_name("train.jsonl")
BATCH = 8  # per process


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(f"{text}\n", end="", flush=True)


def newest_step() -> int:
    """Return the newest complete step. DCP writes .metadata last, so a complete folder has it."""
    found = [int(file.parent.name.split("-")[1]) for file in CHECKPOINTS.glob("step-*/.metadata")]
    return max(found, default=0)


def save(step: int, model, optimizer) -> None:
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": step}
    dcp.save(state, checkpoint_id=CHECKPOINTS / f"step-{step}")
    say(f"saved step-{step}")


def resume(model, optimizer) -> int:
    """Load the shard of this process. Return the step of the checkpoint; 0 for none."""
    step = newest_step()
    if step == 0:
        say("starting from the base")
        return 0
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments, "step": 0}
    dcp.load(state, checkpoint_id=CHECKPOINTS / f"step-{step}")
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    say(f"resuming from step-{state['step']}")
    return state["step"]


def save_whole(model, tokenizer) -> None:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)  # all processes take part
    if dist.get_rank() == 0:
        model.save_pretrained(CHECKPOINTS / "model", state_dict=weights)
        tokenizer.save_pretrained(CHECKPOINTS / "model")
    say("saved model")


def batches(texts: list[str], tokenizer, device: torch.device):
    """Return this process's part of the texts of a step; a repeated step gets the same texts."""
    rows = tokenizer(texts, padding=True, return_tensors="pt").to(device)
    rows["labels"] = rows["input_ids"].masked_fill(rows["attention_mask"] == 0, -100)

    def batch_of(step: int) -> dict[str, torch.Tensor]:
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(step))
        mine = order[dist.get_rank() :: dist.get_world_size()][:BATCH]
        return {name: tensor[mine] for name, tensor in rows.items()}

    return batch_of


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    disable_progress_bar()
    chats = [json.loads(line)["messages"] for line in DATA.read_text().splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL).to(device)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    say(f"attempt {ATTEMPT}: {dist.get_world_size()} processes, each with a shard")

    start = resume(model, optimizer)
    rows = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    batch_of = batches(rows, tokenizer, device)
    model.train()
    for step in range(start + 1, STEPS + 1):
        loss = model(**batch_of(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % max(1, STEPS // 8) == 0:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            say(f"step {step}/{STEPS} loss {mean.item() / dist.get_world_size():.3f}")
        if step % SAVE_EVERY == 0:
            save(step, model, optimizer)
        if ATTEMPT == 0 and step == KILL_AT_STEP and dist.get_rank() == 0:
            say(f"killed after step {step}, as KILL_AT_STEP asks")
            os.kill(os.getppid(), signal.SIGKILL)  # the launcher, which otherwise exits with 1
            os.kill(os.getpid(), signal.SIGKILL)
    save_whole(model, tokenizer)
    say("done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
