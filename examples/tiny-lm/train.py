"""Train a small Llama model on stories, from scratch, on the CPU, in about a minute.

Write checkpoints to $BT_CHECKPOINT_DIR as checkpoint-N. Resume from the newest complete checkpoint
there (a retry) or in $BT_LOAD_CHECKPOINT_DIR (a new job). Without prefect-bt, `python train.py`
writes to ./checkpoints. TINY_LM_STEPS sets the number of steps.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
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

STEPS = int(os.environ.get("TINY_LM_STEPS", "240"))
CHECKPOINTS = Path(os.environ.get("BT_CHECKPOINT_DIR", "checkpoints"))
LOADED = Path(os.environ.get("BT_LOAD_CHECKPOINT_DIR", "/nonexistent"))
TEXT = Path(__file__).with_name("text.txt")

LENGTH = 256  # tokens of a training sample
END = "<|end|>"
SPECIAL = ["<|pad|>", "<|user|>", "<|assistant|>", "<|system|>", END]
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(text: str) -> PreTrainedTokenizerFast:
    """Learn a byte-level BPE from `text`; the same text gives the same tokenizer."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(
            vocab_size=2048,
            special_tokens=SPECIAL,
            initial_alphabet=alphabet,
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token=SPECIAL[0],
        eos_token=END,
        extra_special_tokens=SPECIAL[1:4],
        chat_template=CHAT_TEMPLATE,
        model_max_length=512,
        clean_up_tokenization_spaces=False,
    )


def as_chat(story: str) -> list[dict[str, str]]:
    title, sentences = story.split("\n", 1)
    return [
        {"role": "user", "content": f"Tell me a story: {title}"},
        {"role": "assistant", "content": sentences.strip()},
    ]


class Stories(Dataset):
    """All stories as one sequence of tokens, cut into pieces of LENGTH."""

    def __init__(self, text: str, tokenizer: PreTrainedTokenizerFast) -> None:
        chats = [as_chat(story) for story in text.strip().split("\n\n")]
        row = "".join(tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats)
        ids = torch.tensor(tokenizer(row, verbose=False)["input_ids"])
        self.pieces = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build a model of 2 million parameters. Inference servers are fast with heads of 64."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=(len(tokenizer) + 63) // 64 * 64,
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=3,
            num_key_value_heads=3,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            initializer_range=0.06,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def newest_complete(folder: Path) -> Path | None:
    """Return the newest complete checkpoint-N under `folder`.

    The Trainer writes trainer_state.json last, so an incomplete checkpoint does not have it.
    """
    found = [state.parent for state in folder.glob("**/checkpoint-*/trainer_state.json")]
    return max(found, key=step_of, default=None)


class PrintLoss(TrainerCallback):
    """Print one line for each logging step, and flush it, so that logs show it at once."""

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if logs and "loss" in logs:
            print(
                f"step {state.global_step}/{state.max_steps} loss {float(logs['loss']):.3f}",
                flush=True,
            )

    def on_save(self, args, state, control, **kwargs) -> None:
        print(f"saved checkpoint-{state.global_step}", flush=True)


def tell(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, request: str) -> str:
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": request}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(model.device)
    model.eval()
    out = model.generate(
        input_ids=prompt["input_ids"],
        attention_mask=prompt["attention_mask"],
        max_new_tokens=200,
        do_sample=True,
        temperature=0.5,
    )
    return tokenizer.decode(out[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    torch.set_num_threads(cores or 1)
    set_seed(20)
    disable_progress_bar()

    text = TEXT.read_text(encoding="utf-8")
    tokenizer = train_tokenizer(text)
    data = Stories(text, tokenizer)
    resume = newest_complete(CHECKPOINTS) or newest_complete(LOADED)
    finished = resume is not None and step_of(resume) >= STEPS
    model = LlamaForCausalLM.from_pretrained(resume) if finished else build_model(tokenizer)
    print(
        f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens in the vocabulary, "
        f"{len(data)} samples, {STEPS} steps, {cores} threads, "
        f"attempt {os.environ.get('BT_RETRY_COUNT', '0')}",
        flush=True,
    )
    print(f"going on from {resume}" if resume else "starting from nothing", flush=True)

    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(CHECKPOINTS),
            max_steps=STEPS,
            per_device_train_batch_size=8,
            learning_rate=4e-3,
            adam_beta2=0.98,
            lr_scheduler_type="cosine",
            warmup_steps=max(1, STEPS // 20),
            weight_decay=0.01,
            logging_steps=max(1, STEPS // 24),
            save_steps=max(1, STEPS // 4),
            save_total_limit=2,
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
    trainer.remove_callback(PrinterCallback)  # PrintLoss prints instead
    if not finished:
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)

    for request in ("Tell me a story: Lily and the blue boat", "Tell me a story: The brave boy"):
        print(f"\n> {request}\n{tell(model, tokenizer, request)}", flush=True)
    final = newest_complete(CHECKPOINTS) or resume
    print(f"\nfinished: {final}", flush=True)


if __name__ == "__main__":
    main()
