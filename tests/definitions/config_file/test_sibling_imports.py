"""Imports of the config's own folder, and the names of truss, while a config file runs."""

import importlib
import sys
from textwrap import dedent
from types import ModuleType

import pytest

import prefect_bt
from prefect_bt import definitions
from prefect_bt.definitions import load_training_project
from prefect_bt.definitions.config_file.sibling_imports import import_siblings
from prefect_bt.definitions.truss_compat.modules import install_stand_ins
from prefect_bt.errors import DefinitionError

CONFIG = """
from truss_train import Image, TrainingJob, TrainingProject
{imports}
project = TrainingProject(name={name}, job=TrainingJob(image=Image(base_image="x")))
"""


@pytest.fixture
def folder(tmp_path):
    def write(name, files, /, **config):
        for path, text in {**files, "config.py": CONFIG.format(**config)}.items():
            file = tmp_path / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
        return tmp_path / name / "config.py"

    return write


def load_name(path):
    return load_training_project(path).name


def test_two_folders_each_get_their_own(folder, monkeypatch):
    one = folder("one", {"helper.py": "NAME = 'one'"}, imports="import helper", name="helper.NAME")
    two = folder("two", {"helper.py": "NAME = 'two'"}, imports="import helper", name="helper.NAME")
    assert [load_name(path) for path in (one, two, one)] == ["one", "two", "one"]
    monkeypatch.chdir(one.parent)
    monkeypatch.syspath_prepend("")
    assert load_name(two) == "two"
    assert "helper" not in sys.modules


def test_an_imported_module_of_the_same_name_comes_back(folder, monkeypatch):
    mine, sub = ModuleType("helper"), ModuleType("helper.sub")
    monkeypatch.setitem(sys.modules, "helper", mine)
    monkeypatch.setitem(sys.modules, "helper.sub", sub)
    path = folder("one", {"helper.py": "NAME = 'one'"}, imports="import helper", name="helper.NAME")
    assert load_name(path) == "one"
    assert sys.modules["helper"] is mine
    assert sys.modules["helper.sub"] is sub


def test_packages_submodules_and_relative_imports(folder):
    path = folder(
        "one",
        {
            "shared/__init__.py": "from .names import NAME",
            "shared/names.py": "from shared.deep.most import NAME",
            "shared/deep/__init__.py": "",
            "shared/deep/most.py": "from truss_train import definitions\nNAME = 'deep'",
        },
        imports="import shared.deep.most",
        name="shared.NAME",
    )
    assert load_name(path) == "deep"
    assert not [name for name in sys.modules if name.startswith("shared")]
    assert not list(path.parent.rglob("__pycache__"))


def test_a_sibling_may_import_the_config_and_other_siblings(folder):
    path = folder(
        "one",
        {"a.py": "import b\nimport config\nNAME = b.NAME + config.__name__", "b.py": "NAME = 'b+'"},
        imports="import a",
        name="a.NAME",
    )
    assert load_name(path) == "b+config"


def test_siblings_make_our_classes(folder):
    path = folder(
        "one",
        {
            "sizes.py": """
                from truss_train.definitions import Compute
                from truss.base import truss_config
                COMPUTE = Compute(accelerator=truss_config.AcceleratorSpec(accelerator="H100"))
            """
        },
        imports="from sizes import COMPUTE",
        name="type(COMPUTE).__module__",
    )
    assert load_name(path) == "prefect_bt.definitions.compute"


def test_standard_modules_and_truss_cannot_be_hidden(folder):
    boom = "raise RuntimeError('hidden')"
    files = {"json.py": boom, "types.py": boom, "truss/call.py": boom, "truss_train.py": boom}
    path = folder(
        "one",
        {**files, "pydantic/__init__.py": boom, "prefect_bt/__init__.py": boom},
        imports="import json, types, pydantic, prefect_bt.definitions",
        name="json.dumps(types.SimpleNamespace.__name__)",
    )
    assert load_name(path) == '"SimpleNamespace"'


def test_a_folder_of_data_hides_nothing_installed(folder, tmp_path, monkeypatch):
    installed = tmp_path / "site" / "recipe_installed"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("NAME = 'installed'")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    path = folder(
        "one",
        {"recipe_installed/data.txt": "", "plain/part.py": "NAME = 'plain'"},
        imports="import recipe_installed, plain.part",
        name="recipe_installed.NAME + plain.part.NAME",
    )
    assert load_name(path) == "installedplain"
    assert "plain" not in sys.modules
    assert "recipe_installed" in sys.modules
    monkeypatch.delitem(sys.modules, "recipe_installed")


def test_an_error_in_a_sibling_names_both_files(folder):
    path = folder(
        "one",
        {"helper.py": "from truss_train import Compute\n\nCOMPUTE = Compute(node_count='2')"},
        imports="import helper",
        name="'p'",
    )
    with pytest.raises(DefinitionError, match=r"in helper.py:3") as caught:
        load_training_project(path)
    assert (caught.value.file, caught.value.line) == (str(path), 3)
    assert "helper" not in sys.modules


