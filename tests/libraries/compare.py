"""Are the results of two runs the same? Pure functions over the lines that ranks printed.

They are compared rank by rank and in order: the words exactly, numbers within the program's
tolerance. Where a library prints more than results, the program marks its lines by "result ".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tests.libraries.model import Program, Ran

MARK = "result "
NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|inf|nan)(?![\w.])")
LABEL = re.compile(r"\[([\d,\- ]+)\]\s+(.*)")
"""What `phalanx run` puts in front of a line: the ranks that printed it."""


def lines_in(output: str) -> list[str]:
    """The lines of one rank, without empty ones."""
    return [line.rstrip() for line in output.splitlines() if line.strip()]


def lines_of_ranks(output: str) -> dict[int, list[str]]:
    """The lines in the output of `phalanx run`, for each rank."""
    found: dict[int, list[str]] = {}
    for line in output.splitlines():
        labelled = LABEL.fullmatch(line)
        if labelled is None or not labelled[2].strip():
            continue
        for rank in _ranks(labelled[1]):
            found.setdefault(rank, []).append(labelled[2].rstrip())
    return found


def lines_of_all(output: str) -> list[str]:
    """All lines, whoever printed them, sorted; without labels, but as often as ranks had it."""
    found = []
    for line in lines_in(output):
        labelled = LABEL.fullmatch(line + " ")
        times = 1 if labelled is None else len(list(_ranks(labelled[1])))
        found += [line if labelled is None else labelled[2].strip()] * times
    return sorted(filter(None, found))


def _ranks(label: str) -> Iterable[int]:
    for part in label.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def find_difference(program: Program, expected: Ran, got: Ran) -> str:
    """Say where the results differ; an empty text if they do not."""
    if program.compare == "status":
        return ""
    wanted, found = _compared(program, expected), _compared(program, got)
    if not any(wanted):
        marked = f" that begins with {MARK!r}" if program.compare == "results" else ""
        return f"no rank printed a line{marked}"
    for rank in range(program.ranks):
        if said := _difference(wanted[rank], found[rank], program):
            return f"rank {rank}: {said}"
    return ""


def _compared(program: Program, ran: Ran) -> list[list[str]]:
    """The lines that count, for each rank."""
    lines = [ran.lines.get(rank, []) for rank in range(program.ranks)]
    if program.compare == "lines":
        return lines
    return [[line for line in own if line.startswith(MARK)] for own in lines]


def _difference(expected: list[str], got: list[str], program: Program) -> str:
    for wanted, line in zip(expected, got, strict=False):
        if not _is_close(wanted, line, program.tolerance):
            return f"{line!r} where torchrun gives {wanted!r}"
    if len(expected) != len(got):
        return f"{len(got)} lines where torchrun gives {len(expected)}"
    return ""


def _is_close(wanted: str, line: str, tolerance: float) -> bool:
    if wanted == line:
        return True
    if NUMBER.sub("#", wanted) != NUMBER.sub("#", line):
        return False
    pairs = zip(NUMBER.findall(wanted), NUMBER.findall(line), strict=True)
    return all(_is_near(float(one), float(other), tolerance) for one, other in pairs)


def _is_near(one: float, other: float, tolerance: float) -> bool:
    if math.isnan(one) or math.isinf(one):
        return str(one) == str(other)
    return abs(one - other) <= tolerance * max(1.0, abs(one), abs(other))
