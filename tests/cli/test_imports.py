"""The command starts fast because it imports little; what it must not import is counted here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from prefect_bt.cli.app import describe_command, make_app
from prefect_bt.cli.command_table import COMMANDS

pytest_plugins = ["tests.prefect_server"]
pytestmark = [pytest.mark.slow]

HEAVY = ["prefect", "boto3", "botocore", "docker", "kubernetes", "huggingface_hub", "torch"]
NOT_FOR_LISTS = ["asyncio", "obstore", "pydantic_settings", "prefect_bt.planning.planner", "ssl"]
"""Beside HEAVY: what `view`, `logs` and `checkpoints list` of ended jobs do without."""
NOT_FOR_ENDED_JOBS = [*NOT_FOR_LISTS, "prefect_bt.jobs.reconcile", "prefect_bt.definitions"]
"""What they do without once the index has the jobs, and what logs never need."""
NOT_FOR_HELP = [
    *NOT_FOR_LISTS,
    "cyclopts",
    "rich",
    "prefect_bt.cli.app",
    "prefect_bt.settings",
    "pydantic",
    "sqlite3",
]
"""What the overview of commands does without."""

PROBE = """
import json, sys
import prefect_bt.cli.entry
code = prefect_bt.cli.entry.main() if sys.argv[1:] else 0
loaded = [name for name in {absent} if name in sys.modules]
found = {{"code": code, "loaded": loaded, "rich": "rich" in sys.modules}}
print(json.dumps(found), file=sys.stderr)
"""


def probe(cli, *arguments: str, absent: Sequence[str] = ()) -> dict:
    """Which packages of HEAVY and `absent` a command imports."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(absent=[*HEAVY, *absent]), *arguments],
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
    ("arguments", "absent"),
    [
        (["view"], NOT_FOR_LISTS),
        (["view", "--job-id", "JOB"], NOT_FOR_LISTS),
        (["logs", "--job-id", "JOB"], NOT_FOR_ENDED_JOBS),
        (["logs", "--job-id", "JOB", "--tail"], []),
        (["checkpoints", "list"], NOT_FOR_ENDED_JOBS),
        (["push", "CONFIG", "--dry-run"], []),
        (["--help"], NOT_FOR_HELP),
        (["checkpoints"], NOT_FOR_HELP),
        (["view", "--help"], ["prefect_bt.cli.jobs.push", "prefect_bt.cli.logs.logs"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_commands_import_nothing_heavy(cli, shop, ended, config, arguments, absent):
    job = shop.job("tiny", *ended)
    given = {"JOB": job.id, "CONFIG": str(config())}
    found = probe(cli, *(given.get(word, word) for word in arguments), absent=absent)
    assert found == {"code": 0, "loaded": [], "rich": found["rich"]}


def test_a_list_of_known_jobs_imports_no_definitions(cli, within, shop, ended):
    for _ in range(2):
        shop.job("tiny", *ended)
    assert within("view", "--project", "tiny").code == 0
    for arguments in (["view", "--project", "tiny"], ["view"]):
        found = probe(cli, *arguments, absent=NOT_FOR_ENDED_JOBS)
        assert found == {"code": 0, "loaded": [], "rich": True}


def test_every_command_can_be_imported():
    for words in COMMANDS:
        assert describe_command(make_app(), words.split()).default_command is not None


@pytest.mark.integration
def test_push_itself_imports_nothing_heavy(cli, config, prefect_server):
    """The job is started, in a process of its own, and at once asked to stop."""
    cli.env.update(prefect_server.api)
    found = probe(cli, "push", str(config(start_commands=["sleep 600"])), "-o", "json")
    assert found["code"] == 0
    assert found["loaded"] == []
    assert cli("stop", "--all", "--yes").code == 0


def test_logs_need_no_rich(cli, shop, ended):
    job = shop.job("tiny", *ended)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["hello"])
    assert probe(cli, "logs", "--job-id", job.id)["rich"] is False
