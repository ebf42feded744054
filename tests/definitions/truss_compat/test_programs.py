"""Programs written for truss_train: the names they import, and projects of truss's own classes.

tests/fixtures/truss_names.json has the public names of the published package, by hand from its
source; where truss is installed it is compared with that.
"""

import ast
import importlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

import prefect_bt
from prefect_bt import compat
from prefect_bt.definitions import TrainingProject, project_document
from prefect_bt.definitions.truss_compat.conversion import to_training_project
from prefect_bt.definitions.truss_compat.functions import HostedServiceError
from prefect_bt.definitions.truss_compat.modules import make_stand_ins
from prefect_bt.errors import DefinitionError, PlanError

PUBLISHED = json.loads((Path(__file__).parents[2] / "fixtures" / "truss_names.json").read_text())
compat.uninstall()  # importing it has installed it; each test decides for itself
INSTALLED = importlib.util.find_spec("truss_train") is not None
SERVING = "truss.base.truss_config"
"""Of its many names only those that training uses are ours."""


@pytest.fixture
def brought():
    """Within it, programs for truss_train come to us; other tests find `sys.modules` as it was."""
    compat.install()
    yield
    compat.uninstall()


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Runs a program that is a file, in this process: `python -m prefect_bt.compat FILE`."""
    monkeypatch.setenv("PREFECT_BT_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("PREFECT_BT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setattr(sys, "path", ["", *sys.path])

    def run(source, *arguments):
        file = tmp_path / "program.py"
        file.write_text(dedent(source))
        return compat.main([str(file), *arguments])

    return run


# -- names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLISHED["names"])
def test_every_public_name_is_ours_or_refused_with_a_sentence(name):
    module = make_stand_ins()[name]
    absent = []
    for member in PUBLISHED["names"][name]:
        try:
            getattr(module, member)
        except HostedServiceError as error:
            assert f"{name}.{member}" in str(error)
        except AttributeError:
            absent.append(member)
    assert not absent or name == SERVING
    assert "WeightsSource" not in absent
    assert not hasattr(module, "NeverHeardOf")


@pytest.mark.skipif(not INSTALLED, reason="truss is not installed: the fixture stays unchecked")
@pytest.mark.parametrize("name", PUBLISHED["names"])
def test_the_fixture_is_the_published_text(name):
    body = ast.parse(inspect.getsource(importlib.import_module(name))).body
    defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    if name != "truss_train":
        assert defined <= {*PUBLISHED["names"][name], *(n for n in defined if n[0] == "_")}
    assert all(hasattr(importlib.import_module(name), n) for n in PUBLISHED["names"][name])


# -- from one line ----------------------------------------------------------------------------


def test_compat_is_undone_by_one_call(brought):
    compat.install()  # once more changes nothing
    ours = importlib.import_module("truss_train.public_api").push
    assert ours.__module__ == "prefect_bt.definitions.truss_compat.functions"
    compat.uninstall()
    if INSTALLED:
        theirs = importlib.import_module("truss_train.public_api").push
        assert theirs.__module__ == "truss_train.public_api"
    else:
        assert "truss_train" not in sys.modules


@pytest.mark.slow
def test_a_program_reaches_us_unchanged(program, brought, tmp_path, capsys):
    (tmp_path / "config.py").write_text(
        "from truss_train import *\n"
        "p = TrainingProject(name='p', job=TrainingJob(image=Image(base_image='i'),\n"
        "    runtime=Runtime(start_commands=['true'])))\n"
    )
    (tmp_path / "beside.py").write_text("NODES = 0\n")
    code = program(
        """
        import sys
        from pathlib import Path
        import truss
        from beside import NODES
        from truss.base.truss_config import Accelerator, AcceleratorSpec
        from truss.remote.remote_factory import RemoteFactory
        from truss_train import TrainingJob, TrainingProject, Image, Compute, deployment, loader
        from truss_train.public_api import push

        assert __name__ == "__main__" and sys.argv[1:] == ["--steps", "3"]
        job = TrainingJob(image=Image(base_image="i"), compute=Compute(node_count=NODES))
        here = Path(__file__).parent

        def tell(function, *arguments, **options):
            try:
                function(*arguments, **options)
            except Exception as error:
                print(type(error).__name__, str(error).replace("\\n", " "))

        tell(push, TrainingProject(name="p", job=job), source_dir=here, remote="baseten")
        tell(push, "no/such/config.py")
        tell(push, 7)
        with loader.import_training_project(here / "config.py") as project:
            tell(
                deployment.create_training_job, None, here / "config.py", project,
                job_name_from_cli="mine", node_count=-1,
            )
            project.job.runtime.environment_variables["X"] = 8
            tell(push, project)
        tell(deployment.prepare_push, None, here, job)
        for name, error in (("nope.py", ImportError), ("beside.py", ValueError)):
            try:
                with loader.import_target(here / name, TrainingProject):
                    raise AssertionError(name)
            except error as found:
                print(error.__name__)
        """,
        "--steps",
        "3",
    )
    told = capsys.readouterr().out.splitlines()
    assert code == 0
    assert told[0].startswith("PlanError")
    assert "node_count is 0" in told[0] or "at least 1 node" in told[0]
    assert told[1].startswith("ConfigImportError")
    assert told[2].startswith("DefinitionError push was given a int")
    assert told[3].startswith("PlanError")
    assert "job.runtime.environment_variables['X']" in told[4]
    assert told[5].startswith("HostedServiceError")
    assert told[6:] == ["ImportError", "ValueError"]


def test_a_program_that_is_not_there(program, brought, capsys):
    assert compat.main(["nope.py"]) == 2
    assert compat.main([]) == 2
    assert capsys.readouterr().err.count("Usage: python -m prefect_bt.compat program.py") == 2


# -- a project of other classes ---------------------------------------------------------------

EVERYTHING = """
from truss.base.truss_config import (
    Accelerator, AcceleratorSpec, DockerAuthType, WeightsAuth, WeightsAuthMethod
)
from truss_train.definitions import *
from truss_train import WeightsSource

