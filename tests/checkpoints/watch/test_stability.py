import math

from prefect_bt.checkpoints.formats.decision import Evidence
from prefect_bt.checkpoints.layout import FileStat, LocalCheckpoint
from prefect_bt.checkpoints.watch.stability import StabilityTracker


def one(name="a", size=1, mtime=1, **more):
    return {name: LocalCheckpoint(name, {"f": FileStat(size, mtime)}, **more)}


def settled_files(tracker, name, *, now, **evidence):
    """The files to commit now; None while they are waited for."""
    quiet = tracker.decide(name, now=now, examine=lambda _: Evidence(**evidence))
    return quiet.checkpoint if quiet is not None and quiet.decision.is_commit else None


class Clocked(StabilityTracker):
    """Observe and ask in one step."""

    def at(self, now, found, **evidence):
        self.observe(found, now=now)
        return [name for name in found if settled_files(self, name, now=now, **evidence)]


def test_quiet_after_the_time_and_only_then():
    settling = Clocked(5)
    assert settling.at(100, one()) == []
    assert settling.at(104.9, one()) == []
    assert settling.at(105, one()) == ["a"]
    assert settling.at(106, one()) == ["a"]


def test_any_change_starts_over():
    temporary = one(temporary_files={"f.tmp": FileStat(1, 1)})
    for change in (one(size=2), one(size=2, mtime=0), temporary, {}):
        settling = Clocked(5)
        settling.at(0, one())
        assert settling.at(2, change) == []
        settling.at(2.5, one())
        assert settling.at(7, one()) == []
        assert settling.at(7.5, one()) == ["a"]


def test_each_on_its_own_and_a_return_starts_over():
    settling = Clocked(5)
    settling.at(0, one("a") | one("b"))
    settling.at(3, one("b"))
    assert settling.at(5, one("a") | one("b")) == ["b"]
    assert settling.at(8, one("a") | one("b")) == ["b"]
    assert settling.at(10, one("a") | one("b")) == ["a", "b"]


def test_file_times_do_not_matter():
    settling = Clocked(5)
    settling.at(0, one(mtime=10**19))
    assert settling.at(5, one(mtime=10**19)) == ["a"]


def test_a_clock_that_goes_back_starts_over():
    settling = Clocked(5)
    settling.at(100, one())
    assert settling.at(50, one()) == []
    assert settling.at(54, one()) == []
    assert settling.at(55, one()) == ["a"]


def test_forgotten_starts_over():
    settling = Clocked(5)
    settling.at(0, one())
    settling.reset("a")
    assert settling.at(6, one()) == []
    assert settling.at(11, one()) == ["a"]


def test_proof_of_the_end_is_believed_after_a_moment():
    settling = Clocked(5)
    assert settling.at(0, one(), is_repeated=True) == []
    assert settling.at(1, one(), is_repeated=True) == ["a"]


def test_a_writer_that_pauses_is_given_half_as_long_again():
    settling = Clocked(2)
    settling.at(0, one("checkpoint-1", size=1))
    settling.at(10, one("checkpoint-1", size=2))
    assert settling.at(24, one("checkpoint-1", size=2)) == []
    assert settling.at(25, one("checkpoint-1", size=2)) == ["checkpoint-1"]
    # Its like are known by then.
    settling.at(100, one("checkpoint-2"))
    assert settling.at(114, one("checkpoint-2")) == []
    assert settling.at(115, one("checkpoint-2")) == ["checkpoint-2"]
    settling.at(200, one("other"))
    assert settling.at(202, one("other")) == ["other"]


def test_a_folder_written_anew_after_a_while_teaches_nothing():
    settling = Clocked(2)
    settling.at(0, one("last", size=1))
    settling.at(600, one("last", size=2))
    assert settling.at(602, one("last", size=2)) == ["last"]


def test_a_log_that_never_rests_holds_nothing_back():
    settling = Clocked(2)
    for now in range(100):
        files = {"ckpt.pt": FileStat(9, 1), "train.log": FileStat(now, now)}
        found = {".": LocalCheckpoint(".", files)}
        settling.observe(found, now=now)
        taken = settled_files(settling, ".", now=now)
        if now < 6:
            assert taken is None
        else:
            assert taken.files == {"ckpt.pt": FileStat(9, 1)}
    settling.observe(found, now=101.5)
    assert "train.log" in settled_files(settling, ".", now=101.5).files


def test_only_a_log_waits_until_it_rests():
    settling = Clocked(2)
    for now in range(50):
        found = {"logs": LocalCheckpoint("logs", {"a.log": FileStat(now, now)})}
        assert settling.at(now, found) == []


def test_when_to_look_again():
    settling = StabilityTracker(5)
    assert settling.seconds_until_due(now=0) == math.inf
    settling.observe(one(), now=0)
    assert settling.seconds_until_due(now=0.1) == 0.4
    assert settling.seconds_until_due(now=1) == 4
    assert settling.seconds_until_due(now=5) == 15
    assert settling.seconds_until_due(now=20) == 40
    assert settling.seconds_until_due(now=60) == math.inf


def test_what_looks_like_a_beginning_is_waited_for():
    settling = Clocked(2)
    settling.at(0, one(), sign="x")
    assert settling.at(19, one(), sign="x") == []
    assert settling.at(19.5, one()) == ["a"]
    assert settling.at(20, one(), sign="x") == ["a"]
