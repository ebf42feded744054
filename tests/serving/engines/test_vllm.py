"""Run the vLLM command line, if vLLM is installed, with two adapters and their base model."""

import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import replace

import httpx
import pytest

from prefect_bt.ledger.ledger import Ledger
from prefect_bt.object_store.disk import DiskStore
from prefect_bt.planning.planner import plan_weights
from prefect_bt.serving.checkpoint_selection import CheckpointRequest, select_models
from prefect_bt.serving.serving_job import ServerOptions, build_serving_job
from prefect_bt.weights import NodeCache, mirror_source
from tests.serving.committed import Shop

pytestmark = [pytest.mark.slow, pytest.mark.integration, pytest.mark.timeout(900)]
if shutil.which("vllm") is None:
    pytest.skip("vllm is not installed", allow_module_level=True)
for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: make demo-deps")

NAMES = {"checkpoint-10": "it's, = first", "checkpoint-20": "checkpoint-20"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of a server of committed adapters, whose base is a checkpoint of the same job."""
    from tests.serving import tiny

    folder = tmp_path_factory.mktemp("vllm")
    tiny.write(folder / "made")
    shop = Shop(folder, Ledger(DiskStore(folder / "store")))
    job = shop.job()
    for name in ("base", *NAMES):
        files = (path for path in (folder / "made" / name).iterdir())
        shop.commit(job, {name: {path.name: path.read_bytes() for path in files}})
    choice = select_models(
        shop.ledger,
        [CheckpointRequest(job.id, name) for name in NAMES],
        base_model=f"bt://{job.project_id}@{job.id}/base",
        served_names={"checkpoint-10": NAMES["checkpoint-10"]},
    )
    command = as_mirrored(shop, choice, folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | command.runtime.environment_variables
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            ["/bin/sh", "-c", command.runtime.start_commands[0]],
            env=environment | {"BT_LEADER_PORT": str(port), "VLLM_CPU_KVCACHE_SPACE": "1"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield wait_for(f"http://127.0.0.1:{port}", server, folder / "log")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        assert server.wait(60) == 0


def as_mirrored(shop, choice, folder):
    """The job, with the folders of this machine in the place of its mounts."""
    cache = NodeCache(folder / "cache", 10**9)
    plans = plan_weights(build_serving_job(choice, ServerOptions()).project.job)
    places = [
        str(mirror_source(plan, cache=cache, store=shop.ledger.store).folder) for plan in plans
    ]
    here = replace(
        choice,
        models=tuple(
            replace(one, folder=place) for one, place in zip(choice.models, places, strict=False)
        ),
        base=replace(choice.base, mount=places[-1]),
    )
    return build_serving_job(here, ServerOptions(engine="vllm")).project.job


def wait_for(address, server, log):
    while server.poll() is None:
        try:
            httpx.get(f"{address}/health", timeout=5).raise_for_status()
        except httpx.HTTPError:
            time.sleep(1)
        else:
            return address
    raise AssertionError(log.read_text("utf-8", "replace")[-4000:])


def test_every_adapter_and_the_base_answer_under_their_names(served):
    listed = httpx.get(f"{served}/v1/models").json()["data"]
    names = ["base", *NAMES.values()]
    assert [one["id"] for one in listed] == names
    answers = {
        name: httpx.post(
            f"{served}/v1/chat/completions",
            json={
                "model": name,
                "messages": [{"role": "user", "content": "hello"}],
                "temperature": 0,
                "max_tokens": 16,
            },
            timeout=300,
        ).json()["choices"][0]["message"]["content"]
        for name in names
    }
    assert len(set(answers.values())) == 3
