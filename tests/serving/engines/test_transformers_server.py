"""What the embedded program puts up for the server, and what it refuses; no server runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from prefect_bt.serving.engines import transformers_server
from prefect_bt.serving.engines.transformers_server import (
    UnservableError,
    encode_model_id,
    link_models,
    read_served,
)

CONFIG = json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
FULL = {
    "config.json": CONFIG,
    "model.safetensors": "w",
    "tokenizer.json": "{}",
    "rng_state.pth": "",
}
ADAPTER = {"adapter_config.json": '{"base_model_name_or_path": "org/b"}', "adapter_model.bin": "a"}


def folder(path: Path, files: dict[str, str]) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def served(root: Path, *models: tuple[str, Path, str], base: Path | None = None) -> Path:
    listed = [{"name": name, "path": str(path), "kind": kind} for name, path, kind in models]
    file = root / "served.json"
    file.write_text(json.dumps({"models": listed, "base": str(base) if base else None}))
    return file


@pytest.mark.parametrize(
    "name", ["checkpoint-10", "v0/checkpoint-10", "a:b", "Modèle 2", "a..b", "-a", "a--b"]
)
def test_most_names_are_their_own_id(name: str) -> None:
    assert encode_model_id(name) == name


def test_what_the_server_would_cut_is_quoted() -> None:
    assert encode_model_id("a@b") == "a%40b"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/a", "a/", "a//b", "../a", "a\nb", "a:b.gguf", "n" * 201]
)
def test_names_that_no_folder_can_have_are_refused(name: str) -> None:
    with pytest.raises(UnservableError, match="No model can be served as"):
        encode_model_id(name)


def test_a_full_model_is_its_files_without_the_trainers(tmp_path: Path) -> None:
    path = folder(tmp_path / "c", {**FULL, "optimizer.pt": "", "generation_config.json": "{}"})
    link_models(read_served(served(tmp_path, ("c/1", path, "full"))), tmp_path / "up")
    put = tmp_path / "up" / "c" / "1"
    assert {p.name: p.resolve() for p in put.iterdir()} == {
        name: path / name
        for name in ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")
    }


def test_an_adapters_folder_holds_its_base_which_its_config_names(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", {**FULL, "adapter_config.json": "{}"})
    path = folder(tmp_path / "a", {**ADAPTER, "README.md": "", "config.json": "other"})
    before = (path / "adapter_config.json").read_bytes()
    link_models(read_served(served(tmp_path, ("a", path, "lora"), base=base)), tmp_path / "up")
    put = tmp_path / "up" / "a"
    assert {p.name for p in put.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json"),
        *("adapter_config.json", "adapter_model.bin"),
    }
    assert (put / "config.json").resolve() == base / "config.json"
    assert (put / "adapter_model.bin").resolve() == path / "adapter_model.bin"
    settings = json.loads((put / "adapter_config.json").read_text())
    assert settings == {"base_model_name_or_path": str(base), "revision": None}
    assert (path / "adapter_config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"tokenizer.json": "base", "chat_template.jinja": "base"}),
        ({"tokenizer.json": "own"}, {"tokenizer.json": "own"}),  # and no template of another's
        (
            {"tokenizer_config.json": "own"},
            {"tokenizer.json": "base", "chat_template.jinja": "base"},
        ),
    ],
)
def test_a_tokenizer_comes_whole_from_one_place(tmp_path: Path, own, expected) -> None:
    base = folder(
        tmp_path / "base", {**FULL, "tokenizer.json": "base", "chat_template.jinja": "base"}
    )
    path = folder(tmp_path / "c", {"config.json": CONFIG, "model.safetensors": "w", **own})
    link_models(read_served(served(tmp_path, ("c", path, "full"), base=base)), tmp_path / "up")
    put = tmp_path / "up" / "c"
    words = {
        p.name: p.read_text()
        for p in put.iterdir()
        if p.name in transformers_server.TOKENIZER_FILES
    }
    assert words == expected


def test_missing_files_are_one_sentence(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", FULL)
    cases: list[tuple[dict[str, str], str, Path | None, str]] = [
        ({**FULL, "config.json": "{"}, "full", None, r"c: .*config.json cannot be read"),
        ({**FULL, "config.json": "[]"}, "full", None, r"c: .*config.json holds no JSON object"),
        ({**FULL, "config.json": "{}"}, "full", None, "names no architecture to load it as"),
        ({"tokenizer.json": ""}, "full", None, "config.json cannot be read: .*No such file"),
        ({"config.json": CONFIG}, "full", None, "no tokenizer in .*, and no base model is given"),
        (FULL, "lora", base, "adapter_config.json cannot be read: .*No such file"),
        (ADAPTER, "lora", tmp_path / "gone", "the base model: .*gone/config.json cannot be read"),
    ]
    for number, (files, kind, stands_on, sentence) in enumerate(cases):
        path = folder(tmp_path / str(number), files)
        with pytest.raises(UnservableError, match=sentence) as refused:
            read_served(served(tmp_path, ("c", path, kind), base=stands_on))
        assert "\n" not in str(refused.value)


def run_bare(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A copy of the program, by a Python that has the standard library and nothing else."""
    program = shutil.copy(transformers_server.__file__, tmp_path / "program.py")
    line = [sys.executable, "-I", "-S", program, *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)


