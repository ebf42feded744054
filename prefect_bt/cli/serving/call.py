"""`prefect-bt deployments call`: one question to a deployment, and its answer as it comes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from cyclopts import Parameter
from cyclopts.validators import Number

from prefect_bt.cli.serving.deployments import DeploymentName
from prefect_bt.cli.ui.options import InjectedTerminal, Output
from prefect_bt.cli.ui.terminal import OK, write_stdout
from prefect_bt.errors import ServingError
from prefect_bt.text.control_characters import escape_controls

if TYPE_CHECKING:
    import httpx

    from prefect_bt.ledger.ledger import Ledger

JsonBody = dict[str, Any]

_READ_TIMEOUT: Final = 600.0
"""Without a byte for so long, it is over: a large model on CPUs takes its time."""
_SSE_DATA_PREFIX: Final = "data:"
_SSE_DONE: Final = "[DONE]"
_MIN_ERROR_STATUS: Final = 400


@dataclass(frozen=True)
class CompletionRequest:
    """`max_tokens`: at most so many are answered; None for the server's own limit."""

    model: str
    prompt: str
    max_tokens: int | None

    def chat_body(self) -> JsonBody:
        return self._body(messages=[{"role": "user", "content": self.prompt}])

    def completion_body(self) -> JsonBody:
        return self._body(prompt=self.prompt)

    def _body(self, **asked: Any) -> JsonBody:
        limit = {"max_tokens": self.max_tokens} if self.max_tokens else {}
        return {"model": self.model, **asked, **limit}


def _reject_mistyped_option(_: object, prompt: str | None) -> None:
    """A word that begins with a hyphen may be said, so a mistyped option is looked for here."""
    if prompt and prompt.startswith("--"):
        raise ValueError("there is no such option; give `-`, and what to say on standard input")


def call_deployment(
    name: DeploymentName,
    prompt: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            validator=_reject_mistyped_option,
            help="What to say to it; `-` reads standard input.",
        ),
    ] = None,
    /,
    *,
    model: Annotated[
        str | None, Parameter(help="Which of its models; the first when left out.")
    ] = None,
    max_tokens: Annotated[
        int | None, Parameter(validator=Number(gte=1), help="How long the answer may be.")
    ] = None,
    api_key_secret: Annotated[
        str | None,
        Parameter(help="Secret that holds the API key; else OPENAI_API_KEY, or what it has."),
    ] = None,
    output: Output = "cli-table",
    terminal: InjectedTerminal,
) -> int:
    """Ask a deployment something, as a chat; as plain text where the model knows no chat.

    `prefect-bt deployments call stories "Once upon a time" --max-tokens 40`
    """
    import httpx

    from prefect_bt.ledger.opening import open_ledger
    from prefect_bt.serving.curl_example import EXAMPLE_PROMPT

    ledger = open_ledger()
    address, models = _resolve_endpoint(ledger, name)
    if prompt is None:
        terminal.info(f"> {EXAMPLE_PROMPT}", style="dim")
    said = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt or EXAMPLE_PROMPT
    question = CompletionRequest(model or models[0], said, max_tokens)
    key = _resolve_api_key(ledger, name, api_key_secret)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # The way to a server of ours never leads over a proxy of the environment.
    with httpx.Client(headers=headers, timeout=_READ_TIMEOUT, trust_env=False) as client:
        asking = _CompletionClient(client, f"{address}/v1", name)
        if terminal.machine_readable:
            terminal.print_json(asking.complete(question))
        else:
            _show(asking.stream(question))
    return OK


def _show(pieces: Iterator[str]) -> None:
    """As they come; what breaks off ends its line too."""
    begun = False
    try:
        for piece in pieces:
            begun = True
            write_stdout(escape_controls(piece), flush=True)
    finally:
        if begun:
            write_stdout("\n")


def _resolve_endpoint(ledger: Ledger, name: str) -> tuple[str, tuple[str, ...]]:
    """Address and models. NotFoundError; ServingError for what does not serve."""
    from prefect_bt.serving.curl_example import TRANSCRIPTION, format_curl
    from prefect_bt.serving.deployment_records import DeploymentLedger
    from prefect_bt.serving.router.deployment_folder import RouterFolder
    from prefect_bt.settings import Settings

    deployments = DeploymentLedger(ledger)
    deployments.get_deployment(name)
    place = RouterFolder.for_deployment(Settings().state_dir, name)
    listen, route = place.read_listen_address(), place.read_route()
    if listen is None or route is None or not route.models:
        raise _unreachable_error(name, "no revision of it serves on this machine")
    if deployments.get_revision(name, route.revision).kind == "whisper":
        key = place.key_file.exists()
        raise ServingError(
            f"{name} serves a Whisper model, which is asked with a sound file.",
            next_step=format_curl(
                listen.address, route.models[0], has_key=key, endpoint=TRANSCRIPTION
            ),
            deployment=name,
        )
    return listen.address, route.models


