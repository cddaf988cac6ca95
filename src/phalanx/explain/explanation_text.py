"""An explanation as text, and as plain values for programs. Pure.

Texts of a recording are as the run printed them; names in files are not trusted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from phalanx.explain.explanation import Explanation
from phalanx.report.layout import ascii_text, compose, labelled
from phalanx.report.text import headline, render_kind

MOST_LINES = 8
"""Lines about files, each of its own kind."""
MOST_NAMES = 3
"""Files of which the same is said that are named."""


def render_explanation(given: Explanation) -> str:
    """The report: the worst whole, and a line for each other recording."""
    parts: list[str] = [*given.told, *map(render_kind, given.verdicts)]
    if not parts:
        parts = [_nothing(given)]
    tail = [line for label, text in given.facts for line in labelled(label, text)]
    tail += [line for text in given.unknown for line in labelled("unknown", text)]
    tail += [line for text in _folded(given.unread) for line in labelled("unknown", text)]
    if given.found:
        tail += labelled("from", _source_text(given))
    also = [line for text in _also(given.others) for line in labelled("also", text)]
    return printable(compose("\n\n".join(parts), tail, also))


def _nothing(given: Explanation) -> str:
    if given.is_cut:
        return f"{_source_text(given)} ends in the middle; nothing wrong until then"
    return f"nothing wrong found in {_source_text(given)}"


def _also(others: Sequence[Explanation]) -> list[str]:
    """A line for each recording with a verdict; those without are said together."""
    worse = [f"{_name(each)}: {_in_a_line(each)}" for each in others if each.found]
    right = [f"{_name(each)}: {_in_a_line(each)}" for each in others if not each.found]
    return [*worse, *_folded(right)]


def _in_a_line(given: Explanation) -> str:
    """The first line of a report that is not shown."""
    for verdict in given.verdicts:
        return f"[{verdict.kind}] {headline(verdict)}"
    for told in given.recorded:
        return f"[{told.get('kind')}] {told.get('headline')}"
    if given.told:
        return given.told[0].partition("\n")[0]
    return "ends in the middle; nothing wrong until then" if given.is_cut else "nothing wrong"


def _folded(lines: Sequence[str]) -> list[str]:
    """Lines that begin with a file's name and a colon: what is said of several is said once.

    >>> _folded(["a: empty", "b: no dump", "c: empty"])
    ['a, c: empty', 'b: no dump']
    """
    files: dict[str, list[str]] = {}
    for line in lines:
        file, _, text = line.partition(": ")
        files.setdefault(text, []).append(file)
    found = [f"{_names(these)}: {text}" for text, these in files.items()]
    if len(found) <= MOST_LINES:
        return found
    return [*found[: MOST_LINES - 1], f"and {len(found) - MOST_LINES + 1} more; --json has all"]


def _names(files: Sequence[str]) -> str:
    rest = len(files) - MOST_NAMES
    if rest > 1:
        return f"{', '.join(files[:MOST_NAMES])} and {rest} more files"
    return ", ".join(files)


def printable(text: str) -> str:
    """Without characters that a terminal would obey: names in dumps are not trusted."""
    return ascii_text(text).replace("\t", " ")


def _name(given: Explanation) -> str:
    return given.source.removeprefix("recording ")


def _source_text(given: Explanation) -> str:
    if given.is_recording:
        return f"the {given.source} of {given.ranks} ranks"
    return f"{given.source} files of {given.dumps} of {given.ranks} ranks"


def as_data(given: Explanation) -> dict[str, Any]:
    """The same for programs: plain values. Verdicts that a recording brought along are as it
    has them."""
    return {
        "source": given.source,
        "ranks": given.ranks,
        "dumps": given.dumps,
        "verdicts": [*_plain(given), *given.recorded],
        "told": [ascii_text(text) for text in given.told],
        "facts": [list(fact) for fact in given.facts],
        "unknown": [*given.unknown, *given.unread],
        "ends_in_the_middle": given.is_cut,
        "others": [as_data(other) for other in given.others],
    }


def _plain(given: Explanation) -> Iterable[dict[str, Any]]:
    for verdict in given.verdicts:
        yield {
            "type": type(verdict).__name__,
            "headline": headline(verdict),
            **dataclasses.asdict(verdict),
        }
