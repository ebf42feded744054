"""Run as a program: have every framework save a tiny model, twice where it has steps.

python real_writers.py <folder>        makes <folder>/<framework>/...
"""

import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


def model() -> LlamaForCausalLM:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "vocab_size": 16}
    return LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=2, num_attention_heads=1, num_key_value_heads=1, **sizes)
    )


def adapted():
    from peft import LoraConfig, get_peft_model

    return get_peft_model(model(), LoraConfig(r=2, target_modules=["q_proj"]))


def train(folder: Path, net, **more) -> None:
    row = {"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor([1, 2, 3])}
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=2,
        save_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **more,
    )
    Trainer(net, arguments, train_dataset=[row] * 4).train()


def distributed(folder: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    for step in (1, 2):
        save({"model": model().state_dict()}, checkpoint_id=folder / f"step-{step}")


def accelerate(folder: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    net = model()
    accelerator.prepare(net, torch.optim.AdamW(net.parameters()))
    for step in (1, 2):
        accelerator.save_state(str(folder / f"checkpoint_{step}"))


WRITERS = {
    "trainer": lambda folder: train(folder, model()),
    "only-model": lambda folder: train(folder, model(), save_only_model=True),
    "trainer-lora": lambda folder: train(folder, adapted()),
    "save_pretrained": lambda folder: model().save_pretrained(folder / "merged"),
    "sharded": lambda folder: model().save_pretrained(folder / "merged", max_shard_size="1KB"),
    "lora": lambda folder: adapted().save_pretrained(str(folder / "adapter")),
    "distributed": distributed,
    "accelerate": accelerate,
}

if __name__ == "__main__":
    for name, write in WRITERS.items():
        write(Path(sys.argv[1]) / name)
