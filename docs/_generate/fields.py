"""Render the fields of classes as Markdown tables, from annotations, defaults and docstrings."""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import griffe
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs._generate.meanings import MEANINGS

PACKAGE = "prefect_bt"
ROOT = Path(__file__).parents[2]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty in every row."""
    rows = list(rows)
    kept = [index for index in range(len(head)) if any(row[index] for row in rows)]
    lines = [[line[index] for index in kept] for line in (head, ["---"] * len(head), *rows)]
    return "\n".join(f"| {' | '.join(map(_escape_cell, line))} |" for line in lines)


def code(text: str) -> str:
    """Return the text as inline code; "" for an empty text."""
    return f"`{text}`" if text else ""


def _escape_cell(text: str) -> str:
    """Escape the separator outside of code, in which Markdown does not read it as one."""
    parts = re.split(r"(`[^`]*`)", re.sub(r"\s+", " ", text).strip())
    return "".join(part if part[:1] == "`" else part.replace("|", "\\|") for part in parts)


@cache
def parse_module(file: Path) -> griffe.Module:
    """Return one module as griffe parses it; griffe runs none of its code."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return griffe.visit(name, filepath=file, code=file.read_text("utf-8"))


def parse_object(path: str) -> griffe.Object:
    """Return the module, class or function of this full name as griffe parses it."""
    if file := _find_file(path):
        return parse_module(file)
    outer, _, name = path.rpartition(".")
    found = parse_object(outer)[name]
    return parse_object(found.target_path) if isinstance(found, griffe.Alias) else found


def _find_file(module: str) -> Path | None:
    folder = ROOT.joinpath(*module.split("."))
    files = (folder.with_suffix(".py"), folder / "__init__.py")
    return next((file for file in files if file.is_file()), None)


def load_class(path: str) -> Any:
    """Import the class of this full name."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


def docstring(parsed: griffe.Object | griffe.Alias) -> str:
    """Return the docstring; "" for none."""
    return parsed.docstring.value if parsed.docstring else ""


def attribute_docstring(kind: type, name: str) -> str:
    """Return the docstring below an attribute, in the class or in a base that defines it."""
    for base in kind.__mro__:
        if not base.__module__.startswith(f"{PACKAGE}."):
            continue
        member = parse_object(f"{base.__module__}.{base.__qualname__}").members.get(name)
        if member is not None and member.docstring:
            return docstring(member)
    return ""


def members_table(kind: type[Enum], head: str) -> str:
    """Return a table of the values of an enum."""
    rows = [(code(str(one.value)), attribute_docstring(kind, one.name)) for one in kind]
    return table((head, "meaning"), rows)


def record_table(path: str) -> str:
    """Return the docstring of a dataclass and a table of its fields."""
    parsed, kind = parse_object(path), load_class(path)
    rows = [
        (
            code(name),
            code(str(member.annotation)),
            _source_default(member),
            attribute_docstring(kind, name) or _get_meaning(kind, name),
        )
        for name, member in parsed.attributes.items()
        if "instance-attribute" in member.labels and not name.startswith("_")
    ]
    return f"{docstring(parsed)}\n\n{table(('field', 'type', 'default', 'meaning'), rows)}"


def _get_meaning(kind: type, name: str) -> str:
    return MEANINGS.get(f"{kind.__name__}.{name}", "") or MEANINGS.get(name, "")


def _source_default(attribute: griffe.Attribute) -> str:
    text = str(attribute.value) if attribute.value is not None else ""
    factory = re.fullmatch(r"field\(default_factory=(\w+).*\)", text)
    return code(f"{factory[1]}()" if factory else text)


def list_model_fields(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Return name, type, default and description of each field of a model, as Markdown."""
    return [
        (
            name,
            type_name(field.annotation),
            format_default(field),
            field.description or attribute_docstring(model, name),
        )
        for name, field in model.model_fields.items()
    ]


def format_default(field: FieldInfo) -> str:
    """Return the default of a field; a computed path below the home folder begins with `~`."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return ""
    text = _format_value(value) if value or isinstance(value, (bool, int, float)) else ""
    return code(text.replace(str(Path.home()), "~") if field.default_factory else text)


def _format_value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value, value))}]"
    if isinstance(value, BaseModel):
        return f"{type(value).__name__}()"
    return str(value.value if isinstance(value, Enum) else value)


def type_name(annotation: Any) -> str:
    """Return the type of a field as a user reads it: an enum is the list of its values."""
    return ", ".join(code(name) for name in dict.fromkeys(_type_names(annotation)))


def _type_names(annotation: Any) -> list[str]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_names(arguments[0])
    if origin in (Union, types.UnionType):
        return [name for one in arguments for name in _type_names(one)]
    if origin is Literal:
        return [str(one) for one in arguments]
    if inspect.isclass(origin):
        inside = ", ".join(" | ".join(_type_names(one)) for one in arguments)
        return [f"{origin.__name__}[{inside}]"]
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return [str(one.value) for one in annotation]
    names = {types.NoneType: "None", ...: "..."}
    return [names.get(annotation) or getattr(annotation, "__name__", str(annotation))]


def nested_models(model: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the models of our package that the fields of a model hold."""
    found = dict[type[BaseModel], None]()

    def visit(annotation: Any) -> None:
        for one in get_args(annotation):
            visit(one)
        if (
            inspect.isclass(annotation)
            and issubclass(annotation, BaseModel)
            and annotation.__module__.startswith(f"{PACKAGE}.")
        ):
            found[annotation] = None

    for field in model.model_fields.values():
        visit(field.annotation)
    return list(found)
