"""Check which objects of a config file count, and the message of every failure."""

import os
import sys
import threading
from textwrap import dedent

import pytest
from pydantic import ValidationError

from prefect_bt.definitions import (
    ConfigImportError,
    ConfigValueError,
    TrainingProject,
    load_deploy_checkpoints_config,
    load_training_project,
)
from prefect_bt.errors import DefinitionError

PROJECT = """
from truss_train import definitions
project = definitions.TrainingProject(
    name="p", job=definitions.TrainingJob(image=definitions.Image(base_image="x"))
)
"""


@pytest.fixture
def config(tmp_path):
    def write(text, name="config.py", folder="job"):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write


def failing(path, kind=DefinitionError):
    with pytest.raises(kind) as caught:
        load_training_project(path)
    return caught.value


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    modules, path, finders = dict(sys.modules), list(sys.path), list(sys.meta_path)
    yield
    assert sys.path == path
    assert sys.meta_path == finders
    changed = {name for name in modules if sys.modules.get(name) is not modules[name]}
    assert not changed
    ours = {"config", "helper", "shared", "truss", "truss_train"}
    assert not {name for name in sys.modules if name.partition(".")[0] in ours} - set(modules)


def test_a_project(config):
    project = load_training_project(config(PROJECT))
    assert type(project) is TrainingProject
    assert project.name == "p"


def test_a_path_as_text_and_relative(config, monkeypatch):
    path = config(PROJECT)
    assert load_training_project(str(path)).name == "p"
    monkeypatch.chdir(path.parent)
    assert load_training_project("config.py").name == "p"


def test_not_a_file(tmp_path):
    for path in (tmp_path, tmp_path / "missing.py"):
        error = failing(path, ImportError)
        assert "is not a file" in str(error)
        assert isinstance(error, ConfigImportError)
        assert error.file == str(path)


@pytest.mark.parametrize("name", ["config.txt", "config", "config.yaml", "config.pyc"])
def test_not_python(config, name):
    error = failing(config(PROJECT, name), ImportError)
    assert "Could not import" in str(error)
    assert isinstance(error, DefinitionError)


def test_none_found(config):
    error = failing(config("x = 1"), ValueError)
    assert "No `TrainingProject` was found" in str(error)
    assert isinstance(error, ConfigValueError)


@pytest.mark.parametrize(
    "hidden", ["listed = [project]", "named = {'p': project}", "def f(p=project): return p"]
)
def test_objects_in_containers_are_not_found(config, hidden):
    failing(config(f"{PROJECT}\n{hidden}\ndel project"), ConfigValueError)


def test_two_found(config):
    error = failing(config(PROJECT + PROJECT.replace("project =", "other =")), ValueError)
    assert "Multiple `TrainingProject`s were found" in str(error)
    assert "other, project" in str(error)


def test_an_alias_counts(config):
    assert "alias, project" in str(failing(config(PROJECT + "alias = project"), ConfigValueError))


def test_underscores_count(config):
    assert load_training_project(config(PROJECT.replace("project =", "_ ="))).name == "p"


def test_a_project_and_what_to_deploy(config):
    path = config(PROJECT + "deploy = definitions.DeployCheckpointsConfig(model_name='m')")
    assert load_training_project(path).name == "p"
    assert load_deploy_checkpoints_config(path).model_name == "m"
    with pytest.raises(ConfigValueError, match="No `DeployCheckpointsConfig`"):
        load_deploy_checkpoints_config(config(PROJECT, "other.py"))


@pytest.mark.slow
def test_module_name_and_file(config):
    path = config(
        PROJECT
        + """
        import sys
        project.name = f"{__name__}|{__file__}|{__name__ in sys.modules}"
        """.replace("        ", ""),
        "config_1node_128k.py",
    )
    assert load_training_project(path).name == f"config_1node_128k|{path}|True"
    assert "config_1node_128k" not in sys.modules


def test_a_config_called_after_a_standard_module(config):
    before = sys.modules.get("json")
    assert load_training_project(config(PROJECT, "json.py")).name == "p"
    assert sys.modules.get("json") is before


def test_dataclasses_in_a_config(config):
    path = config(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Size:\n    gpus: int = 1\n" + PROJECT
    )
    assert load_training_project(path)


def test_an_edit_is_seen_at_once_and_no_bytecode_is_written(config):
    path = config(PROJECT)
    stamp = path.stat()
    assert load_training_project(path).name == "p"
    path.write_text(PROJECT.replace('"p"', '"q"'))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert load_training_project(path).name == "q"
    assert [one.name for one in path.parent.iterdir()] == ["config.py"]


