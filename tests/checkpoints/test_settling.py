from prefect_bt.checkpoints.layout import FileFact, Found
from prefect_bt.checkpoints.settling import Settling


def one(name="a", size=1, mtime=1, **more):
    return {name: Found(name, {"f": FileFact(size, mtime)}, **more)}


def test_quiet_after_the_time_and_only_then():
    settling = Settling(5)
    assert settling.observe(one(), now=100) == []
    assert settling.observe(one(), now=104.9) == []
    assert settling.observe(one(), now=105) == ["a"]
    assert settling.observe(one(), now=106) == ["a"]


def test_any_change_starts_over():
    settling = Settling(5)
    settling.observe(one(), now=0)
    for now, found in enumerate(
        [one(size=2), one(size=2, mtime=0), one(unfinished={"f.tmp": FileFact(1, 1)})], start=4
    ):
        assert settling.observe(found, now=now * 3) == []
        assert settling.observe(found, now=now * 3 + 2) == []
    assert settling.observe(found, now=23) == ["a"]


def test_each_on_its_own_and_a_return_starts_over():
    settling = Settling(5)
    settling.observe(one("a") | one("b"), now=0)
    settling.observe(one("b"), now=3)
    assert settling.observe(one("a") | one("b"), now=5) == ["b"]
    assert settling.observe(one("a") | one("b"), now=8) == ["b"]
    assert settling.observe(one("a") | one("b"), now=10) == ["a", "b"]


def test_file_times_do_not_matter():
    settling = Settling(5)
    settling.observe(one(mtime=10**19), now=0)
    assert settling.observe(one(mtime=10**19), now=5) == ["a"]


def test_a_clock_that_starts_again_does_not_block():
    settling = Settling(5)
    settling.observe(one(), now=1_000)
    assert settling.observe(one(), now=10) == []
    assert settling.observe(one(), now=15) == ["a"]


def test_forgotten_starts_over():
    settling = Settling(5)
    settling.observe(one(), now=0)
    settling.forget("a")
    assert settling.observe(one(), now=6) == []
