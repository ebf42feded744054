"""What may be served together, what cannot be served at all, and on which base model."""

from __future__ import annotations

import pytest

from prefect_bt.checkpoints.announcing import Announcer
from prefect_bt.checkpoints.catalogue import id_of
from prefect_bt.checkpoints.manifest import Origin
from prefect_bt.definitions import (
    Checkpoint,
    CheckpointList,
    FullCheckpoint,
    LoRACheckpoint,
    LoRADetails,
    ModelWeightsFormat,
    WhisperCheckpoint,
    deploy_config_from_json,
)
from prefect_bt.errors import CheckpointError, DefinitionError, NotFoundError, PrefectBtError
from prefect_bt.jobs import load_definition
from prefect_bt.ledger import Ledger
from prefect_bt.objects.disk import DiskStore
from prefect_bt.planning import plan_weights
from prefect_bt.records import UploadStatus
from prefect_bt.serving.choosing import Wish, check_model_name, choose, wishes, wishes_of
from tests.checkpoints import folders
from tests.serving.committed import TEMPLATE, Shop, full, lora, whisper


@pytest.fixture
def shop(tmp_path) -> Shop:
    return Shop(tmp_path, Ledger(DiskStore(tmp_path / "store")))


def refused(shop: Shop, *wanted: Wish, **options) -> str:
    """The whole message: one error, which ends with what to do."""
    with pytest.raises(PrefectBtError) as caught:
        choose(shop.ledger, wanted, **options)
    assert caught.value.next_step
    return str(caught.value)


# -- one of them ----------------------------------------------------------------------------


