"""Stacks of any depth as a page of text."""

from __future__ import annotations

import doctest
import sys
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

import phalanx
from phalanx import callsite
from phalanx.cli.main import main
from phalanx.engines.outcome import trim_traceback
from phalanx.shown import folded_stack
from phalanx.shown.folded_stack import ENDS, LeftOut, Repeated, error_text, fold

BOTH = "ab"


def unfolded(parts):
    """What was folded, where nothing was left out."""
    lines = []
    for part in parts:
        lines += lines[-part.lines :] * part.times if isinstance(part, Repeated) else [part]
    return lines


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_nothing_is_lost(lines) -> None:
    folded = fold(lines, ends=1000)
    assert unfolded(folded) == lines
    assert len(folded) <= len(lines) + 1


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), st.integers(4, 90))
def test_what_repeats_is_short(cycle, times) -> None:
    folded = fold(cycle * times, ends=1000)
    assert unfolded(folded) == cycle * times
    assert len(folded) <= 5 * len(cycle)


@given(st.integers(0, 900), st.integers(1, 20))
def test_of_what_does_not_repeat_both_ends_stay(count, ends) -> None:
    folded = fold(range(count), ends)
    assert len(folded) <= 2 * ends + 1
    left = [part for part in folded if isinstance(part, LeftOut)]
    assert len(folded) - len(left) + sum(part.lines for part in left) == count
    kept = [part for part in folded if not isinstance(part, LeftOut)]
    assert (
        kept
        == [*range(count)][: len(kept) - len(kept) // 2]
        + [*range(count)][count - len(kept) // 2 :]
    )


def down(depth: int, functions: int) -> None:
    if depth:
        (down, across)[functions - 1](depth - 1, functions)
    raise ValueError("deep")


def across(depth: int, functions: int) -> None:
    if depth:
        down(depth - 1, functions)
    raise ValueError("deep")


@pytest.fixture
def deep():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(200_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    ("functions", "mark"),
    [
        (1, "[Previous line repeated 99997 more times]"),
        (2, "[Previous 2 lines repeated 49997 more times]"),
    ],
)
def test_a_deep_traceback(deep, functions, mark) -> None:
    try:
        down(100_000, functions)
    except ValueError as error:
        text = error_text(trim_traceback(error))
    assert text.count(mark) == 1 and len(text.splitlines()) < 40
    assert text.endswith("ValueError: deep\n")


def test_usual_errors_are_shown_as_python_shows_them() -> None:
    try:
        try:
            down(0, 1)
        except ValueError as first:
            raise KeyError("second") from first
    except KeyError as error:
        assert error_text(error) == "".join(traceback.format_exception(error))
    assert error_text(ValueError("x")) == "ValueError: x\n"
    with pytest.raises(SyntaxError) as found:
        compile("a b", "file.py", "exec")
    assert error_text(found.value) == "".join(traceback.format_exception(found.value))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="groups of exceptions")
def test_groups_of_errors() -> None:
    try:
        down(0, 1)
    except ValueError as inner:
        group = ExceptionGroup("several", [inner, TypeError("y")])  # noqa: F821
    assert error_text(group) == "".join(traceback.format_exception(group))


def test_a_stack_is_read_from_inside_up_to_a_limit(deep) -> None:
    def look(depth: int):
        return look(depth - 1) if depth else callsite.user_stack(sys._getframe())

    assert len(look(10_000)) == callsite.MOST_FRAMES
    assert len(look(10)) < callsite.MOST_FRAMES


def test_a_deep_rank_is_reported_in_a_few_lines(tmp_path, capsys) -> None:
    (tmp_path / "deep.py").write_text(
        "import torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "def one(n): return two(n)\n"
        "def two(n): return one(n)\n"
        "if dist.get_rank(): one(0)\n"
        "dist.barrier()\n"
    )
    assert main(["run", "-n", "2", str(tmp_path / "deep.py")]) == 1
    told = capsys.readouterr().err
    assert "[Previous 2 lines repeated " in told and "RecursionError" in told
    assert len(told.splitlines()) < 60


def test_a_stall_shows_the_ends_of_a_deep_stack(deep) -> None:
    def compute(depth: int) -> None:
        if depth:
            compute(depth - 1)
        while True:
            pass

    def program() -> None:
        compute(2000)

    with pytest.raises(phalanx.StallError) as found:
        phalanx.run(program, ranks=1, timeout=0.5)
    told = str(found.value)
    assert "[Previous line repeated 496 more times]" in told
    assert "called from further lines" in told and len(told.splitlines()) < 2 * ENDS


def test_the_examples_of_the_docstrings() -> None:
    assert doctest.testmod(folded_stack) == doctest.TestResults(failed=0, attempted=3)
