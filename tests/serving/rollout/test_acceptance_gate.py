"""What a revision has to pass: prompts at a server that echoes, and real commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from prefect_bt.errors import DefinitionError
from prefect_bt.host.processes import FLOW_VARIABLE, kill_flow_helpers
from prefect_bt.serving.rollout.acceptance_gate import Gate, GateResult, parse_gate, run_gate

NOWHERE = "http://127.0.0.1:1"


class Echo(BaseHTTPRequestHandler):
    """Answers `<model>: <prompt>`; the model `ill` is none."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (body["temperature"], body["max_tokens"]) == (0, 64)
        if "messages" in body:
            said = f"{body['model']}: {body['messages'][-1]['content']}"
            choice = {"message": {"role": "assistant", "content": said}}
        else:
            choice = {"text": f"{body['model']}: {body['prompt']}"}
        ill = body["model"] == "ill"
        answer = {"error": {"message": "Engine is dead."}} if ill else {"choices": [choice]}
        data = json.dumps(answer).encode()
        self.send_response(503 if ill else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def put(address: str, *prompts: dict, models: tuple[str, ...] = ("a", "b")) -> GateResult:
    return run_gate(parse_gate(list(prompts)), address, models)


def decide(command: str, seconds: float = 60) -> GateResult:
    return run_gate(parse_gate({"command": command, "seconds": seconds}), NOWHERE, ["a", "b c"])


# -- prompts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expected", [{"contains": "a: 2+2"}, {"matches": r"^a: \d\+2=$"}, {"equals": " a: 2+2=\n"}]
)
def test_an_answer_is_compared_with_the_expected_one(address: str, expected) -> None:
    result = put(address, {"prompt": "2+2=", "model": "a", **expected})
    assert result.passed
    assert result.message == "It passed 1 prompt of its gate."


def test_a_prompt_without_a_model_is_put_to_all(address: str) -> None:
    result = put(address, {"prompt": "x", "contains": "a: "}, {"prompt": "y", "contains": "y"})
    assert result.message == (
        "1 of 4 prompts failed: b's answer to 'x' should contain 'a: ', and is 'b: x'."
    )


def test_messages_are_a_chat(address: str) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "Hi"}]
    assert put(address, {"messages": messages, "model": "a", "equals": "a: Hi"}).passed


def test_a_fault_never_passes(address: str) -> None:
    for pattern in ("", ".*", "Engine"):
        prompt = {"prompt": "x", "matches": pattern or "^$"}
        result = put(address, prompt, models=("ill",))
        assert not result.passed
        assert "503 Engine is dead" in result.message
    nobody = put(NOWHERE, {"prompt": "x", "matches": ".*"}, models=("a",))
    assert not nobody.passed
    assert "ConnectError" in nobody.message


def test_a_model_that_is_not_served_is_no_pass(address: str) -> None:
    result = put(address, {"prompt": "x", "model": "c", "contains": "x"})
    assert result == GateResult(False, "Its gate sends requests to c, which is not served.")


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "either prompts or a command"),
        ([], "either prompts or a command"),
        (
            {"command": "x", "prompts": [{"prompt": "a", "contains": "b"}]},
            "either prompts or a command",
        ),
        ({"command": ["x"]}, "command: .*write a string"),
        ({"command": "x", "second": 3}, "second: Gate has no such field; did you mean seconds"),
        ({"command": "x", "seconds": 0}, "seconds: 0 was given"),
        ({"command": "x", "seconds": True}, "seconds: True was given"),
        ({"prompts": "x"}, "prompts: 'x' was given; write a list"),
        (["x"], r"prompts\[0\]: 'x' was given"),
        ([{"prompt": "x"}], "must expect one of contains, matches, equals"),
        ([{"prompt": "x", "contains": ""}], r"prompts\[0\].contains: '' was given"),
        ([{"prompt": "x", "contains": "a", "equals": "b"}], "must expect one of"),
        ([{"contains": "a"}], "either a prompt or messages"),
        (
            [{"prompt": "x", "contain": "a"}],
            "contain: Expectation has no such field; did you mean contains",
        ),
        ([{"prompt": "x", "matches": "("}], "is not a regular expression"),
        ([{"messages": ["x"], "contains": "a"}], r"messages\[0\]: 'x' was given"),
    ],
)
def test_an_invalid_gate_is_refused(document, sentence: str) -> None:
    with pytest.raises(DefinitionError, match=sentence):
        parse_gate(document)


