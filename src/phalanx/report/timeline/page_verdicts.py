"""The verdicts of a recording, as the page draws them.

A recording is not trusted: whatever its verdicts hold, what comes out here has the types that
the page expects, and texts of a bounded length. Needs no torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.report.timeline.calls_table import NONE, CallsTable

LONGEST = 2000
"""Characters of a text."""
MOST = 64
"""Verdicts of a run, blocks of a verdict, ranks of a block whose calls are looked up."""


def page_verdicts(table: CallsTable) -> list[dict[str, Any]]:
    """Each verdict: its kind, the ranks at fault, the cycle, and its blocks of ranks. A block's
    `calls` are pairs of a rank and a place in its columns."""
    end = table.recording.end or {}
    return [_verdict(table, found) for found in _dicts(end.get("verdicts"))]


def text(value: object) -> str:
    return "" if value is None else str(value)[:LONGEST]


def _verdict(table: CallsTable, found: dict[str, Any]) -> dict[str, Any]:
    blocks = list(_blocks(table, found))
    return {
        "kind": text(found.get("kind")),
        "severity": text(found.get("severity")),
        "ranks": _ranks(table, found.get("ranks")),
        "cycle": _ranks(table, found.get("cycle"), ordered=True),
        "missing": _ranks(table, found.get("missing")),
        "headline": text(found.get("headline")),
        "differs": [text(each) for each in _list(found.get("differs"))[:MOST]],
        "hint": text(found.get("hint")),
        "blocks": blocks,
    }


def _blocks(table: CallsTable, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    group = found.get("group")
    number, run = found.get("number"), found.get("run")
    for block in _dicts(found.get("blocks")) or _dicts(found.get("stopped")):
        view = _dict(block.get("view"))
        wait = _dict(view.get("wait"))
        op = _dict(wait.get("op") or view.get("last") or block.get("op"))
        if not view and op.get("number") is None and number is not None:
            op = {"group": group, "number": number, **{k: v for k, v in op.items() if v}}
        ranks = _ranks(table, block.get("ranks"))
        site = _dict(view.get("site") or op.get("site"))
        yield {
            "ranks": ranks,
            "odd": bool(block.get("odd")),
            "status": text(view.get("status")),
            "needs": _ranks(table, wait.get("needs")),
            "op": text(op.get("name")),
            "group": text(_dict(op.get("group")).get("name")),
            "site": f"{text(site.get('file'))}:{text(site.get('line'))}" if site else "",
            "source": text(site.get("source")),
            "error": text(view.get("error")),
            "calls": [
                [rank, place]
                for rank in ranks[:MOST]
                if (place := find_call(table, rank, op, run)) != NONE
            ],
        }


def find_call(table: CallsTable, rank: int, op: dict[str, Any], run: object = None) -> int:
    """The place of the newest call of a rank that looks like `op`, the plain form of a
    `model.Op`; `NONE` if there is none. `run` says in which of the runs of a `World` it was
    made: later ones may make it again."""
    if op.get("name") not in table.ops:
        return NONE
    calls = table.ranks[rank]
    wanted = table.ops.index(op["name"])
    number = NONE if op.get("number") is None else op["number"]
    site = _dict(op.get("site"))
    lines = {
        place
        for place, known in enumerate(table.recording.sites)
        if (known.site.file, known.site.line) == (site.get("file"), site.get("line"))
    }
    close = NONE
    ends = calls.run_ends
    last = len(calls)
    if isinstance(run, int) and 0 < run <= len(ends):
        last = bisect_right(calls.start, ends[run - 1])
    for place in range(last - 1, -1, -1):
        if calls.op[place] == wanted and calls.number[place] == number:
            if not lines or calls.site[place] in lines:
                return place
            close = place if close == NONE else close
    return close


def _ranks(table: CallsTable, given: object, *, ordered: bool = False) -> list[int]:
    count = len(table.ranks)
    found = [rank for rank in _list(given) if isinstance(rank, int) and 0 <= rank < count]
    return found[:count] if ordered else sorted(set(found))


def _dicts(given: object) -> list[dict[str, Any]]:
    return [each for each in _list(given)[:MOST] if isinstance(each, dict)]


def _dict(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _list(given: object) -> Sequence[Any]:
    return given if isinstance(given, (list, tuple)) else []
