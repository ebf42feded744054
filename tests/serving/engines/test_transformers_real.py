"""The real thing: `transformers serve` over tiny real models, asked with the OpenAI library.

One server answers for all of them in one test, since nine tenths of its time are imports, and tests
of one file can run in several processes. `make soak` starts others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from prefect_bt.serving.engines import transformers_server
from prefect_bt.serving.rollout.acceptance_gate import parse_gate, run_gate
from prefect_bt.serving.rollout.readiness import check_readiness, explain_log_tail, render_silence
from tests.optional import needs
from tests.ports import free_port

pytestmark = [
    needs("torch", "transformers", "peft", "openai", "fastapi", "python_multipart", "soundfile"),
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

ODD = "Modèle: run--1 @v0"
# Name -> folder of tiny.py
FULL = {"base": "base", "merged": "merged", "plain": "plain", ODD: "untokenized"}
ADAPTERS = {"checkpoint-10": "checkpoint-10", "v0/checkpoint-20": "checkpoint-20"}
NAMES = [*FULL, *ADAPTERS, "whisper"]
PROMPT = "Once upon a time "
TOKENS = 24
ENGINE_KEY = "the-key-of-this-server-process"
KEYED = [
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/load_model"),
    ("POST", "/reset"),
    ("GET", "/health"),
    ("GET", "/openapi.json"),
    ("OPTIONS", "/v1/models"),
]
"""Requests that need the key."""
Generated = dict[str, tuple[str, int]]
"""Name of a model -> the text that follows PROMPT, and its number of tokens."""


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    address: str
    models: Path
    log: Path

    @property
    def client(self) -> Any:
        import openai

        return openai.OpenAI(base_url=f"{self.address}/v1", api_key=ENGINE_KEY, max_retries=0)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """PyTorch's threads wait by spinning, which takes a busy machine from the others."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[Path]:
    from tests.serving import tiny

    folder = tmp_path_factory.mktemp("serving") / "models"
    tiny.write(folder)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555)
    yield folder
    for path in (folder, *folder.iterdir()):
        path.chmod(0o755)


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    whole = [document(name, models / folder) for name, folder in FULL.items()]
    adapters = [document(name, models / folder, "lora") for name, folder in ADAPTERS.items()]
    with started(models, [*whole, *adapters, document("whisper", models / "whisper")]) as server:
        until_ready(server, NAMES)
        yield server


@contextmanager
def started(models: Path, served: list[dict[str, str]]) -> Iterator[Server]:
    server = start(models.parent, models, served)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def document(name: str, path: Path, kind: str = "full") -> dict[str, str]:
    return {"name": name, "path": str(path), "kind": kind}


def damage(whole: Path, damaged: Path) -> None:
    damaged.mkdir()
    for file in whole.iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    (damaged / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")


def start(root: Path, models: Path, served: list[dict[str, str]]) -> Server:
    port = free_port()
    file, log = root / f"served-{port}.json", root / f"log-{port}"
    file.write_text(json.dumps({"models": served, "base": str(models / "base")}))
    line = [sys.executable, transformers_server.__file__, file, "--port", str(port)]
    environment = {"BT_SCRATCH_DIR": str(root), "HOME": str(root), "OMP_NUM_THREADS": "1"}
    environment["PREFECT_BT_ENGINE_KEY"] = ENGINE_KEY
    with log.open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output, env=environment)
    return Server(process, f"http://127.0.0.1:{port}", models, log)


def until_ready(server: Server, names: list[str], seconds: float = 500) -> None:
    end, missing = time.monotonic() + seconds, "nobody looked"
    while time.monotonic() < end and server.process.poll() is None:
        missing, _ = check_readiness(server.address, names, key=ENGINE_KEY)
        if not missing:
            return
        time.sleep(0.5)
    pytest.fail(f"{missing}\n{server.log.read_text()[-4000:]}")


