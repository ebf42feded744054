"""Serve checkpoints with `transformers serve`, each under its own name.

    python transformers_server.py served.json [--host H] [--port P] [options of transformers serve]

Stand-alone: it is copied into the job's workspace, and the job's own Python runs it. served.json:

    {"models": [{"name": "checkpoint-10", "path": "/…/checkpoint-10", "kind": "full" | "lora"}],
     "base": "/…" | null}

`transformers serve` loads a model whose id is a folder in the current directory. So each model gets
a folder of links, in a directory of this job; an adapter's folder also has the files of its base
model. Nothing is written beside the checkpoints. All models are loaded before the server listens.
An error is one sentence on stderr and exit status 1.

On a CPU the weights are mapped from their files, so adapters of one base model share its memory. A
GPU holds the base model once per adapter.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import runpy
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# A folder with one of these has a tokenizer; the other files of it come from the same folder.
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt"),
    *("normalizer.json", "chat_template.jinja", "chat_template.json", "additional_chat_templates"),
)
# Prefixes of the trainer's own files, which no server reads.
TRAINING_FILES = ("optimizer.", "scheduler.", "scaler.", "rng_state", "training_args.bin")

MODULES = ("torch", "transformers", "accelerate", "fastapi", "uvicorn", "pydantic", "openai")
AUDIO_MODULES = ("python_multipart", "soundfile", "soxr")


class UnservableError(ValueError):
    """The checkpoints cannot be served; the text is one sentence."""


class Model(NamedTuple):
    """A model of served.json. Requests use `name`; `kind` is full or lora."""

    name: str
    path: Path
    kind: str


class ServingConfig(NamedTuple):
    models: list[Model]
    base: Path | None


def encode_model_id(name: str) -> str:
    """Return the id, and the folder, under which `name` is served.

    `transformers serve` ends an id at @, so an @ is quoted. Raise UnservableError for a name that
    is no path.
    """
    unnamable = any(part in {"", ".", ".."} for part in name.split("/")) or len(name.encode()) > 200
    if unnamable or any(sign < " " for sign in name) or (":" in name and name.endswith(".gguf")):
        raise UnservableError(f"No model can be served as {name!r}: give it another name.")
    return name.replace("@", "%40")


def restrict_models(ids: Mapping[str, str]) -> None:
    """Make the server load and list the models of `ids` (name -> id), and answer to no others.

    Otherwise a client could have it load any folder. The server itself calls a model <id>@main in
    answers, so that is accepted too.
    """
    manager: Any = importlib.import_module("transformers.cli.serving.model_manager").ModelManager
    http_exception: Any = importlib.import_module("fastapi").HTTPException
    create = manager.__init__
    known: dict[str, str] = {**{identifier: identifier for identifier in ids.values()}, **ids}
    now = int(time.time())
    listed = [{"id": name, "object": "model", "created": now, "owned_by": ""} for name in known]

    def resolve(name: str) -> str:
        identifier = known.get(name) or known.get(name.removesuffix("@main"))
        if identifier is None:
            message = f"The model {name!r} does not exist; there is {', '.join(ids)}."
            raise http_exception(404, message)
        return f"{identifier}@main"

    def create_loaded(self: Any, *given: Any, **options: Any) -> None:
        name = next(iter(ids))
        try:
            create(self, *given, **options)
            for name in ids:
                self.load_model_and_processor(resolve(name))
                log(f"{name} is loaded")
        except Exception as error:
            traceback.print_exc()
            raise UnservableError(f"{name} cannot be loaded: {error}") from error

    manager.__init__ = create_loaded
    manager.process_model_name = staticmethod(resolve)
    manager.get_gen_models = staticmethod(lambda: listed)


def read_served(path: Path) -> ServingConfig:
    """Read and check the models of a served.json."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        base = Path(document["base"]) if document.get("base") else None
        models = [Model(m["name"], Path(m["path"]), m["kind"]) for m in document["models"]]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnservableError(f"{path} is not a list of models to serve ({error}).") from error
    for model in models:
        check_model(model, base)
    return ServingConfig(models, base)


def check_model(model: Model, base: Path | None) -> None:
    """Raise UnservableError for a model without its config or tokenizer."""
    if model.kind == "lora" and base is not None:
        read_json_object(model.name, model.path / ADAPTER_CONFIG)
        check_config("the base model", base)
    else:
        check_config(model.name, model.path)
    if not tokenizer_files(model.path, base):
        nor = f" or {base}." if base else ", and no base model is given."
        raise UnservableError(f"{model.name}: there is no tokenizer in {model.path}{nor}")


