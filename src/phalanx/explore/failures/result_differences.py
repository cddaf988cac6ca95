"""Different results in different orders: what differs, and the two orders side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.callsite import resolve
from phalanx.explore.digests import digest_of
from phalanx.explore.failures.story import step_text, thread_text
from phalanx.explore.one_run import Execution, RunOutcome
from phalanx.explore.trace import Choice
from phalanx.model import Finding, Kind, rank_list
from phalanx.report.layout import WIDTH, ascii_text, cut, visible_line

KIND: Kind = "different-results"
MOST_ROWS = 10
"""Choices of the two orders that are shown."""
_COLUMN = (WIDTH - 4) // 2
_SHORT = 34
"""Characters of a value that are shown."""


@dataclass(frozen=True)
class ResultDifference:
    """What some ranks returned, printed or trained in the two runs."""

    ranks: tuple[int, ...]
    what: str
    one: str
    other: str


def differences(
    one: RunOutcome, other: RunOutcome, compare: Collection[str]
) -> list[ResultDifference]:
    """Ranks whose results differ alike are one. A rank that was killed has none."""
    killed = one.killed | other.killed
    found: dict[tuple[str, str, str], list[int]] = {}
    for name, explain in _EXPLAIN.items():
        if name not in compare:
            continue
        pairs = _pairs(getattr(one, name), getattr(other, name))
        for rank, (first, second) in enumerate(pairs):
            if rank not in killed and digest_of(first) != digest_of(second):
                found.setdefault(explain(first, second), []).append(rank)
    return [ResultDifference(tuple(ranks), *said) for said, ranks in found.items()]


def results_found(
    one: Execution,
    other: Execution,
    compare: Collection[str],
    *,
    by: str = "order",
    hint: str | None = None,
) -> Finding:
    """The finding. `by` is what the result depends on: the order, or a fault."""
    found = differences(one.outcome, other.outcome, compare)
    first = (
        found[0] if found else ResultDifference((), "end", "with one result", "with another")
    )
    ranks = tuple(sorted({rank for each in found for rank in each.ranks}))
    who = rank_list(first.ranks) if first.ranks else "ranks"
    either = ("in one order", "in another") if by == "order" else ("without", "with the faults")
    words = f"{who} {first.what} {first.one} {either[0]} and {first.other} {either[1]}"
    facts = [
        (rank_list(each.ranks, width=32), f"{each.what} {each.one} / {each.other}")
        for each in found[:MOST_ROWS]
    ]
    return Finding(KIND, "error", ranks, words, facts=tuple(facts), hint=hint)


def side_by_side(one: Execution, other: Execution) -> list[str]:
    """The two orders from the first choice in which they part, each with its lines."""
    left, right = one.trace.choices, other.trace.choices
    start = 0
    while start < min(len(left), len(right)) and _same(left[start], right[start]):
        start += 1
    lines = [_row("one order", "the other order")]
    rows = max(len(left), len(right)) - start
    for index in range(start, start + min(rows, MOST_ROWS)):
        lines.append(_row(_cell(left, index), _cell(right, index)))
    if rows > MOST_ROWS:
        lines.append(_row(*(["..."] * 2)))
    return lines


def _same(one: Choice, other: Choice) -> bool:
    return (one.thread, one.kind, one.places) == (other.thread, other.kind, other.places) and (
        _value(one) == _value(other)
    )


def _value(choice: Choice) -> str:
    return choice.value if choice.values else ""


def _cell(choices: Sequence[Choice], index: int) -> str:
    if index >= len(choices):
        return ""
    choice = choices[index]
    site = resolve(choice.mark)
    what = f"takes {_value(choice)}" if choice.values else step_text(choice)
    return "  ".join([thread_text(choice.thread), *([str(site)] if site else []), what])


def _row(left: str, right: str) -> str:
    return f"  {cut(left, _COLUMN).ljust(_COLUMN)}  {cut(right, _COLUMN)}".rstrip()


def _pairs(one: Sequence[Any], other: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    for rank in range(max(len(one), len(other))):
        yield (
            one[rank] if rank < len(one) else None,
            other[rank] if rank < len(other) else None,
        )


# -- what is said of two values -------------------------------------------------------------


def _explain_value(one: Any, other: Any) -> tuple[str, str, str]:
    path, first, second = _part_that_differs(one, other)
    what = f"returned {path} =" if path else "returned"
    texts = _short(first), _short(second)
    if texts[0] == texts[1]:
        texts = f"{texts[0]} ({_hash(first)})", f"{texts[1]} ({_hash(second)})"
    return what, *texts


def _explain_output(one: str, other: str) -> tuple[str, str, str]:
    first, second = one.splitlines(), other.splitlines()
    for number in range(max(len(first), len(second))):
        left = first[number] if number < len(first) else None
        right = second[number] if number < len(second) else None
        if left != right:
            return f"printed, in line {number + 1},", _line(left), _line(right)
    return "printed", repr(one[-8:]), repr(other[-8:])


def _explain_parameters(one: str | None, other: str | None) -> tuple[str, str, str]:
    said = [each[:8] if each else "none" for each in (one, other)]
    return "ended with parameters of hash", said[0], said[1]


_EXPLAIN: Mapping[str, Any] = {
    "values": _explain_value,
    "output": _explain_output,
    "parameters": _explain_parameters,
}


def _part_that_differs(
    one: Any, other: Any, path: str = "", depth: int = 4
) -> tuple[str, Any, Any]:
    """The first part of two values of one form that differs, and how it is reached."""
    if depth and type(one) is type(other):
        for key, first, second in _parts(one, other):
            if digest_of(first) != digest_of(second):
                return _part_that_differs(first, second, f"{path}[{key}]", depth - 1)
    return path, one, other


def _parts(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(one, Mapping) and list(one) == list(other):
        yield from ((repr(key), one[key], other[key]) for key in one)
    elif isinstance(one, (list, tuple)) and len(one) == len(other):
        yield from ((str(at), *both) for at, both in enumerate(zip(one, other, strict=True)))
    elif _is_vector(one) and one.shape == other.shape:
        both = zip(one.reshape(-1).tolist(), other.reshape(-1).tolist(), strict=True)
        yield from ((str(at), *each) for at, each in enumerate(both))


def _is_vector(value: Any) -> bool:
    """Whether it is a tensor or array of one dimension, whose elements a reader can find."""
    return hasattr(value, "reshape") and hasattr(value, "tolist") and value.ndim == 1


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return cut(ascii_text(visible_line(" ".join(text.split()))), _SHORT)


def _line(text: str | None) -> str:
    return "nothing" if text is None else _short(text)


def _hash(value: Any) -> str:
    return f"hash {digest_of(value).hex()[:8]}"
