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


CONFIGS = [
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
]


def test_bad_configs(machine: Machine, tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    for source, words in CONFIGS:
        config.write_text(source)
        refused(machine, "push", str(config), words=words)
    assert "refused" not in machine.run("view").stdout


def test_what_does_not_exist(machine: Machine) -> None:
    for verb in ("view", "logs", "stop", "recreate", "download", "get_checkpoint_urls"):
        refused(machine, verb, "--job-id", "nojob00", words=["nojob00"])
    refused(machine, "checkpoints", "list", "--job-id", "nojob00", words=["nojob00"])
    refused(machine, "view", "--project", "nobody's", words=["nobody's"])
    refused(machine, "push", "no-such-config.py", words=["no-such-config.py", "not a file"])
    config = str(machine.folder("true\n", project="undeployed"))
    refused(machine, "push", config, "--substrate", "moon", words=["moon"])
    words = ["nope/nope", "train"]
    refused(machine, "push", config, "--deployment", "nope/nope", words=words)
    assert "undeployed" not in machine.run("view").stdout


def test_folders_that_cannot_be_packed(machine: Machine, tmp_path: Path) -> None:
    config = machine.folder("true\n")
    with (config.parent / "big.bin").open("wb") as big:
        big.truncate(6 * 1024**3)
    refused(machine, "push", str(config), words=["big.bin", "5"])
    (tmp_path / "config.py").write_text(job_with(RUNTIME))
    (tmp_path / ".truss_ignore").write_text("*\n")
    words = ["nothing to pack", "correct .truss_ignore"]
    refused(machine, "push", str(tmp_path / "config.py"), words=words)


def refused(machine: Machine, *arguments: str, words: list[str]) -> None:
    before = {job.id for job in machine.ledger.list_jobs()}
    done = machine.run(*arguments, check=False)
    assert done.returncode in {1, 2}, done.stdout
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert {job.id for job in machine.ledger.list_jobs()} == before
