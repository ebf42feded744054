"""Generate the sections of the reference pages from the code.

A page names a section in a comment, `<!-- generate: settings -->` or
`<!-- generate: record prefect_bt.ledger.records.JobRecord -->`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from typing import Any, cast

from docs._generate import fields
from docs._generate.fields import code, table

_MARKER = re.compile(r"^<!-- generate: (\w+)((?: \S+)*) -->$", re.MULTILINE)
_EVENT = re.compile(r"`(prefect-bt\.[a-z]+\.[a-z<>]+)`")
_GLOBAL_OPTIONS = re.compile(r"^\*\*Global options\*\*:\n\n(?:\* .*\n)+", re.MULTILINE)
_TREE = re.compile(r"(?:^(?:<[a-z_ ]+>/.*|[ ├│└]+\S.*|)\n)+", re.MULTILINE)
"""Indented lines, branches of a tree, and the line of the folder that they are below."""
_FIELDS = ("field", "label in the form", "type", "default", "meaning")


def fill_in(markdown: str) -> str:
    """Replace each comment of a page by the section that it names."""
    return _MARKER.sub(lambda found: SECTIONS[found[1]](*found[2].split()), markdown)


def commands() -> str:
    """Return the overview, and every command with its options and examples in the same order."""
    from prefect_bt.cli.app import describe_command, make_app
    from prefect_bt.cli.command_table import COMMANDS, find_overview

    app = make_app()
    examples = dict[str, str]()
    for name in COMMANDS:
        words = name.split()
        app[words[0]].default_parameter = app.default_parameter  # groups do not inherit it
        examples[name] = str(describe_command(app, words).help_epilogue or "")
    text = app.generate_docs(heading_level=1, flatten_commands=True).replace(
        "```console", "```text"
    )
    found = re.split(r"^# prefect-bt ", text, flags=re.M)
    sections = [section for section in found[1:] if section[0].isalpha()]
    order = {name: index for index, name in reversed([*enumerate(_with_groups(COMMANDS))])}
    sections.sort(key=lambda section: order[section.partition("\n")[0]])
    overview = f"```text\n{find_overview([])}\n```\n"
    return "\n".join([overview, *(_format_command(section, examples) for section in sections)])


def _with_groups(names: Sequence[str]) -> Iterator[str]:
    """Yield the names, and before each the group that it begins with."""
    for name in names:
        yield name.partition(" ")[0]
        yield name


def _format_command(section: str, examples: dict[str, str]) -> str:
    name = section.partition("\n")[0]
    body = _GLOBAL_OPTIONS.sub("", section).rstrip()
    lines = "\n".join(re.findall(r"^`(.+)`$", examples.get(name, ""), re.MULTILINE))
    shown = f"**Examples**:\n\n```sh\n{lines}\n```\n" if lines else ""
    return f"## prefect-bt {body}\n\n{shown}"


def settings() -> str:
    """Return a table of the variables of prefect_bt.settings.Settings."""
    from prefect_bt.settings import Settings

    return _variables_table(Settings, "")


def cluster_settings() -> str:
    """Return a table of the variables of the Kubernetes substrate."""
    from prefect_bt.kubernetes_settings import ClusterSettings

    return _variables_table(ClusterSettings, "kubernetes_")


def _variables_table(model: Any, prefix: str) -> str:
    from prefect_bt.settings import variable_name

    rows = [
        (code(variable_name(prefix + name)), *described)
        for name, *described in fields.list_model_fields(model)
    ]
    return table(("variable", "type", "default", "meaning"), rows)


def blocks() -> str:
    """Return a section for each block type."""
    from prefect_bt.blocks import BLOCKS

    return "\n\n".join(_describe_block(block) for block in BLOCKS)


def _describe_block(block: Any) -> str:
    parts = [
        f"## {block.get_block_type_name()}",
        f"`prefect_bt.blocks.{block.__name__}`, slug `{block.get_block_type_slug()}`",
        block.get_description(),
        table(_FIELDS, _list_form_fields(block)),
    ]
    for model in fields.nested_models(block):
        parts += [
            f"### {block.get_block_type_name()}: {model.__name__}",
            inspect.getdoc(model) or "",
            table(_FIELDS, _list_form_fields(model)),
        ]
    return "\n\n".join([*parts, dedent(block.get_code_example() or "")])


def _list_form_fields(model: Any) -> list[tuple[str, ...]]:
    return [
        (code(name), model.model_fields[name].title or "", *described)
        for name, *described in fields.list_model_fields(model)
    ]


def definitions(*names: str) -> str:
    """Return a section for each of the classes of prefect_bt.definitions."""
    from prefect_bt import definitions as module

    return "\n\n".join(_describe_definition(getattr(module, name)) for name in names)


def _describe_definition(kind: Any) -> str:
    rows = [(code(name), *described) for name, *described in fields.list_model_fields(kind)]
    head = ("field", "type", "default", "meaning")
    return f"### {kind.__name__}\n\n{inspect.getdoc(kind)}\n\n{table(head, rows)}"


def events() -> str:
    """Return a table of the events, from the docstrings of the functions that emit them."""
    module = fields.parse_object("prefect_bt.flows.tasks.reporting.report")
    rows = [
        (code(event[1]), code(name), fields.docstring(function))
        for name, function in module.functions.items()
        if (event := _EVENT.search(fields.docstring(function))) is not None
    ]
    return table(("event", "emitted by", "what the function does"), rows)


def job_states() -> str:
    """Return a table of the states of a job with the states that can follow each."""
    from prefect_bt.ledger.states import TRANSITIONS, JobState

    rows = [
        (
            code(state.value),
            "yes" if state.terminal else "",
            fields.attribute_docstring(JobState, state.name),
            ", ".join(code(one.short_name) for one in JobState if one in TRANSITIONS[state]),
        )
        for state in JobState
    ]
    return table(("state", "final", "meaning", "next"), rows)


def failure_causes() -> str:
    """Return a table of the causes of failures with class and remedy."""
    from prefect_bt.attempts.failure_causes import CAUSES
    from prefect_bt.ledger.records import Cause

    rows = [
        (
            code(cause.value),
            code(CAUSES[cause].failure_class.value),
            CAUSES[cause].description or fields.attribute_docstring(Cause, cause.name),
            CAUSES[cause].remedy,
        )
        for cause in Cause
        if cause in CAUSES
    ]
    return table(("cause", "class", "description", "remedy"), rows)


def describe_api() -> dict[str, Any]:
    """Return the OpenAPI document of the HTTP API."""
    from prefect_bt.http_api.app import create_app

    return create_app(cast("Any", None)).openapi()


def routes() -> str:
    """Return a table of the routes of the HTTP API, in the order of the document."""
    rows = [
        (code(method.upper()), code(path), re.split(r"(?<=\.)\s", route["description"])[0])
        for path, methods in describe_api()["paths"].items()
        for method, route in methods.items()
    ]
    return table(("method", "path", "answer"), rows)


def values(path: str) -> str:
    """Return a table of the values of an enum."""
    return fields.members_table(fields.load_class(path), "value")


def layout(module: str) -> str:
    """Return the tree of files or classes in the docstring of a module."""
    text = fields.docstring(fields.parse_object(module))
    tree = max(_TREE.findall(f"{text}\n"), key=len)
    return f"```text\n{dedent(tree).strip()}\n```"


def classes(module: str) -> str:
    """Return a directive of mkdocstrings for each class of a module."""
    return "\n\n".join(f"::: {module}.{name}" for name in fields.parse_object(module).classes)


SECTIONS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        commands,
        settings,
        cluster_settings,
        blocks,
        definitions,
        events,
        job_states,
        failure_causes,
        routes,
        values,
        layout,
        classes,
    )
} | {"record": fields.record_table}
