"""What frameworks write, file by file in their order: the sources are the frameworks' own savers.

`Writing.files` is in the order of writing, relative to the checkpoint's folder; `../x` lies beside
it. `silent` names files after which nothing can tell that more will come.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prefect_bt.checkpoints.formats.protocol import SINGLE_NODE, GangPosition

from . import folders
from .folders import distributed, safetensors, text, torch_zip


@dataclass(frozen=True)
class Writing:
    name: str
    files: dict[str, bytes]
    silent: frozenset[str] = frozenset()
    finished: bool = False
    """Whether the last file proves the end the first time."""
    early: frozenset[str] = frozenset()
    """After these the files prove an end that a later file moves."""
    silent_again: frozenset[str] = frozenset()
    """After these not even a committed sibling shows what is missing."""
    place: GangPosition = SINGLE_NODE


CONFIG = {"config.json": text({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})}
GENERATION = {"generation_config.json": text({"eos_token_id": 2})}
TOKENIZER = {"tokenizer.json": text({"model": {}}), "tokenizer_config.json": text({})}
WEIGHTS = {"model.safetensors": safetensors()}
ARGS = {"training_args.bin": torch_zip(b"args")}
MODEL = CONFIG | GENERATION | WEIGHTS
SHARDS = {f"model-{n:05d}-of-00003.safetensors": safetensors() for n in (1, 2, 3)}
INDEX = {"model.safetensors.index.json": text({"weight_map": {n: n for n in SHARDS}})}
FILE = {".": torch_zip(b"a whole checkpoint")}
ADAPTER = {
    "README.md": b"# card",
    "adapter_model.safetensors": safetensors(),
    "adapter_config.json": text({"peft_type": "LORA", "r": 16}),
}


def state(step: int) -> dict[str, bytes]:
    return {"trainer_state.json": text({"global_step": step})}


def resumable(step: int, *ranks: int) -> dict[str, bytes]:
    """What Trainer writes after the model."""
    names = [f"rng_state_{rank}.pth" for rank in ranks] or ["rng_state.pth"]
    return {
        **ARGS,
        "optimizer.pt": torch_zip(b"o"),
        "scheduler.pt": torch_zip(b"s"),
        **{name: torch_zip(b"r") for name in names},
        **state(step),
    }


def trainer(step: int) -> Writing:
    files = MODEL | TOKENIZER | resumable(step)
    silent = frozenset(WEIGHTS | TOKENIZER)
    return Writing(f"checkpoint-{step}", files, silent=silent, finished=True)


def trainer_sharded(step: int) -> Writing:
    files = CONFIG | GENERATION | SHARDS | INDEX | resumable(step)
    return Writing(f"checkpoint-{step}", files, silent=frozenset(INDEX), finished=True)


def trainer_only_model(step: int) -> Writing:
    files = MODEL | ARGS | state(step)
    return Writing(f"checkpoint-{step}", files, silent=frozenset(WEIGHTS), finished=True)


def trainer_processes(step: int) -> Writing:
    # The others have no model to write, so their random states come first.
    files = {"rng_state_1.pth": torch_zip(b"1")} | MODEL | resumable(step, 0)
    return Writing(f"checkpoint-{step}", files)


def trainer_slow_process(step: int) -> Writing:
    files = MODEL | resumable(step, 0) | {"rng_state_1.pth": torch_zip(b"1")}
    silent = frozenset({*WEIGHTS, "trainer_state.json"})
    return Writing(f"checkpoint-{step}", files, silent=silent)


def trainer_second_node(step: int) -> Writing:
    files = {f"rng_state_{rank}.pth": torch_zip(b"r") for rank in (2, 3)}
    silent = frozenset({"rng_state_2.pth"})
    return Writing(f"checkpoint-{step}", files, silent=silent, place=GangPosition(1, 2))


def trainer_lora(step: int) -> Writing:
    files = ADAPTER | resumable(step)
    return Writing(
        f"checkpoint-{step}", files, silent=frozenset({"adapter_config.json"}), finished=True
    )


def ms_swift(step: int) -> Writing:
    files = ADAPTER | {"additional_config.json": text({}), "args.json": text({})} | resumable(step)
    silent = frozenset({"adapter_config.json", "additional_config.json", "args.json"})
    return Writing(f"v0-20250101-101010/checkpoint-{step}", files, silent=silent, finished=True)


def whisper(step: int) -> Writing:
    files = MODEL | resumable(step) | folders.whisper()
    order = [*MODEL, "preprocessor_config.json", *resumable(step)]
    silent = frozenset({*WEIGHTS, "preprocessor_config.json"})
    ordered = {path: files[path] for path in order}
    return Writing(f"checkpoint-{step}", ordered, silent=silent, finished=True)


def sentence_transformers(step: int) -> Writing:
    files = {
        **{"config_sentence_transformers.json": text({})} | CONFIG | WEIGHTS,
        "1_Pooling/config.json": text({"pooling_mode": "mean"}),
        "modules.json": text([]),
        **resumable(step),
    }
    silent = {"config_sentence_transformers.json", *WEIGHTS, "1_Pooling/config.json"}
    return Writing(
        f"checkpoint-{step}", files, silent=frozenset({*silent, "modules.json"}), finished=True
    )


def like_trainer(step: int) -> Writing:
    """A loop of one's own with Trainer's names, which does end with the state."""
    names = ("pytorch_model.bin", "optimizer.pt", "rng_state.pth")
    files = {name: torch_zip() for name in names} | state(step)
    return Writing(f"checkpoint-{step}", files, silent=frozenset(names[:1]), finished=True)


def value_head(step: int) -> Writing:
    """LLaMA-Factory's PPO writes it when it is told that the rest was saved."""
    files = MODEL | resumable(step) | {"value_head.safetensors": safetensors()}
    last = frozenset({"trainer_state.json"})
    silent = last | WEIGHTS.keys()
    return Writing(f"checkpoint-{step}", files, silent=silent, early=last, silent_again=last)


