"""Whether a server answers under every chosen name, and what its last words mean.

Ready is a server that lists each name and gives one real completion for each: a chat, or a plain
completion where the model has no chat template, or the transcription of a silent second.
"""

from __future__ import annotations

import io
import re
import wave
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import httpx

from prefect_bt.serving.curl_example import CHAT, COMPLETION, TRANSCRIPTION

PROBE_MAX_TOKENS: Final = 4
"""Asked of each model: enough to run it, few enough to be quick on a CPU."""
_MAX_MESSAGE_LENGTH: Final = 300
"""Characters of what a server said, in a sentence."""


class _NotReady(Exception):
    """Why it is not ready, as a sentence."""


def find_readiness_problem(
    address: str, names: Sequence[str], *, key: str = "", timeout: float = 60.0
) -> str | None:
    """One look: None when it is ready, else what is missing, as a sentence.

    `address`: of the server, with or without its `/v1`; `timeout`: for any one answer.
    """
    with open_client(key, timeout) as client:
        try:
            server = _ServerProbe(client, f"{address.rstrip('/').removesuffix('/v1')}/v1", timeout)
            server.check_models_listed(names)
            for name in names:
                server.check_completion(name)
        except _NotReady as reason:
            return str(reason)
    return None


def detect_endpoint(address: str, name: str, *, key: str = "", timeout: float = 60.0) -> str:
    """How a ready server is asked for `name`: CHAT, COMPLETION or TRANSCRIPTION; CHAT if unsure."""
    with open_client(key, timeout) as client:
        try:
            return _ServerProbe(client, f"{address.rstrip('/')}/v1", timeout).check_completion(name)
        except _NotReady:
            return CHAT


def open_client(key: str, seconds: float) -> httpx.Client:
    """For a server of ours, which no proxy of the environment leads to.

    A connection a request: transformers' server closes one after an error without saying so.
    """
    headers = {"Connection": "close"} | ({"Authorization": f"Bearer {key}"} if key else {})
    return httpx.Client(headers=headers, timeout=seconds, trust_env=False)


