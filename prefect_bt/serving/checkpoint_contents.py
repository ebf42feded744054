"""Read the properties of a committed checkpoint that serving needs. Reads manifests, not weights.

`checkpoints.layout` recognised the type when the checkpoint was committed. Serving needs more:
whether the weights are complete, which tokenizer and chat template belong to them, and what an
adapter requires.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, cast

from prefect_bt.checkpoints.committed.catalog import CommittedCheckpoint
from prefect_bt.checkpoints.layout import LORA, CheckpointMetadata, read_metadata
from prefect_bt.checkpoints.manifest import Manifest, ManifestEntry
from prefect_bt.definitions import ModelWeightsFormat
from prefect_bt.object_store.protocols import Store
from prefect_bt.serving.served_model import CheckpointContents

CHAT_TEMPLATE: Final = "chat_template.jinja"
_MAX_CONFIG_BYTES: Final = 8 * 1024 * 1024
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
"""What is saved a process and not a model; after it is gathered, servers can read it."""


def read_contents(store: Store, checkpoint: CommittedCheckpoint) -> CheckpointContents:
    """Of the part that is served, the lowest rank's. Raises StoreError."""
    first, *others = checkpoint.manifests
    kind = _kind(store, first)
    paths = [entry.path for entry in first.entries]
    adapter: Mapping[str, Any] = kind.lora_adapter_config or {}
    whole = _has_weights(paths, kind)
    return CheckpointContents(
        format=ModelWeightsFormat(kind.type) if kind.type else None,
        base_model=kind.base_model or "",
        base_revision=_text(adapter.get("revision")),
        lora_rank=_max_lora_rank(kind),
        has_weights=whole,
        sharding="" if whole else _sharding(_all_paths(checkpoint)),
        has_tokenizer=not _TOKENIZER_FILES.isdisjoint(paths),
        chat_template=next((e.sha256 for e in first.entries if e.path == CHAT_TEMPLATE), ""),
        unsupported_by_vllm=tuple(_list_unsupported_by_vllm(adapter)),
        size=first.size,
        other_ranks=() if whole else tuple(m.rank for m in others if _manifest_has_weights(m)),
    )


def _kind(store: Store, manifest: Manifest) -> CheckpointMetadata:
    """As recorded; looked at again where nothing was recognised, perhaps by an older release."""
    if manifest.type:
        adapter = manifest.lora_adapter_config
        return CheckpointMetadata(manifest.type, manifest.base_model, adapter, manifest.step)
    entries = {entry.path: entry for entry in manifest.entries}
    return read_metadata(manifest.name, entries, lambda path: _read_json(store, entries.get(path)))


def _read_json(store: Store, entry: ManifestEntry | None) -> Any:
    if entry is None or entry.size > _MAX_CONFIG_BYTES:
        return None
    try:
        return json.loads(store.get(entry.key))
    except (ValueError, RecursionError):
        return None


def _has_weights(paths: Collection[str], kind: CheckpointMetadata) -> bool:
    """Directly in the folder, where servers look."""
    wanted = _ADAPTER if kind.type == LORA else _MODEL_WEIGHTS
    return any("/" not in path and wanted.fullmatch(path) for path in paths)


def _manifest_has_weights(manifest: Manifest) -> bool:
    return _has_weights(
        [entry.path for entry in manifest.entries], CheckpointMetadata(manifest.type)
    )


def _sharding(paths: Iterable[str]) -> str:
    for path in paths:
        for name, shard in _SHARD_PATTERNS:
            if shard.fullmatch(path):
                return name
    return ""


def _all_paths(checkpoint: CommittedCheckpoint) -> Iterable[str]:
    return (entry.path for part in checkpoint.manifests for entry in part.entries)


def _max_lora_rank(kind: CheckpointMetadata) -> int | None:
    """PEFT's `r`, or a layer's own of `rank_pattern` that is higher."""
    if kind.lora_rank is None:
        return None
    pattern: object = (kind.lora_adapter_config or {}).get("rank_pattern")
    own = cast("Mapping[str, object]", pattern).values() if isinstance(pattern, Mapping) else ()
    return max([kind.lora_rank, *(rank for rank in own if type(rank) is int)])


def _list_unsupported_by_vllm(adapter: Mapping[str, Any]) -> Iterable[str]:
    """What vLLM's PEFTHelper refuses when it loads an adapter, and methods that are not LoRA."""
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
