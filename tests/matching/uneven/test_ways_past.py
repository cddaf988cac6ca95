"""What leads past a line, in small programs. A line is named by the comment behind it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from phalanx.matching.uneven.ways_past import (
    are_arms_of_one_branch,
    comes_past,
    find_ways_past,
)
from phalanx.model import Site


class Program:
    """A file; lines are found by what they end with."""

    def __init__(self, folder, text: str) -> None:
        path = folder / "program.py"
        path.write_text(dedent(text), encoding="ascii")
        self.file = str(path)
        self.lines = path.read_text(encoding="ascii").splitlines()

    def site(self, end: str) -> Site:
        at = next(at for at, line in enumerate(self.lines) if line.endswith(f"# {end}"))
        return Site("program.py", at + 1, "f", self.lines[at].strip())

    def ways(self, went: str | None = None, alike: tuple[str, ...] = ()) -> list[str]:
        others = [self.site(each).line for each in alike]
        target = self.site(went) if went else None
        found = find_ways_past(self.site("here"), self.file, target, others)
        return [site.source for site in found]


@pytest.fixture
def program(tmp_path):
    return lambda text: Program(tmp_path, text)


def test_the_end_of_a_loop(program) -> None:
    text = """
        def f(batches):
            for batch in batches:
                call()  # here
            other()  # there
    """
    assert program(text).ways("there") == ["for batch in batches:"]
    assert program(text).ways() == ["for batch in batches:"]


def test_loops_that_are_as_long_for_all(program) -> None:
    text = """
        for epoch in range(10):
            for kind in ("a", "b"):
                while True:
                    call()  # here
    """
    assert program(text).ways() == []


def test_a_break_and_a_return(program) -> None:
    text = """
        def f():
            for i in range(5):
                call()  # here
                if i == mine:
                    break
                if gone:
                    return
            other()  # there
    """
    assert program(text).ways("there") == ["if i == mine:"], "who returns does not get there"
    assert program(text).ways() == ["if i == mine:", "if gone:"]


def test_a_continue_before_it_but_not_after_it(program) -> None:
    text = """
        for batch in range(5):
            if bad(batch):
                continue
            call()  # here
            if quick:
                continue
            more()
    """
    assert program(text).ways() == ["if bad(batch):"]


def test_loops_within_keep_their_own(program) -> None:
    text = """
        def f():
            for batch in range(5):
                for each in batch:
                    if each:
                        break
                call()  # here
    """
    assert program(text).ways() == []


def test_branches_around_it(program) -> None:
    text = """
        if __name__ == "__main__":
            if anchors:
                call()  # here
            else:
                other()  # there
            last()  # end
    """
    assert program(text).ways("there") == ["if anchors:"]
    assert program(text).ways("end") == ["if anchors:"]


def test_not_those_around_both(program) -> None:
    text = """
        for i in range(n):
            if ready:
                if odd:
                    call()  # here
                other()  # there
    """
    assert program(text).ways("there") == ["if odd:"]


def test_not_those_whose_arms_make_the_same_call(program) -> None:
    text = """
        for batch in mine:
            if rank == 0:
                call()  # here
            else:
                call()  # likewise
    """
    assert program(text).ways(alike=("likewise",)) == ["for batch in mine:"]


def test_an_error_that_is_caught(program) -> None:
    text = """
        def f():
            try:
                prepare()
                call()  # here
            except MemoryError:
                pass
            other()  # there
    """
    assert program(text).ways("there") == ["except MemoryError:"]


def test_the_callers_of_a_function_with_one(program) -> None:
    text = """
        def step(loss):
            if loss.isnan():
                return
            call()  # here

        def train():
            for batch in mine:
                step(batch)
            other()  # there
    """
    assert program(text).ways("there") == ["if loss.isnan():", "for batch in mine:"]


def test_not_the_callers_of_a_function_with_several(program) -> None:
    text = """
        def reduce(x):
            call()  # here

        for batch in mine:
            reduce(batch)
        reduce(1)
    """
    assert program(text).ways() == []


def test_too_many_say_nothing(program) -> None:
    checks = "".join(f"    if bad{n}:\n        continue\n" for n in range(5))
    text = f"for i in range(3):\n{checks}    call()  # here\n"
    assert program(text).ways() == []


def test_source_that_has_changed_is_not_read(program) -> None:
    made = program("for i in mine:\n    call()  # here\n")
    moved = Site("program.py", 1, "f", "call()  # here")
    assert find_ways_past(moved, made.file, None) == ()
    assert find_ways_past(made.site("here"), "nowhere.py", None) == ()
    assert find_ways_past(Site("program.py", 2, "f"), made.file, None) == ()


def test_source_that_is_no_python(program) -> None:
    made = program("for for for:\n    call()  # here\n")
    assert made.ways() == []
    assert are_arms_of_one_branch(made.site("here"), made.site("here"), made.file)


def test_arms(program) -> None:
    made = program("""
        if rank == 0:
            call()  # here
        elif rank == 1:
            call()  # second
        else:
            call()  # third
        call()  # after
    """)
    here, file = made.site("here"), made.file
    assert are_arms_of_one_branch(here, made.site("second"), file)
    assert are_arms_of_one_branch(made.site("third"), here, file)
    assert are_arms_of_one_branch(made.site("third"), made.site("second"), file)
    assert not are_arms_of_one_branch(here, made.site("after"), file)
    assert not are_arms_of_one_branch(here, Site("other.py", 1, "g", "call()"), file)


def test_who_comes_past(program) -> None:
    made = program("""
        def f():
            if odd:
                call()  # here
                more()  # same
            other()  # there
            if late:
                last()  # end
    """)
    here, file = made.site("here"), made.file
    assert comes_past(here, made.site("there"), file)
    assert comes_past(here, made.site("same"), file)
    assert not comes_past(here, made.site("end"), file), "not in that list of statements"
    assert not comes_past(made.site("there"), here, file)
    assert not comes_past(here, Site("program.py", 6, "g", "other()  # there"), file)
