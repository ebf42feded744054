"""Serves checkpoints with `transformers serve`: every chosen one answers under its own name.

    python transformers_server.py served.json [--host H] [--port P] [options of transformers serve]

Stand-alone: it is copied into the job's workspace, and the job's own Python runs it. served.json:

    {"models": [{"name": "checkpoint-10", "path": "/…/checkpoint-10", "kind": "full" | "lora"}],
     "base": "/…" | null}

The server loads an id that is a folder beside it, and lists what a cache of the Hub holds. So it
gets both, as links in a folder of this job, and runs in this process:

    models/<id>/      what is loaded; an adapter's folder holds its base's weights too
    hub/models--<id>  what /v1/models lists

Nothing is written where the checkpoints lie. What cannot be served or loaded is one sentence on
stderr and exit status 1. On a CPU weights are mapped from their files, so that adapters of one base
share its memory; a GPU holds the base once an adapter.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import os
import runpy
import shutil
import socket
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
WEIGHTS_INDEXES = tuple(f"{name}.index.json" for name in WEIGHTS)
# Any of these is a vocabulary; what goes with it comes from the same folder.
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("normalizer.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)
# The trainer's own files begin so; no server reads them.
TRAINING_FILES = ("optimizer.", "scheduler.", "scaler.", "rng_state", "training_args.bin")

MODULES = ("torch", "transformers", "accelerate", "fastapi", "uvicorn", "pydantic", "openai")
AUDIO_MODULES = ("python_multipart", "soundfile", "soxr")

# The list leaves out what is no text model; whatever we serve is to be listed.
HUB_CACHE_CONFIG = {"architectures": ["LlamaForCausalLM"]}


class UnservableError(ValueError):
    """Why these checkpoints cannot be served, in one sentence."""


class Model(NamedTuple):
    """`name` is what it is asked for by; `kind` is full or lora."""

    name: str
    path: Path
    kind: str


class ServingConfig(NamedTuple):
    models: list[Model]
    base: Path | None


def encode_model_id(name: str) -> str:
    """The folder of `name`, and for most names the name itself. Refusal where none can be.

    `transformers serve` cuts an id at @, and a cache of the Hub spells / as --: so an @, and a -
    that would be taken for a part of such a --, are quoted.
    """
    unnamable = any(part in {"", ".", ".."} for part in name.split("/")) or len(name.encode()) > 200
    if unnamable or any(sign < " " for sign in name) or (":" in name and name.endswith(".gguf")):
        raise UnservableError(f"No model can be served as {name!r}: give it another name.")
    quoted = name.replace("@", "%40").replace("-/", "%2D/")
    while "--" in quoted:
        quoted = quoted.replace("--", "-%2D")
    return quoted


def restrict_model_names(ids: Mapping[str, str]) -> None:
    """Has the server list and answer to names (the keys) and their ids, and to no others.

    It would load any folder that it is asked for; and what it cannot load is an error 500. Its own
    answers call a model <id>@main, so that is a name too.
    """
    manager: Any = importlib.import_module("transformers.cli.serving.model_manager").ModelManager
    http_exception: Any = importlib.import_module("fastapi").HTTPException
    names = {identifier: name for name, identifier in ids.items()}
    resolve, listed = manager.process_model_name, manager.get_gen_models

    def resolved(name: str) -> str:
        known = name if name in ids else names.get(name.removesuffix("@main"))
        if known is None:
            told = f"The model {name!r} does not exist; there is {', '.join(ids)}."
            raise http_exception(404, told)
        return resolve(ids[known])

    def named() -> list[dict[str, Any]]:
        found = [(model, {names[model["id"]], model["id"]}) for model in listed()]
        return [{**model, "id": name} for model, both in found for name in sorted(both)]

    manager.process_model_name = staticmethod(resolved)
    manager.get_gen_models = staticmethod(named)


def read_served(path: Path) -> ServingConfig:
    """The models of a served.json, every one of them checked."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        base = Path(document["base"]) if document.get("base") else None
        models = [Model(m["name"], Path(m["path"]), m["kind"]) for m in document["models"]]
    except OSError as error:
        raise UnservableError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnservableError(f"{path} is not a list of models to serve ({error!r}).") from error
    if not models:
        raise UnservableError(f"{path} names no model.")
    if base is not None and not base.is_dir():
        raise UnservableError(f"The base model's folder {base} is not there.")
    for model in models:
        check_model(model, base)
    ids = [encode_model_id(model.name) for model in models]
    if twice := sorted({name for name in ids if ids.count(name) > 1}):
        raise UnservableError(f"Two models would answer as {twice[0]!r}.")
    return ServingConfig(models, base)


