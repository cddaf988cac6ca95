"""Tests of Hypothesis on ranks: values are drawn in pytest's thread, each example is one run.

Used by `items.py`, which draws, by `part.py` in a rank, and by `item_failure.py`. Everything
that depends on Hypothesis is here, and it is imported only if the test has imported it. Checked
with 6.170.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.testing.collection.marker import PARAMETER

OWN_FOLDER = str(Path(__file__).parents[2])
EXPLANATION = "Explanation:"


class _OfEachRank:
    """What Hypothesis is given for a fixture that ranks make: it shows the arguments."""

    def __repr__(self) -> str:
        return "..."


def drawn_of(function: Any) -> Any:
    """What Hypothesis hangs on a test made with `@given`; its `inner_test` is the function, and
    may be replaced."""
    return getattr(function, "hypothesis", None)


def prepare_item(item: Any) -> None:
    """Hypothesis minds that one function is run by several items, unless it finds this marker,
    which ours lack: they are made by a hook."""
    item.add_marker(pytest.mark.parametrize(PARAMETER, ()))


def call_for_examples(
    item: Any,
    named: Sequence[str],
    own: Iterable[str],
    call: Callable[[Mapping[str, Any]], None],
) -> None:
    """Let Hypothesis draw, and call `call` with each example. `named` are the fixtures among
    the arguments, `own` those that ranks make."""
    __tracebackhide__ = True
    drawn = drawn_of(item.obj)
    inner = drawn.inner_test
    instance = item.instance if isinstance(item.parent, pytest.Class) else _OfEachRank()

    @wraps(inner)
    def on_ranks(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        example = {
            name: value
            for name, value in kwargs.items()
            if name not in named and value is not instance
        }
        _refuse_interactive(example)
        call(example)

    on_ranks.__phalanx_inner__ = inner  # type: ignore[attr-defined]
    drawn.inner_test = on_ranks
    try:
        item.obj(
            **{name: _OfEachRank() if name in own else item.funcargs[name] for name in named}
        )
    finally:
        drawn.inner_test = inner


def _refuse_interactive(example: Mapping[str, Any]) -> None:
    kind = getattr(sys.modules.get("hypothesis.strategies"), "DataObject", None)
    for name, value in example.items():
        if kind is not None and isinstance(value, kind):
            pytest.fail(
                f"{name}=st.data() cannot be used on ranks: each would draw values of its own, "
                "and Hypothesis knows of one sequence only; draw with other strategies",
                pytrace=False,
            )


def inner_of(drawn: Any) -> Callable[..., Any]:
    """The function that was written under `@given`."""
    inner: Callable[..., Any] = drawn.inner_test
    return getattr(inner, "__phalanx_inner__", inner)


def as_in_an_example() -> AbstractContextManager[Any]:
    """Let a rank call `assume` and `note`, which are refused outside of the thread that draws.
    A note is printed; events and targets are ignored."""
    control = sys.modules.get("hypothesis.control")
    context = getattr(control, "_current_build_context", None)
    if context is None:
        return nullcontext()
    provider = SimpleNamespace(avoid_realization=False)
    data = SimpleNamespace(provider=provider, events={}, target_observations={})
    made: AbstractContextManager[Any] = context.with_value(
        SimpleNamespace(is_final=True, data=data)
    )
    return made


def without_own_lines(notes: Iterable[str]) -> list[str]:
    """The lines of notes, less ours where Hypothesis explains which lines ran only in examples
    that failed. A rank's lines it cannot see, so often that is all of its explanation."""
    lines = [line for note in notes for line in note.splitlines()]
    if EXPLANATION not in lines:
        return lines
    start = lines.index(EXPLANATION)
    heading, told = lines[start : start + 2], lines[start + 2 :]
    places = [line for line in told if line.startswith(" " * 8)]
    others = [line for line in places if not line.strip().startswith((OWN_FOLDER, "(and "))]
    after = told[len(places) :]
    return lines[:start] + (heading + others if others else []) + after
