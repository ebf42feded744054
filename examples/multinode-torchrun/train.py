"""Train with DistributedDataParallel over every process of every node, started by torchrun.

Rank 0 saves to its node's $BT_CHECKPOINT_DIR. Nodes share no disk: on a retry rank 0 reads the
newest checkpoint there and sends it to the other ranks.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from model import CONFIG, ByteModel
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints"))
ATTEMPT = int(os.environ.get("BT_RETRY_COUNT", "0"))
STEPS = int(os.environ.get("STEPS") or 40)
SEED = int(os.environ.get("SEED") or 20)
KILL_AT_STEP = int(os.environ.get("KILL_AT_STEP") or 0)
SAVE_EVERY = max(1, STEPS // 4)
BATCH = 8  # per process
LENGTH = CONFIG["length"]


def say(text: str) -> None:
    """Print from rank 0. Write a line in one call, because processes share the node's output."""
    if dist.get_rank() == 0:
        print(f"{text}\n", end="", flush=True)


def batch_of(text: torch.Tensor, step: int, device: torch.device) -> torch.Tensor:
    """Draw samples that differ by process and step; a repeated step gets the same samples."""
    draw = torch.Generator().manual_seed(SEED + step * dist.get_world_size() + dist.get_rank())
    starts = torch.randint(len(text) - LENGTH - 1, (BATCH,), generator=draw)
    return torch.stack([text[s : s + LENGTH + 1] for s in starts.tolist()]).to(device)


def newest() -> Path | None:
    found = CHECKPOINTS.glob("checkpoint-*/config.json")
    return max((f.parent for f in found), key=lambda p: int(p.name.split("-")[1]), default=None)


def save(step: int, model: ByteModel, optimizer: torch.optim.Optimizer) -> None:
    """Save a checkpoint, config.json last: a checkpoint without it is incomplete."""
    if dist.get_rank() == 0:
        folder = CHECKPOINTS / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        save_file(model.state_dict(), folder / "model.safetensors")
        torch.save({"step": step, "optimizer": optimizer.state_dict()}, folder / "trainer.pt")
        (folder / "config.json").write_text(json.dumps(CONFIG))
    say(f"saved checkpoint-{step}")


def resume(model: ByteModel, optimizer: torch.optim.Optimizer) -> int:
    """Load on rank 0 and send to all ranks. Return the step of the checkpoint; 0 for none."""
    state = [None]
    folder = newest() if dist.get_rank() == 0 else None
    if folder is not None:
        weights = load_file(folder / "model.safetensors")
        state = [{**torch.load(folder / "trainer.pt", map_location="cpu"), "model": weights}]
    dist.broadcast_object_list(state)
    if state[0] is None:
        say("starting from nothing")
        return 0
    model.load_state_dict(state[0]["model"])
    optimizer.load_state_dict(state[0]["optimizer"])
    say(f"resuming from checkpoint-{state[0]['step']}")
    return state[0]["step"]


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(SEED)
    text = torch.tensor(list(Path(__file__).with_name("text.txt").read_bytes()))
    model = ByteModel(**CONFIG).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    nodes = os.environ["GROUP_WORLD_SIZE"]
    say(f"attempt {ATTEMPT}: {dist.get_world_size()} processes on {nodes} nodes")
    start = resume(model, optimizer)
    parallel = DistributedDataParallel(model)

    for step in range(start + 1, STEPS + 1):
        batch = batch_of(text, step, device)
        logits = parallel(batch[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
    say("done")
    dist.destroy_process_group()
    if not gpu:
        # DistributedDataParallel keeps gloo's threads alive. A thread that frees a tensor while
        # Python exits aborts the process, and the job fails: pytorch/pytorch#179291.
        os._exit(0)


if __name__ == "__main__":
    main()