def trainer_fsdp(step: int) -> Writing:
    files = distributed("pytorch_model_fsdp_0/") | distributed("optimizer_0/")
    files |= {"scheduler.pt": torch_zip(), "rng_state_1.pth": torch_zip(b"1")}
    files |= {"rng_state_0.pth": torch_zip(b"0")} | state(step)
    return Writing(f"checkpoint-{step}", files, finished=True)


def accelerate_fsdp(step: int) -> Writing:
    files = distributed("pytorch_model_fsdp_0/") | distributed("optimizer_0/")
    files |= {"scheduler.bin": torch_zip(), "random_states_1.pkl": torch_zip(b"1")}
    files |= {"random_states_0.pkl": torch_zip(b"0")}
    return Writing(f"epoch_{step}", files, silent=frozenset({"random_states_1.pkl"}))


def accelerate(step: int) -> Writing:
    files = WEIGHTS | {name: torch_zip() for name in ("optimizer.bin", "scheduler.bin")}
    files |= {"random_states_0.pkl": torch_zip(), "custom_checkpoint_0.pkl": torch_zip()}
    silent = frozenset({*WEIGHTS, "random_states_0.pkl"})
    return Writing(f"checkpoint_{step}", files, silent=silent)


def diffusers_training(step: int) -> Writing:
    unet = {
        "unet/config.json": text({"_class_name": "UNet2DConditionModel"}),
        "unet/diffusion_pytorch_model.safetensors": safetensors(),
    }
    files = unet | {name: torch_zip() for name in ("optimizer.bin", "scheduler.bin")}
    files |= {"random_states_0.pkl": torch_zip()}
    return Writing(f"checkpoint-{step}", files, silent=frozenset(unet))


