"""`deploy_checkpoints` up to where a server starts: what is refused, shown, written, asked."""

import shutil
import socket
from functools import partial
from pathlib import Path

import pytest

from prefect_bt.cli.serving.deploy_options import parse_served_names
from prefect_bt.definitions import deploy_config_from_json
from prefect_bt.errors import DefinitionError
from prefect_bt.ledger.records import JobRecord
from tests.cli.conftest import Cli, Run, StartScreen, Within
from tests.cli.conftest import Shop as Records
from tests.serving.committed import Shop, full, lora, whisper

ADDRESS = "vllm serve org/base --port 8000 --enable-lora --max-lora-rank 16 --dtype bfloat16"


@pytest.fixture
def shelf(shop: Records, tmp_path: Path) -> Shop:
    return Shop(tmp_path / "ckpts", shop.ledger)


@pytest.fixture
def job(shelf: Shop) -> JobRecord:
    """Two adapters of one base."""
    record = shelf.job("stories")
    shelf.commit(record, {"checkpoint-10": lora(), "checkpoint-20": lora()})
    return record


def deploying(within: Within, *arguments: str, verb: str = "deploy_checkpoints") -> Run:
    """On CPUs unless they say otherwise, also where the tests find GPUs."""
    chosen = [] if "--accelerator" in arguments else ["--accelerator", "none"]
    return within(verb, "--model-name", "stories", *chosen, *arguments)


def refused(run: Run, *told: str, code: int = 1) -> None:
    """One sentence and its cure, nothing else; nothing on standard output."""
    assert (run.code, run.out) == (code, ""), run
    error = run.err[run.err.index("error: ") :]
    assert error.count("\n") == (1 if code == 1 else 2), error
    for words in told:
        assert words in error


# -- refusals ---------------------------------------------------------------------------------


def test_an_unknown_job(within: Within, job: JobRecord):
    refused(deploying(within, "--job-id", "nope123"), "No job 'nope123'", job.id)


def test_a_job_of_another_project(within: Within, job: JobRecord, shelf: Shop):
    shelf.job("other")
    run = deploying(within, "--job-id", job.id, "--project", "other")
    refused(run, f"No job {job.id!r}", "'stories', not 'other'")


def test_an_unknown_checkpoint(within: Within, job: JobRecord):
    run = deploying(within, "--checkpoint", "checkpoint-99")
    refused(run, "No checkpoint 'checkpoint-99", "checkpoint-10, checkpoint-20")


def test_two_full_checkpoints(within: Within, shelf: Shop):
    record = shelf.job("full")
    shelf.commit(record, {"checkpoint-1": full(), "checkpoint-2": full()})
    both = ["--checkpoint", "checkpoint-1", "--checkpoint", "checkpoint-2"]
    refused(deploying(within, *both), "2 checkpoints were chosen", "Choose a single checkpoint")


def test_a_checkpoint_without_weights(within: Within, shelf: Shop):
    record = shelf.job("odd")
    shelf.commit(record, {"metrics": {"loss.txt": b"1.0"}})
    refused(deploying(within, "--job-id", record.id), "metrics", "holds no weights")
    assert deploying(within, "--job-id", record.id, "--checkpoint", "metrics").code == 1


def test_a_sharded_checkpoint(within: Within, shelf: Shop):
    record = shelf.job("sharded")
    shards = {f"pytorch_model_fsdp_0/__{n}_0.distcp": b"x" * 64 for n in range(2)}
    shards["pytorch_model_fsdp_0/.metadata"] = b"x"
    shelf.commit(record, {"checkpoint-1": shards})
    refused(deploying(within, "--job-id", record.id), "FSDP", "FULL_STATE_DICT")


def test_a_job_with_nothing(within: Within, shelf: Shop):
    record = shelf.job("new")
    run = deploying(within, "--job-id", record.id)
    refused(run, f"Nothing of job {record.id} can be served yet")
    refused(deploying(within), "latest of any job")


