"""Check the questions for missing options of a deployment."""

from __future__ import annotations

from prefect_bt.definitions import Compute
from prefect_bt.serving.checkpoint_selection import CheckpointRequest, select_models
from prefect_bt.serving.missing_options import (
    NONE_OPTION,
    accelerator_count_question,
    accelerator_question,
    checkpoints_question,
    compute_from_answers,
    hf_secret_question,
    model_name_question,
)
from prefect_bt.serving.servable_checkpoints import list_servable
from prefect_bt.substrates.protocol import Capacity
from tests.serving.chosen import choice, chosen, lora
from tests.serving.committed import full
from tests.serving.committed import lora as adapter

MACHINE = Capacity(cpus=8, memory=32 * 1024**3, gpus=2, gpu_types=("H100", "Tesla X", "H100"))


def values(question):
    return [one.value for one in question.options]


def test_checkpoints_that_can_be_served(shop):
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full()})
    assert checkpoints_question(list_servable(shop.ledger, job.id)).only_option == "checkpoint-10"
    shop.commit(job, {"adapter": adapter(), "runs": {"events": b"x"}})
    question = checkpoints_question(list_servable(shop.ledger, job.id))
    assert [one.label for one in question.options] == ["adapter  lora", "checkpoint-10  full"]
    assert question.multiple and question.only_option == ""
    answers = [CheckpointRequest(job.id, value) for value in values(question)[:1]]
    assert select_models(shop.ledger, answers).served_names == ("adapter",)


def test_a_name_after_the_base_model():
    assert model_name_question(choice(lora())).default == "base-7b"
    assert model_name_question(choice(chosen())).default == ""


def test_the_machines_accelerators():
    question = accelerator_question(MACHINE)
    assert (values(question), question.default) == (["H100", NONE_OPTION], "H100")
    assert values(accelerator_count_question(MACHINE)) == ["1", "2"]
    laptop = Capacity(cpus=2, memory=1, gpus=0)
    assert accelerator_question(laptop).only_option == NONE_OPTION


def test_answers_about_compute():
    spec = compute_from_answers("H100", 2).accelerator
    assert spec and (spec.accelerator, spec.count) == ("H100", 2)
    assert compute_from_answers(NONE_OPTION) == Compute(cpu_count=0, memory="0Mi")


def test_the_secret_of_the_hub():
    question = hf_secret_question()
    assert (question.default, question.allows_free_text) == ("hf_access_token", True)
