"""Check the config.yaml that truss reads."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest
import yaml

from prefect_bt.definitions import Compute, SecretReference
from prefect_bt.errors import DefinitionError
from prefect_bt.serving.engines.truss_config import (
    COMMAND_VARIABLE,
    truss_config,
    truss_config_text,
)
from prefect_bt.serving.served_model import BaseModel
from tests.serving.chosen import DOWNLOADED, HUB_BASE, WHISPER, choice, chosen, gpus, lora
from tests.serving.golden import check_golden

TOKEN = {"HF_TOKEN": SecretReference(name="hf_access_token")}
THREE = (
    lora("checkpoint-10", 8),
    lora("v0-2025/checkpoint-20", 48),
    lora("checkpoint-30", 16, job="abc1234"),
)
CASES = {
    "full": (choice(chosen(chat_template="0" * 64)), gpus(count=2), TOKEN),
    "lora": (choice(lora()), gpus(), {}),
    "lora-three": (choice(*THREE), gpus("H200", 4), TOKEN | {"X": "1"}),
    "whisper": (choice(chosen("best", WHISPER)), Compute(cpu_count=4, memory="16Gi"), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_text(case):
    text = truss_config_text(CASES[case][0], f"my-{case}", *CASES[case][1:])
    check_golden(f"truss-{case}.yaml", text)
    assert yaml.safe_load(text) == truss_config(CASES[case][0], f"my-{case}", *CASES[case][1:])


def test_yaml_readers_see_what_was_meant():
    """Whatever a variable holds, and whatever a checkpoint is called."""
    awkward = ["yes", "0o7", "1e3", "a: b #c", "'\"\\", "\n\t", "\x7f\x00\u2028", "😀 ü", "- x", ""]
    variables = {f"V{i}": value for i, value in enumerate(awkward)} | {"a-b:": "null"}
    one = choice(chosen("yes: [no] #1"))
    text = truss_config_text(one, "on", Compute(), variables)
    assert yaml.safe_load(text) == truss_config(one, "on", Compute(), variables)


def command_of(document):
    return document["environment_variables"][COMMAND_VARIABLE]


def test_paths_are_where_truss_puts_them():
    """Also where a serving job of ours has to put one elsewhere."""
    root = replace(lora("."), folder=f"{DOWNLOADED}/gvpql31/rank-0/_", name="gvpql31")
    document = truss_config(choice(root, lora()), "m", gpus(), {})
    references = document["training_checkpoints"]["artifact_references"]
    assert [one["paths"] for one in references] == [["rank-0/"], ["rank-0/checkpoint-10/"]]
    assert f"gvpql31={DOWNLOADED}/gvpql31/rank-0 " in command_of(document)


def test_a_base_that_is_not_on_the_hub_is_mounted():
    base = BaseModel("x", "bt://p@j/base", mount_location=f"{DOWNLOADED}/base")
    document = truss_config(choice(lora(), base=base), "m", gpus(), {})
    assert document["weights"] == [{"source": base.source, "mount_location": base.mount_location}]
    assert command_of(document).startswith(f"vllm serve {DOWNLOADED}/base --port 8000 ")
    hub = truss_config(choice(lora(), base=HUB_BASE), "m", gpus(), {})
    assert "weights" not in hub and command_of(hub).startswith("vllm serve org/base-7b --port")


def test_the_shell_reads_the_secrets_from_their_files(tmp_path):
    """The command as it stands there, run with two secrets in a folder of ours."""
    program = tmp_path / "vllm"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], os.environ['HF_TOKEN'], os.environ['OTHER']]))\n"
    )
    program.chmod(0o755)
    (tmp_path / "hf").write_text("hf_x y$z")
    (tmp_path / "it's").write_text("second\n")
    variables = {
        name: SecretReference(name=s) for name, s in {"HF_TOKEN": "hf", "OTHER": "it's"}.items()
    }
    line = command_of(truss_config(choice(lora("a b")), "m", gpus(), variables))
    done = subprocess.run(
        shlex.split(line.replace("/secrets/", f"{tmp_path}/")),
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        check=True,
        text=True,
    )
    words, *secrets = json.loads(done.stdout)
    assert secrets == ["hf_x y$z", "second"]
    assert words[-1] == f"a b={DOWNLOADED}/gvpql31/rank-0/a b"


def test_a_variable_that_no_shell_can_name():
    with pytest.raises(DefinitionError, match="not a valid name of a variable"):
        truss_config(choice(lora()), "m", gpus(), {"a;b": SecretReference(name="x")})


def test_what_vllm_does_not_load():
    with pytest.raises(DefinitionError, match="DoRA"):
        truss_config(choice(lora(unsupported_by_vllm=("DoRA",))), "m", gpus(), {})
