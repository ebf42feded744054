"""The agent's image: what a node's code imports is there, and nothing beside it."""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
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
    reachable,
    read_sources,
)
from tests.cluster.agent_image import (
    REQUIREMENTS,
    USER,
    build_agent_image,
    node_distributions,
    required_names,
)
from tests.docker.conftest import WORKER, engine, own_daemon
from tests.docker.removal import remove_image

__all__ = ["engine", "own_daemon"]  # fixtures

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
IMAGE = f"prefect-bt-test/agent:{WORKER}"

Run = Callable[[str], str]
"""Runs Python code in the image; its output."""


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


def import_graph(sources: Sources) -> dict[str, set[str]]:
    """Return what each module imports of ours, sooner or later, and the packages around it.

    The package itself is a leaf: its __getattr__ loads what a user asks for, never a node.
    """
    graph: dict[str, set[str]] = {}
    for module in sources:
        named = {name.removeprefix(f"{PACKAGE}.") for name in named_modules(module, sources)}
        edges = our_imports(module, sources) | named | parents(module)
        graph[module] = (edges & set(sources)) if module else set()
    return graph


def imported_distributions(sources: Sources) -> set[str]:
    """Return the distributions that the node's code imports by name, lazily or not."""
    found: set[str] = set()
    for module in reachable(import_graph(sources), node_modules(sources)):
        found |= foreign_imports(module, sources) if module else set()
        found |= {name.partition(".")[0] for name in named_modules(module, sources) if module}
    owners = packages_distributions()
    foreign = found - {PACKAGE} - set(sys.stdlib_module_names)
    return {canonicalize_name(owners[name][0]) for name in foreign}


@pytest.mark.slow
def test_the_requirements_are_what_the_nodes_code_imports() -> None:
    assert required_names() == imported_distributions(read_sources())


@pytest.mark.slow
def test_the_walk_notices_what_is_imported_late_or_by_name() -> None:
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


def test_the_dockerfile_says_who_runs_what() -> None:
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "ARG BASE=python:3.12-slim" in lines
    assert f"USER {USER}:{USER}" in lines
    assert 'ENTRYPOINT ["python", "-m", "prefect_bt.node_agent.pod"]' in lines
    installs = [json.loads(line.removeprefix("RUN ")) for line in lines if line.startswith("RUN")]
    assert any(REQUIREMENTS.relative_to(ROOT).as_posix() in words for words in installs)
    assert any(words[-2:] == ["--no-deps", "."] for words in installs)


def test_the_dockerfile_copies_what_is_there_and_sent() -> None:
    kept = DOCKERFILE.with_name("agent.Dockerfile.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in kept if line.startswith("!")}
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    copied = {name for names in copies for name in names.split()}
    assert copied == sent
    assert not [name for name in copied if not (ROOT / name).exists()]


# --- the image ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(engine: docker.APIClient) -> Iterator[Run]:
    image = build_agent_image(engine, IMAGE)
    yield lambda code: run_in(engine, image, code)
    remove_image(engine, image)


def run_in(engine: docker.APIClient, image: str, code: str) -> str:
    """Return the output of the code, as a pod runs the agent: nothing but /tmp can be written."""
    limits = engine.create_host_config(read_only=True, tmpfs={"/tmp": ""}, network_mode="none")
    command = ["-X", "dev", "-c", textwrap.dedent(code)]
    made: Any = engine.create_container(image, command, entrypoint=["python"], host_config=limits)
    try:
        engine.start(made["Id"])
        status = engine.wait(made["Id"], timeout=60)["StatusCode"]
        output = engine.logs(made["Id"]).decode()
    finally:
        engine.remove_container(made["Id"], force=True)
    assert status == 0, output
    return output


@pytest.mark.integration
@pytest.mark.slow
class TestImage:
    """Runs in one image, as USER, with a root file system that cannot be written."""

    def test_all_modules_of_a_node_are_imported(self, run: Run) -> None:
        sources = read_sources()
        names = sorted(f"{PACKAGE}.{m}" for m in node_modules(sources) if "__main__" not in m)
        assert {f"{PACKAGE}.node_agent.guard", f"{PACKAGE}.weights.sources.hub"} <= {*names}
        run(f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)")

    def test_what_a_node_must_not_have_is_not_there(self, run: Run) -> None:
        code = "from importlib.util import find_spec\n"
        code += f"print([name for name in {NOT_IN_THE_IMAGE!r} if find_spec(name)])"
        assert run(code).strip() == "[]"
        code = "try:\n    import prefect\nexcept ModuleNotFoundError as error:\n    print(error)"
        assert run(code).strip() == "No module named 'prefect'"

    def test_what_is_imported_by_name_is_there(self, run: Run) -> None:
        sources = read_sources()
        modules = reachable(import_graph(sources), node_modules(sources))
        names = {name for m in modules if m for name in named_modules(m, sources)}
        assert {"boto3.session", "obstore.auth.boto3"} <= names
        run(f"import importlib\nfor name in {names!r}:\n    importlib.import_module(name)")

    @pytest.mark.parametrize("url", ["s3://b/p", "gs://b/p", "r2://account.b/p", "/tmp/store"])
    def test_a_store_opens(self, run: Run, url: str) -> None:
        code = f"""
            import os
            os.environ |= {{"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}}
            os.environ |= {{"GOOGLE_SKIP_SIGNATURE": "true"}}
            from prefect_bt.object_store import open_store
            print(type(open_store({url!r})).__name__)
        """
        assert run(code).split()[-1] == ("DiskStore" if url[0] == "/" else "BucketStore")

    def test_servers_certificates_can_be_checked(self, run: Run) -> None:
        code = "import ssl; print(ssl.create_default_context().cert_store_stats()['x509_ca'])"
        assert int(run(code)) > 50

    def test_it_runs_as_a_user_of_the_image_who_writes_tmp_alone(self, run: Run) -> None:
        code = """
            import os, pathlib, pwd
            pathlib.Path.home().joinpath("file").write_text("")
            print(os.getuid(), os.getgid(), pwd.getpwuid(os.getuid()).pw_name, os.getcwd())
            try:
                pathlib.Path(os.__file__).with_name("file").write_text("")
            except OSError as error:
                print(type(error).__name__)
        """
        assert run(code).split() == [str(USER), str(USER), "agent", "/tmp", "OSError"]

    def test_a_second_build_changes_nothing(self, run: Run, engine: docker.APIClient) -> None:
        tags = [IMAGE, f"{IMAGE}-again"]
        ids = {engine.inspect_image(build_agent_image(engine, tag))["Id"] for tag in tags}
        remove_image(engine, tags[1])
        assert ids == {engine.inspect_image(IMAGE)["Id"]}
