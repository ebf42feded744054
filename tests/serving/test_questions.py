"""What is asked of somebody who left something out (§11.1)."""

from __future__ import annotations

from prefect_bt.definitions import Compute
from prefect_bt.serving.choosing import Wish, choose
from prefect_bt.serving.questions import (
    NONE,
    answered_compute,
    ask_accelerator,
    ask_checkpoints,
    ask_count,
    ask_hf_secret,
    ask_model_name,
)
from prefect_bt.serving.shelves import look
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
    assert ask_checkpoints(look(shop.ledger, job.id)).only_answer == "checkpoint-10"
    shop.commit(job, {"adapter": adapter(), "runs": {"events": b"x"}})
    question = ask_checkpoints(look(shop.ledger, job.id))
    assert [one.label for one in question.options] == ["adapter  lora", "checkpoint-10  full"]
    assert question.many and question.only_answer == ""
    answers = [Wish(job.id, value) for value in values(question)[:1]]
    assert choose(shop.ledger, answers).names == ("adapter",)


def test_a_name_after_the_base_model():
    assert ask_model_name(choice(lora())).default == "base-7b"
    assert ask_model_name(choice(chosen())).default == ""


def test_the_machines_accelerators():
    question = ask_accelerator(MACHINE)
    assert (values(question), question.default) == (["H100", NONE], "H100")
    assert values(ask_count(MACHINE)) == ["1", "2"]
    laptop = Capacity(cpus=2, memory=1, gpus=0)
    assert ask_accelerator(laptop).only_answer == NONE


def test_answers_about_compute():
    spec = answered_compute("H100", 2).accelerator
    assert spec and (spec.accelerator, spec.count) == ("H100", 2)
    assert answered_compute(NONE) == Compute(cpu_count=0, memory="0Mi")


def test_the_secret_of_the_hub():
    question = ask_hf_secret()
    assert (question.default, question.free) == ("hf_access_token", True)