@pytest.fixture(scope="module")
def generated(server: Server) -> Generated:
    """By the training side: name -> what follows PROMPT greedily, and of how many tokens."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = server.models / "base"
    words = AutoTokenizer.from_pretrained(base)
    prompt = words(PROMPT, return_tensors="pt")
    found: Generated = {}
    for name, folder in {**FULL, **ADAPTERS}.items():
        model = AutoModelForCausalLM.from_pretrained(
            base if name in ADAPTERS else server.models / folder
        )
        if name in ADAPTERS:
            model = PeftModel.from_pretrained(model, server.models / folder)
        row = model.eval().generate(**prompt, max_new_tokens=TOKENS, do_sample=False)[0]
        new = row[prompt["input_ids"].shape[1] :]
        found[name] = (words.decode(new, skip_special_tokens=True), len(new))
    return found


def complete(server: Server, name: str) -> tuple[str, int]:
    answer = server.client.completions.create(
        model=name, prompt=PROMPT, max_tokens=TOKENS, temperature=0
    )
    return answer.choices[0].text, answer.usage.completion_tokens


def check_every_chosen_name_is_listed(server: Server, _: Generated) -> None:
    """What the server takes for another id is listed under both, and answers under both."""
    listed = [model.id for model in server.client.models.list()]
    assert sorted(listed) == sorted([*NAMES, transformers_server.encode_model_id(ODD)])
    assert complete(server, transformers_server.encode_model_id(ODD)) == complete(server, ODD)


def check_served_tokens_are_the_training_sides(server: Server, generated: Generated) -> None:
    assert {name: complete(server, name) for name in generated} == generated


def check_two_adapters_of_one_base_answer_each_for_itself(
    server: Server, generated: Generated
) -> None:
    base, first, second = (generated[n] for n in ("base", "checkpoint-10", "v0/checkpoint-20"))
    assert len({base, first, second}) == 3
    for _ in range(2):  # turn by turn: none takes another's place
        assert [complete(server, n) for n in ADAPTERS] == [first, second]


def check_a_merged_adapter_generates_the_text_of_the_adapter(
    server: Server, generated: Generated
) -> None:
    assert complete(server, "merged") == generated["v0/checkpoint-20"]


def check_they_chat_with_the_bases_template(server: Server, _: Generated) -> None:
    asked = [{"role": "user", "content": "Hi"}]
    for name in ("base", *ADAPTERS, ODD):
        chat = server.client.chat.completions.create(
            model=name, messages=asked, max_tokens=8, temperature=0
        )
        plain = server.client.completions.create(
            model=name, prompt="<|user|>Hi<|end|><|assistant|>", max_tokens=8, temperature=0
        )
        assert chat.choices[0].message.content == plain.choices[0].text, name
        assert chat.usage.prompt_tokens == plain.usage.prompt_tokens, name


def check_a_stream_brings_the_same(server: Server, generated: Generated) -> None:
    stream = server.client.completions.create(
        model="checkpoint-10", prompt=PROMPT, max_tokens=TOKENS, temperature=0, stream=True
    )
    told = "".join(chunk.choices[0].text for chunk in stream)
    assert told == generated["checkpoint-10"][0]


def check_a_whisper_model_transcribes(server: Server, _: Generated) -> None:
    heard = server.client.audio.transcriptions.create(
        model="whisper", file=("silence.wav", render_silence(), "audio/wav")
    )
    assert isinstance(heard.text, str)


def check_the_name_in_an_answer_is_a_name(server: Server, generated: Generated) -> None:
    answer = server.client.completions.create(model="checkpoint-10", prompt="a", max_tokens=1)
    assert complete(server, answer.model) == generated["checkpoint-10"]


def check_no_other_model_is_loaded(server: Server, _: Generated) -> None:
    import openai

    for name in ("nope", str(server.models / "merged"), "base@other"):
        with pytest.raises(openai.NotFoundError) as refused:
            complete(server, name)
        assert f"{name!r} does not exist; there is base, " in refused.value.response.text
    assert "nope" in check_readiness(server.address, ["base", "nope"], key=ENGINE_KEY)[0]


def check_requests_without_the_key_are_refused(server: Server, _: Generated) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    asked = {"model": "base", "prompt": PROMPT, "messages": messages}
    for method, path in KEYED:
        for shown in ("", "Bearer", "Bearer wrong", f"Basic {ENGINE_KEY}"):
            headers = {"Authorization": shown} if shown else {}
            body = asked if method == "POST" else None
            answer = httpx.request(method, f"{server.address}{path}", json=body, headers=headers)
            found = (answer.status_code, answer.json()["error"]["code"])
            assert found == (401, "invalid_api_key"), (method, path, shown)


def check_another_user_finds_the_key_nowhere(server: Server, _: Generated) -> None:
    if os.getuid() != 0:
        return  # only root starts processes of another user
    process = f"/proc/{server.process.pid}"
    assert ENGINE_KEY.encode() in Path(f"{process}/environ").read_bytes()
    assert ENGINE_KEY.encode() not in Path(f"{process}/cmdline").read_bytes()
    assert ENGINE_KEY not in server.log.read_text()
    peek = ["cat", f"{process}/environ", f"{process}/mem"]
    other: Any = {"user": 65534, "group": 65534, "extra_groups": []}
    seen = subprocess.run(peek, capture_output=True, check=False, **other)
    assert seen.returncode != 0
    assert seen.stdout == b""


def check_nothing_is_written_beside_the_checkpoints(server: Server, _: Generated) -> None:
    assert not [path for path in server.models.rglob("*") if path.is_symlink()]
    config = json.loads((server.models / "checkpoint-10" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(server.models / "base")
    assert sorted(path.name for path in (server.models / "checkpoint-10").iterdir()) == [
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def check_the_gate_is_put_to_real_models(server: Server, generated: Generated) -> None:
    right = generated["checkpoint-10"][0]
    prompt = {"prompt": PROMPT, "equals": right}
    gate = {"prompts": [{**prompt, "model": "checkpoint-10"}], "tokens": TOKENS}
    passed = run_gate(parse_gate(gate), server.address, [*ADAPTERS], key=ENGINE_KEY)
    assert passed.passed, passed
    failed = run_gate(
        parse_gate({**gate, "prompts": [prompt]}), server.address, [*ADAPTERS], key=ENGINE_KEY
    )
    assert not failed.passed
    assert "1 of 2 prompts failed: v0/checkpoint-20's answer to" in failed.message


def check_a_gates_command_asks_with_the_openai_library(server: Server, _: Generated) -> None:
    asks = (
        "import openai, os; names = os.environ['PREFECT_BT_MODELS'].splitlines(); "
        "client = openai.OpenAI(); "
        "print([client.completions.create(model=n, prompt='a', max_tokens=1).model for n in names])"
    )
    command = f'{sys.executable} -c "{asks}" && exit 7'
    result = run_gate(parse_gate({"command": command}), server.address, [*ADAPTERS], key=ENGINE_KEY)
    assert result.message.endswith("ended with 7: ['checkpoint-10@main', 'v0/checkpoint-20@main']")


CHECKS = [
    check_every_chosen_name_is_listed,
    check_served_tokens_are_the_training_sides,
    check_two_adapters_of_one_base_answer_each_for_itself,
    check_a_merged_adapter_generates_the_text_of_the_adapter,
    check_they_chat_with_the_bases_template,
    check_a_stream_brings_the_same,
    check_a_whisper_model_transcribes,
    check_the_name_in_an_answer_is_a_name,
    check_no_other_model_is_loaded,
    check_requests_without_the_key_are_refused,
    check_another_user_finds_the_key_nowhere,
    check_nothing_is_written_beside_the_checkpoints,
    check_the_gate_is_put_to_real_models,
    check_a_gates_command_asks_with_the_openai_library,
]


def test_one_server_answers_for_every_model_until_it_is_asked_to_end(
    server: Server, generated: Generated, subtests: pytest.Subtests
) -> None:
    for check in CHECKS:
        with subtests.test(check.__name__):
            check(server, generated)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(200) in {0, -signal.SIGTERM}
    assert "Finished server process" in server.log.read_text()


@pytest.mark.soak
def test_one_alone_needs_no_name(models: Path) -> None:
    with started(models, [document("alone", models / "untokenized")]) as alone:
        until_ready(alone, ["alone"])
        asked = {"prompt": PROMPT, "max_tokens": TOKENS, "temperature": 0}
        shown = {"Authorization": f"Bearer {ENGINE_KEY}"}
        address = f"{alone.address}/v1/completions"
        unnamed = httpx.post(address, json=asked, headers=shown, timeout=200)
        assert unnamed.is_success
        assert unnamed.json()["choices"][0]["text"] == complete(alone, "alone")[0]
        alone.process.send_signal(signal.SIGTERM)
        assert alone.process.wait(200) in {0, -signal.SIGTERM}
        assert "Finished server process" in alone.log.read_text()


@pytest.mark.soak
def test_what_cannot_be_loaded_ends_it_with_a_sentence(models: Path, tmp_path: Path) -> None:
    damage(models / "base", tmp_path / "damaged")
    served = [document("good", models / "base"), document("broken", tmp_path / "damaged")]
    with started(models, served) as broken:
        assert broken.process.wait(500) == 1
        last = broken.log.read_text().splitlines()[-1]
    assert last.startswith("broken cannot be loaded: Error while deserializing header")
    assert "`prefect-bt checkpoints verify`" in explain_log_tail([last])