def check_model(model: Model, base: Path | None) -> None:
    """Refusal if anything is missing that loading `model` would miss."""
    if not model.path.is_dir():
        raise UnservableError(f"{model.name}: its folder {model.path} is not there.")
    if model.kind == "lora":
        check_adapter(model, base)
    elif model.kind == "full":
        check_weights(model.name, model.path)
    else:
        raise UnservableError(f"{model.name}: its kind {model.kind!r} is not full or lora.")
    if not tokenizer_files(model.path, base):
        nor = f" or {base}." if base else ", and no base model is given."
        raise UnservableError(f"{model.name}: there is no tokenizer in {model.path}{nor}")


def check_adapter(model: Model, base: Path | None) -> None:
    if not (model.path / ADAPTER_CONFIG).is_file():
        raise UnservableError(
            f"{model.name}: {model.path} has no {ADAPTER_CONFIG}, so it is not an adapter."
        )
    read_json_object(model.name, model.path / ADAPTER_CONFIG)
    if not any((model.path / name).is_file() for name in ADAPTER_WEIGHTS):
        raise UnservableError(f"{model.name}: {model.path} has no {ADAPTER_WEIGHTS[0]}.")
    if base is None:
        raise UnservableError(f"{model.name} is an adapter, and no base model is given.")
    check_weights("the base model", base)


