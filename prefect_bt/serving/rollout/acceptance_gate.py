"""Test a revision before requests are routed to it: prompts with expected answers, or a command.

    {"prompts": [{"prompt": "2+2=", "contains": "4"},
                 {"messages": [{"role": "user", "content": "Hi"}], "model": "checkpoint-10",
                  "matches": "(?i)hello"}],
     "tokens": 64, "seconds": 60}
    {"command": "python judge.py", "seconds": 600}

Prompts are answered greedily; a prompt without `model` is sent to every model. The command runs in
a shell, and its exit status is the result. Its environment has PREFECT_BT_ENDPOINT,
PREFECT_BT_MODELS (one name per line), OPENAI_BASE_URL and OPENAI_API_KEY.
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
from typing import IO, Annotated, Any, Final, cast

import httpx
from pydantic import Field, ValidationError, model_validator

from prefect_bt.definitions.base import OpenModel, StrictModel
from prefect_bt.definitions.error_messages import definition_error
from prefect_bt.errors import DefinitionError
from prefect_bt.serving.rollout.readiness import error_message, open_client

_PROMPT_TIMEOUT: Final = 60.0
_COMMAND_TIMEOUT: Final = 600.0
_MAX_OUTPUT_BYTES: Final = 2000
"""Bytes of the end of a command's output that a message shows."""
_MAX_ANSWER_LENGTH: Final = 120
"""Characters of an answer that a message shows."""
_TERMINATE_GRACE_SECONDS: Final = 5.0
"""Seconds between SIGTERM and SIGKILL for a command."""
_EXAMPLE: Final = (
    'Write {"prompts": [{"prompt": "Once", "contains": "upon"}]} or {"command": "python judge.py"}.'
)
_VERBS: Final = {"contains": "contain", "matches": "match", "equals": "equal"}
_Text = Annotated[str, Field(min_length=1)]


class Message(OpenModel):
    """One message of a chat."""

    role: str
    content: Any


class Expectation(StrictModel):
    """A prompt or the messages of a chat, and the check of the answer.

    `matches` is a regular expression that is searched; `equals` ignores outer white space.
    """

    prompt: str | None = None
    messages: list[Message] | None = None
    model: str = ""
    contains: _Text | None = None
    matches: _Text | None = None
    equals: _Text | None = None

    @model_validator(mode="after")
    def _validate(self) -> Expectation:
        if (self.prompt is None) == (not self.messages):
            raise ValueError("needs either a prompt or messages")
        if [self.contains, self.matches, self.equals].count(None) != len(_VERBS) - 1:
            raise ValueError(f"must expect one of {', '.join(_VERBS)}")
        try:
            re.compile(self.matches or "")
        except re.error as error:
            raise ValueError(f"{self.matches!r} is not a regular expression: {error}") from error
        return self

    @property
    def check(self) -> tuple[str, str]:
        """Return the name of the check and its value."""
        return next((name, getattr(self, name)) for name in _VERBS if getattr(self, name))

    def is_met_by(self, answer: str) -> bool:
        if self.contains:
            return self.contains in answer
        if self.equals:
            return self.equals.strip() == answer.strip()
        return re.search(self.matches or "", answer) is not None


class Gate(StrictModel):
    """The test of a revision. `seconds` limits each answer, or the command."""

    prompts: list[Expectation] = Field(default_factory=list[Expectation])
    command: str = ""
    tokens: Annotated[int, Field(gt=0)] = 64
    seconds: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _validate(self) -> Gate:
        if bool(self.prompts) == bool(self.command):
            raise ValueError("a gate needs either prompts or a command")
        return self

    @property
    def timeout(self) -> float:
        return self.seconds or (_COMMAND_TIMEOUT if self.command else _PROMPT_TIMEOUT)


@dataclass(frozen=True)
class GateResult:
    """`message` says what passed, or why the gate failed."""

    passed: bool
    message: str


# -- reading --------------------------------------------------------------------------------


def parse_gate(document: Mapping[str, Any] | list[Any]) -> Gate:
    """Return the gate of a document, or of a list of prompts. Raise DefinitionError."""
    try:
        return Gate.model_validate(_as_object(document))
    except ValidationError as error:
        found = definition_error(error, Gate)
    raise DefinitionError(found.message, next_step=_EXAMPLE, field=found.field, value=found.value)