def test_no_base_model(within: Within, shelf: Shop):
    record = shelf.job("lost")
    shelf.commit(record, {"checkpoint-1": lora(base="/gone/away")})
    refused(deploying(within), "/gone/away", "--base-model")
    done = deploying(within, "--base-model", "org/base", "--dry-run", "-o", "json")
    assert done.json["base_model"] == "org/base"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--engine", "ollama"], ["no engine 'ollama'", "vllm, transformers"]),
        (["--accelerator", "h100"], ['did you mean "H100"', "none"]),
        (["--base-model", "not a model"], ["'not a model'"]),
        (["--served-name", "checkpoint-10"], ["CHECKPOINT=NAME"]),
        (["--served-name", "checkpoint-7=x"], ["checkpoint-7", "not served"]),
        (["--substrate", "moon"], ["no substrate 'moon'"]),
        (["--gate", "missing.json"], ["missing.json", "No such file"]),
        (["--config", "missing.py"], ["missing.py", "not a file"]),
    ],
    ids=lambda given: given[0] if given[0].startswith("--") else "",
)
def test_an_unknown_choice_is_refused(within: Within, job: JobRecord, arguments, told):
    refused(deploying(within, "--checkpoint", "latest", *arguments), *told)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("vllm") is not None, reason="vllm is installed")
def test_an_engine_that_is_not_installed(within: Within, job: JobRecord):
    run = deploying(within, "--checkpoint", "latest", "--engine", "vllm")
    assert run.code == 1
    assert "vllm is not on this machine's PATH" in run.err
    assert "another --engine, or --substrate docker" in run.err
    assert within("deployments", "list", "-o", "json").json == {"deployments": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a b", "a/b", "..", "ä", ""])
def test_a_name_that_is_none(within: Within, job: JobRecord, name: str):
    run = within("deploy_checkpoints", "--checkpoint", "latest", "--model-name", name)
    refused(run, f"model name is {name!r}", "letters, digits")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "it is not JSON: Expecting"),
        ("{}", "gate"),
        ('{"prompts": [{"prompt": "x"}]}', "contains"),
        ('{"commands": "true"}', "commands"),
        ("3", "A gate is an object or a list of prompts, not 3."),
    ],
)
def test_a_gate_that_is_none(within: Within, job: JobRecord, tmp_path: Path, text: str, told: str):
    (tmp_path / "gate.json").write_text(text)
    refused(deploying(within, "--checkpoint", "latest", "--gate", "gate.json"), told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model-name", "x"], "--checkpoint NAME. Job "),
        (["--checkpoint", "latest"], "Give --model-name NAME."),
        (["--checkpoint", "latest", "--port", "70000"], "65535"),
        (["--checkpoint", "latest", "--patience", "0"], "--patience"),
    ],
)
def test_what_a_script_left_out(within: Within, job: JobRecord, arguments, told: str):
    refused(within("deploy_checkpoints", *arguments), told, "--help", code=2)


@pytest.mark.slow
def test_a_port_in_use(within: Within, job: JobRecord):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = deploying(within, "--checkpoint", "latest", "--port", str(port))
    assert run.code == 1
    last = run.err.splitlines()[-1]
    assert last.startswith("error: ")
    assert f":{port}: Address already in use" in last
    assert within("deployments", "list", "-o", "json").json == {"deployments": []}


# -- what would run ---------------------------------------------------------------------------


def test_a_dry_run(within: Within, job: JobRecord, tmp_path: Path):
    names = ["--checkpoint", "latest", "--checkpoint", "checkpoint-10"]
    run = deploying(within, *names, "--dry-run")
    assert run.code == 0, run.err
    (written,) = (tmp_path / "truss_configs").glob("dry_run_*/config.yaml")
    for told in (
        f"checkpoint-20 of job {job.id} (lora)",
        "Base model: org/base",
        "Engine:     transformers on local, CPUs",
        'python transformers_server.py served.json --host 127.0.0.1 --port "$BT_LEADER_PORT"',
        ADDRESS,
        f"cat truss_configs/{written.parent.name}/config.yaml",
        f"cd truss_configs/{written.parent.name} && truss push",
        "nothing was deployed",
    ):
        assert told in run.out
    assert ADDRESS in written.read_text()
    assert within("deployments", "list", "-o", "json").json == {"deployments": []}


