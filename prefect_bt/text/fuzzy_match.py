"""Fuzzy search in a list of texts. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence


def rank_matches(query: str, texts: Sequence[str]) -> list[int]:
    """Return the indices of the texts that match, best first; all of them for no query.

    A text matches a word that has its letters in order, in any case. The closer the letters are
    together, the better is the match.
    """
    # Each pattern matches in one way only, so that no text makes the search slow.
    patterns = [
        re.compile(f"(?=({''.join(f'[^{letter}]*{letter}' for letter in map(re.escape, word))}))")
        for word in query.casefold().split()
    ]
    ranked: list[tuple[int, int]] = []
    for index, text in enumerate(texts):
        spans = [[len(m[1]) for m in one.finditer(text.casefold())] for one in patterns]
        if all(spans):
            ranked.append((sum(map(min, spans)), index))
    return [index for _, index in sorted(ranked)]
