"""What a module may do only where a list of exceptions names it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

ENVIRON = {"environ", "environb", "getenv"}
"""What `os` calls it."""


def swallowed(tree: ast.AST, module: str, inside: str = "") -> Iterator[tuple[str, int]]:
    """ "module:function" and line of each handler that lets any exception go no further."""
    for child in ast.iter_child_nodes(tree):
        scope = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            scope = f"{inside}.{child.name}".lstrip(".")
        swallows = isinstance(child, ast.ExceptHandler) and not _raises_again(child)
        caught = child.type if isinstance(child, ast.ExceptHandler) else None
        if (swallows and _is_broad(caught)) or _suppresses_all(child):
            yield f"{module}:{inside}", getattr(child, "lineno", 0)
        yield from swallowed(child, module, scope)


def _is_broad(caught: ast.expr | None) -> bool:
    options = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(o is None or ast.unparse(o) in {"Exception", "BaseException"} for o in options)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def _suppresses_all(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    return called == "suppress" and any(_is_broad(argument) for argument in node.args)


def environ_lines(tree: ast.AST) -> Iterator[int]:
    """Where os.environ is read, by whatever name."""
    for node in ast.walk(tree):
        if _reads_environ(node):
            yield getattr(node, "lineno", 0)


def _reads_environ(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return not ENVIRON.isdisjoint(alias.name for alias in node.names)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.value.id == "os" and node.attr in ENVIRON
    return False
