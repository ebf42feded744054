"""A deployment in containers, from a private registry. Its engine is a shell script of the image's.

What real engines answer is tested with them (tests/serving, tests/e2e); here it is how a server in
a container is pulled, reached, replaced and ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

from prefect_bt.serving.deployment_records import DeploymentLedger
from tests.e2e.conftest import until
from tests.e2e.test_python_api import output, python
from tests.serving.committed import Shop, full

from .conftest import push
from .job_site import Site
from .node_rig import build_image
from .registry import Registry
from .removal import remove_image

pytestmark = [pytest.mark.integration]

NAME, ALONE = "boxed", "alone"
"""Two deployments."""
PYTHON = rb"""#!/bin/sh
[ "$1" = -m ] && exit 0  # pip
while [ "$#" -gt 0 ]; do [ "$1" = --port ] && port=$2; shift; done
exec nc -ll -p "$port" -e /bin/answer
"""
ANSWER = rb"""#!/bin/sh
read -r method path rest
while read -r name value; do
  value=${value%?}
  case $name in [Cc]ontent-[Ll]ength:) length=$value ;; "$(printf '\r')") break ;; esac
done
[ "$method" = POST ] && head -c "$length" >/dev/null
name=$(sed -n 's/.*"name": "\([^"]*\)".*/\1/p' served.json)
body='{"choices": [{"message": {"role": "assistant", "content": "'$name'"}}]}'
[ "$path" = /v1/models ] && body='{"data": [{"id": "'$name'"}]}'
printf 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n'
printf 'Content-Length: %s\r\n\r\n%s' "${#body}" "$body"
"""


@pytest.fixture
def local_image(site: Site) -> Iterator[str]:
    """With an engine, on this machine alone."""
    files = {"bin/python": PYTHON, "bin/answer": ANSWER}
    made = build_image(site.engine, "engine", files, "RUN chmod +x /bin/python /bin/answer")
    yield made
    remove_image(site.engine, made)


@pytest.fixture
def image(site: Site, registry: Registry, local_image: str) -> str:
    """With an engine, in a registry that wants a login; not here."""
    name = f"{registry.host}/team/engine:1"
    site.engine.tag(local_image, f"{registry.host}/team/engine", "1")
    push(site.engine, name, registry)
    return name


def said(address: str, name: str = NAME) -> str:
    answer = until(lambda: asked(address, name), seconds=60, what="a server that accepts a request")
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def asked(address: str, name: str) -> httpx.Response | None:
    """None when no server took it for as long as the router waits: a busy machine needs longer."""
    body = {"model": name, "messages": [{"role": "user", "content": "Who is there?"}]}
    answer = httpx.post(f"{address}/chat/completions", json=body, timeout=180)
    nobody = answer.status_code == 503 and answer.json()["error"]["code"] == "no_upstream"
    return None if nobody else answer


def test_a_server_in_a_container_answers_until_it_is_stopped(site: Site, local_image: str) -> None:
    machine = site.machine
    shop = Shop(machine.root / "shop", machine.ledger)
    job = shop.job("box")
    shop.commit(job, {"checkpoint-1": full()})
    words = ("--job-id", job.id, "--checkpoint", "checkpoint-1", "--model-name", ALONE)
    machine.run("deploy_checkpoints", *words, "--image", local_image)
    deployment = json.loads(machine.run("deployments", "view", ALONE, "-o", "json").stdout)
    serving = DeploymentLedger(machine.ledger).find_job_id(ALONE, 1)
    assert len(site.containers(serving)) == 1
    assert said(deployment["address"], ALONE) == "checkpoint-1"
    machine.run("deployments", "stop", ALONE, "--yes")
    site.nothing_left(serving)


@pytest.mark.extended
def test_a_deployment_in_containers(site: Site, registry: Registry, image: str) -> None:
    machine = site.machine
    shop = Shop(machine.root / "shop", machine.ledger)
    job = shop.job("boxes")
    shop.commit(job, {"checkpoint-1": full(), "checkpoint-2": full()})
    machine.environment["PREFECT_BT_SECRET_REGISTRY_LOGIN"] = registry.login
    source = f"""
    import json
    from prefect_bt.blocks import RegistryLogin, TrainingImage, TrainingStore
    from prefect_bt.flows.deploy_checkpoints import deploy_checkpoints
    access = RegistryLogin(registry={registry.host!r}, login_secret="registry_login")
    image = TrainingImage(base_image={image!r}, registry_access=access)
    deployment = deploy_checkpoints(
        {NAME!r},
        job_id={job.id!r},
        checkpoints=["checkpoint-1"],
        image=image,
        store=TrainingStore(url={machine.environment["PREFECT_BT_STORE"]!r}),
    )
    print(json.dumps(deployment))
    """
    first = json.loads(output(python(machine, source)))
    address, serving = first["address"], first["revisions"][0]["job_id"]
    assert said(address) == "checkpoint-1"

    # Its container goes: whoever asks meanwhile is answered by the next one.
    (container,) = site.containers(serving)
    site.engine.kill(container)
    assert said(address) == "checkpoint-1"
    assert len(machine.ledger.list_attempts(serving)) == 2

    # A newer one takes over, of the image that is here by now.
    pinned = site.machine.view(serving)["image"]["pinned"]
    words = ("--job-id", job.id, "--checkpoint", "checkpoint-2", "--model-name", NAME)
    machine.run("deploy_checkpoints", *words, "--image", pinned)
    assert said(address) == "checkpoint-2"
    until(lambda: site.containers(serving) == [], seconds=60, what="the old container gone")

    back = json.loads(machine.run("deployments", "rollback", NAME, "-o", "json").stdout)
    assert (back["serving_revision"], said(address)) == (1, "checkpoint-1")
    machine.run("deployments", "stop", NAME, "--yes")
    for number in (1, 2):
        site.nothing_left(DeploymentLedger(machine.ledger).find_job_id(NAME, number))
    remove_image(site.engine, pinned)
