"""The command starts fast because it imports little; what it must not import is counted here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest_plugins = ["tests.prefect_server"]

HEAVY = ["prefect", "boto3", "botocore", "docker", "kubernetes", "huggingface_hub", "torch"]

PROBE = """
import json, sys
from prefect_bt.cli.app import main
code = main(sys.argv[1:]) if sys.argv[1:] else 0
loaded = [name for name in {heavy} if name in sys.modules]
found = {{"code": code, "loaded": loaded, "rich": "rich" in sys.modules}}
print(json.dumps(found), file=sys.stderr)
"""


def probe(cli, *arguments: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(heavy=HEAVY), *arguments],
        capture_output=True,
        text=True,
        env=cli.env,
        cwd=cli.folder,
        check=True,
        timeout=400,
    )
    return json.loads(done.stderr.splitlines()[-1])


def test_the_entry_point_imports_nothing_heavy(cli):
    assert probe(cli)["loaded"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["view"],
        ["view", "--job-id", "JOB"],
        ["logs", "--job-id", "JOB"],
        ["logs", "--job-id", "JOB", "--tail"],
        ["checkpoints", "list", "--job-id", "JOB"],
        ["push", "CONFIG", "--dry-run"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_commands_import_nothing_heavy(cli, shop, ended, config, arguments: list[str]):
    job = shop.job("tiny", *ended)
    given = {"JOB": job.id, "CONFIG": str(config())}
    found = probe(cli, *(given.get(word, word) for word in arguments))
    assert found == {"code": 0, "loaded": [], "rich": found["rich"]}


@pytest.mark.integration
def test_push_itself_imports_nothing_heavy(cli, config, prefect_server):
    """The job is started, in a process of its own, and at once asked to stop."""
    cli.env["PREFECT_API_URL"] = prefect_server.api_url
    found = probe(cli, "push", str(config()), "-o", "json")
    assert found["code"] == 0
    assert found["loaded"] == []
    assert cli("stop", "--all", "--yes").code == 0


def test_logs_need_no_rich(cli, shop, ended):
    job = shop.job("tiny", *ended)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["hello"])
    assert probe(cli, "logs", "--job-id", job.id)["rich"] is False
