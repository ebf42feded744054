"""What may be served together, and what cannot be served at all."""

from __future__ import annotations

import pytest

from prefect_bt.checkpoints.committed.catalog import short_id
from prefect_bt.checkpoints.manifest import UploadOrigin
from prefect_bt.checkpoints.upload.upload_status import StatusPublisher
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
from prefect_bt.errors import CheckpointError, DefinitionError, NotFoundError
from prefect_bt.ledger.records import UploadStatus
from prefect_bt.serving.checkpoint_selection import (
    CheckpointRequest,
    check_model_name,
    requests_for_job,
    requests_from_config,
    select_models,
)
from tests.checkpoints import folders
from tests.serving.committed import TEMPLATE, full, lora, refused, select, whisper

# -- one of them ----------------------------------------------------------------------------


def test_a_full_model_stands_alone(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    choice = select(shop, job, "checkpoint-10")
    (one,) = choice.models
    assert (choice.served_names, choice.base, choice.format) == (("checkpoint-10",), None, "full")
    assert one.source == f"bt://{job.project_id}@{job.id}/checkpoint-10"
    assert one.folder == f"/tmp/training_checkpoints/{job.id}/rank-0/checkpoint-10"
    assert (
        choice.required_checkpoints == (one.required_checkpoint,)
        and one.required_checkpoint.manifests == one.manifests
    )


def test_the_latest_is_the_last_that_can_be_served(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    shop.commit(job, {"checkpoint-20": full()})
    shop.commit(job, {"runs": {"events": b"x"}})
    assert select_models(
        shop.ledger, requests_for_job(shop.ledger, job_id=job.id)
    ).served_names == ("checkpoint-20",)


def test_a_checkpoint_may_be_called_latest(shop):
    job = shop.job()
    shop.commit(job, {"latest": full()})
    shop.commit(job, {"checkpoint-20": full()})
    assert select(shop, job, "latest").served_names == ("latest",)


def test_an_id_of_a_checkpoint_will_do(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    choice = select_models(shop.ledger, [CheckpointRequest(job.id)])
    assert select(shop, job, short_id(job.id, "checkpoint-10")) == choice


def test_without_a_job_the_newest_that_has_something(shop):
    first, _, third = shop.job(), shop.job("empty"), shop.job("other")
    shop.commit(first, {"checkpoint-10": full()})
    shop.commit(third, {"logs": {"events": b"x"}})
    assert requests_for_job(shop.ledger) == (CheckpointRequest(first.id, "latest"),)
    assert requests_for_job(shop.ledger, ["a", "b"], project="train") == (
        CheckpointRequest(first.id, "a"),
        CheckpointRequest(first.id, "b"),
    )
    with pytest.raises(NotFoundError, match="latest of project empty"):
        requests_for_job(shop.ledger, project="empty")


# -- refusals: what cannot be served ---------------------------------------------------------


def test_an_unknown_job(shop):
    job = shop.job()
    message = refused(shop, CheckpointRequest("nothere"))
    assert message == f"No job 'nothere' in this store. Jobs here: {job.id} (job-1 of train)."


def test_an_unknown_job_in_an_empty_store(shop):
    assert refused(shop, CheckpointRequest("nothere")).endswith(
        "There is none yet: push one first."
    )


def test_an_unknown_checkpoint(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full(), "runs": {"events": b"x"}})
    assert refused(shop, CheckpointRequest(job.id, "checkpoint-11")) == (
        f"No checkpoint 'checkpoint-11 of job {job.id}' in this store. "
        f"Job {job.id} can serve: checkpoint-10."
    )


def test_no_checkpoint_at_all(shop):
    job = shop.job()
    assert f"Nothing of job {job.id} can be served yet." in refused(shop, CheckpointRequest(job.id))
    assert "Name at least one" in refused(shop)


def test_one_that_its_uploader_holds_back(shop):
    job = shop.job()
    shop.ledger.begin_attempt(job.id)
    said = UploadStatus(
        updated_at=1.0, waiting=("checkpoint-10: model.safetensors is cut off",), current="b"
    )
    announcer = StatusPublisher(
        shop.ledger.store, UploadOrigin(job.project_id, job.id, rank=0, attempt=0)
    )
    announcer.publish(said)
    announcer.close()
    assert refused(shop, CheckpointRequest(job.id, "checkpoint-10")) == (
        f"The checkpoint checkpoint-10 of job {job.id} is not committed: "
        f"model.safetensors is cut off. Nothing of job {job.id} can be served yet."
    )
    assert "it is being uploaded" in refused(shop, CheckpointRequest(job.id, "b"))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"notes.txt": b"x"}, ("holds no weights", "can serve: good")),
        (folders.fsdp(), ("sharded by FSDP", "FULL_STATE_DICT")),
        (folders.verl(), ("sharded by FSDP", "merge-weights")),
        (folders.megatron(), ("by Megatron", "Hugging Face")),
        ({"model.safetensors": folders.safetensors()}, ("does not show", "FullCheckpoint(...)")),
    ],
)
def test_what_no_server_can_read(shop, files, words):
    job = shop.job()
    shop.commit(job, {"bad": files, "good": full()})
    message = refused(shop, CheckpointRequest(job.id, "bad"))
    assert message.startswith(f"The checkpoint bad of job {job.id} ")
    assert all(each in message for each in words)


