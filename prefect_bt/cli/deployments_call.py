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

from prefect_bt.cli.deployments import Name
from prefect_bt.cli.options import Here, Output
from prefect_bt.cli.terminal import OK, write
from prefect_bt.errors import ServingError
from prefect_bt.visible import visible

if TYPE_CHECKING:
    import httpx

    from prefect_bt.ledger import Ledger

Body = dict[str, Any]

_SECONDS: Final = 600.0
"""Without a byte for so long, it is over: a large model on CPUs takes its time."""
_DATA: Final = "data:"
_DONE: Final = "[DONE]"
_REFUSED: Final = 400


@dataclass(frozen=True)
class Question:
    """`tokens`: at most so many are answered; None for the server's own limit."""

    model: str
    prompt: str
    tokens: int | None

    def chat(self) -> Body:
        return self._body(messages=[{"role": "user", "content": self.prompt}])

    def plain(self) -> Body:
        return self._body(prompt=self.prompt)

    def _body(self, **asked: Any) -> Body:
        limit = {"max_tokens": self.tokens} if self.tokens else {}
        return {"model": self.model, **asked, **limit}


def _is_no_option(_: object, prompt: str | None) -> None:
    """A word that begins with a hyphen may be said, so a mistyped option is looked for here."""
    if prompt and prompt.startswith("--"):
        raise ValueError("there is no such option; give `-`, and what to say on standard input")