def check_config(name: str, folder: Path) -> None:
    if not read_json_object(name, folder / CONFIG).get("architectures"):
        raise UnservableError(f"{name}: {folder / CONFIG} names no architecture to load it as.")


def read_json_object(name: str, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnservableError(f"{name}: {path} cannot be read: {error}.") from error
    if not isinstance(found, dict):
        raise UnservableError(f"{name}: {path} holds no JSON object.")
    return cast("dict[str, Any]", found)


def check_python(models: Sequence[Model]) -> None:
    """Raise UnservableError if the job's Python has not the packages that these models need."""
    adapters = any(model.kind == "lora" for model in models)
    audio = AUDIO_MODULES if any(is_whisper(model) for model in models) else ()
    needed = [*MODULES, *(("peft",) if adapters else ()), *audio]
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
    """Return the tokenizer files of the folder, or else of the base model; never a mixture."""
    for place in (folder, base):
        if place is not None and any((place / name).is_file() for name in VOCABULARY_FILES):
            return [place / name for name in TOKENIZER_FILES if (place / name).exists()]
    return []


def model_files(model: Model, base: Path | None) -> dict[str, Path]:
    """Return the files of the served folder: name -> file."""
    own: list[Path] = []
    folder = model.path
    if model.kind == "lora" and base is not None:
        own, folder = [model.path / name for name in (ADAPTER_CONFIG, *ADAPTER_WEIGHTS)], base
    rest = [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(TRAINING_FILES)]
    other = {*TOKENIZER_FILES, *(path.name for path in own)}
    files = [*(p for p in rest if p.name not in other), *(p for p in own if p.exists())]
    return {path.name: path for path in (*files, *tokenizer_files(model.path, base))}


def link_models(served: ServingConfig, folder: Path) -> None:
    """Create the folder of links of every model."""
    for model in served.models:
        home = folder / encode_model_id(model.name)
        home.mkdir(parents=True, exist_ok=True)  # `a/b` may have created `a`
        for link, target in model_files(model, served.base).items():
            (home / link).symlink_to(target.absolute())
        if model.kind == "lora":
            rewrite_base_path(home / ADAPTER_CONFIG, served.base)


def rewrite_base_path(adapter_config: Path, base: Path | None) -> None:
    """Write the path `base` of the base model into an adapter's configuration."""
    settings = json.loads(adapter_config.read_text(encoding="utf-8"))
    settings.update(base_model_name_or_path=str(base), revision=None)
    adapter_config.unlink()
    adapter_config.write_text(json.dumps(settings), encoding="utf-8")


def private_folder(port: int) -> Path:
    """Return an empty folder of this server alone, without the links of a dead one."""
    scratch = os.environ.get("BT_SCRATCH_DIR")
    if not scratch or not Path(scratch).is_dir():
        return Path(tempfile.mkdtemp(prefix="served-"))
    folder = Path(scratch) / f"served-{port}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def count_cores() -> int:
    """Return the number of cores that the affinity and the control group allow."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(allowed, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return allowed


def server_environment() -> dict[str, str]:
    """Return the server's variables; a number of threads that the job sets has precedence."""
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(count_cores()),
        "TOKENIZERS_PARALLELISM": os.environ.get("TOKENIZERS_PARALLELISM") or "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_UPDATE_CHECK": "1",
    }


def server_command(host: str, port: int, names: Sequence[str], more: Sequence[str]) -> list[str]:
    """Return the command line. Requests to a single model may leave out its name."""
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


def log(sentence: str) -> None:
    print(f"embedded: {sentence}", file=sys.stderr, flush=True)


def serve(
    served: ServingConfig, options: argparse.Namespace, extra_args: Sequence[str], folder: Path
) -> None:
    """Run the server in this process until it ends."""
    names = [model.name for model in served.models]
    os.chdir(folder)
    os.environ.update(server_environment())
    for model in served.models:
        log(f"{model.name} is {model.path} ({model.kind})")
    guard: Any = importlib.import_module("require_key")  # the file beside this one
    guard.require_key()
    restrict_models({name: encode_model_id(name) for name in names})
    sys.path[:] = [place for place in sys.path if place]  # no imports from the models' folder
    sys.argv[:] = server_command(options.host, options.port, names, extra_args)
    runpy.run_module("transformers.cli.transformers", run_name="__main__")


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
        serve(served, options, more, folder)
    except (UnservableError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