def test_the_program_stands_alone_and_ends_with_one_sentence(tmp_path: Path) -> None:
    ended = run_bare(tmp_path, served(tmp_path, ("c", tmp_path / "gone", "full")))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith(f"c: {tmp_path / 'gone' / 'config.json'} cannot be read: ")
    assert ended.stderr.count("\n") == 1


def test_a_python_without_the_server_names_the_missing_packages(tmp_path: Path) -> None:
    base = folder(tmp_path / "base", FULL)
    adapter = folder(tmp_path / "a", ADAPTER)
    ended = run_bare(tmp_path, served(tmp_path, ("a", adapter, "lora"), base=base))
    assert ended.returncode == 1
    assert " has no torch, transformers, accelerate, " in ended.stderr
    assert ended.stderr.rstrip().endswith("pydantic openai peft")
    hears = {**FULL, "config.json": json.dumps({**json.loads(CONFIG), "model_type": "whisper"})}
    ended = run_bare(tmp_path, served(tmp_path, ("w", folder(tmp_path / "w", hears), "full")))
    assert ended.stderr.rstrip().endswith("openai python-multipart soundfile soxr")


def test_a_port_in_use_is_refused_before_anything_is_loaded() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            UnservableError, match=f"Port {port} of 127.0.0.1 cannot be used: Address already"
        ):
            transformers_server.check_port("127.0.0.1", port)
    transformers_server.check_port("127.0.0.1", port)


def test_links_of_a_dead_server_on_the_same_port_go(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("BT_SCRATCH_DIR", str(tmp_path))
    first = transformers_server.private_folder(8000)
    (first / "old").touch()
    other = transformers_server.private_folder(8001)
    assert transformers_server.private_folder(8000) == first
    assert not list(first.iterdir())
    assert other.is_dir()
    monkeypatch.setenv("BT_SCRATCH_DIR", str(tmp_path / "gone"))
    elsewhere = transformers_server.private_folder(8000)
    assert elsewhere.parent != tmp_path
    elsewhere.rmdir()


def test_the_number_of_threads_is_the_cores_or_the_variable(monkeypatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    threads = int(transformers_server.server_environment()["OMP_NUM_THREADS"])
    assert 1 <= threads <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert transformers_server.server_environment()["OMP_NUM_THREADS"] == "7"


def test_a_single_model_needs_no_name_in_requests() -> None:
    alone = transformers_server.server_command("h", 1, ["-a"], ["--device", "cpu"])
    assert alone == [
        *("transformers", "serve", "--host", "h", "--port", "1"),
        *("--model-timeout", "-1", "--device", "cpu", "--", "-a"),
    ]
    assert transformers_server.server_command("h", 1, ["a", "b"], [])[-2:] == [
        "--model-timeout",
        "-1",
    ]


def test_one_name_may_be_the_folder_of_another(tmp_path: Path) -> None:
    path = folder(tmp_path / "c", FULL)
    listed = served(tmp_path, ("v0/c", path, "full"), ("v0", path, "full"))
    link_models(read_served(listed), tmp_path / "up")
    assert (tmp_path / "up" / "v0" / "config.json").is_file()
    assert (tmp_path / "up" / "v0" / "c" / "config.json").is_file()


class NotServedError(Exception):
    """Stands for fastapi's HTTPException."""


def fake_manager(monkeypatch, broken: str = "") -> type:
    """Install a stand-in for the model manager of transformers; it keeps what it loads."""

    class ModelManager:
        def __init__(self) -> None:
            self.loaded: list[str] = []

        def load_model_and_processor(self, name: str) -> None:
            if name == broken:
                raise RuntimeError("size mismatch")
            self.loaded.append(name)

    module = SimpleNamespace(ModelManager=ModelManager)
    monkeypatch.setitem(sys.modules, "transformers.cli.serving.model_manager", module)
    monkeypatch.setitem(sys.modules, "fastapi", SimpleNamespace(HTTPException=NotServedError))
    return ModelManager


def test_the_server_loads_lists_and_answers_to_the_given_names_only(monkeypatch) -> None:
    manager: Any = fake_manager(monkeypatch)
    transformers_server.restrict_models({"v0/a": "v0/a", "b@x": "b%40x"})
    assert manager().loaded == ["v0/a@main", "b%40x@main"]
    assert [model["id"] for model in manager.get_gen_models()] == ["v0/a", "b%40x", "b@x"]
    for name in ("b@x", "b%40x", "b%40x@main"):
        assert manager.process_model_name(name) == "b%40x@main"
    for name in ("v0", "../v0/a", "/etc", "v0/a@other", ""):
        with pytest.raises(NotServedError):
            manager.process_model_name(name)


def test_a_model_that_cannot_be_loaded_is_named(monkeypatch) -> None:
    manager: Any = fake_manager(monkeypatch, broken="b@main")
    transformers_server.restrict_models({"a": "a", "b": "b"})
    with pytest.raises(UnservableError, match="b cannot be loaded: size mismatch"):
        manager()