def call_deployment(
    name: Name,
    prompt: Annotated[
        str | None,
        Parameter(
            allow_leading_hyphen=True,
            validator=_is_no_option,
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
    terminal: Here,
) -> int:
    """Ask a deployment something, as a chat; as plain text where the model knows no chat.

    `prefect-bt deployments call stories "Once upon a time" --max-tokens 40`
    """
    import httpx

    from prefect_bt.jobs import open_ledger
    from prefect_bt.serving.calling import QUESTION

    ledger, beside = open_ledger(), terminal.beside(output)
    address, models = _where(ledger, name)
    if prompt is None:
        beside.note(f"> {QUESTION}", style="dim")
    said = sys.stdin.read().rstrip("\n") if prompt == "-" else prompt or QUESTION
    question = Question(model or models[0], said, max_tokens)
    key = _key(ledger, name, api_key_secret)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # The way to a server of ours never leads over a proxy of the environment.
    with httpx.Client(headers=headers, timeout=_SECONDS, trust_env=False) as client:
        asking = _Asking(client, f"{address}/v1", name)
        if beside.documents:
            beside.document(asking.whole(question))
        else:
            _show(asking.words(question))
    return OK


def _show(pieces: Iterator[str]) -> None:
    """As they come; what breaks off ends its line too."""
    begun = False
    try:
        for piece in pieces:
            begun = True
            write(visible(piece), flush=True)
    finally:
        if begun:
            write("\n")


def _where(ledger: Ledger, name: str) -> tuple[str, tuple[str, ...]]:
    """Address and models. NotFoundError; ServingError for what does not serve."""
    from prefect_bt.router.place import RouterPlace
    from prefect_bt.serving.calling import TRANSCRIPTION, curl_line
    from prefect_bt.serving.deployments import Deployments
    from prefect_bt.settings import Settings

    deployments = Deployments(ledger)
    deployments.get(name)
    place = RouterPlace.of(Settings().state_dir, name)
    listen, route = place.listen(), place.route()
    if listen is None or route is None or not route.models:
        raise _unreachable(name, "no revision of it serves on this machine")
    if deployments.revision(name, route.revision).kind == "whisper":
        key = place.key_file.exists()
        raise ServingError(
            f"{name} serves a Whisper model, which is asked with a sound file.",
            next_step=curl_line(listen.address, route.models[0], key=key, way=TRANSCRIPTION),
            deployment=name,
        )
    return listen.address, route.models


def _key(ledger: Ledger, name: str, secret: str | None) -> str:
    """The API key; empty where none is asked for. SecretError."""
    from prefect_bt.router.place import RouterPlace
    from prefect_bt.secrets import EnvironmentSecrets, resolve_secrets
    from prefect_bt.serving.deployments import Deployments
    from prefect_bt.settings import Settings
    from prefect_bt.starting import secret_sources

    if not secret:
        if not RouterPlace.of(Settings().state_dir, name).key_file.exists():
            return ""  # a key meant for somebody else is not shown around
        if given := os.environ.get("OPENAI_API_KEY"):
            return given
        secret = Deployments(ledger).key_secret(name)
    if not secret:
        return ""
    # Prefect's blocks are asked last: without a server, one would be started for it.
    sources = (EnvironmentSecrets(), *secret_sources())
    return resolve_secrets([secret], sources)[secret]


@dataclass(frozen=True)
class _Asking:
    """`address` ends with `/v1`. ServingError says why there is no answer."""

    client: httpx.Client
    address: str
    name: str

    def whole(self, question: Question) -> Body:
        """The answer's document."""
        with self._answered(question, {}) as answer:
            return json.loads(answer.read())

    def words(self, question: Question) -> Iterator[str]:
        with self._answered(question, {"stream": True}) as answer:
            for event in _events(answer):
                if error := event.get("error"):
                    raise self._refusal(_sentence(error))
                yield from _words_of(event)

    @contextmanager
    def _answered(self, question: Question, how: Body) -> Generator[httpx.Response]:
        """A chat; a plain completion where that is refused, and the chat's reason if both are."""
        import httpx

        try:
            with self._post("/chat/completions", {**question.chat(), **how}) as answer:
                if answer.status_code < _REFUSED:
                    yield answer
                    return
                refused = _Refused.of(answer)
            if refused.final:
                raise self._refusal(refused.sentence)
            with self._post("/completions", {**question.plain(), **how}) as answer:
                if answer.status_code >= _REFUSED:
                    told = refused if refused.words else _Refused.of(answer)
                    raise self._refusal(told.sentence)
                yield answer
        except httpx.TimeoutException:
            raise _unreachable(self.name, f"nothing came for {_SECONDS:.0f} s") from None
        except (httpx.HTTPError, ValueError) as error:
            raise _unreachable(self.name, str(error)) from error

    def _post(self, path: str, body: Body) -> Any:
        return self.client.stream("POST", f"{self.address}{path}", json=body)

    def _refusal(self, sentence: str) -> ServingError:
        return ServingError(
            f"{self.name} refuses: {sentence.rstrip('.')}.",
            next_step=f"See: prefect-bt deployments logs {self.name}",
            deployment=self.name,
        )


@dataclass(frozen=True)
class _Refused:
    """`final`: another way of asking does no better. `words`: the server's own."""

    status: int
    reason: str
    words: str
    final: bool

    @classmethod
    def of(cls, answer: httpx.Response) -> _Refused:
        from prefect_bt.serving.readiness import is_unknown_model, said

        answer.read()
        words, status = said(answer), answer.status_code
        final = status in {401, 403, 502, 503} or is_unknown_model(words)
        return cls(status, answer.reason_phrase, words, final)

    @property
    def sentence(self) -> str:
        return self.words or f"{self.status} {self.reason}"


def _events(answer: httpx.Response) -> Iterator[Body]:
    """The documents of a stream of server-sent events."""
    for line in _lines(answer):
        data = line.removeprefix(_DATA).strip()
        if line.startswith(_DATA) and data and data != _DONE:
            event: Any = json.loads(data)
            if isinstance(event, dict):
                yield cast("Body", event)


def _lines(answer: httpx.Response) -> Iterator[str]:
    """At line feeds only: httpx parts lines at what may stand inside a JSON text, too."""
    rest = ""
    for text in answer.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
    yield rest


def _words_of(event: Body) -> Iterator[str]:
    """Of the first choice: a chat's piece, or a completion's."""
    choices = cast("list[Body]", event.get("choices") or [])
    for choice in choices[:1]:
        delta = cast("Body", choice.get("delta") or {})
        if piece := delta.get("content") or choice.get("text"):
            yield str(piece)


def _sentence(error: Any) -> str:
    if isinstance(error, dict):
        found = cast("Body", error)
        return str(found.get("message") or found)
    return str(error)


def _unreachable(name: str, why: str) -> ServingError:
    return ServingError(
        f"{name} does not answer: {why}.",
        next_step=f"See: prefect-bt deployments view {name}",
        deployment=name,
    )
