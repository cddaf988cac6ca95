"""Faults as values: what is refused, their text and back, how plans are drawn."""

from __future__ import annotations

import pickle
import re
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given, strategies

from phalanx.errors import UsageError
from phalanx.faults import (
    FAULTS,
    CallPoint,
    Corrupt,
    Kill,
    LinePoint,
    MomentPoint,
    Plan,
    RunShape,
    StorePoint,
    call,
    check_plan,
    corrupt,
    delay,
    draw_plan,
    drop_store,
    faults_text,
    kill,
    line,
    moment,
    parse_faults,
    partition,
    raise_,
    read_kinds,
    stop,
    store,
)
from phalanx.faults.fault_words import say_what_happened, say_what_happens

RANK = strategies.integers(0, 63)
SECONDS = strategies.floats(min_value=1e-6, max_value=1e9)
FILE = strategies.text(min_size=1).filter(lambda text: text[-1] not in ":/")
POINTS = strategies.one_of(
    strategies.builds(CallPoint, strategies.integers(1, 10**6)),
    strategies.builds(StorePoint, strategies.integers(1, 10**6)),
    strategies.builds(MomentPoint, strategies.just(0.0) | SECONDS),
    strategies.builds(
        lambda file, number, n: LinePoint(f"{file}:{number}", n),
        FILE,
        strategies.integers(1, 10**5),
        strategies.integers(1, 99),
    ),
)
TIMES = strategies.tuples(SECONDS, SECONDS).map(lambda two: (min(two), max(two) + 1.0))
SIDES = strategies.permutations(range(8)).flatmap(
    lambda ranks: strategies.integers(1, 7).map(lambda cut: (ranks[:cut], ranks[cut:]))
)
ERRORS = strategies.sampled_from([MemoryError, "torch.OutOfMemoryError", OSError, KeyError])
FAULT = strategies.one_of(
    strategies.builds(kill, rank=RANK, at=POINTS),
    strategies.builds(delay, rank=RANK, seconds=SECONDS, at=POINTS),
    strategies.builds(stop, rank=RANK, seconds=SECONDS, at=POINTS),
    strategies.builds(lambda sides, during: partition(*sides, during=during), SIDES, TIMES),
    strategies.builds(
        drop_store, rank=RANK, at=POINTS.filter(lambda at: not isinstance(at, MomentPoint))
    ),
    strategies.builds(
        drop_store,
        at=strategies.builds(MomentPoint, SECONDS),
        seconds=strategies.none() | SECONDS,
    ),
    strategies.builds(
        Corrupt,
        rank=RANK,
        call=strategies.integers(1, 99),
        bits=strategies.integers(1, 64),
        part=strategies.sampled_from(["result", "contribution"]),
        seed=strategies.integers(0, 99),
    ),
    strategies.builds(
        lambda error, message, rank, at: raise_(error, message=message, rank=rank, at=at),
        ERRORS,
        strategies.none() | strategies.text(),
        RANK,
        POINTS,
    ),
)


@given(strategies.lists(FAULT, max_size=4))
def test_text_and_back(plan: list[Any]) -> None:
    assert parse_faults(faults_text(plan)) == tuple(plan)


@given(strategies.lists(FAULT, min_size=1, max_size=3))
def test_the_text_is_what_one_writes_in_python(plan: list[Any]) -> None:
    import torch

    import phalanx.faults

    names = {**vars(phalanx.faults), "torch": torch}
    assert eval(f"[{faults_text(plan)}]", names) == plan


def test_how_they_read() -> None:
    assert str(kill(rank=2, at=call(17))) == "kill(rank=2, at=call(17))"
    assert str(delay(rank=1, seconds=30.0, at=line("train.py:40", 3))) == (
        'delay(rank=1, seconds=30, at=line("train.py:40", 3))'
    )
    assert str(partition([0, 1], [2, 3], during=(5, 20))) == (
        "partition([0, 1], [2, 3], during=(5, 20))"
    )
    assert str(drop_store(during=(5, 20))) == "drop_store(at=moment(5), seconds=15)"
    assert str(drop_store(rank=1, at=store(3))) == "drop_store(rank=1, at=store(3))"
    assert str(corrupt(rank=3, call=9)) == "corrupt(rank=3, call=9)"
    assert str(raise_(MemoryError("full"), rank=1, at=call(3))) == (
        'raise_(MemoryError("full"), rank=1, at=call(3))'
    )
    assert str(stop(rank=1, seconds=900)) == "stop(rank=1, seconds=900, at=call(1))"
    assert str(kill(rank=0, at=moment(0.25))) == "kill(rank=0, at=moment(0.25))"


