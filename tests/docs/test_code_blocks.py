"""Every code block of README, start page and guides can be run: commands, options, configs."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs._generate.sections import commands
from tests.docs.code_blocks import ROOT, find_faults, list_blocks

PAGES = sorted({*ROOT.glob("docs/guides/*.md"), *ROOT.glob("docs/index.md"), ROOT / "README.md"})
CONFIG = """
from truss.base import truss_config
from truss_train import definitions

training_project = definitions.TrainingProject(
    name="mine",
    job=definitions.TrainingJob(
        image=definitions.Image(base_image="python:3.12"),
        compute=definitions.Compute(cpu_count={count}),
        runtime=definitions.Runtime(start_commands=["sh run.sh"]),
    ),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_code_blocks_of(page: Path) -> None:
    faults = list(find_faults(page.read_text("utf-8")))
    assert not faults, "\n".join(faults)


@pytest.mark.slow
def test_the_examples_of_help_texts_can_be_run() -> None:
    generated = commands()
    assert "prefect-bt push config.py --tail" in generated
    assert list(find_faults(generated)) == []


def fence(language: str, code: str) -> str:
    return f"Text.\n\n```{language}\n{code}\n```\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "code", "fault"),
    [
        ("sh", "prefect-bt push config.py --tale", "--tale"),
        ("sh", "prefect-bt psh config.py", "psh"),
        ("sh", "cd mine && prefect-bt push config.py \\\n  --tale", "--tale"),
        ("sh", "HF=x prefect-bt logs --rank | head", "--rank"),
        ("sh", "prefect-bt view --non-interactiv", "--non-interactiv"),
        ("sh", "prefect-bt --versio", "--versio"),
        ("sh", "cat <job id>.json", "placeholder <job id>"),
        ("sh", "make dem", "dem"),
        ("sh", "echo 'open", "no shell"),
        ("python", "job = push(", "no Python"),
        ("python", "from prefect_bt import pusch", "no pusch"),
        ("python", CONFIG.format(count="'many'"), "cpu_count"),
        ("yaml", "a: [1", "expected"),
        ("json", "{'a': 1}", "property name"),
        ("toml", "a = ", "Invalid value"),
        ("bash", "true", "language"),
        ("", "true", "language"),
    ],
)
def test_faults_are_found(language: str, code: str, fault: str) -> None:
    faults = list(find_faults(fence(language, code)))
    assert len(faults) == 1
    assert fault in faults[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("sh", "prefect-bt push config.py --tail --log D  # follow it"),
        ("sh", ". .venv/bin/activate\nprefect-bt checkpoints list -o json > all.json"),
        ("sh", "prefect-bt --version\nprefect-bt push --help"),
        ("sh", "make test PYTHON=python3.13 && make lint"),
        ("python", CONFIG.format(count="2")),
        ("python", "from prefect_bt import push\njob = push('config.py')"),
        ("yaml", "a: 1\n---\nb: 2"),
        ("json", '{"a": 1}'),
        ("toml", "a = 1"),
        ("text", "job abc1234: running"),
    ],
)
def test_good_blocks_have_no_faults(language: str, code: str) -> None:
    assert list(find_faults(fence(language, code))) == []


def test_blocks_are_found_where_they_are() -> None:
    page = fence("sh", "true") + "1. Step:\n\n   ```json title=x\n   {\n   }\n   ```\n"
    assert [(b.line, b.language, b.code) for b in list_blocks(page)] == [
        (3, "sh", "true\n"),
        (8, "json", "{\n}\n"),
    ]
