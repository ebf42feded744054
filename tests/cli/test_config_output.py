"""A config file that prints: standard output of a command is its result alone."""

import json
import shlex
import subprocess

import pytest

from .conftest import COMMAND, Cli

PRINTING = """
import atexit, os, subprocess, sys, threading, time
from truss_train import definitions as d
print("SAID at import")
atexit.register(print, "SAID at exit")
atexit.register(os.system, "echo SAID by a process at exit")
subprocess.Popen("for n in 1 2 3 4 5; do echo SAID by a process; sleep 0.2; done", shell=True)


def repeat():
    while True:
        print("SAID by a thread")
        time.sleep(0.001)


threading.Thread(target=repeat, daemon=True).start()
weights = d.WeightsSource(source=f"file://{os.path.dirname(__file__)}/model", mount_location="/m")
job = d.TrainingJob(
    image=d.Image(base_image="x"), runtime=d.Runtime(start_commands=["true"]), weights=[weights]
)
project = d.TrainingProject(name="tiny", job=job)
"""


@pytest.mark.parametrize(("closed", "is_printed"), [(">&-", False), ("2>&-", True)])
def test_a_closed_output_is_no_fault(cli: Cli, config, closed: str, is_printed: bool):
    path = config()
    path.write_text(f"print('SAID')\n{path.read_text()}")
    command = [*COMMAND, "push", "--dry-run", "-o", "json", str(path)]
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shlex.join(command)} {closed}"],
        capture_output=True,
        env=cli.env,
        cwd=cli.folder,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == (b"" if is_printed else b"SAID\n")
    assert bool(done.stdout) is is_printed


@pytest.mark.parametrize("words", ["push --dry-run", "weights mirror --dry-run"])
def test_json_is_all_of_stdout(cli: Cli, config, words: str):
    path = config(body=PRINTING)
    (path.parent / "model").mkdir()
    (path.parent / "model" / "config.json").write_text("{}")
    run = cli.process(*words.split(), str(path), "-o", "json")
    assert run.code == 0, run
    assert json.loads(run.out)
    for origin in ("at import", "at exit", "by a process", "by a process at exit", "by a thread"):
        assert f"SAID {origin}\n" in run.err
