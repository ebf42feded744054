"""Check the fenced code blocks of a page without running their commands."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from cyclopts import App, CycloptsError

from prefect_bt.cli.app import make_app
from prefect_bt.definitions import load_deploy_checkpoints_config, load_training_project
from prefect_bt.errors import PrefectBtError

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)(```+|~~~+)([^\n]*)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
LOADERS: dict[str, Callable[[Path], object]] = {
    "TrainingProject": load_training_project,
    "DeployCheckpointsConfig": load_deploy_checkpoints_config,
}
PLACEHOLDER = re.compile(r"<[a-z][\w -]*>")
"""A shell reads `<job id>` as redirections."""
OURS = {"prefect_bt"}
SEPARATORS = {";", "&&", "||", "|", "&", "(", ")"}


class Block(NamedTuple):
    line: int
    language: str
    code: str


def list_blocks(markdown: str) -> list[Block]:
    """Return the fenced blocks; the language is the first word after the fence."""
    return [
        Block(
            markdown.count("\n", 0, found.start()) + 1,
            (found[3].split() or [""])[0],
            re.sub(rf"^{found[1]}", "", found[4], flags=re.MULTILINE),
        )
        for found in FENCE.finditer(markdown)
    ]


def find_faults(markdown: str) -> Iterator[str]:
    """Yield a sentence for each block, command or import that is wrong."""
    for block in list_blocks(markdown):
        check = CHECKS.get(block.language)
        if check is None:
            yield f"line {block.line}: {block.language or 'no'!r} language; one of {[*CHECKS]}"
            continue
        yield from (f"line {block.line}: {fault}" for fault in check(block.code))


def _check_python(code: str) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        yield f"no Python: {error}"
        return
    yield from _find_bad_imports(tree)
    called = {name for node in tree.body for name in _called_names(node)}
    for name, load in LOADERS.items():
        if name in called and not called & {"push", "train"}:
            yield from _load(code, load)


def _find_bad_imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in OURS:
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    yield f"{node.module} has no {alias.name}"


def _called_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the last part of each name that a statement of the module calls."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func).rpartition(".")[2]


def _load(code: str, load: Callable[[Path], object]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.py")
        path.write_text(code, "utf-8")
        try:
            load(path)
        except PrefectBtError as error:
            yield str(error)


def _check_shell(code: str) -> Iterator[str]:
    yield from (f"placeholder {one}: write an example" for one in PLACEHOLDER.findall(code))
    done = subprocess.run(["sh", "-n"], input=code, capture_output=True, text=True, check=False)
    if done.returncode:
        yield f"no shell: {done.stderr.strip()}"
        return
    for words in _list_commands(code):
        if words[0] == "prefect-bt":
            yield from _check_command(words[1:])
        elif words[0] == "make":
            targets = [w for w in words[1:] if "=" not in w and not w.startswith("-")]
            yield from (f"make has no {one}" for one in targets if one not in make_targets())


def _list_commands(code: str) -> Iterator[list[str]]:
    """Yield the words of each simple command, without variables before it and redirections."""
    for line in code.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += "$@%+,:[]{}!^"
        words: list[str] = []
        skip = False
        for word in [*lexer, ";"]:
            if word in SEPARATORS:
                if words:
                    yield words
                words = []
            elif set(word) <= set("<>&"):
                skip = True
            elif skip:
                skip = False
            elif words or not re.match(r"\w+=", word):
                words.append(word)


@cache
def cached_app() -> App:
    return make_app()


@cache
def make_targets() -> frozenset[str]:
    return frozenset(TARGET.findall((ROOT / "Makefile").read_text("utf-8")))


def _check_command(words: list[str]) -> Iterator[str]:
    """Parse the words as `prefect-bt` does, and call nothing."""
    given = {"exit_on_error": False, "print_error": False}
    try:
        _, bound, _ = cached_app().meta.parse_args(words, **given)
        if all(isinstance(word, str) for word in bound.args):  # not so for --help and --version
            cached_app().parse_args(list(bound.args), **given)
    except CycloptsError as error:
        yield f"prefect-bt {shlex.join(words)}: {error}"


def _parser(parse: Callable[[str], object], error: type[Exception]) -> Any:
    def check(code: str) -> Iterator[str]:
        try:
            parse(code)
        except error as problem:
            yield str(problem)

    return check


CHECKS: dict[str, Callable[[str], Iterator[str]]] = {
    "python": _check_python,
    "sh": _check_shell,
    "yaml": _parser(lambda code: list(yaml.safe_load_all(code)), yaml.YAMLError),
    "json": _parser(json.loads, ValueError),
    "toml": _parser(tomllib.loads, ValueError),
    "text": lambda _: iter(()),
}
