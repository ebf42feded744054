"""Holders that die: at once where that can be seen, else when they are silent for too long."""

import subprocess

from prefect_bt.object_store import open_store
from prefect_bt.weights.store_copy.claim_holders import Holder, get_current_holder
from prefect_bt.weights.store_copy.claims import ClaimTimings
from tests.weights.claiming import HOLDER, Clock, claims, until


def test_a_holder_that_was_killed_on_this_machine_is_dead_at_once(url, start):
    process = start(HOLDER, url, "here")
    assert process.stdout.readline() == "held\n"
    waiter = claims(open_store(url))
    assert waiter.try_acquire() is None
    process.kill()
    # Nobody has waited for the process yet: it is a zombie.
    until(waiter.try_acquire).release()
    process.wait()
    assert waiter.try_acquire() is not None


def test_a_holder_that_was_killed_elsewhere_is_dead_when_it_is_silent(url, start):
    """Each word that is heard gives it 30 s more, by the waiter's clock."""
    process = start(HOLDER, url, "elsewhere")
    assert process.stdout.readline() == "held\n"
    clock, heard = Clock(), set()
    waiter = claims(
        open_store(url), ClaimTimings(renew_interval=0.05, expire_after=30.0), clock=clock
    )

    def ten_words():
        assert waiter.try_acquire() is None
        if waiter.current_record.beats not in heard:
            heard.add(waiter.current_record.beats)
            clock.now += 29
        return len(heard) == 10

    until(ten_words)
    process.kill()
    process.wait()
    assert waiter.try_acquire() is None

    def after_silence():
        clock.now += 29
        return waiter.try_acquire()

    until(after_silence).release()


def test_processes_are_told_apart():
    here = get_current_holder()
    assert not here.is_dead()
    assert not Holder("far", 1 << 22, "another machine", "1").is_dead()
    assert not Holder(here.host, here.pid, "", "").is_dead()
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert Holder(here.host, ended.pid, here.machine, "1").is_dead()
    # The pid is another process's by now.
    assert Holder(here.host, here.pid, here.machine, "1").is_dead()
