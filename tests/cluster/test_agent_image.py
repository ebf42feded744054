"""The agent's image: what a node's code imports is there, and nothing beside it."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from typing import Any

import docker
import pytest
from packaging.utils import canonicalize_name

from tests.architecture.sources import (
    PACKAGE,
    ROOT,
    Sources,
    foreign_imports,
    our_imports,
    parse,
    read_sources,
)
from tests.cluster.agent_image import REQUIREMENTS, USER, node_distributions, required_names

NODE_CODE = (
    "node_agent",
    "object_store",
    "checkpoints.committed.restore",
    "checkpoints.upload",
    "workspace.unpack",
    "weights",
    "host.mounts",
    "host.nodes",
)
"""What the agent's container runs: modules, and packages with all that is below them."""
NOT_IN_THE_IMAGE = ("prefect", "docker", "kubernetes", "cyclopts", "rich", "prompt_toolkit")
NOT_IN_THE_IMAGE += ("uvicorn", "aiohttp", "pathspec", "questionary", "fastapi", "pytest")
DOCKERFILE = ROOT / "deployments/images/agent.Dockerfile"


# --- the import walk ----------------------------------------------------------------------------


def node_modules(sources: Sources) -> set[str]:
    return {m for m in sources if any(m == one or m.startswith(f"{one}.") for one in NODE_CODE)}


def named_modules(module: str, sources: Sources) -> Iterator[str]:
    """Yield the names that are handed to `import_module` as text."""
    for node in ast.walk(parse(sources[module], module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (str(word.value) for word in node.args if isinstance(word, ast.Constant))


def parents(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:length]) for length in range(len(parts))}


def needed_modules(sources: Sources) -> set[str]:
    """Return the modules that the node's code imports of ours, sooner or later.

    The package itself is not among them: its __getattr__ loads what a user asks for, never a node.
    """
    found, todo = set[str](), node_modules(sources)
    while todo:
        module = todo.pop()
        found.add(module)
        named = {name.removeprefix(f"{PACKAGE}.") for name in named_modules(module, sources)}
        edges = our_imports(module, sources) | named | parents(module)
        todo |= (edges & set(sources)) - found - {""}
    return found


def imported_distributions(sources: Sources) -> set[str]:
    """Return the distributions that the node's code imports by name, lazily or not."""
    found: set[str] = set()
    for module in needed_modules(sources):
        found |= foreign_imports(module, sources)
        found |= {name.partition(".")[0] for name in named_modules(module, sources)}
    owners = packages_distributions()
    foreign = found - {PACKAGE} - set(sys.stdlib_module_names)
    return {canonicalize_name(owners[name][0]) for name in foreign}


@pytest.mark.slow
def test_the_requirements_are_what_the_nodes_code_imports() -> None:
    assert required_names() == imported_distributions(read_sources())


@pytest.mark.slow
def test_the_walk_finds_late_imports_and_imports_by_name() -> None:
    late = 'def f():\n    import docker\n    import_module("kubernetes.client")'
    sources = {
        "": "import rich",
        "node_agent": "",
        "node_agent.pod": late,
        "cli": "import cyclopts",
    }
    assert imported_distributions(sources) == {"docker", "kubernetes"}


# --- the files of the image ---------------------------------------------------------------------


def test_what_a_node_must_not_have_is_not_needed_by_what_it_has() -> None:
    names = {canonicalize_name(one.name) for one in node_distributions()}
    assert not names & {canonicalize_name(name) for name in NOT_IN_THE_IMAGE}


def test_the_requirements_take_their_versions_from_the_constraints() -> None:
    lines = REQUIREMENTS.read_text().splitlines()
    (constraints,) = (line.split()[1] for line in lines if line.startswith("-c "))
    assert (REQUIREMENTS.parent / constraints).resolve() == ROOT / "constraints.txt"
    pinned = {
        canonicalize_name(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    assert required_names() <= pinned


def test_the_dockerfile_has_the_user_the_entrypoint_and_the_installs() -> None:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "ARG BASE=python:3.12-slim" in lines
    assert f"USER {USER}:{USER}" in lines
    assert 'ENTRYPOINT ["python", "-m", "prefect_bt.node_agent.pod"]' in lines
    installs = [json.loads(line.removeprefix("RUN ")) for line in lines if line.startswith("RUN")]
    assert any(REQUIREMENTS.relative_to(ROOT).as_posix() in words for words in installs)
    assert any(words[-2:] == ["--no-deps", "."] for words in installs)


def test_the_dockerfile_copies_existing_files_of_the_build_context() -> None:
    kept = DOCKERFILE.with_name("agent.Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in kept if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = {name for names in copies for name in names.split()}
    assert copied == sent
    assert not [name for name in copied if not (ROOT / name).exists()]


# --- the image ----------------------------------------------------------------------------------


STORES = ("s3://b/p", "gs://b/p", "r2://account.b/p", "/tmp/store")
FACTS = """
import importlib, json, os, pathlib, pwd, ssl
from importlib.util import find_spec

given = json.loads({given!r})
for name in given["imported"]:
    importlib.import_module(name)
os.environ |= {{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}}
os.environ |= {{"GOOGLE_SKIP_SIGNATURE": "true"}}
from prefect_bt.object_store import open_store

pathlib.Path.home().joinpath("file").write_text("")
try:
    pathlib.Path(os.__file__).with_name("file").write_text("")
    refused = ""
except OSError as error:
    refused = type(error).__name__
print(json.dumps({{
    "found": [name for name in given["absent"] if find_spec(name)],
    "stores": [type(open_store(url)).__name__ for url in given["stores"]],
    "authorities": ssl.create_default_context().cert_store_stats()["x509_ca"],
    "user": [os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name, os.getcwd()],
    "refused": refused,
}}))
"""


@pytest.mark.integration
@pytest.mark.slow
def test_an_image_has_what_a_node_needs_and_nothing_else(
    engine: docker.APIClient, agent_image: str
) -> None:
    """Run as USER, with a root file system that cannot be written."""
    sources = read_sources()
    own = sorted(f"{PACKAGE}.{m}" for m in node_modules(sources) if "__main__" not in m)
    assert {f"{PACKAGE}.node_agent.guard", f"{PACKAGE}.weights.sources.hub"} <= {*own}
    reached = needed_modules(sources)
    named = {name for module in reached for name in named_modules(module, sources)}
    assert {"boto3.session", "obstore.auth.boto3"} <= named
    given = {"imported": [*own, *named], "absent": NOT_IN_THE_IMAGE, "stores": STORES}
    found = json.loads(run_in(engine, agent_image, FACTS.format(given=json.dumps(given))))
    assert found["found"] == []
    assert found["stores"] == [*["BucketStore"] * 3, "DiskStore"]
    assert found["authorities"] > 50
    assert found["user"] == [USER, USER, "agent", "/tmp"]
    assert found["refused"] == "OSError"


def run_in(engine: docker.APIClient, image: str, code: str) -> str:
    """Return the last line that the code prints, in a pod's circumstances: only /tmp is written."""
    limits = engine.create_host_config(read_only=True, tmpfs={"/tmp": ""}, network_mode="none")
    command = ["-X", "dev", "-c", code]
    made: Any = engine.create_container(image, command, entrypoint=["python"], host_config=limits)
    try:
        engine.start(made["Id"])
        status = engine.wait(made["Id"], timeout=600)["StatusCode"]
        everything = engine.logs(made["Id"]).decode()
        printed = engine.logs(made["Id"], stderr=False).decode()
    finally:
        engine.remove_container(made["Id"], force=True)
    assert status == 0, everything
    return printed.splitlines()[-1]
