"""Check whether a server answers under every name, and explain the end of its log.

A server is ready when each model gives one real completion: a chat, a plain completion if the model
has no chat template, or the transcription of a second of silence.
"""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Sequence
from typing import Any, Final, cast

import httpx

from prefect_bt.serving.curl_example import CHAT, COMPLETION, TRANSCRIPTION

PROBE_MAX_TOKENS: Final = 4
"""Tokens requested of each model: enough to run it, few enough for a CPU."""
_MAX_MESSAGE_LENGTH: Final = 300
"""Characters of a server's error that a message shows."""


class _NotReady(Exception):
    """The server is not ready; the text is a sentence."""


def check_readiness(
    address: str, names: Sequence[str], *, key: str = "", timeout: float = 60.0
) -> tuple[str, str]:
    """Return why the server is not ready, as a sentence, and the endpoint of the first name.

    The sentence is "" when every name answers. `address` is the server's, with or without `/v1`;
    `timeout` limits each answer, in seconds.
    """
    with open_client(key, timeout) as client:
        try:
            endpoints = [_find_endpoint(client, address, name) for name in names]
        except _NotReady as reason:
            return str(reason), CHAT
    return "", endpoints[0]


def open_client(key: str, seconds: float) -> httpx.Client:
    """Return a client for a server of this machine, without the proxies of the environment.

    Every request has its own connection, because transformers' server closes one after an error
    without an announcement.
    """
    headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return httpx.Client(headers=headers, timeout=seconds, trust_env=False)


def _find_endpoint(client: httpx.Client, address: str, name: str) -> str:
    """Return the first endpoint that gives a completion for `name`.

    Raise _NotReady, with the first rejection that says more than its status.
    """
    base = f"{address.rstrip('/').removesuffix('/v1')}/v1"
    rejections: list[_RequestRejected] = []
    for endpoint in (CHAT, COMPLETION, TRANSCRIPTION):
        try:
            completed = _request_completion(client, base, name, endpoint)
        except _RequestRejected as rejection:
            rejections.append(rejection)
            if rejection.is_final:
                break
        except httpx.TimeoutException:
            raise _NotReady(f"{name}: no answer in {client.timeout.read:g} s.") from None
        except httpx.HTTPError as error:
            raise _NotReady(f"Nothing answers at {base} yet ({error}).") from None
        else:
            if not completed:
                raise _NotReady(f"{name} does not answer with a completion.")
            return endpoint
    shown = next((one for one in rejections if one.has_message), rejections[0])
    raise _NotReady(f"{name} does not answer: {shown}.")


def _request_completion(client: httpx.Client, base: str, name: str, endpoint: str) -> bool:
    """Return whether the answer is a completion. Raise as `_post`."""
    limits = {"model": name, "max_tokens": PROBE_MAX_TOKENS, "temperature": 0}
    if endpoint == CHAT:
        messages = [{"role": "user", "content": "Hello"}]
        found = _post(client, f"{base}/chat/completions", json={**limits, "messages": messages})
        return any("message" in choice for choice in _objects(found.get("choices")))
    if endpoint == COMPLETION:
        found = _post(client, f"{base}/completions", json={**limits, "prompt": "Hello"})
        return any("text" in choice for choice in _objects(found.get("choices")))
    files = {"file": ("silence.wav", render_silence(), "audio/wav")}
    url = f"{base}/audio/transcriptions"
    return "text" in _post(client, url, data={"model": name}, files=files)


def _post(client: httpx.Client, url: str, **content: Any) -> dict[str, Any]:
    """Return the JSON object of the answer. Raise _RequestRejected, or an error of httpx."""
    answer = client.post(url, **content)
    if not answer.is_success:
        raise _RequestRejected(answer)
    return _object(answer)


