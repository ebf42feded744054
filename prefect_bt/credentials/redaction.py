"""Remove secret values from text: the values themselves and their usual encodings."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

MASK: Final = "********"
MIN_MASKED_LENGTH: Final = 4
"""Shorter values are not masked: masking every "1" would destroy a log and protect nothing."""


class Redactor:
    """Masks known values in text: raw, line by line, JSON-escaped, URL-encoded, hex and base64.

    A value that was changed in any other way is not masked: in upper case, reversed, cut into
    pieces, with colors or other escapes within, compressed or encrypted (docs/logs.md).

    Base64 is masked at each of its three alignments, so that `user:password` headers are covered.
    If a value is a JSON document (a service account, S3 keys), its keys, secrets, tokens and
    passwords are masked too.
    """

    def __init__(self, values: Iterable[str]) -> None:
        self._spellings = sorted({s for value in values for s in _encodings(value)})
        self._samples = _build_samples(self._spellings)
        self._beginnings = {s[:MIN_MASKED_LENGTH] for s in self._spellings}
        self._longest = max(map(len, self._spellings), default=0)

    def __call__(self, text: str) -> str:
        shown, done = list[str](), 0
        for start, end in self._matches(text, 0):
            shown += (text[done:start], MASK)
            done = end
        return "".join((*shown, text[done:])) if shown else text

    def partial_match_length(self, text: str) -> int:
        """Return how many characters at the end of `text` may be the beginning of a value.

        They also include the values that overlap that beginning. A caller that masks the text
        before them, and keeps them for later, never prints a part of a value.
        """
        cut = len(text) - self._partial_suffix_length(text)
        window = self._longest
        while True:
            begin = max(0, cut - window)
            start = next((s for s, e in self._matches(text, begin) if s < cut < e), cut)
            # No value that begins before `begin` reaches beyond `begin + longest`.
            if begin == 0 or start >= begin + self._longest:
                return len(text) - start
            window *= 2

    def _matches(self, text: str, begin: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each part of `text` from `begin` on that values cover.

        Values that overlap are one part. Values that only touch are two: so the result does not
        depend on whether a log was cut between them.
        """
        longest = dict[int, int]()
        for sample in self._samples:
            for start, end in sample.find(text, begin):
                longest[start] = max(end, longest.get(start, 0))
        first = done = -1
        for start in sorted(longest):
            if start >= done:
                if done > first:
                    yield first, done
                first = start
            done = max(done, longest[start])
        if done > first:
            yield first, done

    def _partial_suffix_length(self, text: str) -> int:
        first = max(0, len(text) - self._longest + 1)
        for start in range(first, len(text)):
            beginning = text[start : start + MIN_MASKED_LENGTH]
            if len(beginning) == MIN_MASKED_LENGTH and beginning not in self._beginnings:
                continue
            tail = text[start:]
            after = bisect_right(self._spellings, tail)
            if after < len(self._spellings) and self._spellings[after].startswith(tail):
                return len(tail)
        return 0


