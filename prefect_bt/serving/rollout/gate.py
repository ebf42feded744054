"""What a revision has to pass before requests go to it: prompts with expectations, or a command.

    {"prompts": [{"prompt": "2+2=", "contains": "4"},
                 {"messages": [{"role": "user", "content": "Hi"}], "model": "checkpoint-10",
                  "matches": "(?i)hello"}],
     "tokens": 64, "seconds": 60}
    {"command": "python judge.py", "seconds": 600}

Prompts are answered greedily; one without a `model` is put to every model. The command runs in a
shell and decides by its exit code. It is told PREFECT_BT_ENDPOINT, PREFECT_BT_MODELS (a line each),
OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import httpx

from prefect_bt.errors import DefinitionError
from prefect_bt.serving.rollout.readiness import error_message, open_client

DEFAULT_MAX_TOKENS: Final = 64
PROMPT_TIMEOUT: Final = 60.0
COMMAND_TIMEOUT: Final = 600.0
_TAIL: Final = 2000
"""Bytes of the end of a command's output that a reason has."""
_MAX_ANSWER_LENGTH: Final = 120
"""Characters of an answer in a sentence."""
_TERMINATE_GRACE_SECONDS: Final = 5.0
"""Seconds that a command has to end by itself."""
# The watcher reads from this process. When that dies, in whatever way, it ends the whole group. It
# does not hear the polite signal, or nobody would be left to end what ignores it too.
_GUARD_SCRIPT: Final = """
exec 3<&0
{ trap '' TERM; cat <&3 >/dev/null; kill -KILL 0; } &
trap : TERM
/bin/sh -c "$1" 3<&- </dev/null
exit $?
"""
_CHECKS: Final = ("contains", "matches", "equals")


@dataclass(frozen=True)
class Expectation:
    """`check` is contains, matches (a regular expression, searched) or equals (stripped)."""

    check: str
    value: str
    messages: tuple[dict[str, Any], ...] = ()
    prompt: str = ""
    model: str = ""

    def is_met_by(self, answer: str) -> bool:
        if self.check == "contains":
            return self.value in answer
        if self.check == "equals":
            return self.value.strip() == answer.strip()
        return re.search(self.value, answer) is not None


@dataclass(frozen=True)
class Gate:
    """`timeout`: for one answer, or for the command."""

    expectations: tuple[Expectation, ...] = ()
    max_tokens: int = DEFAULT_MAX_TOKENS
    command: str = ""
    timeout: float = PROMPT_TIMEOUT


@dataclass(frozen=True)
class PromptResult:
    """One prompt put to one model."""

    model: str
    prompt: str
    expected: str
    answer: str
    passed: bool


@dataclass(frozen=True)
class GateResult:
    """`message`: what was seen, or why it does not pass."""

    passed: bool
    message: str
    results: tuple[PromptResult, ...] = ()


# -- reading --------------------------------------------------------------------------------


def parse_gate(document: Mapping[str, Any] | Sequence[Any]) -> Gate:
    """DefinitionError for what is no gate. A list is one of prompts."""
    if isinstance(document, Sequence):
        document = {"prompts": document}
    _reject_unknown_keys(document, {"prompts", "command", "tokens", "seconds"}, "A gate")
    prompts, command = document.get("prompts"), document.get("command")
    if bool(prompts) == bool(command):
        raise _gate_error("A gate needs either prompts or a command.", "gate", document)
    given = document.get("seconds")
    if command:
        if not isinstance(command, str):
            raise _gate_error(
                "The command of a gate must be a line for the shell.", "command", command
            )
        return Gate(command=command, timeout=_positive(given, "seconds", COMMAND_TIMEOUT))
    if not isinstance(prompts, list | tuple):
        raise _gate_error("The prompts of a gate must be a list.", "prompts", prompts)
    return Gate(
        expectations=tuple(_expectation(one) for one in cast("list[Any]", prompts)),
        max_tokens=int(_positive(document.get("tokens"), "tokens", DEFAULT_MAX_TOKENS)),
        timeout=_positive(given, "seconds", PROMPT_TIMEOUT),
    )


def load_gate_file(path: Path) -> dict[str, Any]:
    """Return the document of a gate; a list is its prompts. Raise DefinitionError."""
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = f"it is not JSON: {error}"
    else:
        if isinstance(document, (dict, list)):
            is_list = isinstance(document, list)
            gate = cast("dict[str, Any]", {"prompts": document} if is_list else document)
            parse_gate(gate)
            return gate
        why = "it is neither an object nor a list of prompts"
    raise DefinitionError(
        f"The gate {path} cannot be read: {why}.",
        next_step='Write {"prompts": [{"prompt": "Once", "contains": "upon"}]}.',
        file=str(path),
    )


def _expectation(found: Any) -> Expectation:
    if not isinstance(found, Mapping):
        raise _gate_error("A prompt of a gate must be an object.", "prompts", found)
    one = cast("Mapping[str, Any]", found)
    _reject_unknown_keys(one, {"prompt", "messages", "model", *_CHECKS}, "A gate's prompt")
    checks = [check for check in _CHECKS if check in one]
    if len(checks) != 1 or not isinstance(one[checks[0]], str) or not one[checks[0]]:
        raise _gate_error(
            f"A prompt of a gate must expect one of {', '.join(_CHECKS)}.", "prompts", one
        )
    if ("prompt" in one) == ("messages" in one):
        raise _gate_error("A prompt of a gate needs either a prompt or messages.", "prompts", one)
    if checks[0] == "matches":
        try:
            re.compile(one["matches"])
        except re.error as error:
            raise _gate_error(
                f"Not a regular expression: {error}.", "matches", one["matches"]
            ) from None
    return Expectation(
        check=checks[0],
        value=one[checks[0]],
        messages=_messages(one.get("messages", ())),
        prompt=str(one.get("prompt", "")),
        model=str(one.get("model", "")),
    )


