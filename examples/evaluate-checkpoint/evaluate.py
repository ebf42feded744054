"""Measure a checkpoint of another job: loss, perplexity, exact answers.

The checkpoint is below $BT_LOAD_CHECKPOINT_DIR. The metrics are written to
$BT_CHECKPOINT_DIR/metrics and committed; `prefect-bt checkpoints download` downloads them.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

LOADED = Path(os.environ.get("BT_LOAD_CHECKPOINT_DIR", "checkpoints"))
OUTPUT = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints")) / "metrics"
DATA = Path(__file__).with_name("eval.jsonl")


def find_checkpoint() -> Path:
    """Return the only folder that holds a model, of any rank and name."""
    found = {config.parent.resolve() for config in LOADED.glob("**/config.json")}
    if len(found) != 1:
        raise SystemExit(f"{LOADED} holds {len(found)} models, and one is evaluated at a time.")
    return found.pop()


@torch.no_grad()
def answer_loss(model, tokenizer, chat: list[dict[str, str]]) -> tuple[float, int]:
    """Return the summed loss of the answer's tokens, and their number."""
    prompt = tokenizer.apply_chat_template(chat[:-1], tokenize=False, add_generation_prompt=True)
    ids = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False), return_tensors="pt")
    labels = ids["input_ids"].clone()
    labels[:, : len(tokenizer(prompt)["input_ids"])] = -100
    count = int((labels[:, 1:] != -100).sum())
    return model(**ids, labels=labels).loss.item() * count, count


def answer(model, tokenizer, chat: list[dict[str, str]]) -> str:
    prompt = tokenizer.apply_chat_template(
        chat[:-1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=32, do_sample=False)
    return tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    disable_progress_bar()
    checkpoint = find_checkpoint()
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint).eval()
    chats = [json.loads(line)["messages"] for line in DATA.read_text().splitlines()]
    print(f"evaluating {checkpoint.name} on {len(chats)} chats", flush=True)

    losses = [answer_loss(model, tokenizer, chat) for chat in chats]
    loss = sum(total for total, _ in losses) / sum(count for _, count in losses)
    exact = sum(answer(model, tokenizer, chat) == chat[-1]["content"] for chat in chats)
    metrics = {
        "checkpoint": checkpoint.name,
        "chats": len(chats),
        "loss": round(loss, 4),
        "perplexity": round(math.exp(loss), 4),
        "exact_answers": exact / len(chats),
    }
    OUTPUT.mkdir(parents=True, exist_ok=True)
    (OUTPUT / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n")
    for name, value in metrics.items():
        print(f"{name}: {value}")
    print("done", flush=True)


if __name__ == "__main__":
    main()
