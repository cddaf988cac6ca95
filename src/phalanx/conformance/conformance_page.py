"""Two tables side by side as a Markdown page: the threads engine and the real backend.

`phalanx conformance --against FILE --document PAGE` writes it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from phalanx.conformance.case_model import OUTCOMES, Result, Table
from phalanx.conformance.case_tensors import DTYPES
from phalanx.conformance.known_differences import CaseDifference, find_differences
from phalanx.conformance.result_table import GROUPS, MODES, SHORT, by_operation, counts, sign

INTRODUCTION = """\
# Conformance: the threads engine and the real backend, side by side

Made by `phalanx conformance`: do not edit. One set of cases, one body, run on the
threads engine and on real processes. The outcomes:

- **pass**: right data, or a mistake that gave the error it must give;
- **refuse**: a clean error where the backend's profile says that it refuses;
- **WRONG**: wrong data, or something written outside of the tensor;
- **fail**: anything else: another error, none where one must be, a hang, a crash.

In the tables with signs: `p` all pass, `r` all refuse, `~` some pass and some refuse, `W`
some WRONG, `F` some fail. Where the two differ, threads come first: `r/W`.

A backend of your own, which `my_backend.py` registers by `Backend.register_backend`, takes
the same cases:

    phalanx conformance --engine processes --import my_backend --backend my_backend
"""


def render_document(threads: Table, real: Table) -> str:
    """The whole page."""
    if threads.engine != "threads":
        threads, real = real, threads
    note = _restriction(threads, real)
    threads, real = _common(threads, real), _common(real, threads)
    differences = find_differences(real, threads)
    parts = [
        INTRODUCTION.replace("\n\n", f"\n\n{note}", 1),
        _totals(threads, real),
        _operations(threads, real),
        _dtypes(threads, real),
        _modes_and_groups(threads, real),
        _refusals(real),
        _troubles(real, "What is WRONG or fails"),
        _differences(differences),
    ]
    return "\n".join(parts)


def _restriction(threads: Table, real: Table) -> str:
    """What the page must say first if the two did not run the same cases."""
    common = {r.id for r in threads.results} & {r.id for r in real.results}
    if len(common) == len(threads.results) == len(real.results):
        return ""
    return (
        f"**A part of the suite**: only the {len(common):,} cases that both ran, of "
        f"{len(threads.results):,} on {threads.engine} and {len(real.results):,} on "
        f"{real.engine}.\n\n"
    )


def _common(table: Table, other: Table) -> Table:
    ids = {result.id for result in other.results}
    return replace(table, results=tuple(r for r in table.results if r.id in ids))


def _totals(threads: Table, real: Table) -> str:
    rows = [
        [f"{t.engine} ({t.backend})", t.torch, f"{t.seconds:.0f} s", f"{len(t.results):,}"]
        + [f"{n:,}" for n in counts(t.results)]
        for t in (threads, real)
    ]
    return _table(["engine", "torch", "time", "cases", *OUTCOMES], rows)


def _operations(threads: Table, real: Table) -> str:
    rows = []
    for name, here, there in _pairs(threads, real):
        cells = [_cell(a, b) for a, b in zip(counts(here), counts(there), strict=True)]
        rows.append([name, str(len(here)), *cells])
    head = ["operation", "cases", *OUTCOMES]
    note = "Number of cases; where the two differ, threads / real.\n"
    return f"## By operation\n\n{note}\n{_table(head, rows)}"


def _dtypes(threads: Table, real: Table) -> str:
    head = ["operation", *(SHORT.get(dtype, dtype) for dtype in DTYPES)]
    rows = []
    for name, here, there in _pairs(threads, real):
        signs = [_signs(here, there, "dtype", dtype) for dtype in DTYPES]
        if any(signs):
            rows.append([name, *signs])
    return f"## By dtype\n\n{_table(head, rows)}"


def _modes_and_groups(threads: Table, real: Table) -> str:
    head = ["operation", *MODES, *GROUPS]
    rows = []
    for name, here, there in _pairs(threads, real):
        signs = [_signs(here, there, "mode", mode) for mode in MODES]
        signs += [_signs(here, there, "group", group) for group in GROUPS]
        if any(signs):
            rows.append([name, *signs])
    note = (
        '"sub": all but rank 0; "overlapping": two groups with members in common, both under '
        'way at once; "none": ranks that are no members call as well.\n'
    )
    return f"## By mode and group\n\n{note}\n{_table(head, rows)}"


def _signs(here: list[Result], there: list[Result], field: str, value: str) -> str:
    one = sign(r for r in here if getattr(r, field) == value)
    other = sign(r for r in there if getattr(r, field) == value)
    return _cell(one, other)


def _refusals(real: Table) -> str:
    found: dict[str, list[Result]] = {}
    for result in real.results:
        if result.outcome == "refuse":
            found.setdefault(result.rule, []).append(result)
    rows = [
        [
            f"`{rule}`",
            str(len(results)),
            _listed(r.operation for r in results),
            _example(results),
        ]
        for rule, results in found.items()
    ]
    head = ["rule", "cases", "operations", "for example"]
    return f"## What {real.backend} refuses\n\n{_table(head, rows)}"


def _example(results: list[Result]) -> str:
    return f"`{results[0].id}`: {results[0].reason}"


def _troubles(real: Table, title: str) -> str:
    found: dict[tuple[str, str], list[Result]] = {}
    for result in real.results:
        if result.outcome in ("WRONG", "fail"):
            name = result.id.rpartition("@")[0]
            found.setdefault((result.outcome, name), []).append(result)
    rows = [
        [outcome, f"`{name}`", _listed(str(r.ranks) for r in results), results[0].reason]
        for (outcome, name), results in found.items()
    ]
    table = (
        _table(["outcome", "case", "ranks", "what was seen"], rows) if rows else "Nothing.\n"
    )
    return f"## {title} on {real.backend}\n\n{table}"


def _differences(differences: Sequence[CaseDifference]) -> str:
    unexplained = [each for each in differences if not each.reason]
    by_reason: dict[str, list[CaseDifference]] = {}
    for each in differences:
        if each.reason:
            by_reason.setdefault(each.reason, []).append(each)
    lines = [
        "## Differences between the two",
        "",
        f"{len(differences)} cases differ, {len(unexplained)} of them without a reason.",
        "",
    ]
    rows = [
        [str(len(found)), f"{found[0].other} / {found[0].one}", f"`{found[0].id}`", reason]
        for reason, found in by_reason.items()
    ]
    if rows:
        lines.append(_table(["cases", "threads / real", "for example", "reason"], rows))
    for each in unexplained:
        lines.append(f"- `{each.id}`: {each.other} on threads, {each.one} on the real backend")
    return "\n".join(lines).rstrip() + "\n"


def _pairs(threads: Table, real: Table) -> list[tuple[str, list[Result], list[Result]]]:
    there = by_operation(real.results)
    return [
        (name, results, there.get(name, []))
        for name, results in sorted(by_operation(threads.results).items())
    ]


def _cell(one: object, other: object) -> str:
    shown = "" if one in (0, "") else str(one)
    return shown if one == other else f"{one}/{other}"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [cell.replace("|", "\\|").replace("\n", " ") for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
