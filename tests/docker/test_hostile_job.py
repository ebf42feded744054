"""Jobs that attack their machine in every way we know, beside a harmless job.

After each attack: nothing of the host was read or written, the job has ended, its neighbour of the
same project works on, every command shows what is left, and `delete` removes it. The attacks are in
hostile/, their table is docs/hostile-job.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import docker
import pytest

from tests.conftest import Soak
from tests.e2e.conftest import Machine

from .conftest import WORKER
from .daemons import Daemon
from .hostile import invariants
from .hostile.attack import Attack
from .hostile.image import python_image
from .hostile.siege import Siege, besieged
from .hostile.table import ATTACKS
from .job_site import running_site
from .removal import remove_image

pytestmark = [pytest.mark.integration]


@pytest.fixture(scope="module")
def siege(
    tmp_path_factory: pytest.TempPathFactory,
    engine: docker.APIClient,
    own_daemon: Daemon | None,
    base_image: str,
    served_machine: Machine,
) -> Iterator[Siege]:
    image = python_image(engine, WORKER)
    root = tmp_path_factory.mktemp("besieged")
    with (
        running_site(root, engine, own_daemon, base_image, served_machine.api) as site,
        besieged(site, image) as siege,
    ):
        yield siege
    remove_image(engine, image)


def attack_and_check(siege: Siege, attacks: Sequence[Attack]) -> None:
    job_id, *others = siege.run(attacks)
    log = ""
    for job in (*others, job_id):
        invariants.check_end(siege, job)
        log = invariants.check_commands(siege, job)
    invariants.check_host(siege)
    for attack in attacks:
        invariants.check_checkpoints(siege, job_id, attack)
        invariants.check_log(log, attack)
    for job in (*others, job_id):
        invariants.check_removal(siege, job)
    invariants.check_host(siege)


SEVERE = (
    "link-absolute",
    "link-other-job",
    "hard-links",
    "device-nodes",
    "closed-to-all",
    "escapes-in-logs",
    "mounts",
    "cache-link-to-host",
    "link-file-exchange",
    "pipe-swap",
)


@pytest.mark.extended
def test_the_most_severe_at_once(siege: Siege) -> None:
    """Run them in one container; `make soak` runs all, each alone and in combinations."""
    attack_and_check(siege, [ATTACKS[name] for name in SEVERE])


@pytest.mark.soak
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack(siege: Siege, soak: Soak, name: str) -> None:
    siege.scale = soak.length
    attack_and_check(siege, [ATTACKS[name]])


@pytest.mark.soak
def test_attacks_together(siege: Siege, soak: Soak) -> None:
    """Draw combinations by the seed: several attacks might do what none can alone."""
    siege.scale = 1
    some = [one for one in ATTACKS.values() if not one.alone]
    for _ in range(5 * soak.length):
        chosen = soak.random.sample(some, 6)
        print("together:", *(one.name for one in chosen))
        attack_and_check(siege, chosen)
