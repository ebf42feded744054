"""Which trees go when the cache has more than it may: the least recently used. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class EvictionCandidate:
    """A published tree; `blobs` are (sha256, bytes), `protected` when a living job needs it."""

    name: str
    last_used: float
    blobs: frozenset[tuple[str, int]]
    protected: bool = False


def choose_evictions(candidates: Sequence[EvictionCandidate], *, excess: int) -> list[str]:
    """Names in the order to remove them until `excess` bytes are free, or nothing may go.

    A blob's bytes are free when the last tree that has it goes; a tree that would free nothing,
    because all of it is in trees that stay, goes only on the way to one that does.

    >>> old = EvictionCandidate("old", 1.0, frozenset({("a", 5), ("b", 5)}))
    >>> new = EvictionCandidate("new", 2.0, frozenset({("b", 5)}))
    >>> choose_evictions([new, old], excess=3), choose_evictions([new, old], excess=6)
    (['old'], ['old', 'new'])
    """
    left = Counter(blob for one in candidates for blob in one.blobs)
    chosen: list[str] = []
    for one in sorted(candidates, key=lambda one: (one.last_used, one.name)):
        if excess <= 0:
            break
        if one.protected:
            continue
        chosen.append(one.name)
        for blob in one.blobs:
            left[blob] -= 1
            if not left[blob]:
                excess -= blob[1]
    return chosen