@dataclass(frozen=True)
class _Sample:
    """Spellings that are found by a sample of `size` characters at every `step` of a text.

    Each occurrence of a spelling of at least `size + step - 1` characters contains a whole sample,
    so `step` substrings of it are enough. A regular expression would try all at every character.
    """

    size: int
    step: int
    parts: Mapping[str, Sequence[tuple[int, str]]] = field(repr=False)
    """Sampled text -> the spellings that contain it, each with its offset in the spelling."""

    def find(self, text: str, begin: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of all spellings in `text` from `begin` on, overlapping ones too."""
        size, parts = self.size, self.parts
        places = range(begin, len(text) - size + 1, self.step)
        for at in [at for at in places if text[at : at + size] in parts]:
            for offset, spelling in parts[text[at : at + size]]:
                start = at - offset
                if start >= begin and text.startswith(spelling, start):
                    yield start, start + len(spelling)


_SIZES: Final = ((8, 8), (4, 4), (MIN_MASKED_LENGTH - 1, 2))
"""Size and step of samples, for long spellings first; the last is for the shortest."""


def _build_samples(spellings: Iterable[str]) -> list[_Sample]:
    parts = {sizes: defaultdict[str, list[tuple[int, str]]](list) for sizes in _SIZES}
    for spelling in spellings:
        size, step = next(each for each in _SIZES if sum(each) - 1 <= len(spelling))
        found, seen = parts[size, step], _rarest_position(spelling, size, step, parts[size, step])
        for offset in range(seen, seen + step):
            found[spelling[offset : offset + size]].append((offset, spelling))
    return [_Sample(size, step, dict(found)) for (size, step), found in parts.items() if found]


_POSITIONS: Final = (4, 3, 5, 2, 6, 1, 7, 0, 8)
"""Eighths of a spelling where its samples may begin, the middle first: beginnings are alike."""


def _rarest_position(spelling: str, size: int, step: int, used: Mapping[str, Sequence[Any]]) -> int:
    """Return the place of the samples that the fewest spellings share."""

    def shared(place: int) -> int:
        samples = [spelling[at : at + size] for at in range(place, place + step)]
        return sum(len(used.get(sample, ())) for sample in samples) - len(set(samples))

    last = len(spelling) - size - step + 1
    return min((last * eighths // 8 for eighths in _POSITIONS), key=shared)


def _encodings(value: str) -> set[str]:
    spelled: set[str] = set()
    for piece in _maskable_parts(value):
        if len(piece.strip()) < MIN_MASKED_LENGTH:
            continue
        spelled.add(piece)
        for quoted in (
            quote(piece, safe="", errors=_ERRORS),
            quote(piece, errors=_ERRORS),
            quote_plus(piece, errors=_ERRORS),
        ):
            spelled |= {quoted, _PERCENT_ESCAPE.sub(lambda found: found[0].lower(), quoted)}
        for escaped in (json.dumps(piece)[1:-1], json.dumps(piece, ensure_ascii=False)[1:-1]):
            spelled |= {escaped, escaped.replace("/", "\\/")}
        spelled |= _hex_encodings(piece)
        spelled |= {repr(piece)[1:-1], piece.replace("'", "'\\''")}  # the last as `set -x` shows it
        spelled |= _base64_cores(piece)
    return {s for s in spelled if len(s) >= MIN_MASKED_LENGTH}


_ERRORS: Final = "surrogatepass"
"""A JSON document can escape half of a surrogate pair, which UTF-8 cannot spell."""
_PERCENT_ESCAPE: Final = re.compile("%[0-9A-F]{2}")
"""An encoded byte as `quote` spells it; other encoders write its digits in lower case."""


def _hex_encodings(value: str) -> set[str]:
    """Return the value as `xxd -p`, `bytes.hex()` and `od` print it, and as byte-string escapes."""
    raw = value.encode(errors=_ERRORS)
    plain = {raw.hex(), raw.hex(" "), raw.hex(":"), "".join(f"\\x{byte:02x}" for byte in raw)}
    return plain | {text.upper().replace("\\X", "\\x") for text in plain}


def _maskable_parts(value: str) -> set[str]:
    """Return the value, its lines, and the secret fields of a JSON document with their lines."""
    texts = {value, *_iter_secret_fields(value)}
    lines = {line.strip() for text in texts for line in text.splitlines()}
    return {*texts, *lines, *(text.strip() for text in texts)}


_SECRET_FIELD: Final = re.compile(r"(?i)key|secret|token|passw|pwd|credential|auth$")
_PUBLIC_FIELD: Final = re.compile(r"(?i)ur[il]$|_type$")


def _iter_secret_fields(value: str) -> Iterator[str]:
    """Yield the texts of a JSON object, at any depth, whose names say that they are secret."""
    if not value.lstrip().startswith("{"):
        return
    try:
        waiting: list[Any] = [json.loads(value)]
    except (ValueError, RecursionError):
        return
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += cast("list[Any]", item)
        elif isinstance(item, dict):
            for name, inner in cast("dict[str, Any]", item).items():
                if not isinstance(inner, str):
                    waiting.append(inner)
                elif _SECRET_FIELD.search(name) and not _PUBLIC_FIELD.search(name):
                    yield inner


def _base64_cores(value: str) -> set[str]:
    """Return the characters of base64 text that depend on `value` alone, for each alignment."""
    raw, cores = value.encode(errors=_ERRORS), set[str]()
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * shift + raw).decode()
            first = -(-shift * 8 // 6)
            last = (shift + len(raw)) * 8 // 6
            core = text[first:last]
            if len(core) > MIN_MASKED_LENGTH:
                cores.add(core)
    return cores