def test_they_are_frozen_and_travel() -> None:
    fault = raise_(MemoryError("full"), rank=1, at=line("a.py:3"))
    with pytest.raises(FrozenInstanceError):
        fault.rank = 2  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(fault)) == fault
    assert len({fault, parse_faults(str(fault))[0]}) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kill", "kill: no fault; write kill(rank=2, at=call(17)); there are kill, delay,"),
        ("kill(rank=1)", "kill(rank=1): write it like kill(rank=2, at=call(17))"),
        ("kill(rank=1, at=3)", 'kill: at=3: give a point, call(17), line("train.py:40")'),
        ("kill(rank=-1, at=call(1))", "kill: rank=-1: give a rank, from 0 on"),
        ("kill(rank=True, at=call(1))", "kill: rank=True: give a rank"),
        ("kill(rank=x, at=call(1))", "x: give numbers, texts or call(17), line("),
        ("kill(rank=1, at=call(0))", "call(0): they are counted from 1, e.g. call(1)"),
        ("kill(rank=1, at=store(0.5))", "store(0.5): they are counted from 1"),
        ("kill(rank=1, at=call(1, 2))", "call(1, 2): write it like call(17)"),
        ("kill(rank=1, at=moment(-1))", "moment(-1): give seconds from 0 on"),
        ("kill(rank=1, at=line('train'))", "line('train'): give a file and a line"),
        ("kill(rank=1, at=line('a.py:3', 0))", "line('a.py:3', 0): they are counted from 1"),
        ("kill(rank=1, at=call(1)", "give faults as in Python, e.g. kill(rank=2, at=call(17))"),
        ("murder(rank=1)", "murder(rank=1): no fault; there are kill, delay"),
        ("stop(rank=1, seconds=1, at=open('x'))", "open('x'): no point; there are call, line"),
        ("delay(rank=1, seconds=0, at=call(1))", "delay: seconds=0: give seconds above 0"),
        ("delay(rank=1, seconds=1e999, at=call(1))", "delay: seconds=inf: give seconds"),
        ("partition([0], [0], during=(0, 1))", "partition: rank 0 cannot be on both sides"),
        ("partition([], [0], during=(0, 1))", "partition: [] is no side; give ranks"),
        ("partition([0], [1], during=(5, 4))", "during=(5, 4): it ends before it begins"),
        ("partition([0], [1], during=5)", "during=5: give when it begins and ends"),
        ("drop_store()", "drop_store: at=None: give a point"),
        ("drop_store(at=call(1))", "drop_store: rank=None: give a rank"),
        ("drop_store(rank=1, at=moment(1))", "moment(1) is the same for all ranks; leave rank"),
        ("drop_store(at=moment(1), during=(1, 2))", "drop_store: give during=(5, 20), or at"),
        ("corrupt(rank=1, call=0)", "corrupt: call=0: they are counted from 1, e.g. call=1"),
        ("corrupt(rank=1, call=1, part='all')", "choose 'result' or 'contribution'"),
        ("raise_(Foo, rank=1, at=call(1))", "raise_(Foo): there is no such class of errors"),
        ("raise_(print, rank=1, at=call(1))", "raise_(print): there is no such class"),
        ("raise_(OSError(1, 2), rank=1, at=call(1))", "OSError(1, 2): give a class of errors"),
    ],
)
def test_wrong_ones_say_what_to_write(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_faults(text)
    assert said in str(error.value)


def test_a_plan_must_fit_the_ranks() -> None:
    plan = (kill(rank=1, at=call(1)), kill(rank=1, at=call(2)))
    with pytest.raises(UsageError, match="a rank can be killed once"):
        check_plan(plan, 2)
    with pytest.raises(UsageError, match=r"there is no rank 3; ranks are 0 to 2"):
        check_plan((partition([0], [3], during=(0, 1)),), 3)
    check_plan(plan[:1], 2)


def test_errors_are_found_by_name() -> None:
    import torch

    assert repr(raise_(KeyError("k"), rank=0, at=call(1)).make_error()) == "KeyError('k')"
    made = raise_("torch.OutOfMemoryError", rank=0, at=call(1)).make_error()
    assert isinstance(made, torch.OutOfMemoryError)
    with pytest.raises(UsageError, match="no such class of errors"):
        raise_("torch.nothing", rank=0, at=call(1)).make_error()
    with pytest.raises(UsageError, match="No module named"):
        raise_("no_such_module.Error", rank=0, at=call(1)).make_error()

    class Inner(Exception): ...

    with pytest.raises(UsageError, match="at the top of a module"):
        raise_(Inner, rank=0, at=call(1))


def test_a_line_is_meant_by_the_end_of_its_path() -> None:
    assert line("train.py:40").is_in("/home/me/train.py")
    assert line("me/train.py:40").is_in("/home/me/train.py")
    assert not line("me/train.py:40").is_in("/home/you/train.py")
    assert not line("train.py:40").is_in("/home/me/pretrain.py")


SHAPE = RunShape(4, [10, 10, 10, 3], [2, 2, 2, 2], [{"a.py:3": 1, "a.py:7": 6}] * 4, 20.0)


@given(strategies.integers(0, 10**6), strategies.sets(strategies.sampled_from([*FAULTS])))
def test_what_is_drawn_fits_the_shape(seed: int, kinds: set[str]) -> None:
    if not kinds:
        return
    plan = draw_plan(sorted(kinds), seed, SHAPE)
    assert plan == draw_plan(sorted(kinds), seed, SHAPE)
    assert plan == parse_faults(faults_text(plan))
    assert {fault.kind for fault in plan} <= kinds
    check_plan(plan, 4)
    for fault in plan:
        if isinstance(fault.point, CallPoint):
            assert fault.point.n <= SHAPE.calls[fault.ranks[0]]


def drawn(kinds: str, shape: RunShape = SHAPE) -> Plan:
    return tuple(fault for seed in range(200) for fault in draw_plan(kinds, seed, shape))


def test_faults_of_all_kinds_are_drawn_at_all_kinds_of_points() -> None:
    plans = drawn("kill,delay,partition,drop_store,corrupt,raise,stop")
    assert {fault.kind for fault in plans} == set(FAULTS)
    kinds_of_points = {type(fault.point) for fault in drawn("kill")}
    assert kinds_of_points == {CallPoint, LinePoint, StorePoint, MomentPoint}
    assert {fault.ranks for fault in drawn("kill")} == {(0,), (1,), (2,), (3,)}


def test_lines_are_drawn_at_their_first_pass_and_at_later_ones() -> None:
    points = {fault.point for fault in drawn("kill") if isinstance(fault.point, LinePoint)}
    assert points == {line("a.py:3"), *(line("a.py:7", n) for n in range(1, 7))}


def test_one_rank_is_left() -> None:
    two = RunShape(2, [5, 5])
    for seed in range(300):
        assert sum(isinstance(fault, Kill) for fault in draw_plan("kill", seed, two)) == 1


def test_nothing_is_drawn_where_nothing_can_be() -> None:
    assert drawn("kill,corrupt,drop_store,partition", RunShape(1, [0])) == ()


def test_kinds() -> None:
    assert read_kinds("kill, raise,kill") == ("kill", "raise_")
    with pytest.raises(UsageError, match="there is no kind 'murder'; choose among kill, delay"):
        read_kinds("murder")


@pytest.mark.parametrize(
    ("plan", "happened", "happens"),
    [
        ("kill(rank=2, at=call(17))", "rank 2 was killed at its call 17, train.py:4", "is"),
        (
            'delay(rank=1, seconds=30, at=line("train.py:40", 2))',
            "rank 1 was delayed by 30 s at train.py:40, time 2",
            "is",
        ),
        (
            "stop(rank=1, seconds=900, at=moment(5))",
            "rank 1 was stopped for 900 s after 5 s, train.py:4",
            "is",
        ),
        (
            "raise_(MemoryError, rank=0, at=store(3))",
            "MemoryError was raised in rank 0 at its store operation 3, train.py:4",
            "is",
        ),
        (
            "corrupt(rank=3, call=9, bits=1)",
            "1 bit of the result of rank 3 was flipped at its call 9, train.py:4",
            "is",
        ),
        (
            "corrupt(rank=3, call=9, bits=2)",
            "2 bits of the result of rank 3 were flipped at its call 9, train.py:4",
            "are",
        ),
        (
            "drop_store(at=moment(5), seconds=15)",
            "the store lost its server for 15 s after 5 s",
            "loses",
        ),
        (
            "drop_store(rank=0, at=store(3))",
            "the store lost its server for good when rank 0 was at its store operation 3",
            "loses",
        ),
        (
            "partition([0, 1], [2], during=(5, 20))",
            "nothing passed between ranks 0, 1 and rank 2 from 5 s to 20 s",
            "passes",
        ),
        (
            "partition([0, 1], [2], during=(5, None))",
            "nothing passed between ranks 0, 1 and rank 2 from 5 s on for good",
            "passes",
        ),
    ],
)
def test_a_fault_is_said_in_two_tenses(plan: str, happened: str, happens: str) -> None:
    (fault,) = parse_faults(plan)
    place = "" if fault.kind in ("drop_store", "partition") else "train.py:4"
    assert say_what_happened(fault, place) == happened
    present = re.sub("was|were|lost|passed", "{}", happened).replace("{}", happens, 1)
    assert say_what_happens(fault, place) == present.replace("{}", "is")
