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

from prefect_bt.serving.rollout.readiness import check_readiness, explain_log_tail, render_silence

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
        assert check_readiness(address, ["a", "b"])[0] == ""
        assert check_readiness(f"{address}/v1/", ["b"])[0] == ""


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
def test_a_refused_completion_has_the_servers_message(faults, sentence: str) -> None:
    with serving(["a"], faults) as address:
        assert check_readiness(address, ["a"])[0] == f"a does not answer: {sentence}"


def test_an_answer_without_a_completion_is_none() -> None:
    with serving(["a"], {CHAT: (200, {"choices": []})}) as address:
        assert check_readiness(address, ["a"])[0] == "a does not answer with a completion."


def test_the_key_is_shown_and_asked_for() -> None:
    with serving(["a"], {}, key="k") as address:
        assert check_readiness(address, ["a"], key="k")[0] == ""
        assert check_readiness(address, ["a"])[0] == "a does not answer: 401 Unauthorized."


def test_nobody_there_is_not_ready_yet() -> None:
    with serving([], {}) as address:
        pass
    problem, _ = check_readiness(address, ["a"])
    assert problem.startswith(f"Nothing answers at {address}/v1 yet (")


def test_silence_is_a_second_of_sound() -> None:
    with wave.open(io.BytesIO(render_silence())) as sound:
        assert (sound.getframerate(), sound.getnframes(), sound.getnchannels()) == (16000, 16000, 1)


MEMORY = "The memory is too small"
GPU = "There is no GPU"
PORT = "Its port 8000 is in use: stop"
PACKAGE = "A package that the server needs is not installed"


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
            "total capacity of 23.57 GiB of which 1.1 GiB is free.",
            MEMORY,
        ),
        (
            "ValueError: No available memory for the cache blocks. Try increasing "
            "`gpu_memory_utilization` when initializing the engine.",
            MEMORY,
        ),
        (
            "ValueError: Free memory on device cuda:0 (7.34/15.49 GiB) on startup is less than "
            "desired GPU memory utilization (0.8, 12.39 GiB).",
            MEMORY,
        ),
        (
            "ValueError: To serve at least one request with the models's max seq len (32768), "
            "(8.00 GiB KV cache is needed, which is larger than the available KV cache memory",
            MEMORY,
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: "
            "can't allocate memory: you tried to allocate 17179869184 bytes.",
            MEMORY,
        ),
        ("RuntimeError: Failed to infer device type", GPU),
        ("AssertionError: Torch not compiled with CUDA enabled", GPU),
        (
            "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): "
            "address already in use",
            PORT,
        ),
        ("Port 8000 of 127.0.0.1 cannot be used: Address already in use.", PORT),
        ("OSError: [Errno 98] Address already in use", "Its port is in use: stop"),
        (
            "safetensors._safetensors_rust.SafetensorError: Error while deserializing header: "
            "incomplete metadata, file not fully covered",
            "A weights file is damaged: run `prefect-bt checkpoints verify`",
        ),
        (
            "OSError: You are trying to access a gated repo.",
            "The Hub refuses access to the base model: accept its license, and give a token",
        ),
        ("sh: 1: vllm: not found", f"{PACKAGE} (vllm): install it"),
        ("ModuleNotFoundError: No module named 'peft'", f"{PACKAGE} (peft): install it"),
        (
            "(APIServer pid=7) ModuleNotFoundError: No module named 'soundfile'",
            f"{PACKAGE} (soundfile): install it",
        ),
        (
            "a cannot be loaded: No module named 'bitsandbytes'",
            f"{PACKAGE} (bitsandbytes): install it",
        ),
        (
            "The job's Python (/usr/bin/python) has no peft, openai: pip install "
            "'transformers[serving]' peft openai",
            f"{PACKAGE} (peft, openai): install it",
        ),
        ("ImportError: Missing dependencies for serving.", f"{PACKAGE}: install it"),
    ],
)
def test_last_words_are_explained(said: str, sentence: str) -> None:
    log = ["INFO:     Started server process [1]", *said.splitlines(), "exit status 1"]
    assert sentence in explain_log_tail(log)
    assert sentence in explain_log_tail("\n".join(log))


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
