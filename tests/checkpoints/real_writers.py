"""Run as a program: have every framework save a tiny model, twice where it has steps.

    python tests/checkpoints/real_writers.py tests/fixtures/layouts.tar.gz

makes the archive anew: <framework>/<checkpoint>/<file>, in the order in which they were written.
"""

import os
import socket
import sys
import tarfile
import tempfile
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


def write_all(archive: Path) -> None:
    """In a folder of its own, by relative names: no file tells where it was made."""
    archive = archive.absolute()
    socket.gethostname = lambda: "host"  # it stands in arguments that are saved
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, write in WRITERS.items():
            write(Path(name))
        with tarfile.open(archive, "w:gz") as tar:
            for path in sorted(filter(Path.is_file, Path().rglob("*")), key=_written):
                fact = tarfile.TarInfo(path.as_posix())
                fact.size = path.stat().st_size
                with path.open("rb") as stream:
                    tar.addfile(fact, stream)


def _written(path: Path) -> tuple[int, int]:
    """Times tell the order of writing, inodes where the clock is too coarse."""
    fact = path.stat()
    return fact.st_mtime_ns, fact.st_ino


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
