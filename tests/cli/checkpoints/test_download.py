"""`prefect-bt checkpoints download`: the folders that the job wrote, whole."""

import hashlib
import re
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed import download
from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.errors import CheckpointError
from prefect_bt.ledger.records import JobRecord
from prefect_bt.object_keys import job_prefix
from tests.cli.conftest import Cli, Shop


@pytest.fixture
def job(shop: Shop, ended) -> JobRecord:
    record = shop.job("my proj", *ended)
    shop.commit(record, "checkpoint-1", {"a.json": b"{}", "deep/b.bin": b"bytes"})
    shop.commit(record, "checkpoint-2", {"a.json": b"[]"})
    shop.commit(record, ".", {"README.md": b"hello"})
    return record


def test_all_of_the_newest_job(cli: Cli, job: JobRecord):
    done = cli("checkpoints", "download")
    target = cli.folder / f"my-proj_{job.id}_checkpoints"
    assert (done.code, done.err) == (0, "")
    assert done.out == f"4 checkpoint files in {target}\n"
    found = {str(p.relative_to(target)): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert found == {
        "checkpoint-1/a.json": b"{}",
        "checkpoint-1/deep/b.bin": b"bytes",
        "checkpoint-2/a.json": b"[]",
        "README.md": b"hello",
    }


def test_again_it_fetches_what_differs(cli: Cli, job: JobRecord):
    cli("checkpoints", "download", "--target-directory", "here")
    changed = cli.folder / "here" / "checkpoint-1" / "a.json"
    changed.write_bytes(b"changed")
    done = cli("checkpoints", "download", "--target-directory", "here")
    assert "(3 were there already)" in done.out
    assert changed.read_bytes() == b"{}"


def test_one_by_name(cli: Cli, job: JobRecord):
    words = ["checkpoints", "download", "--job-id", job.id, "--target-directory", "here"]
    assert cli(*words, "--checkpoint-name", "checkpoint-2").code == 0
    assert [p.name for p in (cli.folder / "here").iterdir()] == ["checkpoint-2"]


def test_parts_of_several_ranks_lie_apart(cli: Cli, shop: Shop, job: JobRecord):
    shop.commit(job, "checkpoint-1", {"a.json": b"of rank 1"}, rank=1)
    cli("checkpoints", "download", "--target-directory", "here")
    assert (cli.folder / "here/rank-0/checkpoint-1/a.json").read_bytes() == b"{}"
    assert (cli.folder / "here/rank-1/checkpoint-1/a.json").read_bytes() == b"of rank 1"


def test_a_name_that_is_not_there(cli: Cli, job: JobRecord):
    error = cli("checkpoints", "download", "--checkpoint-name", "best").refusal()
    assert f"Job {job.id} has: " in error
    assert "checkpoint-1, checkpoint-2" in error
    assert [p.name for p in cli.folder.iterdir() if "checkpoints" in p.name] == []


def test_a_job_without_any(cli: Cli, shop: Shop, ended):
    record = shop.job("tiny", *ended)
    error = cli("checkpoints", "download", "--job-id", record.id).refusal()
    assert error == (
        f"error: Job {record.id} has no committed checkpoint. "
        f"Upload status: prefect-bt view --job-id {record.id}\n"
    )


def test_a_target_that_is_a_file(cli: Cli, job: JobRecord):
    (cli.folder / "here").write_text("")
    error = cli("checkpoints", "download", "--target-directory", "here").refusal()
    assert "is not a folder. Give another --target-directory." in error


def test_a_target_that_cannot_be_made(cli: Cli, job: JobRecord):
    (cli.folder / "file").write_text("")
    error = cli("checkpoints", "download", "--target-directory", "file/here").refusal()
    assert f"cannot be written to {cli.folder}/file/here: not a directory. Choose a" in error


@pytest.mark.parametrize("above", [3_900, 5_000])
def test_a_path_that_is_too_long(cli: Cli, shop: Shop, job: JobRecord, above: int):
    deep = "/".join(["d" * 100] * 20)
    shop.commit(job, "checkpoint-3", {f"{deep}/a": b"1"})
    target = "/".join(["t" * 99] * (above // 100))
    error = cli("checkpoints", "download", "--target-directory", target).refusal()
    assert re.search(
        r"Nothing was downloaded: .* would have a path of \d{4} bytes, .* 4095\.", error
    )
    assert "Give a shorter --target-directory" in error
    assert len(error) < 600
    assert not (cli.folder / ("t" * 99)).exists()


def test_the_longest_path(cli: Cli, shop: Shop, job: JobRecord):
    name = "checkpoint-3"
    end = "/".join(["d" * 100] * 20)
    target = cli.folder / "here"
    rest = 4095 - len(f"{target}/{name}/{end}/")
    middle = "/".join(["m" * 99] * (rest // 100)) + "/" + "x" * (rest % 100)
    path = f"{end}/{middle}".removesuffix("/")
    for more, code in (("", 0), ("y", 1)):
        shop.commit(job, name + more, {path: b"1"})
        words = ("--checkpoint-name", name + more, "--target-directory", str(target))
        assert cli("checkpoints", "download", *words).code == code
    assert (target / name / path).read_bytes() == b"1"


@pytest.mark.parametrize("where", ["target", "file"])
def test_a_name_that_is_too_long(cli: Cli, shop: Shop, job: JobRecord, where: str):
    target = "here"
    if where == "target":
        target = f"here/{'é' * 128}/below"
    else:
        shop.commit(job, "checkpoint-3", {f"{'é' * 128}/a": b"1"})
    error = cli("checkpoints", "download", "--target-directory", target).refusal()
    assert "would have a name of 256 bytes, and names have at most 255 there." in error
    assert "Give a shorter --target-directory" in error
    assert not (cli.folder / "here").exists()


def test_a_disk_that_takes_shorter_names_only(job: JobRecord, shop: Shop, tmp_path: Path):
    """Such as an encrypted one: the disk says so when the name is made."""
    shop.commit(job, "checkpoint-3", {"x" * 256: b"1"})
    [found] = list_checkpoints(shop.ledger.store, job.project_id, job.id)[-1:]
    wanted = {entry.path: entry for entry in found.manifests[0].entries}
    with pytest.raises(
        CheckpointError, match=r"name too long\. Choose a folder with a shorter path"
    ):
        download.download_files(shop.ledger.store, wanted, root=tmp_path / "here")


def test_bytes_that_are_not_those_committed(cli: Cli, shop: Shop, job: JobRecord):
    digest = hashlib.sha256(b"bytes").hexdigest()
    shop.ledger.store.put(f"{job_prefix(job.project_id, job.id)}/objects/0000/{digest}", b"BYTES")
    error = cli("checkpoints", "download", "--target-directory", "here").refusal()
    assert "does not hold the bytes that were committed" in error
    assert not (cli.folder / "here/checkpoint-1/deep/b.bin").exists()
