"""The line about names in the report of a run that failed: from notes, and in programs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.checks.order.crossed_order import KIND, Source
from phalanx.checks.order.paired_names import find_paired_names
from phalanx.journal.events import Noted
from phalanx.journal.writer import JournalWriter
from phalanx.model import Deadlock, Finding, Group, Mismatch, Site

SURE = Source(together=lambda one, other: True, expression=lambda place: f"call at {place}")
NEVER = Source(together=lambda one, other: False, expression=lambda place: f"call at {place}")
STUCK = Deadlock("deadlock", "error", (), "cycle", (), (), 2, 2)
SUM = ("all_reduce", 0, None)


def site(line: int = 1) -> Site:
    return Site("train.py", line, "main")


def word(value: str, line: int = 1) -> Any:
    return site(line), ("t",), (("name", value),), False, ("name",)


def named(name: str, line: int) -> Any:
    return site(line), (name,), (), False, ()


def said(*trails: list[Any], verdict: Any = STUCK, source: Source = SURE) -> str | None:
    """What is said of ranks that passed these, one list for each."""
    writer = JournalWriter(len(trails))
    world = writer.group("world", tuple(range(len(trails))))
    for rank, trail in enumerate(trails):
        for number, level in enumerate(trail):
            what = (number, SUM, (level,), None)
            writer.rings[rank].note(Noted(float(number), rank, 0, None, KIND, what, world))
    found = find_paired_names(writer.reader(), verdict, source)
    assert [label for label, _ in found] == ["paired"][: len(found)]
    return found[0][1] if found else None


def words(text: str) -> list[Any]:
    return [word(value) for value in text.split()]


def test_a_name_that_one_rank_lacks() -> None:
    assert said(words("a b c"), words("a c")) == (
        'in call #1 "c" of rank 1 was summed with "b" of rank 0 at train.py:1; '
        'rank 1 came to "c" without "b" before it'
    )
    assert said(words("a c"), words("a b c"), words("a c")) == (
        'in call #1 "b" of rank 1 was summed with "c" of ranks 0, 2 at train.py:1; '
        'ranks 0, 2 came to "c" without "b" before it'
    )


def test_another_order() -> None:
    text = said(words("a b c"), words("b a c"))
    assert text is not None and text.endswith("; both pass both, in another order")
    text = said(words("a b c"), words("c a b"))
    assert text is not None and text.startswith('in call #0 "c" of rank 1 was summed with "a"')


@pytest.mark.parametrize(
    ("one", "other"),
    [("a b", "a b"), ("a b", "a"), ("a x", "a y"), ("0/a 0/b", "1/a 1/b"), ("a", "b")],
)
def test_nothing_where_names_agree_or_are_a_ranks_own(one: str, other: str) -> None:
    assert said(words(one), words(other)) is None


def test_lines_need_one_pass() -> None:
    a, b, c = named("a", 1), named("b", 2), named("c", 3)
    assert said([a, b, c], [a, c]) == (
        "in call #1 c of rank 1 (train.py:3) was summed with b of rank 0 (train.py:2); "
        "rank 1 came to c without b before it"
    )
    assert said([a, b, c], [a, c], source=NEVER) is None


def test_a_mismatch_says_what_its_own_call_was_given() -> None:
    verdict = Mismatch("mismatch", "error", (), Group("world", (0, 1)), 1, (), ("shape",))
    assert said(words("a b"), words("a c"), verdict=verdict) == (
        'in call #1 rank 1 passed "c" where rank 0 passed "b"'
    )


def test_no_other_verdict_has_it() -> None:
    assert said(words("a b"), words("b a"), verdict=Finding(KIND, "warning", (), "")) is None


def reduce_all(metrics: dict[str, float]) -> None:
    for _name, value in metrics.items():
        total = torch.tensor(value)
        dist.all_reduce(total)


def metrics_of(step: int) -> dict[str, float]:
    lacks = dist.get_rank() == 1 and step == 1
    return {"loss": 1.0, **({} if lacks else {"neg": 2.0}), "recall": 3.0}


def lacks_one() -> None:
    for step in range(2):
        metrics = metrics_of(step)
        for name in metrics:
            total = torch.tensor(metrics[name])
            dist.all_reduce(total)
        dist.barrier()


def adds_one() -> None:
    metrics = {"loss": 1.0, "recall": 3.0}
    if dist.get_rank() == 0:
        metrics = {"norm": 2.0, **metrics}
    reduce_all(metrics)
    dist.barrier()


def left_early() -> None:
    """No rank lacks a name: one stops sooner."""
    for step in range(3 - dist.get_rank()):
        reduce_all(metrics_of(step % 1))


def names_of_its_own() -> None:
    rank = dist.get_rank()
    for name in (f"{rank}/a", f"{rank}/b", f"{rank}/c")[: 3 - rank]:
        table = {name: torch.ones(1)}
        dist.all_reduce(table[name])


def report_of(program: Any, **options: Any) -> str:
    with pytest.raises((phalanx.CollectiveMismatchError, phalanx.DeadlockError)) as caught:
        phalanx.run(program, ranks=2, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)
def test_the_report_names_the_first_pair_below_its_headline(engine: str) -> None:
    lines = report_of(lacks_one, engine=engine).splitlines()
    assert lines[2].startswith('  paired    in call #5 "recall" of rank 1 was summed with')


@pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)
def test_the_rank_whose_branch_adds_a_name_is_at_fault(engine: str) -> None:
    with pytest.raises(phalanx.CollectiveMismatchError) as caught:
        phalanx.run(adds_one, ranks=2, engine=engine)
    verdict: Any = caught.value.verdict
    assert verdict.ranks == (0,) and [b.odd for b in verdict.blocks] == [False, True]
    assert verdict.hint.startswith('rank 0 has "norm" by a branch that asks for the rank, at ')


@pytest.mark.parametrize("program", [left_early, names_of_its_own])
def test_other_failures_have_no_such_line(program) -> None:
    assert "  paired  " not in report_of(program)


def test_not_with_the_check_turned_off() -> None:
    assert "  paired  " not in report_of(lacks_one, checks="all,-crossed-order")
