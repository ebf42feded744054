"""Check patterns: `*` stays within a folder, `**/` recurses; allow selects, ignore removes."""

from __future__ import annotations

import pytest

from prefect_bt.weights.sources.patterns import filter_paths

TREE = ["config.json", "a.bin", "sub/b.bin", "sub/deep/c.bin", "sub/config.json", "we[i]rd.bin"]


@pytest.mark.parametrize(
    ("allow", "ignore", "expected"),
    [
        (None, None, TREE),
        ([], None, []),
        (["*"], None, ["config.json", "a.bin", "we[i]rd.bin"]),
        (["**"], None, TREE),
        (["**/*"], None, TREE),
        (["*.bin"], None, ["a.bin", "we[i]rd.bin"]),
        (["**/*.bin"], None, ["a.bin", "sub/b.bin", "sub/deep/c.bin", "we[i]rd.bin"]),
        (["sub/*"], None, ["sub/b.bin", "sub/config.json"]),
        (["sub/**"], None, ["sub/b.bin", "sub/deep/c.bin", "sub/config.json"]),
        (["sub/"], None, ["sub/b.bin", "sub/deep/c.bin", "sub/config.json"]),
        (["sub/**/c.bin"], None, ["sub/deep/c.bin"]),
        (["sub/**/b.bin"], None, ["sub/b.bin"]),
        (["?.bin"], None, ["a.bin"]),
        (["[ab].bin"], None, ["a.bin"]),
        (["[!a]*.bin"], None, ["we[i]rd.bin"]),
        (["we[[]i]rd.bin"], None, ["we[i]rd.bin"]),
        (["[]"], None, []),
        (["config.json"], None, ["config.json"]),
        (["/config.json"], None, []),
        (["**/*.bin"], ["sub/**"], ["a.bin", "we[i]rd.bin"]),
        (None, ["**"], []),
        (["a.b.n"], None, []),
    ],
)
def test_choice(allow: list[str] | None, ignore: list[str] | None, expected: list[str]) -> None:
    assert filter_paths(TREE, allow=allow, ignore=ignore) == expected


@pytest.mark.parametrize("pattern", ["[", "[!", "[z-a].bin", "a**b", "***", "(", "\\", "[\\]x"])
def test_no_pattern_breaks(pattern: str) -> None:
    assert set(filter_paths(TREE, allow=[pattern])) <= set(TREE)