def test_as_a_document(within: Within, job: JobRecord, tmp_path: Path):
    run = deploying(
        within,
        *("--checkpoint", "checkpoint-10", "--engine", "vllm", "--served-name", "checkpoint-10=a"),
        *("--truss-config-output-dir", "out/here", "--dry-run", "-o", "json"),
        verb="deploy-checkpoints",
    )
    assert run.json | {"definition": {}, "notes": []} == {
        "dry_run": True,
        "name": "stories",
        "engine": "vllm",
        "substrate": "local",
        "models": ["a"],
        "checkpoints": [{"job_id": job.id, "checkpoint": "checkpoint-10", "type": "lora"}],
        "base_model": "org/base",
        "start_commands": run.json["start_commands"],
        "definition": {},
        "notes": [],
        "truss_config": "out/here/config.yaml",
    }
    assert "exec vllm serve" in run.json["start_commands"][0]
    assert (tmp_path / "out/here/config.yaml").exists()


def test_a_whisper(within: Within, shelf: Shop):
    record = shelf.job("speech")
    shelf.commit(record, {"checkpoint-5": whisper()})
    run = deploying(within, "--dry-run", "--host", "0.0.0.0", verb="deploy_checkpoint")
    assert "answers everyone who can reach 0.0.0.0" in run.err
    assert "checkpoint-5 of job" in run.out
    assert "v1/audio/transcriptions" in run.out


@pytest.mark.slow
def test_what_vllm_does_not_serve_has_no_truss_config(within: Within, shelf: Shop):
    record = shelf.job("dora")
    shelf.commit(record, {"checkpoint-5": lora(use_dora=True)})
    run = deploying(within, "--dry-run")
    assert (run.code, "truss push" in run.out) == (0, False)
    assert "No truss config was written" in run.err
    run = deploying(within, "--truss-config-output-dir", "out")
    assert run.code == 1
    assert run.err.splitlines()[-1].startswith("error: The adapter checkpoint-5 of job")


CONFIG = """
from truss_train import definitions as d
deploy = d.DeployCheckpointsConfig(
    model_name="told-by-config",
    checkpoint_details=d.CheckpointList(
        base_model_id="org/told",
        download_folder="/tmp/elsewhere",
        checkpoints=[
            d.LoRACheckpoint(training_job_id="JOB", checkpoint_name="checkpoint-10",
                             lora_details=d.LoRADetails(rank=32)),
        ],
    ),
    runtime=d.DeployCheckpointsRuntime(
        environment_variables={"HF_TOKEN": d.SecretReference(name="hub"), "LEVEL": "3"},
    ),
)
"""


def test_a_config_gives_all_choices(within: Within, job: JobRecord, config, monkeypatch):
    monkeypatch.setenv("PREFECT_BT_SECRET_HUB", "token")
    path = config("deploy.py", body=CONFIG.replace("JOB", job.id))
    given = ["--config", str(path), "--accelerator", "none"]
    run = within("deploy_checkpoints", *given, "--dry-run", "-o", "json")
    assert run.code == 0, run.err
    found = run.json
    assert (found["name"], found["models"]) == ("told-by-config", ["checkpoint-10"])
    assert found["base_model"] == "org/told"
    weights = found["definition"]["job"]["weights"]
    assert weights[0]["mount_location"].startswith("/tmp/elsewhere/")
    assert weights[-1]["auth_secret_name"] == "hub"
    assert found["definition"]["job"]["runtime"]["environment_variables"]["LEVEL"] == "3"


