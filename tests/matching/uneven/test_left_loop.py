"""Whether ranks with fewer calls at a line have left a loop, in small programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx.matching.uneven.left_loop import has_left_loop
from phalanx.matching.uneven.ways_past import comes_past
from tests.matching.uneven.test_ways_past import Program

LEFT = {
    "skipped": """
        for it in range(5):
            if bad(it):
                continue
            call()  # here
        other()  # there
    """,
    "left": """
        def train(n):
            for i in range(n):
                call()  # here

        for epoch in range(6):
            train(3)
            if stop():
                break
        other()  # there
    """,
    "ended": """
        for at, batch in enumerate(loader):
            with trace():
                call()  # here
        other()  # there
    """,
    "condition": """
        while tokens[-1] != end:
            call()  # here
        other()  # there
    """,
    "next call of the step": """
        def reduce(x):
            if not len(x):
                return
            call()  # here

        for x in steps:
            reduce(x)
            other()  # there
    """,
}

OPEN = {
    "no loop": """
        call()  # here
        other()  # there
    """,
    "a branch": """
        for it in range(5):
            if it % 2 == 0 or late():
                call()  # here
        other()  # there
    """,
    "an else": """
        for batch in loader:
            pass
        else:
            call()  # here
        other()  # there
    """,
    "several callers": """
        def reduce():
            for i in range(3):
                call()  # here

        reduce()
        if late():
            reduce()
        other()  # there
    """,
    "a function that is passed on": """
        def reduce():
            for i in range(3):
                call()  # here

        reduce()
        hook(reduce)
        other()  # there
    """,
    "a decorator that may call twice": """
        @retry
        def step():
            call()  # here

        for i in range(3):
            step()
        other()  # there
    """,
    "a step that is tried again": """
        for i in range(n):
            try:
                call()  # here
                break
            except OSError:
                pass
        other()  # there
    """,
    "entries of a dict": """
        for key, value in metrics.items():
            call()  # here
        other()  # there
    """,
    "things with names": """
        for name in names:
            call()  # here
        other()  # there
    """,
    "a number of things": """
        for at in range(len(names)):
            call()  # here
        other()  # there
    """,
    "nobody calls it": """
        def hook():
            for i in range(n):
                call()  # here

        other()  # there
    """,
    "too deep": """
        def a():
            call()  # here

        def b():
            a()

        def c():
            b()

        for i in range(n):
            c()
        other()  # there
    """,
}


def left(folder, text: str) -> bool:
    made = Program(folder, text)
    return has_left_loop(made.site("here"), made.file, made.site("there"))


@pytest.mark.parametrize("name", LEFT)
def test_a_loop_that_all_share_was_left(tmp_path, name: str) -> None:
    assert left(tmp_path, LEFT[name])


@pytest.mark.parametrize("name", OPEN)
def test_a_call_too_many_may_look_the_same(tmp_path, name: str) -> None:
    assert not left(tmp_path, OPEN[name])


def test_another_file_says_nothing(tmp_path) -> None:
    made = Program(tmp_path, LEFT["skipped"])
    there = made.site("there")
    assert not has_left_loop(made.site("here"), made.file, replace(there, file="other.py"))
    assert not has_left_loop(made.site("here"), str(tmp_path / "none.py"), there)


@pytest.mark.parametrize("more", ["", "keep(g)"])
def test_who_comes_past_the_only_call_of_a_function(tmp_path, more: str) -> None:
    made = Program(
        tmp_path,
        f"""
        def g():
            if odd:
                call()  # here

        def f():
            for name in names:
                g()
            other()  # there
        {more}
        """,
    )
    assert comes_past(made.site("here"), made.site("there"), made.file) == (not more)
