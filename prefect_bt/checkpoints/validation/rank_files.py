"""Files that every process writes: is one missing? Pure: names in, a sentence out.

    __<rank>_<n>.distcp, .metadata last              PyTorch's distributed checkpoints, Megatron
    model_world_size_<n>_rank_<r>.pt                 verl, FSDP
    zero_pp_rank_<d>_mp_rank_<m>_optim_states.pt     DeepSpeed ZeRO, beside ..._model_states.pt
    rng_state_<rank>.pth                             HF Trainer, one a process

On a job of several nodes each has its own directory, with what its own processes wrote: only the
first node's has rank 0's files, and none has every rank's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

_DISTCP: Final = re.compile(r"(.*/|)__(\d+)_\d+\.distcp", re.DOTALL)
_METADATA: Final = re.compile(r"(.*/|)__(\d+)\.metadata", re.DOTALL)
_FSDP_RANK_FILE: Final = re.compile(r"(.*_world_size_(\d+)_rank_)(\d+)(\.\w+)", re.DOTALL)
_ZERO_RANK_FILE: Final = re.compile(
    r"(.*/|)(?:\w+_)?zero_pp_rank_(\d+)_(mp_rank_\d+)\w*?_(optim|model)_states\.pt", re.DOTALL
)
_RNG_STATE_FILE: Final = re.compile(r"rng_state_(\d+)\.pth")


@dataclass(frozen=True)
class GangPosition:
    """Rank of the directory's node, in a group of `group_size` nodes."""

    rank: int = 0
    group_size: int = 1

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    @property
    def is_single_node(self) -> bool:
        return self.group_size == 1


SINGLE_NODE: Final = GangPosition()


def validate_rank_files(paths: Collection[str], place: GangPosition) -> str:
    """Return the first missing part that another process writes."""
    return (
        _validate_distcp(paths, place)
        or _validate_world_size(paths, place)
        or _validate_zero(paths, place)
        or _validate_rng_states(paths, place)
    )


def find_distcp_ranks(paths: Collection[str]) -> dict[str, set[int]]:
    """Return the ranks of each distributed checkpoint by folder (`x/`, or empty)."""
    ranks: dict[str, set[int]] = {}
    for path in paths:
        if path.endswith(".distcp") and (match := _DISTCP.fullmatch(path)):
            ranks.setdefault(match[1], set()).add(int(match[2]))
    return ranks


def find_rng_ranks(paths: Collection[str]) -> set[int]:
    """Return ranks with a saved random state of HF Trainer; a single process has no number."""
    return {int(match[1]) for path in paths if (match := _RNG_STATE_FILE.fullmatch(path))}


def count_optimizer_shards(paths: Collection[str]) -> int:
    """Return how many processes wrote ZeRO's optimizer states."""
    return sum(path.endswith("_optim_states.pt") for path in paths)


def _validate_distcp(paths: Collection[str], place: GangPosition) -> str:
    own: dict[str, set[int]] = {}
    for path in paths:
        if path.endswith(".metadata") and (match := _METADATA.fullmatch(path)):
            own.setdefault(match[1], set()).add(int(match[2]))
    for folder, ranks in find_distcp_ranks(paths).items():
        # Where processes save independently (torchft), each has metadata of its own.
        has_all = f"{folder}.metadata" in paths or ranks <= own.get(folder, set())
        if not has_all and (place.is_single_node or 0 in ranks):
            return f"{folder}.metadata is missing, which is written after the .distcp files"
    return ""


def _validate_world_size(paths: Collection[str], place: GangPosition) -> str:
    # A directory of one of several nodes has only its own ranks.
    if not place.is_single_node:
        return ""
    seen: dict[tuple[str, int, str], set[int]] = {}
    for path in paths:
        if "_world_size_" in path and (match := _FSDP_RANK_FILE.fullmatch(path)):
            seen.setdefault((match[1], int(match[2]), match[4]), set()).add(int(match[3]))
    for (head, world, tail), ranks in seen.items():
        if len(ranks) < world:
            return f"{len(ranks)} of {world} files {head}*{tail} are there"
    return ""


def _validate_zero(paths: Collection[str], place: GangPosition) -> str:
    shards: dict[str, dict[str, dict[str, set[int]]]] = {}
    for path in paths:
        if "zero_pp_rank_" in path and (match := _ZERO_RANK_FILE.fullmatch(path)):
            kinds = shards.setdefault(match[1], {}).setdefault(match[4], {})
            kinds.setdefault(match[3], set()).add(int(match[2]))
    for folder, kinds in shards.items():
        fault = _validate_zero_pairs(folder, kinds, paths, place) or (
            _validate_zero_ranks(folder, kinds) if place.is_single_node else ""
        )
        if fault:
            return fault
    return ""


def _validate_zero_pairs(
    folder: str,
    kinds: Mapping[str, Mapping[str, set[int]]],
    paths: Collection[str],
    place: GangPosition,
) -> str:
    """Check for both states: the model's come first; in stage 3 each process writes both."""
    optim, model = kinds.get("optim", {}), kinds.get("model", {})
    # Without an optimizer, an engine saves nothing in stage 3.
    for part, ranks in model.items():
        if missing := ranks - optim.get(part, set()):
            return f"{folder} has no optimizer states of data rank {min(missing)} ({part})"
    # The other nodes' processes of stage 1 and 2 write optimizer states only.
    has_first = any(0 in ranks for ranks in optim.values())
    has_model = any(p.startswith(folder) and p.endswith("model_states.pt") for p in paths)
    if has_first and place.is_leader and not has_model:
        return f"{folder} has optimizer states, but no model states"
    return ""


def _validate_zero_ranks(folder: str, kinds: Mapping[str, Mapping[str, set[int]]]) -> str:
    """Check that every part of the model has the same data ranks, from 0."""
    for kind, parts in kinds.items():
        expected = set(range(1 + max(max(ranks) for ranks in parts.values())))
        for part, ranks in parts.items():
            if missing := expected - ranks:
                return f"{folder} has no {kind} states of data rank {min(missing)} ({part})"
    return ""


def _validate_rng_states(paths: Collection[str], place: GangPosition) -> str:
    ranks = find_rng_ranks(paths)
    if not ranks:
        return ""
    # A directory of one of several nodes has its own ranks: with cyclic placement 1, 3, 5.
    missing = set(range(max(ranks) + 1)) - ranks if place.is_single_node else {0} - ranks
    if missing and place.is_leader:
        return f"rng_state_{min(missing)}.pth is missing"
    # Rank 0 writes trainer_state.json without waiting; other loops may save one rank's state.
    if "trainer_state.json" not in paths:
        return ""
    if wrote := set[int]().union(*find_distcp_ranks(paths).values()) - ranks:
        return f"rng_state_{min(wrote)}.pth is missing, and rank {min(wrote)} wrote other files"
    if count_optimizer_shards(paths) > len(ranks):
        return f"{len(ranks)} of {count_optimizer_shards(paths)} rng_state files are there"
    return ""
