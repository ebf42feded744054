"""A planted secret reaches the command, and nothing else, in any spelling."""

import base64
import json
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prefect.blocks.system import Secret

from prefect_bt.filesystem.trees import find_files
from tests.in_process import environment_of

from .conftest import Machine, read_all, until

pytestmark = [pytest.mark.integration]

VALUE = "pl4nted-S3cret/with+signs"
SPELLINGS = [VALUE, "pl4nted-S3cret%2Fwith%2Bsigns", base64.b64encode(VALUE.encode()).decode()[:-4]]

LEAKY = """
echo "token: $TOKEN"
printf 'split: %s' "$TOKEN"; echo
printf '%s' "$TOKEN" | base64 -w0; echo
printf 'user:%s' "$TOKEN" | base64 -w0; echo
echo "error with $TOKEN" >&2
echo ready
until test -e $WORD/go; do sleep 0.1; done
test ${#TOKEN} = 25 || exit 9
exit 4
"""


def test_planted_secret(machine: Machine, tmp_path: Path) -> None:
    environment = {"TOKEN": {"name": "planted"}, "WORD": str(tmp_path)}
    config = machine.folder(LEAKY, env=environment)
    job = machine.push(config, PREFECT_BT_SECRET_PLANTED=VALUE)
    until(lambda: "ready" in machine.logs(job["id"]), seconds=60, what="ready")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            assert VALUE not in read_all(process / "cmdline")
    for uploader in machine.processes("prefect_bt.node_agent.upload_process"):
        with suppress(psutil.NoSuchProcess):  # of another job
            assert VALUE not in json.dumps(uploader.environ())
    (tmp_path / "go").touch()
    machine.wait(job["id"], "FAILED")
    seen = machine.view(job["id"])
    assert "exited with 4" in seen["error_message"], "the command saw the value"
    assert "error with ********" in machine.logs(job["id"])
    shown = json.dumps(seen) + machine.logs(job["id"])
    assert not [s for s in SPELLINGS if s in shown]
    assert not found_below(machine.root), "store, state folder, Prefect's database and logs"


def found_below(root: Path) -> list[str]:
    hits: list[str] = []
    for path in find_files(root):
        with suppress(FileNotFoundError):  # removed by whoever ends another job
            if path.is_file() and not path.is_symlink():
                data = path.read_bytes()
                hits += [f"{path}: {s}" for s in SPELLINGS if s.encode() in data]
    return hits


def test_a_missing_secret_is_refused_before_anything_is_written(machine: Machine) -> None:
    config = machine.folder("true\n", env={"T": {"name": "nobody_stored_this"}}, project="unborn")
    done = machine.run("push", str(config), check=False)
    assert done.returncode == 1
    assert "nobody_stored_this" in done.stderr
    assert "Prefect Secret block " in done.stderr
    assert "PREFECT_BT_SECRET_NOBODY_STORED_THIS" in done.stderr
    assert "unborn" not in machine.run("view").stdout


def test_a_prefect_secret_block_is_found(machine: Machine) -> None:
    with environment_of(machine.environment):
        Secret.model_validate({"value": "fr0m-a-block"}).save("my-token", overwrite=True)
    config = machine.folder("test $T = fr0m-a-block && echo $T\n", env={"T": {"name": "my_token"}})
    code, job = machine.finish(config)
    assert code == 0, job["error_message"]
    assert "(rank-0) ********" in machine.logs(job["id"])
