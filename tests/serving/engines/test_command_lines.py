"""Command lines of the engines, against tests/golden/serving, and as a shell reads them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from prefect_bt.definitions import Compute
from prefect_bt.errors import DefinitionError
from prefect_bt.serving.engines.command_lines import (
    ENGINES,
    VLLM_LORA_RANKS,
    EngineCommand,
    choose_max_lora_rank,
    default_engine,
    get_engine,
    listen_flags,
    served_model_names,
)
from tests.serving.chosen import FULL, HUB_BASE, WHISPER, choice, chosen, gpus, lora
from tests.serving.golden import check_golden

CPU = Compute()
HOST = listen_flags(host="127.0.0.1")
TOKENIZER = replace(HUB_BASE, tokenizer_only=True)
TEMPLATE = {"chat_template": "0" * 64}
SEVERAL = (
    lora("checkpoint-10", 8),
    lora("v0-2025/checkpoint-20", 48),
    lora("checkpoint-30", 16, job="abc1234"),
)

CASES = {
    "full": (choice(chosen()), gpus(count=2)),
    "full-cpu": (choice(chosen()), CPU),
    "full-chat-template": (choice(chosen(**TEMPLATE)), gpus()),
    "full-borrowed-tokenizer": (choice(chosen(has_tokenizer=False), base=TOKENIZER), gpus()),
    "lora": (choice(lora()), gpus()),
    "lora-several": (choice(*SEVERAL), gpus("H200", 4)),
    "lora-several-cpu": (choice(*SEVERAL), CPU),
    "lora-chat-template": (choice(lora(**TEMPLATE), lora("b", **TEMPLATE)), gpus("T4")),
    "lora-two-templates": (choice(lora(**TEMPLATE), lora("b", chat_template="1" * 64)), gpus()),
    "whisper": (choice(chosen("best", WHISPER)), gpus("L4")),
    "whisper-cpu": (choice(chosen("best", WHISPER)), CPU),
}


def shown(command: EngineCommand) -> str:
    rows = [f"image: {command.image}"]
    rows += [f"requirement: {each}" for each in command.requirements]
    rows += [f"{name}={value}" for name, value in command.environment.items()]
    return "\n".join([*rows, "", command.shell_line]) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_vllm(case):
    check_golden(f"vllm-{case}.txt", shown(ENGINES["vllm"].build(*CASES[case], HOST)))


@pytest.mark.parametrize("case", ["full", "lora-several-cpu", "whisper-cpu"])
def test_transformers(case):
    """served.json tells it the rest."""
    command = ENGINES["transformers"].build(*CASES[case], HOST)
    check_golden(f"transformers-{case}.txt", shown(command))


def test_the_engine_by_default():
    assert (default_engine(gpus()), default_engine(CPU)) == ("vllm", "transformers")
    assert default_engine(gpus(count=0)) == "transformers"
    assert get_engine("vllm").name == "vllm"
    with pytest.raises(DefinitionError, match=r"'vlm'\. Use one of: vllm, transformers"):
        get_engine("vlm")


@pytest.mark.parametrize(
    ("rank", "legal"), [(1, 8), (8, 8), (9, 16), (48, 64), (257, 320), (321, 512), (512, 512)]
)
def test_ranks_are_rounded_up(rank, legal):
    assert choose_max_lora_rank([lora(rank=rank), lora(rank=4)]) == legal
    assert legal in VLLM_LORA_RANKS


def test_a_rank_above_all():
    with pytest.raises(DefinitionError, match=r"has rank 513; vLLM supports up to 512\..*Merge it"):
        choose_max_lora_rank([lora(rank=513), lora(rank=8)])


def test_where_a_rank_comes_from():
    assert choose_max_lora_rank([lora(rank=8, stated_rank=64)]) == 8  # the adapter knows
    assert choose_max_lora_rank([lora(rank=None, stated_rank=64)]) == 64
    assert choose_max_lora_rank([lora(rank=None)]) == 16


def test_an_adapter_that_vllm_does_not_load():
    models = choice(lora(), lora("b", unsupported_by_vllm=("DoRA", "trained biases")))
    with pytest.raises(DefinitionError) as caught:
        ENGINES["vllm"].build(models, gpus(), HOST)
    assert str(caught.value) == (
        "The adapter b of job gvpql31 has DoRA and trained biases, which vLLM does not load. "
        "Merge it into its base model and deploy that, or use the engine transformers."
    )
    ENGINES["transformers"].build(models, CPU, HOST)


def test_names_that_an_engine_answers_under():
    models = [lora("a--b"), lora("ü/x=1")]
    assert served_model_names(ENGINES["vllm"], models) == ("a--b", "ü/x=1")
    assert served_model_names(ENGINES["transformers"], models) == ("a--b", "ü/x=1")
    assert served_model_names(ENGINES["transformers"], [lora("a@b")]) != ("a@b",)
    with pytest.raises(DefinitionError, match="--served-name gvpql31/-x=NAME"):
        served_model_names(ENGINES["vllm"], [chosen("-x")])
    with pytest.raises(DefinitionError, match=r"transformers cannot serve checkpoint \.\./x"):
        served_model_names(ENGINES["transformers"], [chosen("../x")])


AWKWARD = [
    'it\'s $HOME `id` \\ "x" * ; & | #1',
    "a=b",
    "a,b",
    "-x",
    "--port",
    '"$BT_LEADER_PORT"x',
    "ünï cödé/…",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_a_shell_reads_the_words_that_were_meant(name, tmp_path):
    """A program called vllm prints its arguments, after the shell that a node uses."""
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    models = choice(lora(name), lora("other"))
    command = ENGINES["vllm"].build(models, gpus(), HOST)
    environment = {**os.environ, "PATH": str(tmp_path), "BT_LEADER_PORT": "20011"}
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {command.shell_line}"],
        env=environment,
        capture_output=True,
        check=True,
        text=True,
    )
    words = json.loads(done.stdout)
    assert words[words.index("--port") + 1] == "20011"
    assert read_adapters(words[words.index("--lora-modules") + 1 :]) == {
        one.name: one.folder for one in models.models
    }


def read_adapters(items):
    """As LoRAParserAction of vLLM 0.6 to 0.11 does; later ones split at the first = only."""
    found = {}
    for item in items:
        assert not item.startswith("-"), "an option, to argparse"
        if "=" in item and "," not in item:
            name, path = item.split("=")
        else:
            document = json.loads(item)
            name, path = document["name"], document["path"]
        found[name] = path
    return found


def test_the_format_decides_how_it_is_served():
    full, whisper = chosen(format_=FULL), chosen(format_=WHISPER)
    build = ENGINES["vllm"].build
    lines = [build(choice(one), CPU, HOST).shell_line for one in (full, whisper)]
    assert ["--dtype bfloat16" in line for line in lines] == [True, False]
