"""Two machines race for one job: real processes, a real store, kills at any moment.

`make soak` races 100 times LENGTH rounds with random kills; `make test` a few without any.
"""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefect_bt.checkpoints.committed.catalog import list_checkpoints
from prefect_bt.ledger.ledger import Ledger
from prefect_bt.ledger.records import JobRecord
from prefect_bt.ledger.states import JobState
from prefect_bt.object_store import open_store
from tests.checkpoints.buckets import Bucket, use
from tests.conftest import Soak
from tests.forked import Forked
from tests.ledger.fencing_epochs.machine import HELD, LOST
from tests.object_store.faulty import FaultyServer, LoseAnswer
from tests.s3_server import shared_s3
from tests.written_jobs import write_job

MACHINE = Path(__file__).with_name("machine.py")


class Race:
    """A job, its store, and two machines that compete for it."""

    def __init__(self, root: Path, store: str = "") -> None:
        self.root, self.store = root, store or str(root / "store")
        self.ledger = Ledger(open_store(self.store))
        project = self.ledger.projects.ensure("p")
        job_id = self.ledger.reserve_job_id(project.id)
        self.record = JobRecord(job_id, "job-1", project.id, "p", 1.0, definition={})
        write_job(self.ledger, self.record, state=JobState.PENDING)
        self.committed: set[str] = set()
        (root / "shared").mkdir()
        for machine in ("a", "b"):
            (root / machine).mkdir()

    def start(self, machine: str) -> Forked:
        shared = self.root / "shared"
        return Forked(MACHINE, [self.store, self.root / machine, self.record.id, shared])

    def check(self) -> None:
        """Check for two gangs, late events of an older epoch, and lost checkpoints."""
        assert not (self.root / "shared" / "two-gangs").exists()
        events = self.ledger.list_events(self.record.id)
        epochs = [event.epoch for event in events]
        assert epochs == sorted(epochs)
        attempts = [event.attempt for event in events if event.state is JobState.DEPLOYING]
        assert len(attempts) == len(set(attempts)), "an attempt was begun twice"
        now = set(self.names())
        assert self.committed <= now
        self.committed = now

    def names(self) -> Iterator[str]:
        found = list_checkpoints(self.ledger.store, self.record.project_id, self.record.id)
        yield from (one.checkpoint_id for one in found)

    def go_on(self) -> None:
        """Restart the machine that died with the job, and bring the job to an end."""
        tries = 0
        while holder := self.holder():
            again = self.start(holder)
            assert again.wait() in {0, LOST}, again.stderr.read()
            self.check()
            tries += 1
            assert tries < 10

    def holder(self) -> str:
        """Return the machine that holds the job now."""
        held = self.ledger.get_epochs(self.record.id).find_active()
        if held is None:
            return ""
        ids = {
            m: (self.root / m / "id").read_text() for m in "ab" if (self.root / m / "id").exists()
        }
        return next(m for m, one in ids.items() if held.host.endswith(f":{one}"))


@pytest.fixture
def race(tmp_path: Path) -> Race:
    return Race(tmp_path)


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyServer]:
    """Start an S3 server behind a proxy, which may lose its answers."""
    with FaultyServer(shared_s3()) as server:
        use(monkeypatch, server.url)
        yield server


@pytest.fixture
def s3_race(tmp_path: Path, faulty: FaultyServer) -> Race:
    return Race(tmp_path, Bucket(shared_s3()).url)


@pytest.mark.slow
def test_one_of_two_machines_runs_the_job(race: Race) -> None:
    for _ in range(5):
        both = [race.start("a"), race.start("b")]
        codes = [one.wait() for one in both]
        assert set(codes) <= {0, HELD}, [one.stderr.read() for one in both]
        assert 0 in codes
        race.check()
        assert len(race.committed) == len(race.ledger.list_attempts(race.record.id))


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    "folder",
    ["epochs", *(pytest.param(one, marks=pytest.mark.extended) for one in ("events", "attempt"))],
)
def test_a_lost_answer_adds_no_winner(s3_race: Race, faulty: FaultyServer, folder: str) -> None:
    for _ in range(2):
        rule = faulty.on(LoseAnswer(), method="PUT", path=rf"/{folder}[s/.].*json", times=2)
        both = [s3_race.start("a"), s3_race.start("b")]
        codes = [one.wait() for one in both]
        assert set(codes) <= {0, HELD}, [one.stderr.read() for one in both]
        assert 0 in codes
        assert rule.hits
        faulty.clear()
        s3_race.check()
        s3_race.go_on()


@pytest.mark.slow
def test_what_a_dead_machine_held_is_its_own_until_it_comes_back(race: Race) -> None:
    race.ledger.claim(race.record.id, "gone:elsewhere")
    refused = race.start("a")
    assert refused.wait() == HELD
    said = refused.stdout.read()
    assert "is run by gone" in said
    assert f"prefect-bt stop --job-id {race.record.id} --abandoned" in said
    assert race.ledger.list_attempts(race.record.id) == []


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_hundred_races_with_random_kills(race: Race, soak: Soak) -> None:
    race_and_kill(race, soak, rounds=100)


@pytest.mark.soak
@pytest.mark.integration
@pytest.mark.timeout(0)
def test_races_over_a_faulty_bucket(s3_race: Race, faulty: FaultyServer, soak: Soak) -> None:
    for skip in range(3, 300, 7):
        faulty.on(LoseAnswer(), method="PUT", path=r"\.json", skip=skip * soak.length, times=1)
    race_and_kill(s3_race, soak, rounds=60)


def race_and_kill(race: Race, soak: Soak, *, rounds: int) -> None:
    killed = 0
    for _ in range(rounds * soak.length):
        both = {name: race.start(name) for name in ("a", "b")}
        time.sleep(soak.random.random() * 0.3)
        victim = soak.random.choice(("a", "b", ""))
        if victim and both[victim].poll() is None:
            both[victim].send_signal(signal.SIGKILL)
            killed += 1
        for one in both.values():
            assert one.wait() in {0, HELD, LOST, -signal.SIGKILL}, one.stderr.read()
        race.check()
        race.go_on()
    print(json.dumps({"killed": killed, "checkpoints": len(race.committed)}))
    assert killed > 10
