"""`weights verify`: damage is found and withdrawn, here and in the store."""

import os
from pathlib import Path

import pytest

from prefect_bt.host.job_lock import lock_job
from tests.cli.conftest import Cli
from tests.cli.sources import cache_of, mirrored


def with_one_bit_changed(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def spoil(path: Path) -> None:
    path.chmod(0o644)
    path.write_bytes(with_one_bit_changed(path.read_bytes()))


@pytest.mark.slow
def test_one_changed_byte(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    done = cli("weights", "verify", "--store")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "1 tree, 2 files, 5.0 KB: all intact.",
        "Store: 1 tree, 5.0 KB: all intact.",
    ]
    damaged = Path(one["folder"]) / "weights.bin"
    spoil(damaged)
    dry = cli("weights", "verify", "--dry-run")
    assert dry.code == 1
    assert dry.err == (
        f"error: {damaged} has different content than expected: weights.bin of {model}\n"
    )
    assert "Nothing was changed." in dry.out
    assert damaged.exists()

    done = cli("weights", "verify", model, "-o", "json")
    assert done.code == 1
    [fault] = done.json["faults"]
    assert (fault["tree"], fault["path"]) == (one["name"], "weights.bin")
    assert (done.json["withdrawn"], done.json["in_use"]) == ([one["name"]], {})
    # The store is on the same disk: its file is the same one, and the next mirror replaces it.
    [again] = mirrored(cli, model)
    assert (again["fetched"], again["hit"]) == (5000, False)
    assert cli("weights", "verify", again["name"][:10], "--store").code == 0


def test_damage_that_a_running_job_has_mounted(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    spoil(Path(one["folder"]) / "weights.bin")
    with lock_job(Path(cli.env["PREFECT_BT_STATE_DIR"]), "abc1234"):
        cache_of(cli).acquire_tree(one["name"], holder="abc1234")
        done = cli("weights", "verify")
        assert done.code == 1
        assert f"{one['name']} is corrupt and stays in use by job abc1234" in done.err
        assert cache_of(cli).find_tree(one["name"])


@pytest.mark.slow
def test_a_damaged_copy_in_the_store(cli: Cli, model: str) -> None:
    [one] = mirrored(cli, model)
    blobs = Path(cli.env["PREFECT_BT_STORE"]) / "weights" / "blobs"
    large = next(path for path in blobs.rglob("*") if path.is_file() and path.stat().st_size > 10)
    data = large.read_bytes()
    large.unlink()
    large.write_bytes(with_one_bit_changed(data))
    assert cli("weights", "verify").code == 0
    done = cli("weights", "verify", "--store", "-o", "json")
    assert done.code == 1
    assert (done.json["faults"], done.json["withdrawn"]) == ([], [])
    assert done.json["store"]["withdrawn"] == [one["name"]]
    assert done.json["store"]["faults"][0]["path"] == "weights.bin"
    mirrored(cli, model)  # gives the store its copy again
    assert cli("weights", "verify", "--store").code == 0
    [listed] = cli("weights", "list", "-o", "json").json["trees"]
    assert listed["where"] == "both"


def test_a_copy_that_the_store_cannot_read_stays(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    blobs = Path(cli.env["PREFECT_BT_STORE"]) / "weights" / "blobs"
    blob = next(path for path in blobs.rglob("*") if path.is_file())
    blob.unlink()
    os.mkfifo(blob)
    done = cli("weights", "verify", "--store")
    assert done.code == 1
    assert f"weights/blobs/{blob.parent.name}/{blob.name} cannot be read" in done.err
    assert "could not read are kept" in done.out
    assert "Deleted from the store" not in done.out
    assert blob.is_fifo()


def test_a_name_that_is_not_known(cli: Cli, model: str) -> None:
    mirrored(cli, model)
    for arguments, place in (
        (["verify"], "this machine"),
        (["prune"], "this machine"),
        (["prune", "--store"], "the store"),
    ):
        error = cli("weights", *arguments, "hf://o/none", "-o", "json").refusal()
        assert f"No weights 'hf://o/none' on {place}. There are: {model} " in error


def test_nothing_to_verify(cli: Cli) -> None:
    done = cli("weights", "verify")
    assert (done.code, done.out) == (0, "No weights on this machine.\n")