def _resolve_api_key(ledger: Ledger, name: str, secret: str | None) -> str:
    """The API key; empty where none is asked for. SecretError."""
    from prefect_bt.credentials.secrets import EnvironmentSecrets, resolve_secrets
    from prefect_bt.jobs.start import default_secret_sources
    from prefect_bt.serving.deployment_records import DeploymentLedger
    from prefect_bt.serving.router.deployment_folder import RouterFolder
    from prefect_bt.settings import Settings

    if not secret:
        if not RouterFolder.for_deployment(Settings().state_dir, name).key_file.exists():
            return ""  # a key meant for somebody else is not shown around
        if given := os.environ.get("OPENAI_API_KEY"):
            return given
        secret = DeploymentLedger(ledger).get_key_secret(name)
    if not secret:
        return ""
    # Prefect's blocks are asked last: without a server, one would be started for it.
    sources = (EnvironmentSecrets(), *default_secret_sources())
    return resolve_secrets([secret], sources)[secret]


@dataclass(frozen=True)
class _CompletionClient:
    """`address` ends with `/v1`. ServingError says why there is no answer."""

    client: httpx.Client
    address: str
    name: str

    def complete(self, question: CompletionRequest) -> JsonBody:
        """The answer's document."""
        with self._open_response(question, {}) as answer:
            return json.loads(answer.read())

    def stream(self, question: CompletionRequest) -> Iterator[str]:
        with self._open_response(question, {"stream": True}) as answer:
            for event in _iter_events(answer):
                if error := event.get("error"):
                    raise self._rejection_error(_error_message(error))
                yield from _iter_deltas(event)

    @contextmanager
    def _open_response(
        self, question: CompletionRequest, how: JsonBody
    ) -> Generator[httpx.Response]:
        """A chat; a plain completion where that is refused, and the chat's reason if both are."""
        import httpx

        try:
            with self._post("/chat/completions", {**question.chat_body(), **how}) as answer:
                if answer.status_code < _MIN_ERROR_STATUS:
                    yield answer
                    return
                refused = _Rejection.from_response(answer)
            if refused.is_final:
                raise self._rejection_error(refused.description)
            with self._post("/completions", {**question.completion_body(), **how}) as answer:
                if answer.status_code >= _MIN_ERROR_STATUS:
                    told = refused if refused.message else _Rejection.from_response(answer)
                    raise self._rejection_error(told.description)
                yield answer
        except httpx.TimeoutException:
            raise _unreachable_error(self.name, f"nothing came for {_READ_TIMEOUT:.0f} s") from None
        except (httpx.HTTPError, ValueError) as error:
            raise _unreachable_error(self.name, str(error)) from error

    def _post(self, path: str, body: JsonBody) -> Any:
        return self.client.stream("POST", f"{self.address}{path}", json=body)

    def _rejection_error(self, message: str) -> ServingError:
        return ServingError(
            f"{self.name} refuses: {message.rstrip('.')}.",
            next_step=f"See: prefect-bt deployments logs {self.name}",
            deployment=self.name,
        )


@dataclass(frozen=True)
class _Rejection:
    """`is_final`: another way of asking does no better. `message`: the server's own."""

    status: int
    reason: str
    message: str
    is_final: bool

    @classmethod
    def from_response(cls, answer: httpx.Response) -> _Rejection:
        from prefect_bt.serving.rollout.readiness import error_message, is_unknown_model

        answer.read()
        words, status = error_message(answer), answer.status_code
        final = status in {401, 403, 502, 503} or is_unknown_model(words)
        return cls(status, answer.reason_phrase, words, final)

    @property
    def description(self) -> str:
        return self.message or f"{self.status} {self.reason}"


def _iter_events(answer: httpx.Response) -> Iterator[JsonBody]:
    """The documents of a stream of server-sent events."""
    for line in _iter_lines(answer):
        data = line.removeprefix(_SSE_DATA_PREFIX).strip()
        if line.startswith(_SSE_DATA_PREFIX) and data and data != _SSE_DONE:
            event: Any = json.loads(data)
            if isinstance(event, dict):
                yield cast("JsonBody", event)


def _iter_lines(answer: httpx.Response) -> Iterator[str]:
    """At line feeds only: httpx parts lines at what may stand inside a JSON text, too."""
    rest = ""
    for text in answer.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    yield rest


def _iter_deltas(event: JsonBody) -> Iterator[str]:
    """Of the first choice: a chat's piece, or a completion's."""
    choices = cast("list[JsonBody]", event.get("choices") or [])
    for choice in choices[:1]:
        delta = cast("JsonBody", choice.get("delta") or {})
        if piece := delta.get("content") or choice.get("text"):
            yield str(piece)


def _error_message(error: Any) -> str:
    if isinstance(error, dict):
        found = cast("JsonBody", error)
        return str(found.get("message") or found)
    return str(error)


def _unreachable_error(name: str, why: str) -> ServingError:
    return ServingError(
        f"{name} does not answer: {why}.",
        next_step=f"See: prefect-bt deployments view {name}",
        deployment=name,
    )
