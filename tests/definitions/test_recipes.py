"""Load config folders in the styles of public recipes, and check their values."""

from pathlib import Path

import pytest

from prefect_bt.definitions import (
    AcceleratorSpec,
    CacheConfig,
    load_deploy_checkpoints_config,
    load_training_project,
    project_document,
    training_project_from_json,
)

RECIPES = Path(__file__).parents[1] / "fixtures" / "recipes"
CONFIGS = sorted(RECIPES.glob("*/config*.py"))

EXPECTED = {
    "tiny_cpu/config.py": ("tiny cpu", None),
    "multinode/config.py": ("owner/many-nodes", "H200:8"),
    "direct_imports/config.py": ("direct-imports", "H100:2"),
    "sibling_json/config.py": ("from-json", "L40S:4"),
    "sibling_module/config.py": ("sibling module", "T4"),
    "environ/config.py": ("environ 1x", "A10G"),
    "odd_names/config_1node_128k.py": ("Long context (1 node, 128k)", "H200:8"),
    "odd_names/config-2node.262k.py": ("Long context (2 nodes, 262k)", "H200:8"),
    "nested_quotes/config.py": ("nested quotes", None),
    "resume/config.py": ("resume", None),
    "deprecated_cache/config.py": ("deprecated cache", None),
    "train_and_deploy/config.py": ("train and deploy", "H100"),
    "data_beside/config.py": ('{"q": "Queue"}', None),
}


def test_every_recipe_is_expected():
    assert {path.relative_to(RECIPES).as_posix() for path in CONFIGS} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_recipe(name):
    project = load_training_project(RECIPES / name)
    spec = project.job.compute.accelerator
    assert (project.name, spec and spec.model_dump()) == EXPECTED[name]
    assert training_project_from_json(project_document(project)) == project


def load(name):
    return load_training_project(RECIPES / name / "config.py")


def test_environ_is_read_at_load(monkeypatch):
    monkeypatch.setenv("RECIPE_GPUS", "4")
    monkeypatch.setenv("RECIPE_SECRET", "hf")
    job = load("environ").job
    assert job.compute.accelerator == AcceleratorSpec(accelerator="A10G", count=4)
    assert job.runtime.environment_variables["HF_TOKEN"].name == "hf"


def test_settings_beside_the_config():
    job = load("sibling_json").job
    assert job.name == "lr sweep 1"
    assert job.runtime.environment_variables == {"EPOCHS": "3", "BATCH": "16"}


def test_commands_arrive_as_written():
    commands = load("nested_quotes").job.runtime.start_commands
    assert commands[1] == "pip install 'datasets[audio]>=3' \"tokenizers<1\""
    assert commands[4].count("\n") == 2


def test_references_and_paths():
    runtime = load("resume").job.runtime
    assert [one.typ for one in runtime.load_checkpoint_config.checkpoints] == [
        "baseten_latest_checkpoint",
        "baseten_named_checkpoint",
        "loops_checkpoint",
    ]
    assert runtime.checkpointing_config.checkpoint_path == "/tmp/checkpoints"


def test_deprecated_cache():
    expected = CacheConfig(enabled=True, enable_legacy_hf_mount=True)
    assert load("deprecated_cache").job.runtime.cache_config == expected


def test_weights():
    sources = load("direct_imports").job.weights
    assert [source.secret_name for source in sources] == ["hf_access_token", "aws_credentials"]


def test_deploy_beside_a_project():
    config = load_deploy_checkpoints_config(RECIPES / "train_and_deploy" / "config.py")
    assert config.checkpoint_details.checkpoints[0].lora_details.rank == 32
    assert load("train_and_deploy").job.compute.node_count == 2