class _ServerProbe:
    """`address` ends with `/v1`."""

    def __init__(self, client: httpx.Client, address: str, seconds: float) -> None:
        self._client, self._address, self._seconds = client, address, seconds

    def check_models_listed(self, names: Sequence[str]) -> None:
        try:
            found = self._request("The list of its models", lambda: self._get("/models"))
        except _RequestRejected as refused:
            raise _NotReady(f"It does not list its models: {refused}.") from None
        listed = [str(model.get("id")) for model in _objects(found.get("data"))]
        if missing := [name for name in names if name not in listed]:
            others = ", ".join(listed) or "nothing"
            raise _NotReady(f"It does not list {', '.join(missing)}; it lists {others}.")

    def check_completion(self, name: str) -> str:
        """Which way. The reason given is the first that says more than its status."""
        refusals: list[_RequestRejected] = []
        ways = {CHAT: self._chat, COMPLETION: self._completion, TRANSCRIPTION: self._transcription}
        for way, ask in ways.items():
            try:
                completed = ask(name)
            except _RequestRejected as refused:
                refusals.append(refused)
                if refused.is_final:
                    break
            else:
                if not completed:
                    raise _NotReady(f"{name} does not answer with a completion.")
                return way
        told = next((refused for refused in refusals if refused.has_message), refusals[0])
        raise _NotReady(f"{name} does not answer: {told}.")

    def _chat(self, name: str) -> bool:
        body = {"model": name, "messages": [{"role": "user", "content": "Hello"}]}
        found = self._generate(name, "/chat/completions", body)
        return any("message" in choice for choice in _objects(found.get("choices")))

    def _completion(self, name: str) -> bool:
        found = self._generate(name, "/completions", {"model": name, "prompt": "Hello"})
        return any("text" in choice for choice in _objects(found.get("choices")))

    def _transcription(self, name: str) -> bool:
        files = {"file": ("silence.wav", render_silence(), "audio/wav")}
        address = f"{self._address}/audio/transcriptions"
        call = lambda: self._client.post(address, data={"model": name}, files=files)  # noqa: E731
        return "text" in self._request(name, call)

    def _generate(self, name: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        body = {**body, "max_tokens": PROBE_MAX_TOKENS, "temperature": 0}
        return self._request(name, lambda: self._client.post(f"{self._address}{path}", json=body))

    def _get(self, path: str) -> httpx.Response:
        return self._client.get(f"{self._address}{path}")

    def _request(self, body: str, call: Callable[[], httpx.Response]) -> dict[str, Any]:
        """The answer's object. _NotYet while nobody answers, _Refused for an error status."""
        try:
            answer = call()
        except httpx.TimeoutException:
            raise _NotReady(f"{body}: no answer in {self._seconds:g} s.") from None
        except httpx.HTTPError as error:
            raise _NotReady(f"Nothing answers at {self._address} yet ({error}).") from None
        if answer.is_success:
            return _object(answer)
        raise _RequestRejected(answer)


class _RequestRejected(Exception):
    """`has_message`: it says more than the status; `is_final`: no other request can do better."""

    def __init__(self, answer: httpx.Response) -> None:
        told = error_message(answer)
        self.has_message = bool(told)
        self.is_final = answer.status_code in {401, 403} or is_unknown_model(told)
        super().__init__(f"{answer.status_code} {told or answer.reason_phrase}")


def error_message(answer: httpx.Response) -> str:
    """The server's own words in an error, of vLLM's, transformers' and FastAPI's form."""
    found = _object(answer)
    error = found.get("error", found)
    if isinstance(error, dict):
        error = cast("dict[str, Any]", error)
        error = error.get("message") or error.get("detail") or ""
    words = " ".join(str(error).split()).rstrip(".")
    return words if len(words) <= _MAX_MESSAGE_LENGTH else f"{words[:_MAX_MESSAGE_LENGTH]}…"


def is_unknown_model(message: str) -> bool:
    return re.search(r"[Mm]odel .* does not exist", message) is not None


def render_silence(seconds: float = 1.0, rate: int = 16000) -> bytes:
    """A WAV file, mono, 16 bits a sample."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(bytes(2 * int(seconds * rate)))
    return file.getvalue()


def _object(answer: httpx.Response) -> dict[str, Any]:
    """Empty where the body is none, as that of a plain 500."""
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


# -- last words -----------------------------------------------------------------------------

# What vLLM (up to 0.32), transformers (5) and engines/transformers_server.py write -> what it
# means and what to do.
# The first that fits anywhere counts: special ones stand before general ones, because one fault
# makes others. {1}, {2} are groups of the pattern. What a server survives has no place here, such
# as a chat with a model that has no template for it.
_LOG_PATTERNS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"LoRA rank (\d+) is greater than max_lora_rank (\d+)",
        "An adapter has rank {1}, and the server was started for {2} at most: state its rank in "
        "lora_details, or --max-lora-rank.",
    ),
    (
        r"vLLM (?:only supports (modules_to_save) being None|does not yet support (DoRA))",
        "vLLM does not load an adapter with {1}{2}: merge it into its base model, or use the "
        "engine transformers.",
    ),
    (
        r"(?:[Hh]ead[ _]size:? \(?(\d+)\)? is not supported|Unsupported head size:? (\d+)"
        r"|head_size:? \(?(\d+)\)?,? not supported|attention configuration: head_dim=(\d+))",
        "The server does not support attention heads of {1}{2}{3}{4}: use the engine transformers.",
    ),
    (
        r"To serve at least one request with the models's max seq len \((\d+)\)",
        "The weights leave no memory for one request of {1} tokens: give it more "
        "memory, or a shorter --max-model-len.",
    ),
    (
        r"No available memory for the cache blocks",
        "The weights leave no memory for requests: give it more or larger GPUs.",
    ),
    (
        r"Free memory on device [^()]*\(([\d.]+/[\d.]+ GiB)\) on startup is less than",
        "Another process uses the GPU's memory ({1} are free): stop it, or use another GPU.",
    ),
    (
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|HIP out of memory",
        "The GPU's memory is too small: take a larger one, more of them, or fewer adapters (the "
        "engine transformers holds the base once for each).",
    ),
    (
        r"DefaultCPUAllocator: can't allocate memory|Cannot allocate memory|\bMemoryError\b"
        r"|bad_alloc|oom-kill|Out of memory: Killed",
        "This machine's memory is too small: ask for more, or serve less at once.",
    ),
    (r"No space left on device", "The disk is full: free space on it, and deploy again."),
    (
        r"[Ww]orld size \((\d+)\) is larger than the number of available GPUs \((\d+)\)",
        "It needs {1} GPUs, and there are {2}: change the accelerator's count.",
    ),
    (
        r"attention heads \((\d+)\) must be divisible by tensor parallel size \((\d+)\)",
        "Its {1} attention heads cannot be spread over {2} GPUs: take a count that divides them.",
    ),
    (
        r"Bfloat16 is only supported on GPUs with compute capability",
        "This GPU has no bfloat16: state the accelerator in compute, or use a newer GPU.",
    ),
    (
        r"Failed to infer device type|Found no NVIDIA driver|No CUDA GPUs are available"
        r"|Torch not compiled with CUDA enabled|libcuda\.so\.\d+: cannot open",
        "There is no GPU for it: ask for an accelerator, or use the engine "
        "transformers on the CPU.",
    ),
    (
        r"[Pp]ort (\d+) (?:of \S+ cannot be used|is already in use)"
        r"|bind on address \(\S+ (\d+)\): address already in use|[Aa]ddress already in use",
        "Its port {1}{2} is in use: stop the program that listens there, and deploy again.",
    ),
    (
        r"there is no tokenizer in|Can't load tokenizer for|instantiate the backend tokenizer"
        r"|No tokenizer file found in|Unable to load vocabulary from file",
        "It has no tokenizer that can be loaded: save it beside the checkpoint, or name the base "
        "model (base_model_id), whose tokenizer is then used.",
    ),
    (
        r"no base model is given|base model's folder (\S+) is not there",
        "Its base model is missing: name it (base_model_id).",
    ),
    (
        r"(?:Error\(s\) in loading state_dict|size mismatch for|ignore_mismatched_sizes"
        r"|Target modules .* not found in the base model|expected target modules in"
        r"|unsupported LoRA weight)",
        "The weights do not fit the model: the base model is another one than it was trained on, "
        "or has another vocabulary. Name the right one (base_model_id).",
    ),
    (
        r"No adapter found for (\S+)|Can't find 'adapter_config\.json' at '([^']*)'",
        "There is no adapter in {1}{2}: serve the checkpoint as a full model.",
    ),
    (
        r"SafetensorError|deserializing header|MetadataIncompleteBuffer|InvalidHeader",
        "A weights file is damaged: run `prefect-bt checkpoints verify` for its job.",
    ),
    (
        r"Model architectures (\[[^\]]*\]) (?:are not supported|failed to be inspected)",
        "The server does not know the architecture {1}: use the engine transformers.",
    ),
    (
        r"Transformers does not recognize this architecture|Unrecognized model in"
        r"|module 'transformers' has no attribute '?(\w*)",
        "This transformers does not know the model's architecture {1}: install a newer one.",
    ),
    (
        r"GatedRepoError|gated repo|401 Client Error|RepositoryNotFoundError",
        "The Hub refuses access to the base model: give a token (HF_TOKEN) that may read it.",
    ),
    (
        r"We couldn't connect to '|LocalEntryNotFoundError|OfflineModeIsEnabled"
        r"|is not a valid model identifier",
        "It asks the Hub for files that are not mounted: name the base model (base_model_id).",
    ),
    (
        r"has no ([\w, -]+): pip install|(vllm): (?:command )?not found"
        # Servers also tell of modules that they do well without.
        r"|(?m:^|\) |cannot be served: )(?:ModuleNotFoundError: )?No module named '?([\w.]+)"
        r"|Missing dependencies for serving",
        "A package that the server needs is not installed ({1}{2}{3}): install it, or name "
        "an image with it.",
    ),
    (
        r"The model [`'](.+?)[`'] does not exist",
        "It does not know the model {1}.",
    ),
)


def explain_log_tail(log_tail: Sequence[str] | str) -> str:
    """What the end of a server's log means, in a sentence; "" where nobody knows."""
    text = log_tail if isinstance(log_tail, str) else "\n".join(log_tail)
    for pattern, sentence in _LOG_PATTERNS:
        if found := re.search(pattern, text):
            told = sentence.format(None, *(group or "" for group in found.groups()))
            return re.sub(r"\s*\(\)|\s+(?=[:.,])", "", told)
    return ""
