"""Tests that are explored, run by tests/testing/test_explored_tests.py."""

import warnings

import pytest
import torch
import torch.distributed as dist

import phalanx

made = []


def store():
    return dist.distributed_c10d._get_default_store()


def come(name="come"):
    return store().add(name, 1)


@pytest.mark.ranks(2, explore=40)
def test_lost_update(rank):
    if rank == 0:
        store().set("n", "0")
    dist.barrier()
    n = int(store().get("n"))
    store().set("n", str(n + 1))
    dist.barrier()
    total = int(store().get("n"))
    print("total", total)
    assert total == 2


@pytest.mark.ranks(3, explore={"strategy": "exhaustive"})
def test_leader_hangs(rank):
    if come() == 1 and rank == 2:
        dist.recv(torch.ones(1), 0)
    dist.barrier()


@pytest.mark.ranks(2, explore=20)
def test_prints():
    print("place", come())


@pytest.mark.ranks(2, explore={"schedules": 20, "compare": "none"})
def test_may_print():
    print("place", come())


@pytest.mark.ranks(2, explore={"strategy": "exhaustive"})
def test_right():
    come()


@pytest.mark.ranks(2, explore=20)
def test_two_ways_to_fail(rank):
    place = come()
    assert (rank, place) != (1, 1)
    other = come("again")
    if rank == 1 and other == 1:
        raise ValueError("first at the second place")


class TestFixtures:
    @pytest.fixture
    def own(self):
        made.append("own")
        yield []
        made.append("torn down")

    @pytest.fixture(scope="class")
    def wide(self):
        made.append("wide")
        return []

    @pytest.mark.ranks(2, explore=10)
    def test_each_schedule_has_its_own(self, rank, own, wide, tmp_path, monkeypatch):
        assert own == []
        own.append(come())
        monkeypatch.setenv("SEEN", "yes")
        assert not (tmp_path / f"left by {rank}").exists()
        (tmp_path / f"left by {rank}").write_text("here")
        (tmp_path / "folder").mkdir(exist_ok=True)

    def test_how_often(self):
        assert made.count("wide") == 1
        # 10 schedules, and two that compare a run with itself; each on two ranks.
        assert made.count("own") == made.count("torn down") == 2 * 12

    @pytest.fixture(scope="class")
    def in_all(self):
        return []

    @pytest.mark.ranks(2, explore=10)
    def test_what_is_shared_is_told(self, in_all):
        in_all.append(1)
        store().add(f"key {len(in_all)}", 1)


class TestOutcomes:
    @pytest.mark.ranks(2, explore=10)
    def test_skipped(self):
        pytest.skip("not here")

    @pytest.mark.xfail(raises=AssertionError, strict=True)
    @pytest.mark.ranks(2, explore=30)
    def test_known(self, rank):
        assert (rank, come()) != (1, 1)

    @pytest.mark.xfail(raises=AssertionError)
    @pytest.mark.ranks(2, explore=30)
    def test_known_and_more(self, rank):
        place = come()
        assert (rank, place) != (1, 1)
        raise ValueError("in the other order")

    @pytest.mark.ranks(2, explore=30)
    def test_xfail_in_a_rank(self, rank):
        if (rank, come()) == (1, 1):
            pytest.xfail("rank 1 is not to be first")

    @pytest.mark.ranks(2, explore=30)
    def test_subtests(self, rank, subtests):
        with subtests.test("place"):
            assert (rank, come()) != (1, 1)

    @pytest.mark.ranks(2, explore=10)
    def test_properties(self, rank, record_property):
        record_property("size", 2)

    @pytest.mark.ranks(2, explore=30)
    def test_in_the_teardown(self, rank, falls):
        pass

    @pytest.fixture
    def falls(self, rank):
        yield
        assert (rank, come()) != (1, 1)

    @pytest.mark.ranks(2, explore=10)
    def test_warns(self):
        warnings.warn("look out", UserWarning, stacklevel=1)


@pytest.mark.ranks_silence("unwaited-work", reason="dropped on purpose")
class TestFindings:
    def leave_a_message(self, rank):
        if (rank, come()) == (1, 1):
            dist.isend(torch.ones(1), 0)

    @pytest.mark.ranks(2, explore=30)
    def test_warning(self, rank):
        self.leave_a_message(rank)

    @pytest.mark.ranks(2, explore=30, strict=True)
    def test_strict(self, rank):
        self.leave_a_message(rank)

    @pytest.mark.ranks_expect("unmatched-message", reason="nobody listens")
    @pytest.mark.ranks(2, explore=30, strict=True)
    def test_expected(self, rank):
        self.leave_a_message(rank)

    @pytest.mark.ranks_silence("unmatched-message", reason="nobody listens")
    @pytest.mark.ranks(2, explore=30, strict=True)
    def test_silenced(self, rank):
        self.leave_a_message(rank)

    @pytest.mark.ranks_expect("deadlock", reason="it is the point")
    @pytest.mark.ranks(3, explore=40)
    def test_deadlock_in_some(self, rank):
        test_leader_hangs(rank)

    @pytest.mark.ranks_expect("deadlock", reason="it is the point")
    @pytest.mark.ranks(2, explore={"strategy": "exhaustive"})
    def test_no_deadlock(self):
        come()

    @pytest.mark.ranks_expect("different-results", reason="the order decides")
    @pytest.mark.ranks(2, explore=20)
    def test_another_result(self):
        print("place", come())

    @pytest.mark.ranks(2, explore=30)
    def test_invariant(self):
        held = come()
        phalanx.always(held < 2, "two ranks hold the lock", held)
        store().add("come", -1)
