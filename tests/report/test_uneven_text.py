"""How ranks parted, in words."""

from __future__ import annotations

from phalanx.model import Absence, Group, LineCount, Op, Site, Uneven
from phalanx.report.uneven_text import absence_headline, absence_lines, uneven_lines

WORLD = Group("world", (0, 1, 2, 3))
PAIR = Group("group 1", (0, 1))
LOOP = Site("a.py", 9, "f", "dist.all_reduce(x)")
BACKWARD = Site("a.py", 8, "f", "loss.backward()")
END = Site("a.py", 12, "f", "dist.barrier()")


def counts(*each: tuple[tuple[int, ...], int], site: Site = LOOP) -> tuple[LineCount, ...]:
    return tuple(LineCount(ranks, site, times) for ranks, times in each)


def told(*places: tuple[LineCount, ...], group: Group = WORLD, **more: object) -> list[str]:
    lines = uneven_lines(Uneven(group, places, **more))  # type: ignore[arg-type]
    return [line.removeprefix("  uneven    ").strip() for line in lines]


def test_small_numbers_are_words() -> None:
    assert told(counts(((0,), 4), ((1, 2), 3))) == [
        "a.py:9: rank 0 four times, ranks 1, 2 three times"
    ]
    assert told(counts(((0,), 2), ((1,), 1))) == ["a.py:9: rank 0 twice, rank 1 once"]
    assert told(counts(((0,), 12), ((1,), 0))) == ["a.py:9: rank 0 twelve times, rank 1 never"]


def test_large_numbers_stand_apart_from_ranks() -> None:
    assert told(counts(((0,), 600), ((1,), 5))) == [
        "a.py:9: rank 0: 600 times, rank 1: 5 times"
    ]


def test_a_line_that_makes_several_calls() -> None:
    line = counts(((0,), 3), ((1,), 1), ((2,), 0), site=BACKWARD)
    assert told(line) == ["a.py:8: rank 0 three calls, rank 1 one call, rank 2 no calls"]
    gather = Site("a.py", 7, "f", "dist.all_gather_object(out, x)")
    assert told(counts(((0,), 4), ((1,), 2), site=gather)) == [
        "a.py:7: rank 0 four calls, rank 1 two calls"
    ]


def test_where_they_went() -> None:
    lines = told(
        counts(((0, 3), 3), ((1, 2), 2)),
        counts(((0, 3), 2), ((1, 2), 1), site=BACKWARD),
        together=4,
        went=(((1,), END), ((2,), None)),
    )
    assert lines == [
        "a.py:9: ranks 0, 3 three times, ranks 1, 2 twice",
        "a.py:8: ranks 0, 3 two calls, ranks 1, 2 one call",
        "last together there in call #4; rank 1 went on to a.py:12; rank 2 has ended",
    ]


def test_what_is_counted() -> None:
    assert told(counts(((0,), 3), ((1,), 2)), group=PAIR, since=70) == [
        'a.py:9: rank 0 three times, rank 1 twice on "group 1" (since call #70)'
    ]


def test_lines_of_a_branch() -> None:
    place = (LineCount((0,), LOOP, 3), LineCount((1,), END, 2))
    assert told(place) == ["rank 0 three times at a.py:9, rank 1 twice at a.py:12"]


def test_branches() -> None:
    past = (
        Site("a.py", 3, "f", "if " + "x" * 60 + ":"),
        Site("a.py", 2, "f", "for x in y:  # all"),
    )
    lines = told(counts(((0,), 3), ((1,), 2)), past=past)
    assert lines[1:] == [
        "branch    a.py:3 can lead past it: if xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx ...",
        "or a.py:2: for x in y:",
    ]


def test_nothing() -> None:
    assert uneven_lines(None) == []
    assert absence_lines(None) == []


def test_members_that_stay_away() -> None:
    instead = Op(1, "barrier", WORLD, 2, site=END)
    one = Absence(PAIR, 3, waiting=(0,), absent=(1,), made=3, instead=instead)
    assert absence_headline(one) == (
        'rank 1 has not come to call #3 on "group 1", where rank 0 waits'
    )
    assert [line.strip() for line in absence_lines(one)] == [
        'absent    rank 1 made 3 calls on "group 1" (ranks 0, 1); rank 0 is in call #3;',
        'rank 1 waits on "world" at a.py:12',
    ]
    several = Absence(WORLD, 0, waiting=(0, 1), absent=(2, 3), made=0)
    assert absence_headline(several) == (
        'ranks 2, 3 have not come to call #0 on "world", where ranks 0, 1 wait'
    )
    assert [line.strip() for line in absence_lines(several)] == [
        'absent    ranks 2, 3 made no call on "world" (ranks 0-3); ranks 0, 1 are in call #0'
    ]