def _as_object(document: Any) -> dict[str, Any]:
    """Return the document of a gate; a list becomes its prompts. Raise DefinitionError."""
    if isinstance(document, list):
        return {"prompts": document}
    if not isinstance(document, dict):
        message = f"A gate is an object or a list of prompts, not {document!r}."
        raise DefinitionError(message, next_step=_EXAMPLE, field="gate", value=document)
    return cast("dict[str, Any]", document)


def load_gate_file(path: Path) -> dict[str, Any]:
    """Return the document of a gate; a list is its prompts. Raise DefinitionError."""
    try:
        document: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = f"it is not JSON: {error}"
    else:
        parse_gate(document)
        return _as_object(document)
    raise DefinitionError(
        f"The gate {path} cannot be read: {why}.", next_step=_EXAMPLE, file=str(path)
    )


# -- running --------------------------------------------------------------------------------


def run_gate(gate: Gate, address: str, models: Sequence[str], *, key: str = "") -> GateResult:
    """Run the gate against the server at `address` (with or without `/v1`) and its `models`."""
    base = f"{address.rstrip('/').removesuffix('/v1')}/v1"
    if gate.command:
        return _run_command(gate, base, models, key)
    unknown = sorted({one.model for one in gate.prompts if one.model} - {*models})
    if unknown:
        return GateResult(
            False, f"Its gate sends requests to {', '.join(unknown)}, which is not served."
        )
    with open_client(key, gate.timeout) as client:
        results = [
            _run_prompt(client, base, gate, expectation, model)
            for expectation in gate.prompts
            for model in ([expectation.model] if expectation.model else models)
        ]
    count = f"{len(results)} prompt{'' if len(results) == 1 else 's'}"
    if failures := [one for one in results if one]:
        return GateResult(False, f"{len(failures)} of {count} failed: {failures[0]}.")
    return GateResult(True, f"It passed {count} of its gate.")


def _run_prompt(
    client: httpx.Client, base: str, gate: Gate, expectation: Expectation, model: str
) -> str:
    """Return why the answer does not pass, "" if it does. An error of the server does not pass."""
    body: dict[str, Any] = {"model": model, "max_tokens": gate.tokens, "temperature": 0}
    path, prompt = "/completions", expectation.prompt or ""
    if expectation.messages:
        path, prompt = "/chat/completions", str(expectation.messages[-1].content)
        body["messages"] = [message.model_dump() for message in expectation.messages]
    else:
        body["prompt"] = prompt
    try:
        reply = client.post(f"{base}{path}", json=body)
        if reply.is_success:
            answer = _completion_text(reply)
            if expectation.is_met_by(answer):
                return ""
        else:
            answer = f"{reply.status_code} {error_message(reply)}".strip()
    except httpx.HTTPError as error:
        answer = f"{type(error).__name__}: {error}"
    check, value = expectation.check
    wrong = f"should {_VERBS[check]} {value!r}, and is {_truncate(answer)!r}"
    return f"{model}'s answer to {_truncate(prompt)!r} {wrong}"


def _completion_text(reply: httpx.Response) -> str:
    """Return the text of a chat or a completion; "" if the reply has none."""
    try:
        choice = reply.json()["choices"][0]
        return str((choice["message"]["content"] if "message" in choice else choice["text"]) or "")
    except (ValueError, LookupError, TypeError):
        return ""


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_ANSWER_LENGTH else f"{text[:_MAX_ANSWER_LENGTH]}…"


def _run_command(gate: Gate, base: str, models: Sequence[str], key: str) -> GateResult:
    variables = {
        "PREFECT_BT_ENDPOINT": base.removesuffix("/v1"),
        "PREFECT_BT_MODELS": "\n".join(models),
        "OPENAI_BASE_URL": base,
        "OPENAI_API_KEY": key or "none",  # the client library requires a value
    }
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", gate.command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
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
    output.seek(max(0, size - _MAX_OUTPUT_BYTES))
    lines = output.read().decode(errors="replace").strip()
    if size > _MAX_OUTPUT_BYTES:
        lines = f"…{lines.partition(chr(10))[2] or lines}"
    return GateResult(False, f"The command of its gate {how}{f': {lines}' if lines else '.'}")


def _terminate_group(process: subprocess.Popen[bytes]) -> None:
    """End the command and its children.

    If this process is killed first, `kill_flow_helpers` of a later process ends the command.
    """
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_TERMINATE_GRACE_SECONDS)
