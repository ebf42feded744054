"""Read the properties of a committed checkpoint that serving needs. Reads manifests, not weights.

`formats.hugging_face` recognized the type when the checkpoint was committed. Serving needs more:
whether the weights are complete, which tokenizer and chat template belong to them, and what an
adapter requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.formats.hugging_face import LORA
from prefect_bt.checkpoints.manifest import Manifest
from prefect_bt.definitions import ModelWeightsFormat
from prefect_bt.serving.served_model import CheckpointContents

CHAT_TEMPLATE: Final = "chat_template.jinja"
_ADAPTER: Final = re.compile(r"adapter_model.*\.(?:safetensors|bin)")
_MODEL_WEIGHTS: Final = re.compile(
    r"(?!adapter_model|training_args|optimizer|scheduler).*\.(?:safetensors|bin)"
)
_TOKENIZER_FILES: Final = frozenset(
    {"tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"}
    | {"spiece.model", "sentencepiece.bpe.model"}
)
_SHARD_PATTERNS: Final = (
    ("DeepSpeed", re.compile(r"(?:.*/)?\w*zero_pp_rank_\d+\w*\.pt")),
    ("DeepSpeed", re.compile(r"(?:.*/)?mp_rank_\d+_model_states\.pt")),
    ("Megatron", re.compile(r"(?:.*/)?mp_rank_\d+\w*/.*")),
    ("FSDP", re.compile(r"(?:.*/)?model_world_size_\d+_rank_\d+\.pt")),
    ("FSDP", re.compile(r"(?:.*/)?(?:pytorch_)?model_fsdp_\d+/.*")),
    ("FSDP", re.compile(r"(?:.*/)?__\d+_\d+\.distcp")),
)
"""Files of one process each; servers can read the weights only after they were gathered."""


def read_contents(checkpoint: CommittedCheckpoint) -> CheckpointContents:
    """Return the contents of the part that is served, the lowest rank's."""
    first, *others = checkpoint.manifests
    paths = [entry.path for entry in first.entries]
    adapter: Mapping[str, Any] = first.lora_adapter_config or {}
    whole = _has_weights(first)
    return CheckpointContents(
        format=ModelWeightsFormat(first.type) if first.type else None,
        base_model=first.base_model or "",
        base_revision=_text(adapter.get("revision")),
        lora_rank=_max_lora_rank(adapter),
        has_weights=whole,
        sharding="" if whole else _sharding(checkpoint),
        has_tokenizer=not _TOKENIZER_FILES.isdisjoint(paths),
        chat_template=next((e.sha256 for e in first.entries if e.path == CHAT_TEMPLATE), ""),
        unsupported_by_vllm=tuple(_list_unsupported_by_vllm(adapter)),
        other_ranks=() if whole else tuple(m.rank for m in others if _has_weights(m)),
    )


def _has_weights(manifest: Manifest) -> bool:
    """Return whether there are weights directly in the folder, where servers look."""
    wanted = _ADAPTER if manifest.type == LORA else _MODEL_WEIGHTS
    paths = (entry.path for entry in manifest.entries)
    return any("/" not in path and wanted.fullmatch(path) for path in paths)


def _sharding(checkpoint: CommittedCheckpoint) -> str:
    paths = [entry.path for part in checkpoint.manifests for entry in part.entries]
    named = (name for path in paths for name, shard in _SHARD_PATTERNS if shard.fullmatch(path))
    return next(named, "")


def _max_lora_rank(adapter: Mapping[str, Any]) -> int | None:
    """Return PEFT's `r`, or a higher rank of `rank_pattern`; None for no rank."""
    if type(adapter.get("r")) is not int:
        return None
    pattern: object = adapter.get("rank_pattern")
    ranks = cast("Mapping[str, object]", pattern).values() if isinstance(pattern, Mapping) else ()
    return max([adapter["r"], *(rank for rank in ranks if type(rank) is int)])


def _list_unsupported_by_vllm(adapter: Mapping[str, Any]) -> Iterable[str]:
    """Yield the features that vLLM's PEFTHelper rejects, and methods other than LoRA."""
    method = _text(adapter.get("peft_type"))
    if method not in {"", "LORA"}:
        yield f"the method {method}"
    if adapter.get("use_dora"):
        yield "DoRA"
    if adapter.get("bias") not in {None, "none"}:
        yield "trained biases"
    saved: object = adapter.get("modules_to_save")
    listed = cast("list[object]", saved) if isinstance(saved, list) else []
    names = {str(one) for one in listed}
    if names - {"classifier", "score"}:
        yield f"whole modules beside the adapter ({', '.join(sorted(names))})"


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