def check_weights(name: str, folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise UnservableError(f"{name}: {folder} has no {CONFIG}.")
    if not read_json_object(name, folder / CONFIG).get("architectures"):
        raise UnservableError(f"{name}: {folder / CONFIG} names no architecture to load it as.")
    if any((folder / weights).is_file() for weights in WEIGHTS):
        return
    index = next((folder / i for i in WEIGHTS_INDEXES if (folder / i).is_file()), None)
    if index is None:
        raise UnservableError(
            f"{name}: {folder} has no weights that can be loaded, such as {WEIGHTS[0]}."
        )
    for shard in sorted(set(read_json_object(name, index).get("weight_map", {}).values())):
        if not (folder / shard).is_file():
            raise UnservableError(f"{name}: {folder} has no {shard}, which {index.name} refers to.")


def read_json_object(name: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnservableError(f"{name}: {path} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise UnservableError(f"{name}: {path} holds no JSON object.")
    return cast("dict[str, Any]", found)


def check_python(models: Sequence[Model]) -> None:
    """Refusal if the job's Python lacks what these models need to be served."""
    adapters = any(model.kind == "lora" for model in models)
    sound = any(is_whisper(model) for model in models)
    needed = [
        *MODULES,
        *(("peft",) if adapters else ()),
        *(AUDIO_MODULES if sound else ()),
    ]
    missing = [name.replace("_", "-") for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UnservableError(
            f"The job's Python ({sys.executable}) has no {', '.join(missing)}: "
            f"pip install 'transformers[serving]' {' '.join(missing)}"
        )


def is_whisper(model: Model) -> bool:
    config = model.path / CONFIG
    return config.is_file() and read_json_object(model.name, config).get("model_type") == "whisper"


def tokenizer_files(folder: Path, base: Path | None) -> list[Path]:
    """The tokenizer's files: the folder's own, or else its base's; never a mixture."""
    for place in (folder, base):
        if place is not None and any((place / name).is_file() for name in VOCABULARY_FILES):
            return [place / name for name in TOKENIZER_FILES if (place / name).exists()]
    return []


def model_files(model: Model, base: Path | None) -> dict[str, Path]:
    """Name in the served folder -> the file behind it."""
    own: list[Path] = []
    folder = model.path
    if model.kind == "lora" and base is not None:
        own, folder = [model.path / name for name in (ADAPTER_CONFIG, *ADAPTER_WEIGHTS)], base
    rest = [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(TRAINING_FILES)]
    rest = [p for p in rest if p.name not in {o.name for o in own}]
    files = [p for p in (*rest, *own) if p.name not in TOKENIZER_FILES and p.exists()]
    return {path.name: path for path in (*files, *tokenizer_files(model.path, base))}


def link_models(served: ServingConfig, folder: Path) -> None:
    """Links below `folder`, for the server to list and to load."""
    for model in served.models:
        name = encode_model_id(model.name)
        home = folder / "models" / name
        home.mkdir(parents=True, exist_ok=True)  # `a/b` may have made `a`
        for link, target in model_files(model, served.base).items():
            (home / link).symlink_to(target.absolute())
        if model.kind == "lora":
            rewrite_base_path(home / ADAPTER_CONFIG, served.base)
        register_in_hub_cache(folder / "hub", name)


def rewrite_base_path(adapter_config: Path, base: Path | None) -> None:
    """The folder of the base, where training wrote its name or where it lay then."""
    settings = json.loads(adapter_config.read_text(encoding="utf-8"))
    settings.update(base_model_name_or_path=str(base), revision=None)
    adapter_config.unlink()
    adapter_config.write_text(json.dumps(settings), encoding="utf-8")


def register_in_hub_cache(hub: Path, name: str) -> None:
    repository = hub / ("models--" + name.replace("/", "--"))
    revision = hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    (repository / "snapshots" / revision).mkdir(parents=True)
    (repository / "snapshots" / revision / CONFIG).write_text(json.dumps(HUB_CACHE_CONFIG))


def private_folder(port: int) -> Path:
    """Empty, and of this server alone; one that died on the same port left its links there."""
    scratch = Path(os.environ.get("BT_SCRATCH_DIR") or "")
    if not scratch.name or not scratch.is_dir():
        return Path(tempfile.mkdtemp(prefix="served-"))
    folder = scratch / f"served-{port}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def count_cores() -> int:
    """Cores this process may use: what it may run on, and what its control group is given."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        given = math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed or 1
    return max(1, min(allowed or 1, given))


def server_environment(folder: Path) -> dict[str, str]:
    """Variables of the server: as many threads as cores, unless somebody chose a number."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(count_cores()),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM") or "false",
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }


def server_command(host: str, port: int, names: Sequence[str], more: Sequence[str]) -> list[str]:
    """One model alone is loaded before the server listens, and asked for by its name or by none."""
    line = ["transformers", "serve", "--host", host, "--port", str(port), "--model-timeout", "-1"]
    return [*line, *more, *(("--", *names) if len(names) == 1 else ())]


def check_port(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UnservableError(
                f"Port {port} of {host} cannot be used: {error.strerror}."
            ) from error


def preload(host: str, port: int, names: Sequence[str]) -> None:
    """Have the server load each model; ask again where a request hides the result, else end it."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    none: dict[str, Any] = {}
    for name in names:
        ends = (post_for_events(f"{address}/load_model", {"model": name})[-1] for _ in range(5))
        last = next((e for e in ends if e.get("status") == "ready" or "message" in e), none)
        if last.get("status") != "ready":
            log(f"{name} cannot be loaded: {last.get('message')}")
            os._exit(1)
        log(f"{name} is loaded")


def post_for_events(address: str, body: Mapping[str, str]) -> list[dict[str, Any]]:
    """The events (`data: {...}` lines) that the server answers with, as soon as it listens."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    shown = {"Authorization": f"Bearer {os.environ.get('PREFECT_BT_ENGINE_KEY', '')}"}
    headers = {"Content-Type": "application/json", **shown}
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)  # noqa: S310
    while True:
        try:
            with opener.open(request) as answer:
                lines = answer.read().decode().splitlines()
                return [{}, *(json.loads(line[6:]) for line in lines if line.startswith("data: "))]
        except urllib.error.HTTPError as error:
            return [{"message": str(error)}]
        except OSError:
            time.sleep(0.2)


def log(sentence: str) -> None:
    print(f"embedded: {sentence}", file=sys.stderr, flush=True)


def serve(
    served: ServingConfig, options: argparse.Namespace, extra_args: Sequence[str], folder: Path
) -> None:
    """Returns when the server ends."""
    names = [model.name for model in served.models]
    os.chdir(folder / "models")
    os.environ.update(server_environment(folder))
    for model in served.models:
        log(f"{model.name} is {model.path} ({model.kind})")
    if len(names) > 1:
        words = (options.host, options.port, names)
        threading.Thread(target=preload, args=words, daemon=True).start()
    try:
        guard: Any = importlib.import_module("require_key")  # the file beside this one
        guard.require_key()
        restrict_model_names({model.name: encode_model_id(model.name) for model in served.models})
        sys.path[:] = [place for place in sys.path if place]  # models/ is no place to import from
        sys.argv[:] = server_command(options.host, options.port, names, extra_args)
        runpy.run_module("transformers.cli.transformers", run_name="__main__")
    except Exception as error:
        traceback.print_exc()
        raise SystemExit(f"{' and '.join(names)} cannot be served: {error}") from error


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="transformers_server.py", allow_abbrev=False)
    parser.add_argument("served", type=Path, help="served.json")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=int(os.environ.get("BT_LEADER_PORT") or 8000))
    options, more = parser.parse_known_args(words)
    try:
        served = read_served(options.served)
        check_python(served.models)
        check_port(options.host, options.port)
        folder = private_folder(options.port)
        link_models(served, folder)
    except (UnservableError, OSError) as error:
        sys.exit(str(error))
    serve(served, options, more, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
