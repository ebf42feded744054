"""The serving job: a definition like any other, that gets the very bytes that were chosen."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from prefect_bt.definitions import (
    AcceleratorSpec,
    Compute,
    Image,
    SecretReference,
    WeightsSource,
    project_document,
    training_project_from_json,
)
from prefect_bt.errors import DefinitionError, WeightsError
from prefect_bt.planning.plan import VolumeKind
from prefect_bt.planning.planner import plan_gang, plan_weights
from prefect_bt.serving.checkpoint_selection import CheckpointRequest, select_models
from prefect_bt.serving.engines import require_key
from prefect_bt.serving.served_model import BaseModel
from prefect_bt.serving.serving_job import (
    ServerOptions,
    build_serving_job,
    pin_revisions,
    render_served_file,
    resolve_compute,
)
from prefect_bt.substrates.protocol import Capacity, Enforcement
from prefect_bt.weights import NodeCache, mirror_source
from tests.checkpoints import folders
from tests.planning.laptop import CONTEXT
from tests.serving import committed
from tests.serving.chosen import DOWNLOADED, HUB_BASE, WHISPER, choice, chosen, gpus, lora
from tests.serving.committed import select
from tests.serving.golden import check_golden

TOKEN = {"HF_TOKEN": SecretReference(name="hf_access_token")}


def served(chosen_, **options):
    return build_serving_job(chosen_, ServerOptions(**options))


# -- the definition -------------------------------------------------------------------------


def test_a_job_that_any_substrate_takes():
    serving = served(choice(lora(), lora("v0/checkpoint-20")), environment=TOKEN)
    document = project_document(serving.project)
    assert training_project_from_json(json.dumps(document)) == serving.project
    check_golden("project-lora.json", json.dumps(document, indent=1) + "\n")
    plan = plan_gang(serving.project, CONTEXT)
    (node,) = plan.nodes
    assert node.checkpoints is None and plan.secret_names == ("hf_access_token",)
    mounts = [v.target for v in node.volumes if v.kind is VolumeKind.WEIGHTS]
    assert mounts == [*(one.folder for one in serving.selection.models), f"{DOWNLOADED}/base"]
    assert all(v.read_only for v in node.volumes if v.kind is VolumeKind.WEIGHTS)


def test_the_server_is_the_command_itself():
    serving = served(choice(chosen()), compute=gpus(), host="0.0.0.0")
    (command,) = serving.project.job.runtime.start_commands
    assert command.startswith("exec vllm serve ")
    assert '--host 0.0.0.0 --port "$BT_LEADER_PORT"' in command
    assert (serving.engine, serving.served_names) == ("vllm", ("checkpoint-10",))
    assert set(serving.files) == {"served.json"}


def test_checkpoints_that_lie_in_each_other_are_mounted_beside_each_other(shop):
    job = shop.job()
    names = (".", "out", "out/checkpoint-10")
    shop.commit(job, {".": committed.lora(), "out": committed.lora()})
    shop.commit(job, {"out/checkpoint-10": committed.lora()})
    chosen = select(shop, job, *names)
    [node] = plan_gang(served(chosen).project, CONTEXT).nodes
    mounts = [volume.target for volume in node.volumes if volume.kind is VolumeKind.WEIGHTS]
    assert len(mounts) == len(names) + 1, "and the base"
    assert not [(one, two) for one in mounts for two in mounts if two.startswith(f"{one}/")]


def test_which_packages_are_installed_and_where():
    one = choice(lora())
    assert len(served(one).project.job.runtime.start_commands) == 1
    brought, command = served(one, install_requirements=True).project.job.runtime.start_commands
    assert brought == (
        "python -m pip install --no-cache-dir 'torch>=2.13,<2.14' 'transformers[serving]~=5.23' "
        "'peft~=0.21.2'"
    )
    assert command.startswith("exec python transformers_server.py served.json ")
    assert (
        len(
            served(
                one, compute=gpus(), install_requirements=True
            ).project.job.runtime.start_commands
        )
        == 1
    )


def test_an_image_and_variables_of_ones_own():
    job = served(
        choice(chosen()),
        image=Image(base_image="mine:1"),
        environment={"HF_HUB_OFFLINE": "0", "X": "1"},
        job_name="chat-1",
    ).project.job
    assert (job.image.base_image, job.name) == ("mine:1", "chat-1")
    assert job.runtime.environment_variables == {"HF_HUB_OFFLINE": "0", "X": "1"}


def test_a_secret_is_a_name_and_stands_in_no_command():
    project = served(choice(lora()), environment=TOKEN).project
    assert project.job.weights[-1].auth_secret_name == "hf_access_token"
    assert not any("hf_access_token" in line for line in project.job.runtime.start_commands)
    # Checkpoints lie in our own store.
    assert [one.secret_name for one in project.job.weights[:-1]] == [None]


def test_a_base_elsewhere_is_not_asked_with_that_token():
    s3 = replace(HUB_BASE, source="s3://bucket/base")
    own = replace(HUB_BASE, auth={"auth_method": "CUSTOM_SECRET", "auth_secret_name": "theirs"})
    named = replace(HUB_BASE, auth_secret_name="theirs")
    found = [
        served(choice(lora(), base=base), environment=TOKEN).project.job.weights[-1].secret_name
        for base in (s3, own, named)
    ]
    assert found == [None, "theirs", "theirs"]
    assert (
        served(choice(lora()), environment={"HF_TOKEN": "x"}).project.job.weights[1]
        == (served(choice(lora())).project.job.weights[1])
    )


def test_a_server_is_one_node():
    with pytest.raises(DefinitionError, match=r"node_count is 2; a server is one node"):
        served(choice(chosen()), compute=Compute(node_count=2))


def test_a_base_whose_name_is_an_adapters():
    base = BaseModel("x", "bt://p@j/checkpoint-10", mount_location=f"{DOWNLOADED}/base")
    serving = served(choice(lora(), base=base), compute=gpus())
    assert "--served-model-name checkpoint-10-base" in serving.project.job.runtime.start_commands[0]


# -- its workspace --------------------------------------------------------------------------


def test_served_json():
    serving = served(choice(lora(), lora("v0/checkpoint-20")))
    text = serving.files["served.json"]
    check_golden("served-lora.json", text)
    assert json.loads(text)["base"] == f"{DOWNLOADED}/base"
    whole = json.loads(render_served_file(choice(chosen("best", WHISPER))))
    assert (whole["base"], whole["models"][0]["kind"]) == (None, "full")


def test_the_workspace_has_the_programs():
    files = served(choice(chosen())).files
    assert set(files) == {"served.json", "transformers_server.py", "require_key.py"}
    assert files["require_key.py"] == Path(require_key.__file__).read_text("utf-8")
    assert json.loads(files["served.json"])["models"][0]["name"] == "checkpoint-10"


# -- what it has ----------------------------------------------------------------------------

MACHINE = Capacity(cpus=8, memory=32 * 1024**3, gpus=1)


@pytest.mark.parametrize(
    "left_out", [None, Compute(), Compute(cpu_count=0, memory="0Mi"), Compute(memory=" 0.0 ")]
)
def test_what_a_config_leaves_out_is_all_there_is_where_limits_are_enforced(left_out):
    assert resolve_compute(left_out, MACHINE) == Compute(), "it may use the machine"
    limited = replace(MACHINE, enforcement=Enforcement.LIMITS)
    found = resolve_compute(left_out, limited)
    assert (found.cpu_count, found.memory, found.accelerator) == (8, "32768Mi", None)
    gpu = Compute(cpu_count=0, memory="0Mi", accelerator=AcceleratorSpec(accelerator="L4"))
    found = resolve_compute(gpu, limited)
    assert (found.cpu_count, found.memory) == (1, "2Gi"), "planning gives it the GPU's share"


def test_what_a_config_asks_for_is_kept():
    asked = Compute(cpu_count=2, memory="10Gi", accelerator=AcceleratorSpec(accelerator="L4"))
    assert resolve_compute(asked, MACHINE) == asked
    none = Compute(memory="nonsense", accelerator=AcceleratorSpec(accelerator="L4", count=0))
    found = resolve_compute(none, MACHINE)
    assert (found.memory, found.accelerator) == ("nonsense", None)


# -- the same bytes -------------------------------------------------------------------------


def mirror(shop, plan, tmp_path, revision=""):
    cache = NodeCache(tmp_path / "cache", 10**9)
    return mirror_source(plan, cache=cache, store=shop.ledger.store, revision=revision)


def test_the_very_bytes_that_were_chosen(shop, tmp_path):
    job = shop.job("a name/with @")
    shop.commit(job, {"base": committed.full()})
    shop.commit(job, {"a": committed.lora(), "b": committed.lora("/mnt/ckpts/base")})
    wishes = [CheckpointRequest(job.id, "a"), CheckpointRequest(job.id, "b")]
    base = f"bt://{job.project_id}@{job.id}/base"
    for found in (
        select_models(shop.ledger, wishes, base_model=base),
        select_models(shop.ledger, wishes[1:]),
    ):
        serving = served(found)
        plans = plan_weights(serving.project.job)
        mirrored = {plan.key: mirror(shop, plan, tmp_path) for plan in plans}
        serving_id = shop.job("serving").id
        pin_revisions(shop.ledger, serving_id, serving)
        pins = shop.ledger.pins.read_weights(serving_id)
        assert pins
        for key, pin in pins.items():
            got = mirrored[key]
            assert (got.revision, got.files, got.bytes) == (pin.revision, pin.files, pin.bytes)
    assert len(pins) == 2, "the base that the adapter named, too"
    folder = mirrored[plans[0].key].folder
    files = {k: v for k, v in committed.lora("/mnt/ckpts/base").items() if k != "optimizer.pt"}
    folders.write(tmp_path / "as-written", files)
    assert folders.contents(folder) == folders.contents(tmp_path / "as-written")


def test_one_that_is_written_anew_is_not_served_in_its_place(shop, tmp_path):
    job, serving_id = shop.job(), shop.job("serving").id
    shop.commit(job, {"best": committed.full()})
    serving = served(select_models(shop.ledger, [CheckpointRequest(job.id)]))
    pin_revisions(shop.ledger, serving_id, serving)
    (plan,) = plan_weights(serving.project.job)
    pinned = shop.ledger.pins.read_weights(serving_id)[plan.key]
    here = mirror(shop, plan, tmp_path / "here", pinned.revision)
    shop.commit(job, {"best": committed.full(hidden_size=7)})
    again = mirror(shop, plan, tmp_path / "here", pinned.revision)
    assert again.cache_hit and again.folder == here.folder
    with pytest.raises(WeightsError, match="now has revision"):
        mirror(shop, plan, tmp_path / "elsewhere", pinned.revision)
    pin_revisions(shop.ledger, serving_id, serving)  # a second time changes nothing
    assert shop.ledger.pins.read_weights(serving_id)[plan.key] == pinned


def test_a_base_as_the_training_job_had_it(shop):
    weights = [{"source": "hf://org/base@main", "mount_location": "/models/base"}]
    job, serving_id = shop.job(weights=weights), shop.job("serving").id
    source = WeightsSource.model_validate(weights[0])
    (had,) = plan_weights(training_project_from_json(job.definition).job)
    shop.ledger.pins.pin_weights(job.id, had.key, "0123abcd")
    shop.commit(job, {"a": committed.lora("/models/base")})
    serving = served(select_models(shop.ledger, [CheckpointRequest(job.id)]))
    pin_revisions(shop.ledger, serving_id, serving)
    assert serving.project.job.weights[1].source == source.source
    # The same key, so that what the training job mirrored is found on this machine.
    assert shop.ledger.pins.read_weights(serving_id)[had.key].revision == "0123abcd"
