"""All cases and all programs: the table of contents of the suite.

A family is a module with `cases(ranks)`, which yields its cases for a number of ranks, and
`PROGRAMS`, the functions that run them on a rank. Add a new family here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

from phalanx.conformance.case_model import Case
from phalanx.conformance.families import (
    barrier_cases,
    collective_cases,
    disagreement_cases,
    environment_cases,
    functional_cases,
    group_cases,
    mistake_cases,
    object_cases,
    ordering_cases,
    point_to_point_cases,
    sparse_cases,
    store_cases,
    work_cases,
)

FAMILIES = (
    collective_cases,
    sparse_cases,
    barrier_cases,
    point_to_point_cases,
    object_cases,
    work_cases,
    ordering_cases,
    functional_cases,
    group_cases,
    store_cases,
    environment_cases,
    mistake_cases,
    disagreement_cases,
)

PROGRAMS: dict[str, Callable[..., None]] = {}
for _family in FAMILIES:
    _programs: dict[str, Any] = _family.PROGRAMS
    assert not PROGRAMS.keys() & _programs.keys(), "two programs of one name"
    PROGRAMS.update(_programs)


def all_cases(rank_counts: Iterable[int]) -> list[Case]:
    """Every case for these numbers of ranks. A combination that two rules give is one case."""
    found: dict[str, Case] = {}
    for ranks in rank_counts:
        for family in FAMILIES:
            for case in family.cases(ranks):
                found.setdefault(case.id, case)
    return list(found.values())


def select(cases: list[Case], expression: str) -> list[Case]:
    """Cases whose id is, contains or (a glob) matches one of the comma-separated words. A
    word that is a whole id stands for this case only."""
    words = [word.strip() for word in expression.split(",") if word.strip()]
    exact = {case.id for case in cases}.intersection(words)
    parts = [word for word in words if word not in exact]
    return [
        case
        for case in cases
        if case.id in exact or any(_matches(case.id, word) for word in parts)
    ]


def _matches(name: str, word: str) -> bool:
    if any(sign in word for sign in "*?["):
        return fnmatchcase(name, word)
    return word in name
