"""`prefect-bt download` and `prefect-bt init`: folders that appear on this machine."""

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT, Cli, Shop


def archive() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        info = tarfile.TarInfo("run.sh")
        info.size, info.mode = 5, 0o755
        tar.addfile(info, io.BytesIO(b"true\n"))
    return raw.getvalue()


@pytest.fixture
def job(shop: Shop, ended):
    data = archive()
    digest = hashlib.sha256(data).hexdigest()
    return shop.job("my proj", *ended, workspace=data, sha256=digest)


@pytest.mark.parametrize("where", [[], ["--target-directory", "a/b"]])
def test_a_folder(cli: Cli, job, where: list[str]):
    done = cli("download", "--job-id", job.id, *where)
    target = cli.folder.joinpath(*where[1:], f"my-proj_{job.id}")
    assert (done.code, done.out) == (0, f"Training job data downloaded to {target}\n")
    assert (target / "run.sh").read_text() == "true\n"
    assert (target / "run.sh").stat().st_mode & 0o111
    assert "exists already" in cli("download", "--job-id", job.id, *where).refusal()
    assert [path.name for path in target.parent.iterdir() if path.name.startswith(".")] == []


def test_the_archive(cli: Cli, job):
    assert cli("download", "--job-id", job.id, "--no-unzip").code == 0
    assert (cli.folder / f"my-proj_{job.id}.tgz").read_bytes() == archive()


def test_damaged_files_are_not_unpacked(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended, workspace=archive(), sha256="0" * 64)
    assert "are corrupt" in cli("download", "--job-id", job.id).refusal()
    assert not (cli.folder / f"tiny_{job.id}").exists()


def test_a_job_without_files(cli: Cli, shop: Shop, ended):
    job = shop.job("tiny", *ended)
    done = cli("download", "--job-id", job.id)
    assert (done.code, done.err) == (1, f"error: Job {job.id} was pushed without files.\n")


# -- init -----------------------------------------------------------------------------------


def test_the_template_can_be_pushed(cli: Cli):
    done = cli("init")
    assert done.code == 0
    assert done.out.startswith("Empty training project initialized at truss-train-init\n")
    folder = cli.folder / "truss-train-init"
    assert sorted(path.name for path in folder.iterdir()) == ["config.py", "run.sh"]
    plan = cli("push", "truss-train-init/config.py", "--dry-run", "-o", "json")
    assert plan.code == 0, plan.err
    assert plan.json["project_name"] == "my-training-project"
    assert "exists already" in cli("init").refusal()


def test_examples(cli: Cli):
    shipped = sorted(path.parent.name for path in (ROOT / "examples").glob("*/README.md"))
    assert len(shipped) >= 6
    listed = cli("init", "--list-examples").out.splitlines()[1 : 1 + len(shipped)]
    assert [line.partition(": ")[0] for line in listed] == [f"- {name}" for name in shipped]
    assert all("; needs torch" in line for line in listed), listed
    chosen = [shipped[0], "full-finetune"]
    done = cli("init", "--examples", ",".join(chosen), "--target-directory", "mine")
    assert done.code == 0, done.err
    for name in chosen:
        copied, original = cli.folder / "mine" / name, ROOT / "examples" / name
        assert (copied / "config.py").read_text() == (original / "config.py").read_text()
        assert not list(Path(copied).rglob("__pycache__"))
    again = cli("init", "--examples", f"tiny-lm,{shipped[0]}", "--target-directory", "mine")
    assert (again.code, "exists already" in again.err) == (1, True)
    assert not (cli.folder / "mine" / "tiny-lm").exists(), "refused before anything is copied"


def test_an_unknown_example(cli: Cli):
    error = cli("init", "--examples", "nope,tiny-lm").refusal()
    assert error.startswith("error: There is no example 'nope'. Choose from:")
    assert not (cli.folder / "tiny-lm").exists()
