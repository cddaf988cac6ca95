"""The tables of docs/faults.md: what real Gloo gave, and what ranks on threads see."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.faults.fault_cases import RANKS, TIMEOUT, cases
from benchmarks.faults.thread_ranks import see_on_threads

EVIDENCE = Path(__file__).with_name("evidence.json")

Notes = dict[int, list[dict[str, Any]]]

CLOSED, TIMED_OUT, OWN_CLOSURE = "closed", "timed out", "own closure"
_WORDS = (
    ("successfully reached monitoredBarrier", "no answer from rank 0"),
    ("failed to pass monitoredBarrier", "names the rank"),
    ("Connection closed by peer", CLOSED),
    ("Connection reset by peer", CLOSED),
    ("Timed out waiting", TIMED_OUT),
    ("Application timeout caused pair closure", OWN_CLOSURE),
    ("Failed to recv, got 0 bytes", "no answer"),
    ("Broken pipe", "broken pipe"),
    ("client socket has timed out", "no server"),
    ("wait timeout after", "key timeout"),
    ("no rank set", "key timeout"),
    ("ranks came to", "key timeout"),
)
"""A word for each text that ranks see, by a part of it."""

NOT_ON_THREADS = {
    "store restored": "the program makes a second server itself",
    "store stopped": "a stopped rank goes on to serve its store",
    "store killed before: num_keys": "`num_keys` is not replaced and answers",
}
"""Cases, by the beginning of their names, that threads do not show."""

BY_CHANCE = {
    "killed before: broadcast (from 0)": "who comes first decides",
    "killed before: gather (to 0)": "who comes first decides",
    "killed before: scatter (from 0)": "who comes first decides",
    "killed before: monitored_barrier": "who comes first decides",
    "killed while: barrier": "who comes first decides",
    "killed while: reduce_scatter": "torch makes more than one call of Gloo",
    "stopped for long": "ranks reach their timeouts at the same moment",
    "partition for long": "ranks reach their timeouts at the same moment",
    "killed: group of survivors": "what a rank destroys, others may still need",
    "killed: survivors meet again": "what a rank destroys, others may still need",
    "killed: cascade": "what a rank destroys, others may still need",
    "store killed: groups": "which operation is the first after the loss",
}
"""Cases in which real ranks see one thing or another, by the beginning of their names."""

SECTIONS = {
    "killed before": "Rank 2 is killed before the others make the call",
    "killed while": "Rank 2 is killed while the others wait in the call",
    "killed after": "Rank 2 is killed after a call that all have made",
    "killed": "Groups, and meeting again",
    "destroyed": "Rank 2 destroys its group",
    "stopped": "Rank 2 is stopped: for 8 s (long), or for 1.5 s",
    "partition": "Nothing arrives between ranks 0, 1 and ranks 2, 3",
    "store": "The store",
}


def reason_of(name: str, among: dict[str, str]) -> str | None:
    return next((why for start, why in among.items() if name.startswith(start)), None)


def word_of(note: dict[str, Any]) -> str:
    """What became of a call, in a word."""
    if "raised" not in note:
        return "ok"
    found = next((word for part, word in _WORDS if part in note["text"]), None)
    return found or f"{note['raised']}: {note['text'][:60]}"


def words_of(notes: Notes) -> dict[int, tuple[str, ...]]:
    """What became of all calls of each rank that has noted any, and was not killed then."""
    words = {int(rank): tuple(map(word_of, each)) for rank, each in notes.items() if each}
    return {rank: each for rank, each in words.items() if each != ("ok",)}


def on_threads(name: str) -> Notes:
    body, serves = cases()[name]
    stopped = {"stopped for long": 2 * TIMEOUT + 2, "stopped": TIMEOUT / 2}
    times = next((each for start, each in stopped.items() if name.startswith(start)), 0.0)
    return see_on_threads(body, serves, stopped=times)


def write_tables(page: Path, figures: dict[str, Any]) -> None:
    """Between the marks of the page."""
    text = page.read_text(encoding="utf-8")
    before, start, rest = text.partition("<!-- measured: begin -->\n")
    _, end, after = rest.partition("<!-- measured: end -->")
    if not (start and end):
        raise SystemExit(f"{page}: the marks for the tables are not there")
    page.write_text(f"{before}{start}\n{_tables(figures)}\n{end}{after}", encoding="utf-8")


def _tables(figures: dict[str, Any]) -> str:
    lines = [
        f"Measured with torch {figures['torch']}, {RANKS} processes on one machine, and a "
        f"timeout of {figures['timeout']:g} s."
    ]
    section = None
    for name, notes in figures["cases"].items():
        kind, _, what = name.rpartition(": ") if ": " in name else ("", "", name)
        title = next(text for start, text in SECTIONS.items() if name.startswith(start))
        if title != section:
            section = title
            head = "| call | real Gloo | on threads |"
            lines += ["", f"### {title}", "", head, "|---|---|---|"]
        shown = what if kind in SECTIONS or not kind else name
        lines.append(f"| {_code(shown)} | {_summary(notes)} | {_ours(name, notes)} |")
    return "\n".join(lines)


def _ours(name: str, notes: Notes) -> str:
    why = reason_of(name, NOT_ON_THREADS)
    if why is not None:
        return f"differs: {why}"
    found = on_threads(name)
    if words_of(found) == words_of(notes):
        return "the same"
    chance = reason_of(name, BY_CHANCE)
    return _summary(found) + (f" ({chance})" if chance else "")


def _summary(notes: Notes) -> str:
    """Ranks that see the same are named together."""
    by_words: dict[str, list[int]] = {}
    for rank, each in notes.items():
        if each:
            by_words.setdefault(_told(each), []).append(int(rank))
    return "; ".join(f"{_ranks(ranks)} {told}" for told, ranks in by_words.items())


def _told(notes: Iterable[dict[str, Any]]) -> str:
    words = [_with_time(note) for note in notes]
    return words[0] if len(set(words)) == 1 else ", then ".join(words)


def _with_time(note: dict[str, Any]) -> str:
    word, seconds = word_of(note), note["seconds"]
    is_late = seconds >= TIMEOUT - 0.5 and word not in (TIMED_OUT, "key timeout", "no server")
    return f"{word} after {seconds:.0f} s" if is_late else word


def _ranks(ranks: list[int]) -> str:
    many = len(ranks) > 1
    return f"rank{'s' if many else ''} {', '.join(map(str, ranks))}:"


def _code(text: str) -> str:
    return re.sub(r"\|", "", f"`{text}`")
