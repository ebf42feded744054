"""What a config file does to the process that loads it: nothing of it is left, stdout is clean."""

import os
import signal
import sys
import threading
import warnings
from pathlib import Path

import pytest

from prefect_bt.definitions import load_training_project
from prefect_bt.errors import DefinitionError

PROJECT = """
from truss_train import definitions
project = definitions.TrainingProject(
    name="p", job=definitions.TrainingJob(image=definitions.Image(base_image="x"))
)
"""

OUTPUT = {
    "print": "print('SAID')",
    "in a sibling": "import talker",
    "sys.stdout": "import sys; sys.stdout.write('SAID')",
    "sys.__stdout__": "import sys; print('SAID', file=sys.__stdout__)",
    "buffer": "import sys; sys.stdout.buffer.write(b'SAID')",
    "wrapped": "import io, sys; sys.stdout = io.TextIOWrapper(sys.stdout.buffer); print('SAID')",
    "logging": "import logging, sys; logging.basicConfig(stream=sys.stdout, force=True)\n"
    "logging.warning('SAID')",
    "descriptor": "import os; os.write(1, b'SAID')",
    "os.system": "import os; os.system('echo SAID')",
    "subprocess": "import subprocess; subprocess.run(['echo', 'SAID'])",
    "a child that outlives it": "import subprocess; subprocess.Popen('sleep 0.1; echo SAID', "
    "shell=True).communicate",
    "another config": "from prefect_bt.definitions import load_training_project\n"
    "import os\nload_training_project(os.path.dirname(__file__) + '/other.py')\nprint('SAID')",
    "not encodable": "print('SAID \\udce9')",
}


@pytest.fixture
def config(tmp_path: Path):
    (tmp_path / "talker.py").write_text("print('SAID')")
    (tmp_path / "other.py").write_text(PROJECT)

    def write(text: str, end: str = "\n") -> Path:
        path = tmp_path / "config.py"
        path.write_bytes((text + PROJECT).replace("\n", end).encode())
        return path

    return write


@pytest.mark.parametrize("text", OUTPUT.values(), ids=OUTPUT)
def test_output_goes_to_stderr(config, capfd: pytest.CaptureFixture[str], text: str):
    load_training_project(config(text))
    print("ours")
    os.system("echo of our process; sleep 0.2")
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == ["of our process", "ours"]
    assert "SAID" in err


def test_output_of_a_file_that_fails_goes_to_stderr(config, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(DefinitionError, match="RuntimeError: no"):
        load_training_project(config("print('SAID')\nraise RuntimeError('no')"))
    out, err = capfd.readouterr()
    assert (out, err) == ("", "SAID\n")


@pytest.mark.parametrize("descriptor", [1, 2])
def test_a_closed_descriptor_is_no_fault(config, descriptor: int):
    saved = os.dup(descriptor)
    os.close(descriptor)
    try:
        assert load_training_project(config("print('SAID')")).name == "p"
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)


def test_arguments_are_those_of_the_file(config, monkeypatch: pytest.MonkeyPatch):
    words = ["prefect-bt", "push", "config.py", "--wait"]
    monkeypatch.setattr(sys, "argv", words)
    path = config("import argparse, sys; assert not vars(argparse.ArgumentParser().parse_args())\n")
    path.write_text(path.read_text() + "project.name = repr(sys.argv)")
    assert load_training_project(path).name == repr([str(path)])
    assert sys.argv is words


@pytest.mark.parametrize(
    "text",
    [
        "import os; os.chdir('/')",
        "import sys; sys.path.insert(0, '/')",
        "import sys; sys.path = ['/']",
        "import sys; sys.argv = []",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.close()",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
        "import warnings; warnings.simplefilter('error')",
    ],
)
def test_the_process_is_as_before(config, text: str):
    def state() -> object:
        handler = signal.getsignal(signal.SIGINT)
        streams = (sys.stdout, sys.stderr, sys.stdout.closed, sys.argv)
        return Path.cwd(), id(sys.path), list(sys.path), handler, warnings.filters[:], streams

    before = state()
    load_training_project(config(text))
    assert state() == before
    with pytest.raises(DefinitionError):
        load_training_project(config(f"{text}\nraise RuntimeError"))
    assert state() == before


def test_a_file_is_loaded_in_a_thread(config, capfd: pytest.CaptureFixture[str]):
    names: list[str] = []
    path = config("print('SAID')")
    thread = threading.Thread(target=lambda: names.append(load_training_project(path).name))
    thread.start()
    thread.join()
    assert names == ["p"]
    assert capfd.readouterr() == ("", "SAID\n")


def test_a_file_with_windows_line_ends_is_loaded(config):
    assert load_training_project(config("text = '''a\nb'''\nassert text == 'a\\nb'", "\r\n"))