def test_defaults_of_a_gate() -> None:
    assert parse_gate({"command": "x"}).timeout == 600
    assert (parse_gate([{"prompt": "x", "contains": "y"}]).timeout) == 60


# -- a command ------------------------------------------------------------------------------


def test_a_command_decides_by_its_exit_code() -> None:
    assert decide("exit 0") == GateResult(True, "The command of its gate succeeded.")
    no = decide("echo no good; echo really >&2; exit 3")
    assert no == GateResult(False, "The command of its gate ended with 3: no good\nreally")
    assert decide("no-such-program").message.startswith("The command of its gate ended with 127: ")


def test_a_command_gets_the_endpoint_and_the_models() -> None:
    names = "PREFECT_BT_ENDPOINT PREFECT_BT_MODELS OPENAI_BASE_URL OPENAI_API_KEY"
    told = decide(
        f'for name in {names}; do eval "echo \\$$name"; done; cat; test -n "$PATH" && exit 1'
    )
    assert told.message == (
        f"The command of its gate ended with 1: {NOWHERE}\na b c\n{NOWHERE}/v1\nnone"
    )
    gate = Gate(command='test "$OPENAI_API_KEY" = k', seconds=60)
    assert run_gate(gate, f"{NOWHERE}/v1", ["a"], key="k").passed


def test_only_the_end_of_long_output_is_in_the_message() -> None:
    told = decide("seq 100000; exit 1").message
    assert told.endswith("\n99999\n100000")
    assert len(told) < 2200


def test_a_command_has_a_limit_and_leaves_nothing_behind(tmp_path: Path) -> None:
    pids, seconds = tmp_path / "pids", 1
    command = f"sleep 300 & echo $! $$ >{pids}; echo begun; wait"
    # On a busy machine the shell may need longer to begin.
    while "begun" not in (late := decide(command, seconds=seconds)).message and seconds < 100:
        seconds *= 5
    assert late == GateResult(
        False, f"The command of its gate did not end within {seconds} s: begun"
    )
    gone(pids)
    assert decide(f"sleep 300 & echo $! >{pids}").passed
    gone(pids)


WAITING_CALLER = """
import pathlib, subprocess, sys
from prefect_bt.serving.rollout.acceptance_gate import Gate, run_gate

wait = subprocess.Popen.wait

def report_and_wait(process, timeout=None):
    pathlib.Path(sys.argv[2]).touch()
    return wait(process, timeout)

subprocess.Popen.wait = report_and_wait
run_gate(Gate(command=sys.argv[1], seconds=60), "http://127.0.0.1:1", ["a"])
"""
"""Writes a file when it waits for the command: an interrupt before that is another case."""


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
def test_a_command_ends_with_its_flow(tmp_path: Path, sign: signal.Signals) -> None:
    """At once, or when its supervisor removes what a killed flow left."""
    pids, waiting = tmp_path / "pids", tmp_path / "waiting"
    command = f"sleep 300 & echo $! $$ >{pids}.new; mv {pids}.new {pids}; wait"
    process = subprocess.Popen(
        [sys.executable, "-c", WAITING_CALLER, command, waiting],
        stderr=subprocess.DEVNULL,
        env={**os.environ, FLOW_VARIABLE: str(tmp_path)},
    )
    until(lambda: pids.exists() and waiting.exists())
    os.kill(process.pid, sign)
    process.wait(200)
    if sign is signal.SIGKILL:
        assert kill_flow_helpers(str(tmp_path))
    gone(pids)


def gone(pids: Path) -> None:
    numbers = [int(word) for word in pids.read_text().split()]
    until(lambda: not any(runs(number) for number in numbers))


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(holds, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
