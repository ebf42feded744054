"""Ctrl-C at any moment of a command: exit code 130, and no traceback."""

import subprocess
import sys

import pytest

from .conftest import Cli, Shop

PROGRAM = """
import atexit, os, signal, sys

moment, replaced = sys.argv[1], sys.argv[2] == "True"
sys.argv[1:3] = []


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if replaced:
                    raise ValueError("an error of a library")
                raise


sys.meta_path.insert(0, Finder())
if moment == "exit":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
from prefect_bt.cli.entry import main

sys.exit(main())
"""


@pytest.mark.parametrize("replaced", [False, True], ids=["interrupt", "error of a library"])
@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("prefect_bt.cli.command_table", "--help"),
        ("prefect_bt.cli.app", "view"),
        ("cyclopts", "view"),
        ("prefect_bt.cli.logs.logs", "logs"),
        ("prefect_bt.ledger.open_ledger", "logs -o json"),
        ("pydantic", "logs"),
        ("exit", "--help"),
        ("exit", "logs -o json"),
    ],
)
def test_ctrl_c_is_quiet(cli: Cli, shop: Shop, ended, moment: str, words: str, replaced: bool):
    shop.log(shop.job("tiny", *ended), ["a line"])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, moment, str(replaced), *words.split()],
        capture_output=True,
        text=True,
        env=cli.env,
        cwd=cli.folder,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "")
    assert bool(done.stdout) is (moment == "exit")


def test_ctrl_c_that_is_ignored_stays_ignored(cli: Cli):
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = subprocess.run(
        [sys.executable, "-c", ignoring + PROGRAM, "cyclopts", "False", "view"],
        capture_output=True,
        text=True,
        env=cli.env,
        cwd=cli.folder,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
