"""Fuzzy matching: pure. What is typed need not be next to each other in what is meant."""

from __future__ import annotations

from collections.abc import Sequence


def rank_matches(query: str, texts: Sequence[str]) -> list[int]:
    """The indices of `texts` that match, best first; all of them, in order, if nothing is typed.

    Every word of `query` must be there, its letters in order, whatever their case. The closer
    together they are, the better; among equals the order of `texts` stays.
    """
    words = query.casefold().split()
    ranked: list[tuple[int, int]] = []
    for index, text in enumerate(texts):
        spans = [_shortest_span(word, text.casefold()) for word in words]
        found = [span for span in spans if span is not None]
        if len(found) == len(spans):
            ranked.append((sum(found), index))
    return [index for _, index in sorted(ranked)]


def _shortest_span(word: str, text: str) -> int | None:
    """Over how many letters of `text` the letters of `word` are spread at best."""
    best: int | None = None
    begin = text.find(word[0])
    while begin >= 0:
        end = begin
        for letter in word[1:]:
            end = text.find(letter, end + 1)
            if end < 0:
                return best
        best = min(best or len(text), end - begin + 1)
        begin = text.find(word[0], begin + 1)
    return best