auth = DockerAuth(
    auth_method=DockerAuthType.REGISTRY_SECRET,
    registry="ghcr.io",
    registry_secret_docker_auth=RegistrySecretDockerAuth(secret_ref=SecretReference(name="reg")),
)
job = TrainingJob(
    image=Image(base_image="python:3.11", docker_auth=auth),
    compute=Compute(
        node_count=2,
        accelerator=AcceleratorSpec(accelerator=Accelerator.H100, count=8),
        availability_model=AvailabilityModel.SPOT,
    ),
    runtime=Runtime(
        start_commands=["true"],
        environment_variables={"A": "1", "HF": SecretReference(name="hf")},
        enable_cache=True,
        checkpointing_config=CheckpointingConfig(enabled=True, volume_size_gib=5),
        load_checkpoint_config=LoadCheckpointConfig(
            enabled=True,
            checkpoints=[
                BasetenCheckpoint.from_named_checkpoint("checkpoint-1", "abc1234"),
                BasetenCheckpoint.from_latest_checkpoint(project_name="p"),
                LoopsCheckpoint.from_checkpoint("r", "s", "sampler"),
            ],
        ),
    ),
    interactive_session=InteractiveSession(trigger=InteractiveSessionTrigger.ON_FAILURE),
    weights=[
        WeightsSource(
            source="hf://a/b@main",
            mount_location="/m",
            auth=WeightsAuth(auth_method=WeightsAuthMethod.CUSTOM_SECRET, auth_secret_name="s"),
            allow_patterns=["*.json"],
        )
    ],
    workspace=Workspace(exclude_dirs=["data"]),
    priority=3,
)
project = TrainingProject(name="full", job=job, team_name="t")
"""


def made_of(modules):
    """The namespace of EVERYTHING when `truss` and `truss_train` are these modules."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    try:
        namespace = {}
        exec(EVERYTHING, namespace)
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module
    return SimpleNamespace(**namespace)