def test_a_syntax_error_in_a_sibling_is_located_there(folder):
    path = folder("one", {"helper.py": "x =\n"}, imports="import helper", name="'p'")
    with pytest.raises(DefinitionError) as caught:
        load_training_project(path)
    assert (caught.value.file, caught.value.line) == (str(path.parent / "helper.py"), 1)


NAMES = {
    "truss_train": """AvailabilityModel Compute Runtime SecretReference TrainingJob TrainingProject
        FullCheckpoint LoRACheckpoint ModelWeightsFormat CheckpointList DeployCheckpointsRuntime
        DeployCheckpointsConfig LoRADetails CheckpointingConfig CacheConfig AWSIAMDockerAuth
        GCPServiceAccountJSONDockerAuth RegistrySecretDockerAuth LoadCheckpointConfig
        BasetenCheckpoint LoopsCheckpoint DockerAuth Image WeightsSource Workspace
        AWSAssumeRoleDockerAuth AWSOIDCDockerAuth GCPOIDCDockerAuth push definitions public_api""",
    "truss_train.definitions": """TrainingProject InteractiveSession InteractiveSessionTrigger
        InteractiveSessionProvider InteractiveSessionAuthProvider WhisperCheckpoint Checkpoint
        WeightsSource""",
    "truss_train.public_api": "push",
    "truss": "base truss_config",
    "truss.base": "truss_config",
    "truss.base.truss_config": """AcceleratorSpec Accelerator DockerAuthType WeightsSource
        WeightsAuth WeightsAuthMethod TrainingArtifactReference CheckpointList""",
}


def test_names_of_truss():
    with install_stand_ins():
        for module, names in NAMES.items():
            found = importlib.import_module(module)
            assert not [name for name in names.split() if not hasattr(found, name)]
            for name in set(names.split()) & set(definitions.__all__) - {"CheckpointList"}:
                assert getattr(found, name) is getattr(definitions, name)
        train = sys.modules["truss_train"]
        assert not hasattr(train, "InteractiveSession")
        assert not hasattr(train, "WhisperCheckpoint")
        assert train.CheckpointList is definitions.CheckpointList
    assert "truss_train" not in sys.modules


@pytest.fixture
def installed_truss(tmp_path, monkeypatch):
    """A truss that is installed and already imported, with a class of its own."""
    site = tmp_path / "site"
    for package in ("truss_train", "truss", "truss/base"):
        (site / package).mkdir(parents=True)
        (site / package / "__init__.py").write_text("class TrainingProject:\n    name = 'theirs'\n")
    (site / "truss_train" / "deployment.py").write_text("THEIRS = True")
    (site / "uses_truss.py").write_text("from truss_train import TrainingProject\nT = 1\n")
    monkeypatch.syspath_prepend(str(site))
    names = ["truss_train", "truss_train.deployment", "truss", "truss.base"]
    modules = {name: importlib.import_module(name) for name in names}
    yield modules
    for name in [*names, "uses_truss"]:
        sys.modules.pop(name, None)


def truss_modules():
    names = ("truss", "truss_train")
    return {k: v for k, v in sys.modules.items() if k.partition(".")[0] in names}


def test_an_installed_truss_is_replaced_and_restored(folder, installed_truss):
    path = folder("one", {}, imports="import truss_train", name="truss_train.__doc__")
    assert "stand-in" in load_name(path)
    assert truss_modules() == installed_truss
    failing = folder("two", {}, imports="from truss_train.deployment import THEIRS", name="'p'")
    with pytest.raises(DefinitionError, match="cannot import name"):
        load_training_project(failing)
    assert truss_modules() == installed_truss


def test_a_project_of_the_installed_truss_is_explained(folder, installed_truss):
    path = folder("one", {}, imports="", name="'p'")
    importlib.import_module("uses_truss")
    path.write_text("from uses_truss import TrainingProject\nproject = TrainingProject()\n")
    with pytest.raises(ValueError, match="of another library"):
        load_training_project(path)


def test_push_is_found_when_it_is_called(monkeypatch):
    with install_stand_ins():
        push = importlib.import_module("truss_train").push
        assert importlib.import_module("truss_train.public_api").push is push
    calls = []
    monkeypatch.setitem(
        prefect_bt.__dict__, "push", lambda *a, **k: calls.append((a, k)) or {"id": "x"}
    )
    assert push("config.py", team_id="t") == {"id": "x"}
    assert calls == [(("config.py",), {"team_id": "t"})]


def test_finders_come_and_go(tmp_path):
    before = list(sys.meta_path)
    with pytest.raises(KeyError), import_siblings(tmp_path / "config.py"):
        assert len(sys.meta_path) == len(before) + 2
        raise KeyError
    assert sys.meta_path == before
