"""The package's modules as text, and what each of them imports, read with `ast`."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "prefect_bt"

Sources = Mapping[str, str]
"""Module name below prefect_bt ("" for the package itself) -> its source."""


def read_sources(root: Path = ROOT) -> dict[str, str]:
    """The package without its links, then flows/ and blocks/ under the links' names."""
    sources: dict[str, str] = {}
    for folder in (PACKAGE, "flows", "blocks"):
        for path in _python_files(root / folder):
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts[1:] if parts[0] == PACKAGE else parts
            name = ".".join(parts).removesuffix("__init__").removesuffix(".")
            sources[name] = path.read_text(encoding="utf-8")
    return sources


def _python_files(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder, followlinks=False):
        yield from (Path(where) / name for name in sorted(names) if name.endswith(".py"))


@cache
def parse(source: str, module: str) -> ast.Module:
    """One tree for all rules, which only read it."""
    return ast.parse(source, module)


def top(module: str) -> str:
    return module.partition(".")[0]


def imports(module: str, sources: Sources, *, deferred: bool = True) -> Iterator[str]:
    """Absolute dotted names that `module` imports; of ours, the module, not the name in it.

    With `deferred=False`, only what is imported when the module is.
    """
    package = not module or any(name.rpartition(".")[0] == module for name in sources)
    full = f"{PACKAGE}.{module}".rstrip(".")
    for node in _statements(sources[module], module, deferred=deferred):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = node.module or ""
            if node.level:
                up = full.split(".")[: len(full.split(".")) - node.level + package]
                base = ".".join([*up, *([node.module] if node.module else [])])
            for alias in node.names:
                submodule = f"{base}.{alias.name}"
                ours = submodule.removeprefix(f"{PACKAGE}.")
                yield submodule if ours != submodule and ours in sources else base


@cache
def _statements(
    source: str, module: str, *, deferred: bool
) -> tuple[ast.Import | ast.ImportFrom, ...]:
    nodes = _nodes(parse(source, module), deferred=deferred)
    return tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom))


def _nodes(tree: ast.AST, *, deferred: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        yield child
        late = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if deferred or not (late or typing_only):
            yield from _nodes(child, deferred=deferred)


def our_imports(module: str, sources: Sources, *, deferred: bool = True) -> set[str]:
    names = {n for n in imports(module, sources, deferred=deferred) if top(n) == PACKAGE}
    return {name.removeprefix(PACKAGE).removeprefix(".") for name in names} - {module}


def foreign_imports(module: str, sources: Sources, *, deferred: bool = True) -> set[str]:
    names = {top(name) for name in imports(module, sources, deferred=deferred)}
    return names - {PACKAGE, "__future__"}


def reachable(graph: Mapping[str, set[str]], start: set[str]) -> set[str]:
    seen: set[str] = set()
    todo = list(start)
    while todo:
        unit = todo.pop()
        if unit not in seen:
            seen.add(unit)
            todo.extend(graph.get(unit, ()))
    return seen
