"""Which base model adapters stand on, and whose tokenizer a whole model borrows."""

import pytest

from prefect_bt.ledger.open_ledger import load_definition
from prefect_bt.planning.planner import plan_weights
from prefect_bt.serving.checkpoint_selection import CheckpointRequest
from tests.checkpoints import folders
from tests.serving.committed import full, lora, refused, select


def base_of(shop, job, *names, **options):
    return select(shop, job, *names, **options).base


def test_two_bases(shop):
    job = shop.job()
    shop.commit(job, {"a": lora("org/one"), "b": lora("org/two")})
    message = refused(shop, CheckpointRequest(job.id, "a"), CheckpointRequest(job.id, "b"))
    assert f"The checkpoint a of job {job.id} is an adapter of org/one" in message
    assert "one of org/two; a server has one base model." in message
    assert base_of(shop, job, "a", "b", base_model="org/three").source == "hf://org/three"


def test_an_adapter_without_the_name_of_its_base(shop):
    job = shop.job()
    files = lora() | {"adapter_config.json": folders.text({"peft_type": "LORA", "r": 8})}
    shop.commit(job, {"a": files})
    message = refused(shop, CheckpointRequest(job.id, "a"))
    assert "does not name its base model" in message
    assert "Give base_model_id" in message


@pytest.mark.parametrize("told", ["/data/llama", "../llama", "./llama", "a/b/c"])
def test_a_base_in_a_folder_of_some_machine(shop, told):
    job = shop.job()
    shop.commit(job, {"a": lora(told)})
    message = refused(shop, CheckpointRequest(job.id, "a"))
    assert f"was trained on {told!r}, a folder outside its job" in message
    assert ("or file:///data/llama" in message) == (told == "/data/llama")


@pytest.mark.parametrize(
    ("told", "source"),
    [
        ("org/base", "hf://org/base"),
        ("org/base@v2", "hf://org/base@v2"),
        ("gpt2", "hf://gpt2"),
        ("s3://bucket/base", "s3://bucket/base"),
        ("bt://train@latest/best", "bt://train@latest/best"),
        ("/models/base", "file:///models/base"),
    ],
)
def test_a_base_that_somebody_gives(shop, told, source):
    job = shop.job()
    shop.commit(job, {"a": lora("org/other")})
    assert base_of(shop, job, "a", base_model=told).source == source


@pytest.mark.parametrize("told", ["models/../base", "ftp://x/y", "hf://a/b//c", "a b"])
def test_a_base_that_nothing_mirrors(shop, told):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    refused(shop, CheckpointRequest(job.id, "a"), base_model=told)


def test_the_adapters_revision_of_its_base(shop):
    job = shop.job()
    shop.commit(job, {"a": lora("org/base", revision="1234abc")})
    base = base_of(shop, job, "a")
    assert (base.source, base.name) == ("hf://org/base@1234abc", "org/base")


def test_a_base_in_a_cache_of_the_hub_is_known(shop):
    commit = "0123456789abcdef" * 2 + "01234567"
    cache = f"/root/.cache/huggingface/hub/models--org--base-7b/snapshots/{commit}"
    job = shop.job()
    shop.commit(job, {"a": lora(cache), "b": lora(cache.replace("org--base-7b", "gpt2") + "/")})
    assert base_of(shop, job, "a").source == f"hf://org/base-7b@{commit}"
    assert base_of(shop, job, "b").source == f"hf://gpt2@{commit}"


def test_a_base_that_was_mounted_is_the_same_weights(shop):
    weights = [
        {"source": "hf://org/base@main", "mount_location": "/models/base/", "auth_secret_name": "t"}
    ]
    job = shop.job(weights=weights)
    plan = plan_weights(load_definition(job).job)[0]
    shop.ledger.pins.pin_weights(job.id, plan.key, "0123abcd")
    shop.commit(job, {"a": lora("/models/base"), "b": lora("/models/base/sub")})
    base = base_of(shop, job, "a")
    assert (base.source, base.pinned_revision, base.auth_secret_name) == (
        "hf://org/base@main",
        "0123abcd",
        "t",
    )
    assert base.folder == "/tmp/training_checkpoints/base"
    assert base_of(shop, job, "b").folder == "/tmp/training_checkpoints/base/sub"


def test_a_base_that_the_job_made_itself(shop):
    job = shop.job(runtime={"checkpointing_config": {"enabled": True, "checkpoint_path": "/out"}})
    shop.commit(job, {"base": full(), "a": lora("/out/base"), "b": lora("/out/gone")})
    choice = select(shop, job, "a")
    assert choice.base and choice.base.source == f"bt://{job.project_id}@{job.id}/base"
    assert [one.name for one in choice.required_checkpoints] == ["a", "base"]
    assert "'/out/gone', a folder outside its job" in refused(shop, CheckpointRequest(job.id, "b"))


def test_a_checkpoint_that_is_given_as_the_base_is_held(shop):
    job = shop.job("p")
    shop.commit(job, {"base": full(), "a": lora("org/other")})
    for project, name in ((job.project_id, job.id), ("p", job.id), ("p", job.name)):
        told = f"bt://{project}@{name}/base"
        choice = select(shop, job, "a", base_model=told)
        assert choice.base and choice.base.source == f"bt://{job.project_id}@{job.id}/base"
        assert [one.name for one in choice.required_checkpoints] == ["a", "base"]
    elsewhere = select(shop, job, "a", base_model="bt://p@latest/base")
    assert [one.name for one in elsewhere.required_checkpoints] == ["a"]
    gone = f"bt://p@{job.id}/gone"
    assert base_of(shop, job, "a", base_model=gone).source == gone
    assert "No project 'nothere'" in refused(
        shop, CheckpointRequest(job.id, "a"), base_model=f"bt://nothere@{job.id}/base"
    )


@pytest.mark.parametrize("place", ["rank-0/best", "best"])
def test_a_base_that_the_job_loaded(shop, place):
    earlier = shop.job("pretraining")
    shop.commit(earlier, {"best": full()})
    reference = {"typ": "baseten_named_checkpoint", "checkpoint_name": "best", "job_id": earlier.id}
    job = shop.job(
        runtime={"load_checkpoint_config": {"enabled": True, "checkpoints": [reference]}}
    )
    shop.commit(job, {"a": lora(f"/tmp/loaded_checkpoints/{place}")})
    assert base_of(shop, job, "a").source == f"bt://{earlier.project_id}@{earlier.id}/best"


def test_a_whole_model_without_its_tokenizer_borrows_one(shop):
    job = shop.job()
    files = folders.hf_full()
    shop.commit(job, {"a": files, "b": files | {"config.json": folders.text({"model_type": "x"})}})
    base = base_of(shop, job, "a")
    assert (base.source, base.tokenizer_only) == ("hf://org/base", True)
    assert "**/*.safetensors" in (base.ignore_patterns or ())
    message = refused(shop, CheckpointRequest(job.id, "b"))
    assert "was saved without its tokenizer" in message and "Give base_model_id" in message
    assert base_of(shop, job, "b", base_model="org/other").source == "hf://org/other"