def _messages(found: Any) -> tuple[dict[str, Any], ...]:
    messages = cast("Sequence[Any]", found) if isinstance(found, list | tuple) else (found,)
    for message in messages:
        if not isinstance(message, Mapping) or not {"role", "content"} <= {*message}:
            raise _gate_error(
                "A message must have a role and a content.", "messages", cast("Any", message)
            )
    return tuple(dict(message) for message in messages)


def _positive(value: Any, field: str, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise _gate_error(f"A gate's {field} is a number above 0.", field, value)
    return float(value)


def _reject_unknown_keys(found: Mapping[str, Any], allowed: set[str], section: str) -> None:
    if unknown := sorted({*found} - allowed):
        raise _gate_error(f"{section} has no {', '.join(unknown)}.", unknown[0], found[unknown[0]])


def _gate_error(message: str, field: str, value: object) -> DefinitionError:
    return DefinitionError(
        f"{message} It is {value!r}.",
        next_step='Write {"prompts": [{"prompt": "…", "contains": "…"}]} or {"command": "…"}.',
        field=field,
        value=value,
    )


# -- passing --------------------------------------------------------------------------------


def run_gate(gate: Gate, address: str, models: Sequence[str], *, key: str = "") -> GateResult:
    """`address` of the server, with or without its `/v1`; `models`: the names it answers to."""
    base = f"{address.rstrip('/').removesuffix('/v1')}/v1"
    if gate.command:
        return _run_command(gate, base, models, key)
    strangers = sorted({e.model for e in gate.expectations if e.model} - {*models})
    if strangers:
        return GateResult(
            False, f"Its gate sends requests to {', '.join(strangers)}, which is not served."
        )
    with open_client(key, gate.timeout) as client:
        rows = tuple(
            _run_prompt(client, base, gate, expectation, model)
            for expectation in gate.expectations
            for model in ([expectation.model] if expectation.model else models)
        )
    return _summarize(rows)


def _summarize(rows: tuple[PromptResult, ...]) -> GateResult:
    failed = [row for row in rows if not row.passed]
    if not failed:
        return GateResult(
            True, f"It passed {_format_count(len(rows), 'prompt')} of its gate.", rows
        )
    first = failed[0]
    return GateResult(
        False,
        f"{len(failed)} of {_format_count(len(rows), 'prompt')} failed: {first.model}'s answer to "
        f"{_truncate(first.prompt)!r} {first.expected}, and is {_truncate(first.answer)!r}.",
        rows,
    )


def _run_prompt(
    client: httpx.Client, base: str, gate: Gate, expectation: Expectation, model: str
) -> PromptResult:
    """A fault of the server is an answer that does not hold."""
    body: dict[str, Any] = {"model": model, "max_tokens": gate.max_tokens, "temperature": 0}
    path, asked = "/completions", expectation.prompt
    if expectation.messages:
        path, asked = "/chat/completions", str(expectation.messages[-1]["content"])
        body["messages"] = list(expectation.messages)
    else:
        body["prompt"] = expectation.prompt
    try:
        reply = client.post(f"{base}{path}", json=body)
        answer = _completion_text(reply) if reply.is_success else ""
        fault = "" if reply.is_success else f"{reply.status_code} {error_message(reply)}".strip()
    except httpx.HTTPError as error:
        answer, fault = "", f"{type(error).__name__}: {error}"
    expected = f"should {_VERBS[expectation.check]} {expectation.value!r}"
    passed = not fault and expectation.is_met_by(answer)
    return PromptResult(model, asked, expected, fault or answer, passed)


_VERBS: Final = {"contains": "contain", "matches": "match", "equals": "equal"}


def _completion_text(reply: httpx.Response) -> str:
    """Of a chat or a completion; empty where there is none."""
    try:
        choice = reply.json()["choices"][0]
        return str((choice["message"]["content"] if "message" in choice else choice["text"]) or "")
    except (ValueError, LookupError, TypeError):
        return ""


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_ANSWER_LENGTH else f"{text[:_MAX_ANSWER_LENGTH]}…"


def _run_command(gate: Gate, base: str, models: Sequence[str], key: str) -> GateResult:
    told = {
        "PREFECT_BT_ENDPOINT": base.removesuffix("/v1"),
        "PREFECT_BT_MODELS": "\n".join(models),
        "OPENAI_BASE_URL": base,
        "OPENAI_API_KEY": key or "none",  # the client library wants one
    }
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD_SCRIPT, "gate", gate.command],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **told},
            start_new_session=True,
        )
        try:
            status = process.wait(gate.timeout)
        except subprocess.TimeoutExpired:
            return _command_failure(f"did not end within {gate.timeout:g} s", output)
        finally:
            _terminate_group(process)
        if status == 0:
            return GateResult(True, "The command of its gate succeeded.")
        return _command_failure(f"ended with {status}", output)


def _command_failure(how: str, output: IO[bytes]) -> GateResult:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TAIL))
    lines = output.read().decode(errors="replace").strip()
    if size > _TAIL:
        lines = f"…{lines.partition(chr(10))[2] or lines}"
    return GateResult(False, f"The command of its gate {how}{f': {lines}' if lines else '.'}")


def _terminate_group(process: subprocess.Popen[bytes]) -> None:
    """All of the group, politely and then not. Its watcher is in it, so the number is still its."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_GRACE_SECONDS)
    if process.stdin:
        process.stdin.close()
