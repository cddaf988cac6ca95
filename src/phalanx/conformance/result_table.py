"""Tables of results as text for a terminal. Pure functions.

Two tables: for every operation the number of cases by outcome, with a sign for each mode
and shape of group; then operation by dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from phalanx.conformance.case_model import OUTCOMES, Result, Table
from phalanx.conformance.case_tensors import DTYPES

MODES = ("sync", "async")
GROUPS = ("full", "sub", "single", "overlapping", "none")
SHORT = {
    "float64": "f64",
    "float32": "f32",
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "complex64": "c64",
    "complex128": "c128",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "overlapping": "over",
}
LEGEND = "p all pass, r all refuse, ~ some pass and some refuse, W some WRONG, F some fail"


def sign(results: Iterable[Result]) -> str:
    """One letter for many results: the worst that came up."""
    found = {result.outcome for result in results}
    if "fail" in found:
        return "F"
    if "WRONG" in found:
        return "W"
    if found == {"pass", "refuse"}:
        return "~"
    return "".join({"pass": "p", "refuse": "r"}[each] for each in found)


def counts(results: Iterable[Result]) -> list[int]:
    number = Counter(result.outcome for result in results)
    return [number[outcome] for outcome in OUTCOMES]


def by_operation(results: Sequence[Result]) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.operation, []).append(result)
    return found


def render_tables(table: Table) -> str:
    """Both tables and what their signs mean."""
    parts = [render_summary(table)]
    if any(result.dtype is not None for result in table.results):
        parts.append(render_dtypes(table))
    return "\n\n".join([*parts, LEGEND])


def render_summary(table: Table) -> str:
    head = ["operation", *OUTCOMES, *MODES, *(SHORT.get(group, group) for group in GROUPS)]
    rows = []
    for operation, results in by_operation(table.results).items():
        modes = [sign(r for r in results if r.mode == mode) for mode in MODES]
        groups = [sign(r for r in results if r.group == group) for group in GROUPS]
        rows.append([operation, *(str(n or "") for n in counts(results)), *modes, *groups])
    return aligned(head, rows)


def render_dtypes(table: Table) -> str:
    rows = []
    for operation, results in by_operation(table.results).items():
        cells = [sign(r for r in results if r.dtype == dtype) for dtype in DTYPES]
        if any(cells):
            rows.append([operation, *cells])
    return aligned(["operation", *(SHORT.get(dtype, dtype) for dtype in DTYPES)], rows)


def render_total(table: Table) -> str:
    passed, refused, wrong, failed = counts(table.results)
    return (
        f"{len(table.results):,} cases on {table.engine} ({table.backend}, torch "
        f"{table.torch}) in {table.seconds:.1f} s: {passed:,} pass, {refused:,} refuse, "
        f"{wrong:,} WRONG, {failed:,} fail"
    )


def aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)
