"""Options `--env` and `--env-file`, for `push`, `recreate` and `retry`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cyclopts import Parameter

from prefect_bt.definitions.variable_overrides import check_variables
from prefect_bt.errors import DefinitionError

_BLANK: Final = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)+")
_ENTRY: Final = re.compile(
    r"""[ \t]*(?:export[ \t]+)?(?P<name>[^\s=#'"]+)[ \t]*
    (?:=[ \t]*(?:
        '(?P<literal>[^']*)' | "(?P<escaped>(?:[^"\\]|\\.)*)" | (?P<plain>(?!['"])[^\n]*?)
    ))?
    [ \t]*(?:(?<=[\s'"=])\#[^\n]*)?\n""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t"}


@Parameter(name="*")
@dataclass(frozen=True)
class VariableOptions:
    """Variables that replace those of the definition. --env wins over --env-file."""

    env: tuple[str, ...] = ()
    """Environment variable of the commands as KEY=VALUE, or KEY to pass on your own. Repeatable."""
    env_file: tuple[Path, ...] = ()
    """File of such lines, as a .env file. Repeatable."""

    def read(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return the variables; raise DefinitionError, without a value in its message."""
        variables: dict[str, str] = {}
        for path in self.env_file:
            for line, name, value in _parse_file(path):
                source = f"--env-file {path}, line {line},"
                variables |= _resolve(name, value, environment, source)
        for text in self.env:
            name, found, value = text.partition("=")
            variables |= _resolve(name, value if found else None, environment, "--env")
        return variables


NO_VARIABLES: Final = VariableOptions()


def _resolve(
    name: str, value: str | None, environment: Mapping[str, str], source: str
) -> dict[str, str]:
    """Return the variable, checked; without a value, that of the caller's environment."""
    if value is not None:
        return check_variables({name: value}, source=source)
    checked = check_variables({name: environment.get(name, "")}, source=source)
    if name not in environment:
        raise DefinitionError(
            f"{source} names {name}, which is not set in your environment.",
            next_step=f"Write {name}=VALUE, or set {name} first.",
            field=source,
        )
    return checked


def _parse_file(path: Path) -> Iterator[tuple[int, str, str | None]]:
    """Yield line number, name and value of each entry; the value is None without `=`."""
    try:
        text = f"{path.read_text('utf-8-sig')}\n"
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise DefinitionError(
            f"--env-file {path} cannot be read: {why}.",
            next_step="Give a text file of lines KEY=VALUE.",
            field="--env-file",
        ) from error
    position = 0
    while position < len(text):
        if blank := _BLANK.match(text, position):
            position = blank.end()
            continue
        line, entry = text.count("\n", 0, position) + 1, _ENTRY.match(text, position)
        if entry is None:
            raise DefinitionError(
                f"--env-file {path}, line {line}, is not KEY=VALUE.",
                next_step="Write KEY=VALUE, close every quote, and begin comments with #.",
                field="--env-file",
            )
        position = entry.end()
        yield line, entry["name"], _find_value(entry)


def _find_value(entry: re.Match[str]) -> str | None:
    if entry["escaped"] is not None:
        return re.sub(
            r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), entry["escaped"], flags=re.DOTALL
        )
    return entry["plain"] if entry["literal"] is None else entry["literal"]
