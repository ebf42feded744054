"""The command starts fast because it imports little; what it must not import is counted here.

A new interpreter runs a chain of commands. Modules stay loaded, so each command is checked for its
own imports and for those of the commands before it.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pytest

from prefect_bt.cli.app import describe_command, make_app
from prefect_bt.cli.command_table import COMMANDS
from tests.cli.conftest import Cli, Shop, Within

pytestmark = [pytest.mark.slow]

HEAVY = ["prefect", "boto3", "botocore", "docker", "kubernetes", "huggingface_hub", "torch"]
NOT_FOR_LISTS = ["asyncio", "obstore", "pydantic_settings", "prefect_bt.planning.planner", "ssl"]
"""Beside HEAVY: what `view`, `logs` and `checkpoints list` of ended jobs do without."""
NOT_FOR_ENDED_JOBS = [*NOT_FOR_LISTS, "prefect_bt.jobs.reconcile", "prefect_bt.definitions"]
"""What they do without once the index has the jobs, and what logs never need."""
NOT_FOR_HELP = [
    *(*NOT_FOR_LISTS, "cyclopts", "rich", "pydantic", "sqlite3"),
    *("prefect_bt.cli.app", "prefect_bt.settings"),
]
"""What the overview of commands does without."""

PROBE = """
import contextlib, io, json, sys
import prefect_bt.cli.entry
for words, absent in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()):
        code = prefect_bt.cli.entry.main() if words else 0
    loaded = [name for name in absent if name in sys.modules]
    print(json.dumps([code, loaded]), file=sys.stderr)
"""


class Step(NamedTuple):
    """A command, and the packages that are not loaded after it (beside HEAVY)."""

    line: str
    absent: Sequence[str] = ()


def check_imports(cli: Cli, steps: Iterable[Step]) -> None:
    """Run the commands one after the other in one new interpreter."""
    chain = [(step.line.split(), [*HEAVY, *step.absent]) for step in steps]
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(chain)],
        capture_output=True,
        text=True,
        env=cli.env,
        cwd=cli.folder,
        check=True,
        timeout=400,
    )
    found: list[Any] = [json.loads(line) for line in done.stderr.splitlines() if line[:1] == "["]
    assert [(words, *found[at]) for at, (words, _) in enumerate(chain)] == [
        (words, 0, []) for words, _ in chain
    ]


def test_help_and_commands_of_ended_jobs_import_little(cli: Cli, shop: Shop, ended) -> None:
    job = shop.job("tiny", *ended)
    shop.ledger.begin_attempt(job.id)
    shop.log(job, ["hello"])
    check_imports(
        cli,
        [
            Step("", NOT_FOR_HELP),
            Step("--help", NOT_FOR_HELP),
            Step("checkpoints", NOT_FOR_HELP),
            Step("cache summarize tiny -o json", ["rich"]),
            Step(f"logs --job-id {job.id}", [*NOT_FOR_ENDED_JOBS, "rich"]),
            Step("checkpoints list", NOT_FOR_ENDED_JOBS),
        ],
    )


def test_lists_of_jobs_import_no_definitions(cli: Cli, within: Within, shop: Shop, ended) -> None:
    for _ in range(2):
        shop.job("tiny", *ended)
    assert within("view", "--project", "tiny").code == 0
    lines = ["view --project tiny", "view"]
    check_imports(cli, [Step(line, NOT_FOR_ENDED_JOBS) for line in lines])


def test_commands_import_nothing_heavy(cli: Cli, shop: Shop, ended, config) -> None:
    job = shop.job("tiny", *ended)
    check_imports(
        cli,
        [
            Step("view --help", ["prefect_bt.cli.jobs.push", "prefect_bt.cli.logs.logs"]),
            Step("view", NOT_FOR_LISTS),
            Step(f"view --job-id {job.id}", NOT_FOR_LISTS),
            Step(f"logs --job-id {job.id} --tail"),
            Step(f"push {config()} --dry-run"),
        ],
    )


def test_every_command_can_be_imported() -> None:
    for words in COMMANDS:
        assert describe_command(make_app(), words.split()).default_command is not None