def test_latest_has_the_parts_of_all_ranks(shop):
    job = shop.job()
    for step, ranks in ((10, (0, 1)), (20, (0,))):
        for rank in ranks:
            files = full() if rank == 0 else {"rng.pt": b"x"}
            shop.commit(job, {f"checkpoint-{step}": files}, rank=rank)
    assert select(shop, job, "latest").models[0].checkpoint == "checkpoint-10"
    selection = select(shop, job, "checkpoint-20")
    assert selection.models[0].checkpoint == "checkpoint-20"
    why = "is not complete: rank 1 did not commit a part of it."
    assert selection.notes == (f"The checkpoint checkpoint-20 of job {job.id} {why}",)


def test_without_a_complete_one_latest_is_refused_with_the_ranks(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": {"notes.txt": b"x"}})
    shop.commit(job, {"checkpoint-10": {"notes.txt": b"x"}}, rank=1)
    shop.commit(job, {"checkpoint-20": full()})
    message = refused(shop, CheckpointRequest(job.id))
    assert "is not complete: rank 1 did not commit a part of it." in message
    assert "Or deploy it as it is: --checkpoint checkpoint-20." in message


def test_weights_in_another_ranks_part(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": {"notes.txt": b"x"}})
    shop.commit(job, {"checkpoint-10": full()}, rank=1)
    assert "in the files of rank 1, and servers get the files of rank 0" in refused(
        shop, CheckpointRequest(job.id, "checkpoint-10")
    )


def test_a_name_that_no_source_can_spell(shop):
    job = shop.job()
    shop.commit(job, {"a@b": full()})
    assert "has an @ in its name" in refused(shop, CheckpointRequest(job.id, "a@b"))


# -- several --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "what"), [(full(), "a full model"), (whisper(), "a Whisper model")]
)
def test_a_whole_model_among_several(shop, files, what):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": lora(), "best": files})
    message = refused(
        shop, CheckpointRequest(job.id, "checkpoint-10"), CheckpointRequest(job.id, "best")
    )
    assert f"2 checkpoints were chosen, and checkpoint best of job {job.id} is {what}" in message
    assert "Choose a single checkpoint" in message


def test_adapters_of_one_base_from_two_jobs(shop):
    one, two = shop.job(), shop.job("other/with @ and /")
    shop.commit(one, {"checkpoint-10": lora(rank=8), "v0-1/checkpoint-20": lora(rank=64)})
    shop.commit(two, {"checkpoint-30": lora()})
    choice = select_models(
        shop.ledger,
        [
            CheckpointRequest(one.id, "checkpoint-10"),
            CheckpointRequest(one.id, "v0-1/checkpoint-20"),
            CheckpointRequest(two.id),
        ],
    )
    assert choice.served_names == ("checkpoint-10", "v0-1/checkpoint-20", "checkpoint-30")
    assert choice.base and choice.base.source == "hf://org/base"
    assert (choice.base.folder, choice.base.name) == ("/tmp/training_checkpoints/base", "org/base")
    assert choice.models[2].source == f"bt://{two.project_id}@{two.id}/checkpoint-30"


def test_the_same_one_twice_is_one(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    assert len(select(shop, job, "checkpoint-10", "checkpoint-10", "latest").models) == 1


def test_two_of_one_name(shop):
    one, two = shop.job(), shop.job()
    for job in (one, two):
        shop.commit(job, {"checkpoint-10": lora()})
    both = [CheckpointRequest(one.id, "checkpoint-10"), CheckpointRequest(two.id, "checkpoint-10")]
    message = refused(shop, *both)
    assert "would both answer as checkpoint-10" in message
    assert f"--served-name {two.id}/checkpoint-10=NAME" in message
    names = {f"{two.id}/checkpoint-10": "second"}
    assert select_models(shop.ledger, both, served_names=names).served_names == (
        "checkpoint-10",
        "second",
    )
    assert "which is not served" in refused(shop, *both, served_names=names | {"x": "y"})


def test_names_of_ones_own(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": lora(), "checkpoint-20": lora()})
    both = [CheckpointRequest(job.id, "checkpoint-10"), CheckpointRequest(job.id, "checkpoint-20")]
    names = {"checkpoint-10": "early", "checkpoint-20": "late"}
    assert select_models(shop.ledger, both, served_names=names).served_names == ("early", "late")
    message = refused(shop, *both, served_names={"checkpoint-10": "checkpoint-20"})
    assert "both answer as checkpoint-20" in message
    assert "'\\n'" in refused(shop, *both, served_names={"checkpoint-10": "\n"})


def test_files_in_the_checkpoint_directory_itself(shop):
    """`.` is called after its job, and nothing is mounted over anything."""
    job = shop.job()
    shop.commit(job, {".": lora(), "checkpoint-10": lora(), "out": lora()})
    shop.commit(job, {"out/checkpoint-10": lora()})
    names = (".", "checkpoint-10", "out", "out/checkpoint-10")
    choice = select(shop, job, *names)
    assert choice.served_names == (job.id, *names[1:])
    assert [note.endswith(f"answer as {job.id}.") for note in choice.notes] == [True]
    root = f"/tmp/training_checkpoints/{job.id}/rank-0"
    assert [one.folder for one in choice.models] == [
        f"{root}/_",
        f"{root}/checkpoint-10",
        f"{root}/out/_",
        f"{root}/out/checkpoint-10",
    ]


# -- configs --------------------------------------------------------------------------------


def configured(shop, *checkpoints: Checkpoint, **details):
    wanted = CheckpointList(checkpoints=list(checkpoints), **details)
    return select_models(
        shop.ledger, requests_from_config(wanted), download_folder=wanted.download_folder
    )


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
    choice = select_models(
        shop.ledger, requests_from_config(details), download_folder=details.download_folder
    )
    assert choice.served_names == names
    assert choice.models[0].folder == f"/models/ckpts/{job.id}/rank-0/checkpoint-10"


def test_the_rank_in_a_config(shop):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    said = LoRACheckpoint(
        training_job_id=job.id, checkpoint_name="a", lora_details=LoRADetails(rank=32)
    )
    silent = LoRACheckpoint(training_job_id=job.id, checkpoint_name="a")
    assert configured(shop, said).models[0].configured_lora_rank == 32
    assert configured(shop, silent).models[0].configured_lora_rank is None


def test_a_config_that_calls_it_something_else(shop):
    job = shop.job()
    shop.commit(job, {"a": lora()})
    with pytest.raises(CheckpointError) as caught:
        configured(shop, FullCheckpoint(training_job_id=job.id, checkpoint_name="a"))
    assert "holds lora weights, and the config calls them full" in str(caught.value)
    assert "Write LoRACheckpoint(...)." in str(caught.value)


def test_a_config_names_a_format_that_no_file_shows(shop):
    job = shop.job()
    files = {"model.safetensors": folders.safetensors(), "tokenizer.json": b"{}"}
    shop.commit(job, {"a": files})
    choice = configured(shop, WhisperCheckpoint(training_job_id=job.id, checkpoint_name="a"))
    assert choice.format is ModelWeightsFormat.WHISPER


def test_loops_are_not_kept_here():
    with pytest.raises(DefinitionError, match="Loops"):
        requests_from_config(CheckpointList(loops_checkpoint_ids=["run/1"]))
    assert requests_from_config(None) == requests_from_config(CheckpointList()) == ()


@pytest.mark.parametrize("folder", ["ckpts", "/", "/a/../b", ""])
def test_a_download_folder_that_cannot_be(shop, folder):
    job = shop.job()
    shop.commit(job, {"a": full()})
    assert "download_folder is" in refused(shop, CheckpointRequest(job.id), download_folder=folder)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "ü", "x" * 101])
def test_names_that_no_deployment_has(name):
    with pytest.raises(DefinitionError, match="model name"):
        check_model_name(name)
    assert check_model_name("My-model_1.0") == "My-model_1.0"


def test_chat_templates_that_differ_are_noted(shop):
    job = shop.job()
    shop.commit(job, {"a": lora() | TEMPLATE, "b": lora()})
    alone = select(shop, job, "a")
    assert alone.models[0].contents.chat_template and alone.notes == ()
    (note,) = select(shop, job, "a", "b").notes
    assert note.startswith("The adapters' chat templates differ")