def test_options_win_over_the_config(within: Within, job: JobRecord, config, monkeypatch):
    monkeypatch.setenv("PREFECT_BT_SECRET_HUB", "token")
    path = config("deploy.py", body=CONFIG.replace("JOB", "gone123"))
    given = ["--checkpoint", "latest", "--base-model", "org/base"]
    run = deploying(within, "--config", str(path), *given, "--dry-run", "-o", "json")
    assert run.code == 0, run.err
    assert (run.json["name"], run.json["models"]) == ("stories", ["checkpoint-20"])
    assert run.json["base_model"] == "org/base"
    refused(within("deploy_checkpoints", "--config", str(path)), "No job 'gone123'", job.id)


def test_served_names():
    assert parse_served_names(("a=b", "job/x=1=c")) == {"a": "b", "job/x=1": "c"}
    with pytest.raises(DefinitionError):
        parse_served_names(("=b",))
    assert deploy_config_from_json({}).model_name is None


# -- the wizard -------------------------------------------------------------------------------


@pytest.fixture
def start(on_screen: StartScreen) -> StartScreen:
    return partial(on_screen, "deploy_checkpoints", "--dry-run", PROMPT_TOOLKIT_NO_CPR="1")


@pytest.mark.slow
def test_the_wizard_asks_for_missing_choices(start: StartScreen, shelf: Shop):
    record = shelf.job("stories")
    shelf.commit(record, {f"checkpoint-{n}": lora(base="/gone") for n in (10, 20)})
    screen = start("--accelerator", "none")
    screen.wait_for_line("Which checkpoints", "checkpoint-20", "checkpoint-10")
    screen.press("enter")  # with nothing chosen, which goes nowhere
    screen.press(" ", "down", " ", "enter")
    screen.wait_for_line("a folder outside its job", "Which base model")
    screen.press("org/ba", "se", "enter")
    screen.wait_for_line("Model name?", "base")
    screen.press(" v1", "enter")
    screen.wait_for_line("letters, digits")
    screen.press("\x7f\x7f\x7f", "-v1", "enter")
    screen.wait_for_line("Hugging Face token")
    screen.press("down", "enter")
    said = screen.wait_for_line("nothing was deployed")
    assert screen.end() == 0
    assert "Deployment base-v1" in said
    assert f"checkpoint-10 of job {record.id}" in said


@pytest.mark.slow
def test_ctrl_c_leaves_the_wizard(start: StartScreen, job: JobRecord):
    screen = start()
    screen.wait_for_line("Which checkpoints")
    screen.press("ctrl-c")
    assert screen.end() == 130
    assert b"Traceback" not in screen.said


@pytest.fixture
def gpus(tmp_path: Path) -> str:
    """A folder for PATH whose nvidia-smi lists two."""
    if Path("/proc/driver/nvidia/gpus").exists():
        pytest.skip("this machine's own GPUs are listed")
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nfor n in 0 1; do echo $n, NVIDIA H100 80GB HBM3; done\n")
    program.chmod(0o755)
    return str(program.parent)


@pytest.mark.slow
def test_the_wizard_offers_gpus(start: StartScreen, cli: Cli, job: JobRecord, gpus: str):
    given = ["--checkpoint", "latest", "--model-name", "x", "--hf-secret", "none"]
    screen = start(*given, PATH=f"{gpus}:{cli.env['PATH']}")
    screen.wait_for_line("Which accelerator?", "H100", "None (CPU)")
    screen.press("enter")
    screen.wait_for_line("How many?")
    screen.press("down", "enter")
    said = screen.wait_for_line("nothing was deployed")
    assert screen.end() == 0
    assert "vllm on local, 2 H100" in said
    assert "--tensor-parallel-size 2" in said


@pytest.mark.slow
def test_a_script_must_choose_an_accelerator(cli: Cli, job: JobRecord, gpus: str):
    path = f"{gpus}:{cli.env['PATH']}"
    given = ["deploy_checkpoints", "--checkpoint", "latest", "--model-name", "x", "--dry-run"]
    refused(cli(*given, PATH=path), "Give --accelerator with one of H100, none.", code=2)
    run = cli(*given, "--accelerator", "H100:2", "-o", "json", PATH=path)
    assert (run.code, run.json["engine"]) == (0, "vllm")
