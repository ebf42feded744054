"""The arrows and rules of docs/architecture.md, read from the source with `ast`.

A new module needs a room: add a line to LEVELS, and one to the architecture page. The last part of
the file breaks each rule on the invented source of tests/architecture/, so that a rule that checks
nothing is noticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.invented import BROKEN, EMPTY, KEPT
from tests.architecture.offences import environ_lines, swallowed
from tests.architecture.sources import (
    PACKAGE,
    ROOT,
    Sources,
    foreign_imports,
    our_imports,
    parse,
    reachable,
    read_sources,
    top,
)

# Room -> level. A room is a module or a package below prefect_bt; "x.*" is what lies in package x,
# "x" its own __init__. The longest match counts. An import may go down or stay level, never up.
LEVELS: dict[str, int] = {
    # 5 edges: may import prefect, cyclopts, rich; choose adapters and hand them down
    "": 5,
    "flows": 5,
    "flows.*": 5,
    "blocks": 5,
    "blocks.*": 5,
    "cli": 5,
    "cli.*": 5,
    "compat": 5,
    "control": 5,
    "fileserver": 5,  # a process of its own, beside the commands
    "fileserver.*": 5,
    "deletion": 5,
    "deployed": 5,
    "deploying": 5,
    "drilling": 5,
    "garbage": 5,  # looks into every room, and opens what it needs
    "garbage.*": 5,
    "node": 5,  # the same, beside the user's commands: it puts adapters together, without Prefect
    "node.*": 5,
    "missing": 5,
    "resubmission": 5,
    "parting": 5,
    "reviving": 5,
    "router": 5,  # a process of its own, a deployment
    "router.*": 5,
    "serverauth": 5,
    "servers": 5,
    "starting": 5,
    "submission": 5,
    # 4 services: policy; see protocols, never adapters, never Prefect
    "attempt_resources": 4,
    "attempts": 4,
    "cachesnapshot": 4,
    "cachesummary": 4,
    "catalogue": 4,
    "catalogue.*": 4,
    "checkpoints": 4,
    "checkpoints.*": 4,
    "drills": 4,
    "epochs": 4,
    "firstfailure": 4,
    "folding": 4,
    "gang": 4,
    "jobhistory": 4,
    "joblogs": 4,
    "jobs": 4,
    "lastsave": 4,
    "ledger": 4,
    "lifecycle": 4,
    "loading": 4,
    "maxruntime": 4,
    "projects": 4,
    "provenance": 4,
    "logtracks": 4,
    "retrychoices": 4,
    "retrying": 4,
    "sealing": 4,
    "serving": 4,
    "serving.*": 4,
    "syncstatus": 4,
    "weightneeds": 4,
    "weights": 4,
    "weights.*": 4,
    "workspace": 4,
    "workspace.*": 4,
    # 3 adapters: see SDKs; never each other
    "objects.*": 3,
    "substrates.*": 3,
    # 2 seams: protocols, literal tables imported on use, pure planning
    "aftermath": 2,
    "allocation": 2,
    "diagnosis": 2,
    "host": 2,  # what this machine offers a node; for the local substrate and the node itself
    "host.*": 2,
    "identities": 2,  # roles and tokens, for weights and registries
    "objects": 2,
    "objects.protocols": 2,
    "ineffective": 2,
    "ownership": 2,
    "planning": 2,
    "reading": 2,
    "registries": 2,  # how an image gets onto an Engine, for whatever substrate has one
    "registries.*": 2,
    "refusals": 2,
    "secrets": 2,
    "settings": 2,
    "substrates": 2,
    "substrates.protocol": 2,
    # 1 words: data only
    "definitions": 1,
    "definitions.*": 1,
    "loglevels": 1,
    "logs": 1,
    "logtail": 1,
    "pins": 1,
    "plan": 1,
    "ranks": 1,
    "records": 1,
    # 0 ground: standard library only
    "beneath": 0,
    "codec": 0,
    "contract": 0,
    "durations": 0,
    "errors": 0,
    "visible": 0,
    "folders": 0,
    "privileges": 0,
    "privacy": 0,
    "trees": 0,
}
EDGES, ADAPTERS, GROUND = 5, 3, 0

# Third-party package -> the rooms that may import it. What is not named here may go anywhere
# above the ground.
ONLY_IN: dict[str, set[str]] = {
    "prefect": {"flows", "blocks", "cli", "submission"},
    "docker": {"substrates", "registries"},
    "kubernetes": {"substrates"},
    "boto3": {"objects", "weights", "identities", "registries"},
    "botocore": {"objects", "weights", "identities", "registries"},
    "obstore": {"objects", "weights"},
    "huggingface_hub": {"objects", "weights"},
    "urllib3": {"weights"},
    "aiohttp": {"router", "fileserver"},
    "cyclopts": {"cli"},
    "rich": {"cli", "flows"},  # flows: what Prefect prints with
    "prompt_toolkit": {"cli"},
    "uvicorn": {"cli"},  # the server of `up`
}
STDLIB_ONLY = {"errors", "contract", "codec", "plan", "records"}
# What a node's process must be able to start without, however many imports away.
NOT_IN_A_NODE = {"prefect", "docker", "kubernetes"}

# Adapters of one place may span files whose names begin alike; they never import another place's.
PLACES = {
    "substrates": {"local", "docker", "kubernetes"},
    "objects": {"disk", "memory", "bucket", "hub"},
}

# Room or module -> why it may read os.environ.
ENVIRON_READERS: dict[str, str] = {
    "settings": "it is the reader",
    "secrets": "values come from there at the last moment",
    "node": "it runs inside the job's environment",
    "cli": "terminal and editor variables",
    "substrates.docker": "DOCKER_HOST names the Engine",
    "flows.keeping": "a keeper is told by its pusher which folders to use",
    "flows.run_job": "the same, and the lock, handed on",
    "host": "a GPU listing and a child's environment depend on it",
    "provenance": "git runs in this environment, less the variables that name a repository",
    "privacy": "a node's store is opened without our settings",
    "ownership": "the owner's lock is inherited from the parent process",
    "serving.embedded": "it runs inside the job's environment, and without prefect_bt",
    "serving.require_key": "the same",
    "serving.gate": "its command is run in this environment",
    "deploying": "the router is started with what a Python needs of this environment",
    "flows.serving": "the same, when the router died",
    "starting": "it hands this environment to the process that runs the flow",
}
# "module:function" -> why it may swallow any exception. One that raises again is no matter.
BROAD_EXCEPTS: dict[str, str] = {
    "cli.app:main": "whatever arrives there must be told to the user",
    "node.agent:Agent._prepare": "whatever fails in staging is the node's reason",
    "weights.crew:work.run": "it raises again, in the thread that waits for all of them",
    "node.upload:main": "whatever ends the uploader must be in its status",
    "cli.caretaker:_try": "nobody looks after the caretaker: it tells, and tries again",
}
MOST_BROAD_EXCEPTS = 5

NOT_A_SUBJECT = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
MOST_LINES = 400


# --- rooms of modules -------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """The longest key of LEVELS that holds `module`."""
    if module in LEVELS:
        return module
    package = module
    while "." in package:
        package = package.rpartition(".")[0]
        if f"{package}.*" in LEVELS:
            return f"{package}.*"
    return None


def level_of(module: str) -> int | None:
    room = room_of(module)
    return None if room is None else LEVELS[room]


# --- rules: each yields sentences -------------------------------------------------------------


def rooms(sources: Sources) -> Iterator[str]:
    for module in sources:
        if room_of(module) is None:
            yield f"{module}: has no room; add it to LEVELS and to docs/architecture.md"


def arrows(sources: Sources) -> Iterator[str]:
    for module in sources:
        mine = level_of(module)
        for other in sorted(our_imports(module, sources)):
            theirs = level_of(other)
            if mine is None or theirs is None:
                continue
            if theirs > mine:
                yield f"{module} (level {mine}) imports {other} (level {theirs}): arrows go down"
            elif theirs == ADAPTERS and mine < EDGES and top(other) != top(module):
                yield f"{module} imports the adapter {other}: only edges choose adapters"


def places(sources: Sources) -> Iterator[str]:
    for module in sources:
        here = _place(module)
        for other in sorted(our_imports(module, sources)):
            there = _place(other)
            if here and there and top(module) == top(other) and here != there:
                yield f"{module} imports {other}: adapters never import each other"


def _place(module: str) -> str | None:
    room, _, name = module.partition(".")
    first = name.partition(".")[0].partition("_")[0]
    return first if first in PLACES.get(room, ()) else None


def circles(sources: Sources) -> Iterator[str]:
    """Rooms below the edges that need one another, by whatever detour."""
    below = [m for m in sources if (level_of(m) or 0) < EDGES]
    graph: dict[str, set[str]] = {}
    for module in below:
        targets = {_unit(other) for other in our_imports(module, sources)}
        graph.setdefault(_unit(module), set()).update(targets - {_unit(module)})
    for unit in sorted(graph):
        if unit in reachable(graph, graph[unit]):
            yield f"{unit}: imports itself through other rooms"


def _unit(module: str) -> str:
    return room_of(module) if level_of(module) == 2 and "." in module else top(module)  # type: ignore[return-value]


def foreign(sources: Sources) -> Iterator[str]:
    for module in sources:
        for package in sorted(foreign_imports(module, sources)):
            if package in ONLY_IN and top(module) not in ONLY_IN[package]:
                allowed = ", ".join(sorted(ONLY_IN[package]))
                yield f"{module} imports {package}: only {allowed} may"
            if package in {"flows", "blocks"}:
                yield f"{module} imports {package}: say {PACKAGE}.{package}"
            if module in STDLIB_ONLY and package not in sys.stdlib_module_names:
                yield f"{module} imports {package}: standard library only"


def nodes(sources: Sources) -> Iterator[str]:
    graph = {module: our_imports(module, sources, deferred=False) for module in sources}
    inside = {module for module in sources if top(module) == "node"}
    for module in sorted(inside | reachable(graph, inside) & set(sources)):
        for package in sorted(foreign_imports(module, sources, deferred=False) & NOT_IN_A_NODE):
            yield f"{module} is loaded in a node and imports {package}"


def names(sources: Sources) -> Iterator[str]:
    for module in sources:
        if vague := NOT_A_SUBJECT.intersection(module.split(".")):
            yield f"{module}: {vague.pop()!r} is no subject; name what it is about"


def sizes(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        lines = len(source.splitlines())
        if lines > MOST_LINES:
            yield f"{module}: {lines} lines, at most {MOST_LINES}; which subject can leave?"


def broad_excepts(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        for where, line in swallowed(parse(source, module), module):
            if where not in BROAD_EXCEPTS:
                yield f"{where} (line {line}): swallows any exception; name it, or raise again"


def environ(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        if any(_in_reader(module, reader) for reader in ENVIRON_READERS):
            continue
        for line in environ_lines(parse(source, module)):
            yield f"{module} (line {line}): reads os.environ; take it as an argument"


def _in_reader(module: str, reader: str) -> bool:
    return f"{module}.".startswith((f"{reader}.", f"{reader}_"))


RULES = [rooms, arrows, places, circles, foreign, nodes, names, sizes, broad_excepts, environ]


# --- the package ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps(rule) -> None:
    broken = list(rule(read_sources()))
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize("name", ["blocks", "flows"])
def test_the_links_are_there(name: str) -> None:
    link = ROOT / PACKAGE / name
    assert link.is_symlink()
    assert os.fspath(link.readlink()) == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_the_lists_of_exceptions_stay_short() -> None:
    assert len(BROAD_EXCEPTS) <= MOST_BROAD_EXCEPTS


@pytest.mark.slow
def test_the_lists_of_exceptions_name_what_is_there() -> None:
    sources = read_sources()
    assert {"errors", "flows", "blocks"} <= set(sources)
    found = {where for m, s in sources.items() for where, _ in swallowed(parse(s, m), m)}
    assert set(BROAD_EXCEPTS) <= found, "remove what no longer swallows"
    reading = {m for m, s in sources.items() if any(environ_lines(parse(s, m)))}
    idle = {reader for reader in ENVIRON_READERS if not any(_in_reader(m, reader) for m in reading)}
    assert not idle, "remove what no longer reads os.environ"


# --- the rules themselves ---------------------------------------------------------------------


def _with_rules(cases: list[tuple[str, ...]]) -> list[tuple[object, ...]]:
    by_name = {rule.__name__: rule for rule in RULES}
    return [(by_name[name], *rest) for name, *rest in cases]


@pytest.mark.parametrize(("rule", "module", "source", "said"), _with_rules(BROKEN))
def test_a_rule_notices(rule, module: str, source: str, said: str) -> None:
    assert any(said in sentence for sentence in rule({**EMPTY, module: source}))


@pytest.mark.parametrize(("rule", "module", "source"), _with_rules(KEPT))
def test_a_rule_allows(rule, module: str, source: str) -> None:
    assert list(rule({**EMPTY, module: source})) == []


def test_a_circle_of_rooms_is_noticed() -> None:
    gang, weights = "import prefect_bt.jobs", "import prefect_bt.gang"
    sources = {"gang": gang, "jobs": "def f():\n    import prefect_bt.weights", "weights": weights}
    assert {sentence.partition(":")[0] for sentence in circles(sources)} == set(sources)
    assert list(circles({**sources, "jobs": ""})) == []


def test_a_nodes_process_is_followed_through_its_imports() -> None:
    sources = {
        "node": "",
        "node.main": "from prefect_bt import weights",
        "weights": "import docker",
        "gang": "import kubernetes",
    }
    assert list(nodes(sources)) == ["weights is loaded in a node and imports docker"]
    late = {**sources, "weights": "def f():\n    import docker"}
    assert list(nodes(late)) == []


def test_sources_are_read_once_under_the_links_names(tmp_path: Path) -> None:
    for folder in (PACKAGE, "flows", "blocks"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "flows" / "train.py").write_text("x = 1")
    (tmp_path / PACKAGE / "flows").symlink_to("../flows")
    assert set(read_sources(tmp_path)) == {"", "flows", "blocks", "flows.train"}