def test_syntax_error(config):
    path = config("x = 1\ny = (\n")
    error = failing(path)
    assert (error.file, error.line) == (str(path), 2)
    assert f"{path}:2" in str(error)
    assert isinstance(error.__cause__, SyntaxError)


def test_a_syntax_error_of_something_else(config):
    error = failing(config("import ast\nx = ast.literal_eval('1 +')\n"))
    assert error.line == 2
    assert "SyntaxError" in str(error)


def test_an_exception_in_the_file(config):
    path = config("import os\n\nGPUS = int(os.environ['RECIPE_NOT_SET'])\n")
    error = failing(path)
    assert (error.file, error.line) == (str(path), 3)
    assert "KeyError: 'RECIPE_NOT_SET'" in str(error)
    assert "environment variable" in error.next_step


def test_an_exception_in_a_function_of_the_file(config):
    path = config("def f():\n    raise RuntimeError('no')\n\nf()\n")
    assert failing(path).line == 2


def test_a_validation_error_names_line_field_and_remedy(config):
    path = config(
        """\
        from truss_train import definitions

        compute = definitions.Compute(
            node_count="2",
            availability_model="spot",
            acelerator="H100",
        )
        """
    )
    error = failing(path)
    assert (error.file, error.line) == (str(path), 3)
    assert (error.field, error.value) == ("node_count", "2")
    text = str(error)
    assert f"{path}:3: Compute is not valid:" in text
    assert "node_count: '2' was given; write an integer" in text
    assert "availability_model: 'spot' was given; write AvailabilityModel.SPOT" in text
    assert "acelerator: Compute has no such field; did you mean accelerator?" in text
    assert isinstance(error.__cause__, ValidationError)


def test_a_factory_error_keeps_its_next_step(config):
    path = config(
        "from truss_train import BasetenCheckpoint\nx = BasetenCheckpoint.from_latest_checkpoint()"
    )
    error = failing(path)
    assert error.line == 2
    assert "project_name" in str(error)
    assert "LoadCheckpointConfig" in error.next_step


def test_missing_modules(config):
    error = failing(config("import surely_not_installed\n"))
    assert error.line == 1
    assert "training script" in error.next_step
    error = failing(config("\nfrom truss_train.elsewhere import x\n"))
    assert error.line == 2
    assert "stands in for truss" in error.next_step


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("sys.exit()", "the config file called sys.exit()."),
        ("sys.exit(0)", "the config file called sys.exit(0)."),
        ("sys.exit(3)", "the config file called sys.exit(3)."),
        ("sys.exit('')", "the config file called sys.exit('')."),
        ("raise SystemExit", "the config file called sys.exit()."),
        ("import argparse; argparse.ArgumentParser().parse_args(['--help'])", "sys.exit(0)"),
        ("import argparse; argparse.ArgumentParser().error('no')", "sys.exit(2)"),
    ],
)
def test_an_exit_without_text_is_named(config, call, message):
    error = failing(config(f"import sys\n{call}\n"))
    assert error.line == 2
    assert message in error.message
    assert "os.environ" in error.next_step


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("'set SWEEP=1'", "set SWEEP=1."),
        ("'Set SWEEP!'", "Set SWEEP!"),
        ("'first\\nsecond.'", "first\nsecond."),
        ("ValueError('set it')", "set it."),
    ],
)
def test_the_text_of_an_exit_is_the_message(config, code, message):
    path = config(f"import sys\n\nsys.exit({code})\n")
    assert failing(path).message == f"{path}:3: {message}"


def test_an_error_that_is_no_exception(config):
    error = failing(config("class Skip(BaseException): ...\nraise Skip('no GPU')\n"))
    assert (error.line, error.message.partition(": ")[2]) == (2, "Skip: no GPU.")


def test_keyboard_interrupt_passes(config):
    with pytest.raises(KeyboardInterrupt):
        load_training_project(config("raise KeyboardInterrupt"))


def test_a_config_may_load_another(config):
    other = config(PROJECT.replace('"p"', '"inner"'), folder="other")
    path = config(
        f"""
        from prefect_bt.definitions import load_training_project
        inner = load_training_project({str(other)!r})
        from truss_train import definitions
        assert isinstance(inner, definitions.TrainingProject)
        """
    )
    assert load_training_project(path).name == "inner"


def test_from_many_threads(config):
    text = "from helper import NAME\n" + PROJECT.replace('"p"', "NAME")
    paths = [config(text, folder=f"job{i}") for i in range(16)]
    for i in range(16):
        config(f"NAME = 'n{i}'", "helper.py", folder=f"job{i}")
    names = {}

    def load(i):
        names[i] = load_training_project(paths[i]).name

    threads = [threading.Thread(target=load, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == {i: f"n{i}" for i in range(16)}