def test_a_full_model_stands_alone(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    choice = choose(shop.ledger, [Wish(job.id, "checkpoint-10")])
    (one,) = choice.models
    assert (choice.names, choice.base, choice.format) == (("checkpoint-10",), None, "full")
    assert one.source == f"bt://{job.project_id}@{job.id}/checkpoint-10"
    assert one.folder == f"/tmp/training_checkpoints/{job.id}/rank-0/checkpoint-10"
    assert choice.held == (one.held,) and one.held.manifests == (one.manifest,)


def test_the_latest_is_the_last_that_can_be_served(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    shop.commit(job, {"checkpoint-20": full()})
    shop.commit(job, {"runs": {"events": b"x"}})
    assert choose(shop.ledger, wishes(shop.ledger, job_id=job.id)).names == ("checkpoint-20",)


def test_a_checkpoint_may_be_called_latest(shop):
    job = shop.job()
    shop.commit(job, {"latest": full()})
    shop.commit(job, {"checkpoint-20": full()})
    assert choose(shop.ledger, [Wish(job.id, "latest")]).names == ("latest",)


def test_an_id_of_a_checkpoint_will_do(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    choice = choose(shop.ledger, [Wish(job.id)])
    assert choose(shop.ledger, [Wish(job.id, id_of(job.id, "checkpoint-10"))]) == choice


def test_without_a_job_the_newest_that_has_something(shop):
    first, _, third = shop.job(), shop.job("empty"), shop.job("other")
    shop.commit(first, {"checkpoint-10": full()})
    shop.commit(third, {"logs": {"events": b"x"}})
    assert wishes(shop.ledger) == (Wish(first.id, "latest"),)
    assert wishes(shop.ledger, ["a", "b"], project="train") == (
        Wish(first.id, "a"),
        Wish(first.id, "b"),
    )
    with pytest.raises(NotFoundError, match="latest of project empty"):
        wishes(shop.ledger, project="empty")


# -- refusals: what cannot be served ---------------------------------------------------------


def test_an_unknown_job(shop):
    job = shop.job()
    message = refused(shop, Wish("nothere"))
    assert message == f"No job 'nothere' in this store. Jobs here: {job.id} (job-1 of train)."


def test_an_unknown_job_in_an_empty_store(shop):
    assert refused(shop, Wish("nothere")).endswith("There is none yet: push one first.")


def test_an_unknown_checkpoint(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full(), "runs": {"events": b"x"}})
    assert refused(shop, Wish(job.id, "checkpoint-11")) == (
        f"No checkpoint 'checkpoint-11 of job {job.id}' in this store. "
        f"Job {job.id} can serve: checkpoint-10."
    )


def test_no_checkpoint_at_all(shop):
    job = shop.job()
    assert f"Nothing of job {job.id} can be served yet." in refused(shop, Wish(job.id))
    assert "Name at least one" in refused(shop)


def test_one_that_its_uploader_holds_back(shop):
    job = shop.job()
    shop.ledger.begin_attempt(job.id)
    said = UploadStatus(
        updated_at=1.0, waiting=("checkpoint-10: model.safetensors is cut off",), current="b"
    )
    announcer = Announcer(shop.ledger.store, Origin(job.project_id, job.id, rank=0, attempt=0))
    announcer.say(said)
    announcer.close()
    assert refused(shop, Wish(job.id, "checkpoint-10")) == (
        f"The checkpoint checkpoint-10 of job {job.id} is not committed: "
        f"model.safetensors is cut off. Nothing of job {job.id} can be served yet."
    )
    assert "it is being uploaded" in refused(shop, Wish(job.id, "b"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes.txt": b"x"}, ("holds no weights", "can serve: good")),
        (folders.fsdp(), ("spread over processes by FSDP", "FULL_STATE_DICT")),
        (folders.verl(), ("spread over processes by FSDP", "merge-weights")),
        (folders.megatron(), ("by Megatron", "Hugging Face")),
        ({"model.safetensors": folders.safetensors()}, ("does not tell", "FullCheckpoint(...)")),
    ],
)
def test_what_no_server_can_read(shop, files, words):
    job = shop.job()
    shop.commit(job, {"bad": files, "good": full()})
    message = refused(shop, Wish(job.id, "bad"))
    assert message.startswith(f"The checkpoint bad of job {job.id} ")
    assert all(each in message for each in words)


def test_weights_in_another_ranks_part(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": {"notes.txt": b"x"}})
    shop.commit(job, {"checkpoint-10": full()}, rank=1)
    assert "in the part of rank 1, and servers get that of rank 0" in refused(
        shop, Wish(job.id, "checkpoint-10")
    )


def test_a_name_that_no_source_can_spell(shop):
    job = shop.job()
    shop.commit(job, {"a@b": full()})
    assert "has an @ in its name" in refused(shop, Wish(job.id, "a@b"))


# -- several --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "what"), [(full(), "a full model"), (whisper(), "a Whisper model")]
)
def test_a_whole_model_among_several(shop, files, what):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": lora(), "best": files})
    message = refused(shop, Wish(job.id, "checkpoint-10"), Wish(job.id, "best"))
    assert f"2 checkpoints were chosen, and checkpoint best of job {job.id} is {what}" in message
    assert "Choose a single checkpoint" in message


def test_adapters_of_one_base_from_two_jobs(shop):
    one, two = shop.job(), shop.job("other/with @ and /")
    shop.commit(one, {"checkpoint-10": lora(rank=8), "v0-1/checkpoint-20": lora(rank=64)})
    shop.commit(two, {"checkpoint-30": lora()})
    choice = choose(
        shop.ledger,
        [Wish(one.id, "checkpoint-10"), Wish(one.id, "v0-1/checkpoint-20"), Wish(two.id)],
    )
    assert choice.names == ("checkpoint-10", "v0-1/checkpoint-20", "checkpoint-30")
    assert choice.base and choice.base.source == "hf://org/base"
    assert (choice.base.folder, choice.base.name) == ("/tmp/training_checkpoints/base", "org/base")
    assert choice.models[2].source == f"bt://{two.project_id}@{two.id}/checkpoint-30"


def test_the_same_one_twice_is_one(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    wish = Wish(job.id, "checkpoint-10")
    assert len(choose(shop.ledger, [wish, wish, Wish(job.id)]).models) == 1


def test_two_of_one_name(shop):
    one, two = shop.job(), shop.job()
    for job in (one, two):
        shop.commit(job, {"checkpoint-10": lora()})
    both = [Wish(one.id, "checkpoint-10"), Wish(two.id, "checkpoint-10")]
    message = refused(shop, *both)
    assert "would both answer as checkpoint-10" in message
    assert f"--served-name {two.id}/checkpoint-10=NAME" in message
    names = {f"{two.id}/checkpoint-10": "second"}
    assert choose(shop.ledger, both, served_names=names).names == ("checkpoint-10", "second")
    assert "not among what is served" in refused(shop, *both, served_names=names | {"x": "y"})


def test_names_of_ones_own(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": lora(), "checkpoint-20": lora()})
    both = [Wish(job.id, "checkpoint-10"), Wish(job.id, "checkpoint-20")]
    names = {"checkpoint-10": "early", "checkpoint-20": "late"}
    assert choose(shop.ledger, both, served_names=names).names == ("early", "late")
    message = refused(shop, *both, served_names={"checkpoint-10": "checkpoint-20"})
    assert "both answer as checkpoint-20" in message
    assert "'\\n'" in refused(shop, *both, served_names={"checkpoint-10": "\n"})


def test_files_in_the_checkpoint_directory_itself(shop):
    """`.` is called after its job, and nothing is mounted over anything."""
    job = shop.job()
    shop.commit(job, {".": lora(), "checkpoint-10": lora(), "out": lora()})
    shop.commit(job, {"out/checkpoint-10": lora()})
    names = (".", "checkpoint-10", "out", "out/checkpoint-10")
    choice = choose(shop.ledger, [Wish(job.id, name) for name in names])
    assert choice.names == (job.id, *names[1:])
    assert [note.endswith(f"answer as {job.id}.") for note in choice.notes] == [True]
    root = f"/tmp/training_checkpoints/{job.id}/rank-0"
    assert [one.folder for one in choice.models] == [
        f"{root}/_",
        f"{root}/checkpoint-10",
        f"{root}/out/_",
        f"{root}/out/checkpoint-10",
    ]


# -- base models ----------------------------------------------------------------------------


def base_of(shop, job, *names, **options):
    return choose(shop.ledger, [Wish(job.id, name) for name in names], **options).base


def test_two_bases(shop):
    job = shop.job()
    shop.commit(job, {"a": lora("org/one"), "b": lora("org/two")})
    message = refused(shop, Wish(job.id, "a"), Wish(job.id, "b"))
    assert f"The checkpoint a of job {job.id} is an adapter of org/one" in message
    assert "one of org/two; a server has one base model." in message
    assert base_of(shop, job, "a", "b", base_model="org/three").source == "hf://org/three"


def test_an_adapter_that_does_not_tell_its_base(shop):
    job = shop.job()
    files = lora() | {"adapter_config.json": folders.text({"peft_type": "LORA", "r": 8})}
    shop.commit(job, {"a": files})
    message = refused(shop, Wish(job.id, "a"))
    assert "does not say which base model it stands on" in message
    assert "Give base_model_id" in message


@pytest.mark.parametrize("told", ["/data/llama", "../llama", "./llama", "a/b/c"])
def test_a_base_in_a_folder_of_some_machine(shop, told):
    job = shop.job()
    shop.commit(job, {"a": lora(told)})
    message = refused(shop, Wish(job.id, "a"))
    assert f"was trained on {told!r}, a folder that is no part of its job" in message
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


@pytest.mark.parametrize("told", ["models/../base", "ftp://x/y", "hf://a/b/c", "a b"])
def test_a_base_that_nothing_mirrors(shop, told):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    refused(shop, Wish(job.id, "a"), base_model=told)


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
    shop.ledger.pin_weights(job.id, plan.key, "0123abcd")
    shop.commit(job, {"a": lora("/models/base"), "b": lora("/models/base/sub")})
    base = base_of(shop, job, "a")
    assert (base.source, base.pinned, base.auth_secret_name) == (
        "hf://org/base@main",
        "0123abcd",
        "t",
    )
    assert base.folder == "/tmp/training_checkpoints/base"
    assert base_of(shop, job, "b").folder == "/tmp/training_checkpoints/base/sub"


def test_a_base_that_the_job_made_itself(shop):
    job = shop.job(runtime={"checkpointing_config": {"enabled": True, "checkpoint_path": "/out"}})
    shop.commit(job, {"base": full(), "a": lora("/out/base"), "b": lora("/out/gone")})
    choice = choose(shop.ledger, [Wish(job.id, "a")])
    assert choice.base and choice.base.source == f"bt://{job.project_id}@{job.id}/base"
    assert [one.name for one in choice.held] == ["a", "base"]
    assert "'/out/gone', a folder that is no part" in refused(shop, Wish(job.id, "b"))


def test_a_checkpoint_that_is_given_as_the_base_is_held(shop):
    job = shop.job("p")
    shop.commit(job, {"base": full(), "a": lora("org/other")})
    for project, name in ((job.project_id, job.id), ("p", job.id), ("p", job.name)):
        told = f"bt://{project}@{name}/base"
        choice = choose(shop.ledger, [Wish(job.id, "a")], base_model=told)
        assert choice.base and choice.base.source == f"bt://{job.project_id}@{job.id}/base"
        assert [one.name for one in choice.held] == ["a", "base"]
    elsewhere = choose(shop.ledger, [Wish(job.id, "a")], base_model="bt://p@latest/base")
    assert [one.name for one in elsewhere.held] == ["a"]
    gone = f"bt://p@{job.id}/gone"
    assert base_of(shop, job, "a", base_model=gone).source == gone
    assert "No project 'nothere'" in refused(
        shop, Wish(job.id, "a"), base_model=f"bt://nothere@{job.id}/base"
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
    message = refused(shop, Wish(job.id, "b"))
    assert "was saved without its tokenizer" in message and "Give base_model_id" in message
    assert base_of(shop, job, "b", base_model="org/other").source == "hf://org/other"


# -- configs --------------------------------------------------------------------------------


def configured(shop, *checkpoints: Checkpoint, **details):
    wanted = CheckpointList(checkpoints=list(checkpoints), **details)
    return choose(shop.ledger, wishes_of(wanted), download_folder=wanted.download_folder)


def test_a_config_loads_unchanged(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": lora(), "checkpoint-20": lora()})
    names = ("checkpoint-10", "checkpoint-20")
    document = {
        "checkpoint_details": {
            "download_folder": "/models//ckpts/",
            "checkpoints": [
                {"training_job_id": job.id, "checkpoint_name": n, "model_weight_format": "lora"}
                for n in names
            ],
        }
    }
    details = deploy_config_from_json(document).checkpoint_details
    choice = choose(shop.ledger, wishes_of(details), download_folder=details.download_folder)
    assert choice.names == names
    assert choice.models[0].folder == f"/models/ckpts/{job.id}/rank-0/checkpoint-10"


def test_the_rank_that_a_config_says_itself(shop):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    said = LoRACheckpoint(
        training_job_id=job.id, checkpoint_name="a", lora_details=LoRADetails(rank=32)
    )
    silent = LoRACheckpoint(training_job_id=job.id, checkpoint_name="a")
    assert configured(shop, said).models[0].stated_rank == 32
    assert configured(shop, silent).models[0].stated_rank is None


def test_a_config_that_calls_it_something_else(shop):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    with pytest.raises(CheckpointError) as caught:
        configured(shop, FullCheckpoint(training_job_id=job.id, checkpoint_name="a"))
    assert "holds lora weights, and the config calls them full" in str(caught.value)
    assert "Write LoRACheckpoint(...)." in str(caught.value)


def test_a_config_names_a_format_that_nothing_tells(shop):
    job = shop.job()
    files = {"model.safetensors": folders.safetensors(), "tokenizer.json": b"{}"}
    shop.commit(job, {"a": files})
    choice = configured(shop, WhisperCheckpoint(training_job_id=job.id, checkpoint_name="a"))
    assert choice.format is ModelWeightsFormat.WHISPER


def test_loops_are_not_kept_here():
    with pytest.raises(DefinitionError, match="Loops"):
        wishes_of(CheckpointList(loops_checkpoint_ids=["run/1"]))
    assert wishes_of(None) == wishes_of(CheckpointList()) == ()


@pytest.mark.parametrize("folder", ["ckpts", "/", "/a/../b", ""])
def test_a_download_folder_that_cannot_be(shop, folder):
    job = shop.job()
    shop.commit(job, {"a": full()})
    assert "download_folder is" in refused(shop, Wish(job.id), download_folder=folder)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "ü", "x" * 101])
def test_names_that_no_deployment_has(name):
    with pytest.raises(DefinitionError, match="model name"):
        check_model_name(name)
    assert check_model_name("My-model_1.0") == "My-model_1.0"


def test_chat_templates_that_differ_are_told(shop):
    job = shop.job()
    shop.commit(job, {"a": lora() | TEMPLATE, "b": lora()})
    alone = choose(shop.ledger, [Wish(job.id, "a")])
    assert alone.models[0].contents.chat_template and alone.notes == ()
    (note,) = choose(shop.ledger, [Wish(job.id, "a"), Wish(job.id, "b")]).notes
    assert note.startswith("The adapters' chat templates differ")