def zero(step: int, tag: str, prefix: str = "") -> dict[str, bytes]:
    shards = {f"{tag}bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt": b"x" for r in (1, 0)}
    files = {f"{tag}mp_rank_00_model_states.pt": torch_zip()} | shards
    return files | {
        f"{prefix}zero_to_fp32.py": b"pass",
        f"{prefix}latest": tag.strip("/").encode() or f"global_step{step}".encode(),
    }


def trainer_deepspeed(step: int) -> Writing:
    files = MODEL | ARGS | zero(step, f"global_step{step}/")
    files |= {f"rng_state_{rank}.pth": torch_zip(b"r") for rank in (0, 1)} | state(step)
    return Writing(f"checkpoint-{step}", files, silent=frozenset(WEIGHTS), finished=True)


def deepspeed(step: int) -> Writing:
    return Writing(f"global_step{step}", zero(step, "", "../"), finished=True)


def deepspeed_stage_3(step: int) -> Writing:
    names = [f"zero_pp_rank_{r}_mp_rank_00_{k}_states.pt" for k in ("model", "optim") for r in "01"]
    files = {name: torch_zip() for name in names} | {"../latest": f"global_step{step}".encode()}
    return Writing(f"run/global_step{step}", files, finished=True)


def deepspeed_second_node(step: int) -> Writing:
    names = [f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (2, 3)]
    files = {name: torch_zip() for name in names}
    silent = frozenset(names[:1])
    return Writing(f"global_step{step}", files, silent=silent, place=GangPosition(1, 2))


def accelerate_deepspeed(step: int) -> Writing:
    files = zero(step, "pytorch_model/") | {"random_states_0.pkl": torch_zip()}
    return Writing(f"checkpoint_{step}", files)


def megatron(step: int) -> Writing:
    files = {f"mp_rank_{r:02d}/model_optim_rng.pt": torch_zip() for r in (0, 1)}
    files |= {f"mp_rank_{r:02d}/distrib_optim.pt": torch_zip() for r in (0, 1)}
    tracker = {"../latest_checkpointed_iteration.txt": str(step).encode()}
    return Writing(f"iter_{step:07d}", files | tracker, finished=True)


def megatron_distributed(step: int) -> Writing:
    files = {"common.pt": torch_zip()} | distributed() | {"metadata.json": text({})}
    tracker = {"../latest_checkpointed_iteration.txt": str(step).encode()}
    return Writing(f"iter_{step:07d}", files | tracker, finished=True)


def verl(step: int) -> Writing:
    files = {
        f"actor/{kind}_world_size_2_rank_{rank}.pt": torch_zip()
        for kind in ("model", "optim", "extra_state")
        for rank in (0, 1)
    }
    files |= {"actor/fsdp_config.json": text({"world_size": 2})}
    files |= {"actor/huggingface/config.json": CONFIG["config.json"], "data.pt": torch_zip()}
    tracker = {"../latest_checkpointed_iteration.txt": str(step).encode()}
    # Small settings play no part.
    again = frozenset({"data.pt"})
    return Writing(f"global_step_{step}", files | tracker, finished=True, silent_again=again)


def torchtitan(step: int) -> Writing:
    return Writing(f"step-{step}", distributed(), finished=True)


def without_collectives(step: int) -> Writing:
    files = {"__0_0.distcp": b"x", "__0.metadata": b"__0_0.distcp", "__1_0.distcp": b"y"}
    files |= {"__1.metadata": b"__1_0.distcp"}
    return Writing(f"step-{step}", files, silent=frozenset({"__0.metadata"}))


def another_node(step: int) -> Writing:
    files = {f"__{rank}_0.distcp": b"x" for rank in (8, 9)}
    return Writing(
        f"step-{step}", files, silent=frozenset({"__8_0.distcp"}), place=GangPosition(1, 2)
    )


def first_node(step: int) -> Writing:
    files = distributed() | {".metadata": b"__0_0.distcp __1_0.distcp __2_0.distcp __3_0.distcp"}
    return Writing(f"step-{step}", files, place=GangPosition(0, 2))


