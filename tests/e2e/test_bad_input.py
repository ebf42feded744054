"""Bad input: one clear sentence with the next step, a non-zero exit, nothing half-made."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Machine

pytestmark = [pytest.mark.integration]

HEAD = "from truss_train import definitions as d\n"
JOB = "d.TrainingJob(image=d.Image(base_image='i'), runtime=d.Runtime(start_commands=['true']))"


def job_with(fields: str) -> str:
    job = f"d.TrainingJob(image=d.Image(base_image='i'), {fields})"
    return f"{HEAD}p = d.TrainingProject(name='refused', job={job})\n"


RUNTIME = "runtime=d.Runtime(start_commands=['true'])"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD, ["No `TrainingProject`"]),
        (
            f"{HEAD}a = d.TrainingProject(name='a', job={JOB})\nb = a\n",
            ["Multiple `TrainingProject`"],
        ),
        ("x = (\n", ["config.py:1"]),
        (job_with("runtime=d.Runtime(start_command=['true'])"), ["start_command", "config.py:2"]),
        (job_with("compute=d.Compute(node_count='2')"), ["node_count", "'2'"]),
        (job_with("compute=d.Compute(node_count=0), " + RUNTIME), ["node_count is 0"]),
        (job_with("compute=d.Compute(memory='lots'), " + RUNTIME), ["memory", "lots"]),
        (job_with("runtime=d.Runtime()"), ["start_commands is empty"]),
        ("raise RuntimeError('boom')\n", ["boom", "config.py:1"]),
    ],
)
def test_a_bad_config(machine: Machine, tmp_path: Path, source: str, words: list[str]) -> None:
    config = tmp_path / "config.py"
    config.write_text(source)
    refused(machine, "push", str(config), words=words)
    assert "refused" not in machine.run("view").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("push", "no-such-config.py"), ["no-such-config.py", "not a file"]),
        (("view", "--job-id", "nojob00"), ["nojob00"]),
        (("logs", "--job-id", "nojob00"), ["nojob00"]),
        (("stop", "--job-id", "nojob00"), ["nojob00"]),
        (("recreate", "--job-id", "nojob00"), ["nojob00"]),
        (("download", "--job-id", "nojob00"), ["nojob00"]),
        (("checkpoints", "list", "--job-id", "nojob00"), ["nojob00"]),
        (("get_checkpoint_urls", "--job-id", "nojob00"), ["nojob00"]),
        (("view", "--project", "nobody's"), ["nobody's"]),
    ],
)
def test_what_does_not_exist(
    machine: Machine, arguments: tuple[str, ...], words: list[str]
) -> None:
    refused(machine, *arguments, words=words)


def test_an_unknown_substrate(machine: Machine) -> None:
    refused(machine, "push", str(machine.folder("true\n")), "--substrate", "moon", words=["moon"])


def test_a_folder_of_6_gb(machine: Machine) -> None:
    config = machine.folder("true\n")
    with (config.parent / "big.bin").open("wb") as big:
        big.truncate(6 * 1024**3)
    refused(machine, "push", str(config), words=["big.bin", "5"])


def test_an_empty_folder(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(job_with(RUNTIME))
    (tmp_path / ".truss_ignore").write_text("*\n")
    refused(machine, "push", str(tmp_path / "config.py"), words=["empty"])


def refused(machine: Machine, *arguments: str, words: list[str]) -> None:
    before = {job.id for job in machine.ledger.jobs()}
    done = machine.run(*arguments, check=False)
    assert done.returncode in {1, 2}, done.stdout
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert {job.id for job in machine.ledger.jobs()} == before


def test_a_deployment_that_does_not_exist(machine: Machine) -> None:
    config = machine.folder("true\n", project="undeployed")
    refused(machine, "push", str(config), "--deployment", "nope/nope", words=["nope/nope", "train"])
    assert "undeployed" not in machine.run("view").stdout