def test_a_project_of_ours_is_itself_when_it_is_sound():
    project = made_of(make_stand_ins()).project
    assert to_training_project(project) is project


@pytest.mark.skipif(not INSTALLED, reason="truss is not installed: no project of its classes")
def test_a_project_of_an_installed_truss_has_the_same_values(brought):
    namespace = {}
    exec(EVERYTHING, namespace)
    theirs, ours = namespace["project"], made_of(make_stand_ins()).project
    assert not isinstance(theirs, TrainingProject)
    assert project_document(to_training_project(theirs)) == project_document(ours)
    theirs.job.compute.node_count = 0
    with pytest.raises(PlanError):
        prefect_bt.push(theirs, source_dir=Path(__file__).parent)


@pytest.fixture
def foreign():
    """Classes of the shape of truss's, of a release newer than ours."""
    source = """
    from enum import Enum
    from pydantic import BaseModel, Field

    class AvailabilityModel(str, Enum):
        SPOT = "spot"

    class SecretReference(BaseModel):
        name: str

    class Compute(BaseModel):
        availability_model: AvailabilityModel = AvailabilityModel.SPOT
        nodes_to_spare: int = 0

    class Image(BaseModel):
        base_image: str

    class Runtime(BaseModel):
        environment_variables: dict = {}
        start_commands: list = []

    class TrainingJob(BaseModel):
        image: Image
        compute: Compute = Compute()
        runtime: Runtime = Runtime()

    class TrainingProject(BaseModel):
        name: str
        job: TrainingJob = Field(exclude=True)
        team_name: str | None = None
    """
    namespace = {"__name__": "truss_train.definitions"}
    exec(dedent(source), namespace)
    return SimpleNamespace(**namespace)


def project_of(foreign, *, compute=None, **runtime):
    job = foreign.TrainingJob(
        image=foreign.Image(base_image="i"),
        compute=compute or foreign.Compute(),
        runtime=foreign.Runtime(**runtime),
    )
    return foreign.TrainingProject(name="p", job=job)


def test_another_class_of_the_same_name_is_read_field_by_field(foreign):
    secret = foreign.SecretReference(name="hf")
    given = project_of(foreign, environment_variables={"A": "1", "HF": secret})
    project = to_training_project(given)
    assert type(project) is TrainingProject
    assert project.job.compute.availability_model.value == "spot"
    assert project.job.runtime.environment_variables["HF"].name == "hf"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"environment_variables": {"A": 8}}, "job.runtime.environment_variables['A']"),
        ({"environment_variables": {"A": Path("x")}}, "job.runtime.environment_variables['A']"),
        ({"environment_variables": {8: "a"}}, "job.runtime.environment_variables[8]"),
        ({"start_commands": ["a", {1}]}, "job.runtime.start_commands[1]"),
        ({"start_commands": [True]}, "job.runtime.start_commands[0]"),
    ],
)
def test_an_invalid_value_is_refused_by_the_name_of_its_field(foreign, wrong, field):
    with pytest.raises(DefinitionError, match="The project to push") as caught:
        to_training_project(project_of(foreign, **wrong))
    assert caught.value.field == field


def test_a_field_we_do_not_know_is_refused_only_when_it_was_given(foreign):
    to_training_project(project_of(foreign, compute=foreign.Compute()))
    with pytest.raises(DefinitionError, match=r"job\.compute\.nodes_to_spare"):
        to_training_project(project_of(foreign, compute=foreign.Compute(nodes_to_spare=1)))


def test_no_project_at_all():
    with pytest.raises(DefinitionError, match="push was given a dict"):
        to_training_project({"name": "p"})