class _RequestRejected(Exception):
    """Answer with an error status. `has_message`: with a text; `is_final`: other endpoints fail."""

    def __init__(self, answer: httpx.Response) -> None:
        message = error_message(answer)
        self.has_message = bool(message)
        unknown_model = re.search(r"[Mm]odel .* does not exist", message)
        self.is_final = answer.status_code in {401, 403} or unknown_model is not None
        super().__init__(f"{answer.status_code} {message or answer.reason_phrase}")


def error_message(answer: httpx.Response) -> str:
    """Return the message of an error in the form of vLLM, transformers or FastAPI."""
    found = _object(answer)
    error = found.get("error", found)
    if isinstance(error, dict):
        error = cast("dict[str, Any]", error)
        error = error.get("message") or error.get("detail") or ""
    words = " ".join(str(error).split()).rstrip(".")
    return words if len(words) <= _MAX_MESSAGE_LENGTH else f"{words[:_MAX_MESSAGE_LENGTH]}…"


def render_silence(seconds: float = 1.0, rate: int = 16000) -> bytes:
    """Return a WAV file of silence, mono, 16 bits per sample."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(2 * int(seconds * rate)))
    return file.getvalue()


def _object(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object of a body; empty if the body is not one, as with a plain 500."""
    try:
        found = answer.json()
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _objects(found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list):
        return []
    return [
        cast("dict[str, Any]", one) for one in cast("list[Any]", found) if isinstance(one, dict)
    ]


# -- explaining a log -----------------------------------------------------------------------

# Errors that vLLM (up to 0.32), transformers (5) and engines/transformers_server.py log, with the
# meaning and the remedy. The first pattern that matches anywhere in the log counts.
_LOG_PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"(?:CUDA|HIP) out of memory|OutOfMemoryError|CUDA error: out of memory"
        r"|No available memory for the cache blocks|To serve at least one request with the models's"
        r"|Free memory on device .* on startup is less than"
        r"|can't allocate memory|Cannot allocate memory|\bMemoryError\b|bad_alloc|oom-kill",
        "The memory is too small: use larger or more GPUs, a machine with more memory, a shorter "
        "--max-model-len or fewer adapters, or stop other programs on the GPU.",
    ),
    (
        r"Failed to infer device type|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|Torch not compiled with CUDA enabled|libcuda\.so\.\d+: cannot open",
        "There is no GPU: ask for an accelerator, or use the engine transformers on the CPU.",
    ),
    (
        r"[Pp]ort (\d+) (?:of \S+ cannot be used|is already in use)"
        r"|bind on address \(\S+ (\d+)\): address already in use|[Aa]ddress already in use",
        "Its port {0} is in use: stop the program that listens on it, and deploy again.",
    ),
    (
        r"SafetensorError|deserializing header|MetadataIncompleteBuffer|InvalidHeader",
        "A weights file is damaged: run `prefect-bt checkpoints verify` for its job.",
    ),
    (
        r"GatedRepoError|gated repo|401 Client Error|RepositoryNotFoundError",
        "The Hub refuses access to the base model: accept its license, and give a token (HF_TOKEN) "
        "that may read it.",
    ),
    (
        r"has no ([\w, -]+): pip install|(vllm): (?:command )?not found"
        # A server also logs optional modules that are missing.
        r"|(?m:^|\) |cannot be loaded: )(?:ModuleNotFoundError: )?No module named '?([\w.]+)"
        r"|Missing dependencies for serving",
        "A package that the server needs is not installed ({0}): install it, or use an image that "
        "has it.",
    ),
)


def explain_log_tail(log_tail: Sequence[str] | str) -> str:
    """Return the cause and remedy that the end of a server's log shows; "" for an unknown cause."""
    text = log_tail if isinstance(log_tail, str) else "\n".join(log_tail)
    for pattern, sentence in _LOG_PATTERNS:
        if found := re.search(pattern, text):
            explained = sentence.format("".join(filter(None, found.groups())))
            return " ".join(explained.replace(" ()", "").split())
    return ""
