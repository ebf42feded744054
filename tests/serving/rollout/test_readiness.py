"""One look at a server, and its last words. Servers here give answers that vLLM 0.32 gives."""

from __future__ import annotations

import io
import json
import threading
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from prefect_bt.serving.rollout.readiness import (
    explain_log_tail,
    find_readiness_problem,
    render_silence,
)

CHAT, PLAIN, HEARD = "/v1/chat/completions", "/v1/completions", "/v1/audio/transcriptions"
ANSWERS: dict[str, dict[str, Any]] = {
    CHAT: {"choices": [{"message": {"role": "assistant", "content": ""}}]},
    PLAIN: {"choices": [{"text": " there"}]},
    HEARD: {"text": ""},
}


@contextmanager
def serving(names: list[str], faults: dict[str, tuple[int, Any]], key: str = "") -> Iterator[str]:
    """Answers as a server of OpenAI's form; `faults`: path -> status and body instead."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(200, {"object": "list", "data": [{"id": name} for name in names]})

        def do_POST(self) -> None:
            asked = self.rfile.read(int(self.headers["Content-Length"]))
            assert b"model" in asked
            self.reply(*faults.get(self.path, (200, ANSWERS[self.path])))

        def reply(self, status: int, body: Any) -> None:
            if key and self.headers.get("Authorization") != f"Bearer {key}":
                status, body = 401, {"error": "Unauthorized"}
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def error(message: str, status: int = 400) -> tuple[int, Any]:
    return status, {"error": {"message": message, "type": "BadRequestError", "code": status}}


NO_TEMPLATE = error("As of transformers v4.44, default chat template is no longer allowed.")
NO_CHAT = error("The model does not support Chat Completions API")
NO_ROUTE = (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    "faults",
    [
        {},
        {CHAT: NO_TEMPLATE},
        {CHAT: (500, "Internal Server Error")},
        {CHAT: NO_CHAT, PLAIN: error("The model does not support Completions API")},
        {CHAT: NO_ROUTE, PLAIN: NO_ROUTE},
    ],
    ids=["chat", "no template", "transformers without one", "whisper", "no route"],
)
def test_ready_is_one_completion_of_any_kind_for_each(faults) -> None:
    with serving(["a", "b"], faults) as address:
        assert find_readiness_problem(address, ["a", "b"]) is None
        assert find_readiness_problem(f"{address}/v1/", ["b"]) is None


def test_every_name_must_be_listed() -> None:
    with serving(["a", "base"], {}) as address:
        missing = find_readiness_problem(address, ["a", "b", "c"])
    assert missing == "It does not list b, c; it lists a, base."


@pytest.mark.parametrize(
    ("faults", "sentence"),
    [
        (dict.fromkeys(ANSWERS, (500, "Internal Server Error")), "500 Internal Server Error."),
        ({path: error("Engine is dead.", 503) for path in ANSWERS}, "503 Engine is dead."),
        (
            {CHAT: (500, "x"), PLAIN: error("LoRA rank 64 is greater than max_lora_rank 16."),
             HEARD: NO_ROUTE},
            "400 LoRA rank 64 is greater than max_lora_rank 16.",
        ),
        ({CHAT: error("The model `a` does not exist.", 404)}, "404 The model `a` does not exist."),
    ],
)  # fmt: skip
def test_a_refused_completion_is_told_in_the_servers_words(faults, sentence: str) -> None:
    with serving(["a"], faults) as address:
        assert find_readiness_problem(address, ["a"]) == f"a does not answer: {sentence}"


def test_an_answer_without_a_completion_is_none() -> None:
    with serving(["a"], {CHAT: (200, {"choices": []})}) as address:
        assert find_readiness_problem(address, ["a"]) == "a does not answer with a completion."


def test_the_key_is_shown_and_asked_for() -> None:
    with serving(["a"], {}, key="k") as address:
        assert find_readiness_problem(address, ["a"], key="k") is None
        assert (
            find_readiness_problem(address, ["a"])
            == "It does not list its models: 401 Unauthorized."
        )


def test_nobody_there_is_not_ready_yet() -> None:
    with serving([], {}) as address:
        pass
    assert (find_readiness_problem(address, ["a"]) or "").startswith(
        f"Nothing answers at {address}/v1 yet ("
    )


def test_silence_is_a_second_of_sound() -> None:
    with wave.open(io.BytesIO(render_silence())) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getnchannels()) == (16000, 16000, 1)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 23.57 GiB of which 1.1 GiB is free.",
            "The GPU's memory is too small",
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine.",
            "The weights leave no memory for requests",
        ),
        (
            "ValueError: Free memory on device cuda:0 (7.34/15.49 GiB) on startup is less than "
            "desired GPU memory utilization (0.8, 12.39 GiB).",
            "Another process uses the GPU's memory (7.34/15.49 GiB are free)",
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (32768), "
            "(8.00 GiB KV cache is needed, which is larger than the available KV cache memory",
            "The weights leave no memory for one request of 32768 tokens",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 17179869184 bytes.",
            "This machine's memory is too small",
        ),
        (
            "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
            "An adapter has rank 64, and the server was started for 16 at most",
        ),
        (
            "ValueError: vLLM only supports modules_to_save being None. vLLM does not yet support "
            "DoRA.",
            "vLLM does not load an adapter with modules_to_save: merge it",
        ),
        (
            "ValueError: Head size 40 is not supported by MLACommon. Supported head sizes are: "
            "[576].",
            "The server does not support attention heads of 40",
        ),
        (
            "RuntimeError: Unsupported head size: 32",
            "The server does not support attention heads of 32",
        ),
        (
            "RuntimeError: Unsupported CPU attention configuration: head_dim=512 isa=1",
            "The server does not support attention heads of 512",
        ),
        (
            "Value error, World size (2) is larger than the number of available GPUs (1) in this "
            "node.",
            "It needs 2 GPUs, and there are 1",
        ),
        (
            "ValueError: Total number of attention heads (9) must be divisible by tensor parallel "
            "size (2).",
            "Its 9 attention heads cannot be spread over 2 GPUs",
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least "
            "8.0. Your Tesla T4 GPU has compute capability 7.5.",
            "This GPU has no bfloat16",
        ),
        ("RuntimeError: Failed to infer device type", "There is no GPU for it"),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): "
            "address already in use",
            "Its port 8000 is in use: stop",
        ),
        (
            "Port 8000 of 127.0.0.1 cannot be used: Address already in use.",
            "Its port 8000 is in use: stop",
        ),
        (
            "OSError: Can't load tokenizer for '/c'. If you were trying to load it from "
            "'https://huggingface.co/models', make sure",
            "It has no tokenizer that can be loaded",
        ),
        ("c: there is no tokenizer in /c or /b.", "It has no tokenizer that can be loaded"),
        ("c is an adapter, and no base model is given.", "Its base model is missing"),
        (
            "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch "
            "for model.embed_tokens.weight: copying a param with shape",
            "The weights do not fit the model",
        ),
        (
            "ValueError: Target modules {'q'} not found in the base model. Please check",
            "The weights do not fit the model",
        ),
        ("ValueError: Loading lora c failed: No adapter found for /c", "There is no adapter in /c"),
        (
            "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: "
            "incomplete metadata, file not fully covered",
            "A weights file is damaged",
        ),
        (
            "ValueError: Model architectures ['FooForCausalLM'] are not supported for now.",
            "The server does not know the architecture ['FooForCausalLM']: use",
        ),
        (
            "ValueError: The checkpoint you are trying to load has model type `foo` but "
            "Transformers does not recognize this architecture.",
            "This transformers does not know the model's architecture: install",
        ),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and "
            "couldn't find them in the cached files.",
            "It asks the Hub for files that are not mounted",
        ),
        ("sh: 1: vllm: not found", "A package that the server needs is not installed (vllm)"),
        ("ModuleNotFoundError: No module named 'peft'", "not installed (peft): install it"),
        (
            "(APIServer pid=7) ModuleNotFoundError: No module named 'soundfile'",
            "not installed (soundfile): install it",
        ),
        (
            "a cannot be served: No module named 'transformers.cli'",
            "not installed (transformers.cli): install it",
        ),
        (
            "The job's Python (/usr/bin/python) has no peft, openai: pip install "
            "'transformers[serving]' peft openai",
            "A package that the server needs is not installed (peft, openai): install it",
        ),
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("NotFoundError: The model `foo` does not exist.", "It does not know the model foo."),
    ],
)
def test_last_words_are_explained(said: str, sentence: str) -> None:
    log = ["INFO:     Started server process [1]", *said.splitlines(), "exit status 1"]
    assert sentence in explain_log_tail(log)
    assert sentence in explain_log_tail("\n".join(log))


def test_the_cause_counts_and_not_what_follows_from_it() -> None:
    log = [
        "ValueError: LoRA rank 64 is greater than max_lora_rank 16.",
        "RuntimeError: Engine core initialization failed. CUDA out of memory",
    ]
    assert "rank 64" in explain_log_tail(log)


def test_what_nobody_knows_is_not_explained() -> None:
    assert explain_log_tail([]) == ""
    assert (
        explain_log_tail(["INFO:     Uvicorn running on http://0.0.0.0:8000", "KeyError: 'x'"])
        == ""
    )


@pytest.mark.parametrize(
    "said",
    [
        "WARNING Failed to import from vllm._C: ModuleNotFoundError(\"No module named 'vllm._C'\")",
        "ValueError: Cannot use chat template functions because tokenizer.chat_template is not set",
    ],
)
def test_what_a_server_survives_explains_nothing(said: str) -> None:
    assert explain_log_tail([said, "KeyError: 'x'"]) == ""