def lightning_sharded(step: int) -> Writing:
    files = distributed() | {"meta.pt": torch_zip()}
    again = frozenset({".metadata"})
    return Writing(
        f"epoch=0-step={step}.ckpt", files, silent=frozenset({".metadata"}), silent_again=again
    )


def lightning_file(step: int) -> Writing:
    return Writing(f"lightning_logs/version_0/checkpoints/epoch=1-step={step}.ckpt", FILE)


def keras_file(step: int) -> Writing:
    return Writing(f"weights.{step:02d}-0.25.keras", FILE)


def torch_file(step: int) -> Writing:
    return Writing(f"out/model_{step}.pt", FILE)


def torchtune(step: int) -> Writing:
    files = SHARDS | INDEX | CONFIG | ADAPTER | {"recipe_state.pt": torch_zip()}
    silent = frozenset({*INDEX, *CONFIG, *ADAPTER} - {"adapter_model.safetensors"})
    again = frozenset({"adapter_config.json"})
    return Writing(f"epoch_{step}", files, silent=silent, silent_again=again)


def ray_train(step: int) -> Writing:
    """Return what Ray copies of a loop's report, and the snapshot that names it afterwards."""
    files = {"checkpoint/model.pt": torch_zip(), "checkpoint/optimizer.pt": torch_zip()}
    snapshot = text({"checkpoint_results": [{"checkpoint_dir_name": f"checkpoint_{step:06d}"}]})
    files |= {"../checkpoint_manager_snapshot.json": snapshot}
    silent = frozenset([*files][:-1])
    return Writing(f"exp/checkpoint_{step:06d}", files, silent=silent, finished=True)


def llama_factory(step: int) -> Writing:
    files = ADAPTER | TOKENIZER | {"chat_template.jinja": b"{{ x }}"} | resumable(step)
    silent = frozenset({"adapter_config.json", *TOKENIZER, "chat_template.jinja"})
    return Writing(f"saves/qwen/checkpoint-{step}", files, silent=silent, finished=True)


WRITERS: dict[str, Callable[[int], Writing]] = {
    writer.__name__: writer
    for writer in (
        *(trainer, trainer_sharded, trainer_only_model, trainer_processes, trainer_slow_process),
        *(trainer_second_node, trainer_lora, ms_swift, whisper, sentence_transformers, value_head),
        like_trainer,
        *(trainer_fsdp, accelerate_fsdp, accelerate, diffusers_training, trainer_deepspeed),
        *(deepspeed, deepspeed_stage_3, deepspeed_second_node, accelerate_deepspeed, megatron),
        *(megatron_distributed, verl, torchtitan, without_collectives, another_node, first_node),
        *(lightning_sharded, lightning_file, keras_file, torch_file, torchtune, ray_train),
        llama_factory,
    )
}


def exported(name: str, files: dict[str, bytes], *silent: str) -> Writing:
    return Writing(name, files, silent=frozenset(silent))


VAE = {"config.json": text({"_class_name": "Autoencoder"}), "model.safetensors": safetensors()}
ONCE: dict[str, Writing] = {
    "save_pretrained": exported("merged", MODEL | TOKENIZER, *WEIGHTS, "tokenizer.json"),
    "sharded": exported("final", CONFIG | SHARDS | INDEX),
    "unsloth merged": exported("model_16bit", TOKENIZER | CONFIG | SHARDS | INDEX, *TOKENIZER),
    "peft": exported("lora-output", ADAPTER, "README.md"),
    "axolotl's output folder": exported("out", CONFIG | TOKENIZER | WEIGHTS | ARGS, *WEIGHTS),
    "nanoGPT": exported("out", {"ckpt.pt": torch_zip()}),
    "a pipeline": exported(
        "pipeline",
        {f"vae/{path}": data for path, data in VAE.items()} | {"model_index.json": text({})},
        *("vae/config.json", "vae/model.safetensors"),
    ),
    "keras and others": exported("best", {"weights.h5": b"x", "notes": b"x"}, "weights.h5"),
}
