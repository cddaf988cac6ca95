"""Leaks, ranks of two spaces and threads: the rule tables."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from phalanx.checks.leak import FEW, MANY, Making, find_kept_world, find_leaks, find_left_world
from phalanx.checks.rank_space import RootUse, find_rank_space
from phalanx.checks.thread_race import ThreadCall, find_thread_race
from phalanx.model import Group, Op, Site

LINE = Site("train.py", 8, "step", "group = dist.new_group([0, 1])")
GROUP = Group("group 1", (1, 2, 3))


def making(most: int, *, lost: bool = True, by_name: bool = False) -> Making:
    return Making((0, 1), LINE, most + 1, most, lost, by_name)


def test_lost_groups_of_one_line_are_one_finding() -> None:
    (finding,) = find_leaks([making(FEW), replace(making(FEW), ranks=(2, 3))])
    assert finding.ranks == (0, 1, 2, 3) and f"{FEW + 1} times" in finding.headline
    assert find_leaks([making(FEW - 1)]) == ()
    assert find_leaks([making(100, lost=False)]) == ()


def test_the_headline_counts_all_groups_of_the_line() -> None:
    (finding,) = find_leaks([replace(making(22), at_line=(25, 24, 25))])
    assert finding.headline.endswith("same ranks 25 times; 24 were alive at once")
    (finding,) = find_leaks([replace(making(22), at_line=(22, 22, 25))])
    assert "22 times, and 3 of other ranks; 22 were alive" in finding.headline


def test_meshes_need_many() -> None:
    assert find_leaks([making(MANY - 1, by_name=True)]) == ()
    assert len(find_leaks([making(MANY, by_name=True)])) == 1


def test_only_nccl_asks_for_the_end_of_the_world() -> None:
    assert find_left_world([0, 1], "gloo", LINE) is None
    assert find_left_world([], "nccl", LINE) is None
    finding = find_left_world([0, 1], "cpu:gloo,cuda:nccl", LINE)
    assert finding is not None and finding.ranks == (0, 1)


def test_a_world_is_kept_only_where_others_ended_it() -> None:
    world = Group("world", (0, 1, 2))
    kept = [Op(rank, "init_process_group", world, site=LINE) for rank in (0, 2)]
    ended = [Op(1, "destroy_process_group", world, site=LINE)]
    assert find_kept_world(kept, []) is None and find_kept_world([], ended) is None
    finding = find_kept_world(kept, ended)
    assert finding is not None and finding.ranks == (0, 2)
    assert finding.headline.startswith("ranks 0, 2 ended without destroy_process_group, where")


def use(space, number: int, line: int, name: str = "broadcast") -> RootUse:
    site = Site("train.py", line, "step")
    return RootUse(Op(1, name, GROUP, 0, site=site), space, number, (1, 2, 3))


def test_one_number_in_two_spaces() -> None:
    finding = find_rank_space([use("group", 1, 5), use("world", 1, 6, "reduce")])
    assert finding is not None
    assert finding.headline == (
        'root 1 is rank 1 in reduce, but rank 2 in broadcast, on "group 1"'
    )
    assert "group rank 0" in (finding.hint or "")


def test_no_doubt_in_one_space_or_about_other_numbers() -> None:
    assert find_rank_space([use("world", 1, 5), use("world", 1, 6)]) is None
    assert find_rank_space([use("group", 0, 5), use("world", 1, 6)]) is None
    assert find_rank_space([use("group", 0, 5), use("world", 0, 6)]) is None


@given(st.lists(st.integers(0, 2), min_size=2, unique=True), st.integers(1, 3))
def test_a_line_that_goes_through_the_ranks_is_never_accused(numbers, root) -> None:
    uses = [use("group", number, 5) for number in numbers]
    assert find_rank_space([*uses, use("world", root, 6)]) is None


def call(name: str = "all_reduce", group: Group = GROUP, **more) -> Op:
    return Op(1, name, group, site=LINE, **more)


def test_threads_on_one_group() -> None:
    found = find_thread_race(
        ThreadCall(call(number=3), main=False), ThreadCall(call("barrier", number=2), main=True)
    )
    assert found is not None and found.severity == "error" and found.ranks == (1,)
    assert [block.op.name for block in found.blocks] == ["barrier", "all_reduce"]
    assert "main thread" in found.blocks[0].notes[0]


def test_threads_that_are_not_in_each_others_way() -> None:
    one = ThreadCall(call(number=3), main=True)
    other = Group("group 2", GROUP.ranks)
    assert find_thread_race(one, ThreadCall(call(number=1, group=other), main=False)) is None
    message = ThreadCall(call("send", peer=2, tag=1), main=False)
    assert find_thread_race(one, message) is None
    assert find_thread_race(message, ThreadCall(call("send", peer=2, tag=2), main=True)) is None
    assert find_thread_race(message, ThreadCall(call("recv", peer=2, tag=1), main=True)) is None
    assert find_thread_race(message, ThreadCall(call("send", peer=2, tag=1), main=True))
