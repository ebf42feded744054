"""Defaults and choices of the questions of `deploy_checkpoints`."""

import pytest
from cyclopts import CycloptsError

from prefect_bt.cli.serving.deploy_input import ask_accelerator, ask_checkpoints, list_accelerators
from prefect_bt.cli.ui.terminal import Terminal
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store import open_store
from prefect_bt.serving.servable_checkpoints import list_servable
from prefect_bt.substrates.protocol import Capacity
from tests.serving.chosen import choice, chosen, lora
from tests.serving.committed import Shop, full
from tests.serving.committed import lora as adapter

SCRIPT = Terminal(interactive=False)
MACHINE = Capacity(cpus=8, memory=32 * 1024**3, gpus=2, gpu_types=("H100", "Tesla X", "H100"))


def test_a_single_checkpoint_needs_no_question(tmp_path):
    shop = Shop(tmp_path / "checkpoints", Ledger(open_store(f"{tmp_path}/store")))
    job = shop.job()
    shop.commit(job, {"checkpoint-10": full(), "runs": {"events": b"x"}})
    assert ask_checkpoints(SCRIPT, list_servable(shop.ledger, job.id)) == ("checkpoint-10",)
    shop.commit(job, {"adapter": adapter()})
    with pytest.raises(CycloptsError, match="can serve: checkpoint-10, adapter"):
        ask_checkpoints(SCRIPT, list_servable(shop.ledger, job.id))


def test_adapters_suggest_the_name_of_their_base_model():
    assert choice(lora()).suggested_name == "base-7b"
    assert choice(chosen()).suggested_name == ""


def test_accelerators_are_those_a_config_can_name():
    assert list_accelerators(MACHINE) == ["H100"]
    with pytest.raises(CycloptsError, match="--accelerator with one of H100, none"):
        ask_accelerator(SCRIPT, MACHINE)
    assert ask_accelerator(SCRIPT, Capacity(cpus=2, memory=1, gpus=0)) is None
