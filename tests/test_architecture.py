"""The dependencies and rules of docs/architecture.md, read from the source with `ast`.

A new package needs a level: add it to LEVELS and to the architecture page. The last part of the
file breaks each rule on the invented source of tests/architecture/, so that a rule that checks
nothing is noticed.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
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

# A name holds for a module or package and everything below it; "x.*" only for what is below x; the
# longest match counts. An import may go down or stay level, never up.
LEVELS: dict[int, str] = {
    # entry points: may import Prefect and the command library, choose adapters, hand them down
    5: "flows blocks cli compat supervisor local_server prefect_api file_server node_agent gc jobs"
    " http_api job_service open_metrics"
    " serving.rollout serving.router",
    # services: policy; see protocols, never adapters, never Prefect
    4: "attempts checkpoints job_index job_metrics logs queue serving training_cache weights"
    " workspace",
    # adapters: see SDKs, never each other
    3: "object_store.* substrates.*",
    # protocols, literal tables imported on use, pure planning
    2: "credentials host ledger object_store object_store.clock object_store.connect"
    " object_store.faults object_store.protocols planning registries settings substrates"
    " substrates.protocol",
    # data
    1: "definitions kubernetes_settings ledger.provenance_record ledger.records ledger.requests"
    " ledger.states planning.plan",
    # base: standard library only
    0: "codec errors filesystem node_paths object_keys reserved_variables text",
}
LEVEL_OF: dict[str, int] = {
    name: level for level, names in LEVELS.items() for name in names.split()
}
EDGES, ADAPTERS, PROTOCOLS, BASE = 5, 3, 2, 0

# Third-party package -> the packages that may import it. What is not named here may go anywhere
# above the base.
ONLY_IN: dict[str, set[str]] = {
    "prefect": {"flows", "blocks", "jobs", "local_server", "prefect_api", "supervisor"},
    "docker": {"substrates.docker", "registries"},
    "kubernetes": {"substrates"},
    "boto3": {"object_store", "weights", "credentials", "registries"},
    "botocore": {"object_store", "weights", "credentials", "registries"},
    "obstore": {"object_store", "weights"},
    "huggingface_hub": {"object_store", "weights"},
    "aiohttp": {"serving.router", "file_server"},
    "cyclopts": {"cli"},
    "rich": {"cli", "flows"},  # flows: what Prefect prints with
    "prompt_toolkit": {"cli"},
    "uvicorn": {"http_api", "local_server"},
    "fastapi": {"http_api"},
    "starlette": {"http_api"},
    "prometheus_client": {"open_metrics"},
    "matplotlib": {"job_metrics", "jobs.metrics"},
}
STDLIB_ONLY = {
    "ledger.provenance_record",
    "ledger.records",
    "ledger.requests",
    "ledger.states",
    "planning.plan",
}
"""Beside the base: what a node reads before it imports anything else."""
# What a node's process must be able to start without, however many imports away.
NOT_IN_A_NODE = {"prefect", "docker", "kubernetes"}

# Adapters of one place never import another place's.
PLACES = {
    "substrates": {"local", "docker", "kubernetes"},
    "object_store": {"disk", "memory", "bucket", "hub"},
}

# Module or package -> why it may read os.environ.
ENVIRON_READERS: dict[str, str] = {
    "settings": "it is the reader",
    "credentials.secrets": "values come from there at the last moment",
    "node_agent": "it runs inside the job's environment",
    "cli": "terminal and editor variables",
    "substrates.docker": "DOCKER_HOST names the Engine",
    "supervisor.supervised_job": "the pushing process names the folders to use",
    "supervisor.run_flow": "the same, and the lock, handed on",
    "host": "a GPU listing, a child's environment and an inherited lock depend on it",
    "jobs.provenance": "git runs in this environment, less the variables that name a repository",
    "object_store.connect": "AWS_CA_BUNDLE and AWS_ENDPOINT_URL, which obstore reads otherwise",
    "filesystem.permissions": "a node's store is opened without our settings",
    "local_server": "the server's process is started with this environment",
    "serving.engines.transformers_server": "it runs inside the job, and without prefect_bt",
    "serving.engines.require_key": "the same",
    "serving.rollout.acceptance_gate": "its command is run in this environment",
    "flows.tasks.serving_watch": "the same, when the router died",
}
# "module:function" -> why it may swallow any exception. One that raises again is no matter.
BROAD_EXCEPTS: dict[str, str] = {
    "cli.app:main": "whatever arrives there must be told to the user",
    "node_agent.agent:Agent._prepare": "whatever fails in staging is the node's reason",
    "weights.worker_threads:run_workers.run": "it raises again, in the thread that waits",
    "node_agent.upload_process:main": "whatever ends the uploader must be in its status",
    "local_server.watchdog:_call_logging_errors": "nothing restarts it: it reports, tries again",
}
MAX_BROAD_EXCEPTS = 5

VAGUE = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
MAX_LINES = 400
MAX_MODULES = 15
"""Modules directly in one folder, its `__init__` and its packages not counted."""
MAX_TOP_MODULES = 8


# --- levels of modules ------------------------------------------------------------------------


def room_of(module: str) -> str | None:
    """Return the longest name in LEVELS that holds `module`."""
    if module in LEVEL_OF or not module:
        return module
    package = module
    while "." in package:
        package = package.rpartition(".")[0]
        for name in (f"{package}.*", package):
            if name in LEVEL_OF:
                return name
    return None


def level_of(module: str) -> int | None:
    room = room_of(module)
    return EDGES if room == "" else None if room is None else LEVEL_OF[room]


# --- rules: each yields sentences -------------------------------------------------------------


def levels(sources: Sources) -> Iterator[str]:
    for module in sources:
        if room_of(module) is None:
            yield f"{module}: has no level; add it to LEVELS and to docs/architecture.md"


def dependencies(sources: Sources) -> Iterator[str]:
    for module in sources:
        mine = level_of(module)
        for other in sorted(our_imports(module, sources)):
            theirs = level_of(other)
            if mine is None or theirs is None:
                continue
            if theirs > mine:
                yield f"{module} (level {mine}) imports {other} (level {theirs}): only downwards"
            elif theirs == ADAPTERS and mine < EDGES and top(other) != top(module):
                yield f"{module} imports the adapter {other}: only entry points choose adapters"
            elif top(other) == "cli" != top(module):
                yield f"{module} imports {other}: only the command line imports the command line"


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


def package_cycles(sources: Sources) -> Iterator[str]:
    """Packages below the entry points that need one another, by whatever detour."""
    below = [m for m in sources if (level_of(m) or 0) < EDGES]
    graph: dict[str, set[str]] = {}
    for module in below:
        targets = {_unit(other) for other in our_imports(module, sources)}
        graph.setdefault(_unit(module), set()).update(targets - {_unit(module)})
    for unit in sorted(graph):
        if unit in reachable(graph, graph[unit]):
            yield f"{unit}: imports itself through other packages"


def _unit(module: str) -> str:
    room = room_of(module)
    return room if room and (level_of(module) or 0) <= PROTOCOLS else top(module)


def module_cycles(sources: Sources) -> Iterator[str]:
    """Modules that need one another; imports in functions and for type checking count too."""
    graph = {module: our_imports(module, sources) & set(sources) for module in sources}
    for module in sorted(graph):
        if module in reachable(graph, graph[module]):
            yield f"{module}: imports itself through other modules"


def foreign(sources: Sources) -> Iterator[str]:
    for module in sources:
        for package in sorted(foreign_imports(module, sources)):
            allowed = ONLY_IN.get(package)
            if allowed is not None and not any(_is_below(module, name) for name in allowed):
                yield f"{module} imports {package}: only {', '.join(sorted(allowed))} may"
            if package in {"flows", "blocks"}:
                yield f"{module} imports {package}: say {PACKAGE}.{package}"
            ours_alone = module in STDLIB_ONLY or level_of(module) == BASE
            if ours_alone and package not in sys.stdlib_module_names:
                yield f"{module} imports {package}: standard library only"


def nodes(sources: Sources) -> Iterator[str]:
    graph = {module: our_imports(module, sources, deferred=False) for module in sources}
    inside = {module for module in sources if top(module) == "node_agent"}
    for module in sorted(inside | reachable(graph, inside) & set(sources)):
        for package in sorted(foreign_imports(module, sources, deferred=False) & NOT_IN_A_NODE):
            yield f"{module} is loaded in a node and imports {package}"


def names(sources: Sources) -> Iterator[str]:
    for module in sources:
        if vague := VAGUE.intersection(module.split(".")):
            yield f"{module}: {vague.pop()!r} is no subject; name what it is about"


def sizes(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        lines = len(source.splitlines())
        if lines > MAX_LINES:
            yield f"{module}: {lines} lines, at most {MAX_LINES}; which subject can leave?"


def folders(sources: Sources) -> Iterator[str]:
    packages = {module.rpartition(".")[0] for module in sources if "." in module}
    modules = Counter(module.rpartition(".")[0] for module in sources if module not in packages)
    for package, count in sorted(modules.items()):
        most = MAX_MODULES if package else MAX_TOP_MODULES + 1  # "" counts itself, the __init__
        if count > most:
            yield f"{package or PACKAGE}: {count} modules, at most {most}; which belong together?"


def broad_excepts(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        for where, line in swallowed(parse(source, module), module):
            if where not in BROAD_EXCEPTS:
                yield f"{where} (line {line}): swallows any exception; name it, or raise again"


def environ(sources: Sources) -> Iterator[str]:
    for module, source in sources.items():
        if any(_is_below(module, reader) for reader in ENVIRON_READERS):
            continue
        for line in environ_lines(parse(source, module)):
            yield f"{module} (line {line}): reads os.environ; take it as an argument"


def _is_below(module: str, package: str) -> bool:
    return f"{module}.".startswith(f"{package}.")


RULES = [
    levels,
    dependencies,
    places,
    package_cycles,
    module_cycles,
    foreign,
    nodes,
    names,
    sizes,
    folders,
    broad_excepts,
    environ,
]


# --- the package ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps(rule) -> None:
    broken = list(rule(read_sources()))
    assert not broken, "\n" + "\n".join(broken)


def test_no_test_file_is_longer_than_a_module_may_be() -> None:
    tests = {path.relative_to(ROOT): path for path in (ROOT / "tests").rglob("*.py")}
    assert [*sizes({str(name): path.read_text() for name, path in tests.items()})] == []


@pytest.mark.parametrize("name", ["blocks", "flows"])
def test_the_links_are_there(name: str) -> None:
    link = ROOT / PACKAGE / name
    assert link.is_symlink()
    assert os.fspath(link.readlink()) == f"../{name}"
    assert (link / "__init__.py").is_file()


def test_the_lists_of_exceptions_stay_short() -> None:
    assert len(BROAD_EXCEPTS) <= MAX_BROAD_EXCEPTS


@pytest.mark.slow
def test_the_tables_name_what_is_there() -> None:
    sources = read_sources()
    assert {"errors", "flows", "blocks"} <= set(sources)
    missing = {name for name in LEVEL_OF if name.removesuffix(".*") not in sources}
    assert not missing, "remove what is not there from LEVELS"
    found = {where for m, s in sources.items() for where, _ in swallowed(parse(s, m), m)}
    assert set(BROAD_EXCEPTS) <= found, "remove what no longer swallows"
    reading = {m for m, s in sources.items() if any(environ_lines(parse(s, m)))}
    idle = {reader for reader in ENVIRON_READERS if not any(_is_below(m, reader) for m in reading)}
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


def test_a_cycle_of_packages_is_noticed() -> None:
    attempts, weights = "import prefect_bt.logs", "import prefect_bt.attempts"
    late = "def f():\n    import prefect_bt.weights"
    sources = {"attempts": attempts, "logs": late, "weights": weights}
    assert {sentence.partition(":")[0] for sentence in package_cycles(sources)} == set(sources)
    assert list(package_cycles({**sources, "logs": ""})) == []


def test_a_cycle_of_modules_is_noticed() -> None:
    late = "def f():\n    import prefect_bt.logs.last_lines"
    sources = {"logs": "", "logs.last_lines": "import prefect_bt.logs.levels", "logs.levels": late}
    found = {sentence.partition(":")[0] for sentence in module_cycles(sources)}
    assert found == {"logs.last_lines", "logs.levels"}
    assert list(module_cycles({**sources, "logs.levels": ""})) == []


def test_a_full_folder_is_noticed() -> None:
    many = {f"logs.part{number}": "" for number in range(MAX_MODULES)}
    assert list(folders({"": "", "logs": "", **many})) == []
    assert "logs: 16 modules" in next(folders({"": "", "logs": "", **many, "logs.one_more": ""}))
    loose = {f"module{number}": "" for number in range(MAX_TOP_MODULES)}
    assert list(folders({"": "", **loose})) == []
    assert "prefect_bt: 10 modules" in next(folders({"": "", **loose, "one_more": ""}))


def test_a_nodes_process_is_followed_through_its_imports() -> None:
    sources = {
        "node_agent": "",
        "node_agent.main": "from prefect_bt import weights",
        "weights": "import docker",
        "attempts": "import kubernetes",
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
