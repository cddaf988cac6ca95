"""`docs/orders.md`: what `exploring.py`, `gloo.py` and `replays.py` have measured, as a page.

Pure, but for reading their files: figures in, text out.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.orders.exploring import FEW, SEARCHES
from benchmarks.orders.programs import Program, load

LIMIT = 200
MOST_MORE = 3
"""Choices and faults that a failure may have beyond the least by hand."""

Figures = Mapping[str, Any]


@dataclass
class GlooRuns:
    """What plain Gloo made of one program."""

    runs: int = 0
    bad: int = 0


def read_gloo(names: str) -> dict[str, GlooRuns]:
    """From files that `--gloo` wrote, with commas between their names; parts are added up."""
    from benchmarks.orders.gloo import Tally

    programs = {each.id: each for each in load()}
    whole: dict[str, Tally] = {}
    for name in filter(None, names.split(",")):
        for id, data in json.loads(Path(name).read_text())["programs"].items():
            if id in programs:
                _add(whole.setdefault(id, Tally()), Tally(**data))
    return {id: GlooRuns(tally.runs, tally.bad(programs[id])) for id, tally in whole.items()}


def _add(whole: Any, part: Any) -> None:
    whole.runs += part.runs
    whole.failed += part.failed
    for mine, more in ((whole.outputs, part.outputs), (whole.errors, part.errors)):
        for text, count in more.items():
            mine[text] = mine.get(text, 0) + count


def read_replays(names: str) -> dict[str, float]:
    """From files that `--replays` wrote: how many, how many exact, seconds of a core."""
    found = {"done": 0, "exact": 0, "seconds": 0.0, "tokens": 0}
    for name in filter(None, names.split(",")):
        data = json.loads(Path(name).read_text())
        for key in ("done", "exact", "seconds"):
            found[key] += data[key]
        found["tokens"] = max(found["tokens"], data["tokens"])
    return found


def document(
    known: Mapping[str, Figures], gloo: Mapping[str, GlooRuns], replays: Mapping[str, float]
) -> str:
    programs = [each for each in load() if each.id in known]
    wrong = [each for each in programs if each.is_wrong]
    right = [each for each in programs if not each.is_wrong]
    return "\n".join(
        [
            *_opening(wrong, right),
            *_summary(wrong, right, known, replays),
            *_how(known),
            "## The wrong programs",
            "",
            *_wrong_table(wrong, known, gloo),
            "",
            "## The right programs",
            "",
            *_right_table(right, known, gloo),
            "",
        ]
    )


def _opening(wrong: Sequence[Program], right: Sequence[Program]) -> Iterator[str]:
    yield "# The order benchmark"
    yield ""
    yield (
        f"{len(wrong)} small programs whose bug depends on order, time or a fault, most of "
        f"them after a report of a real one, and {len(right)} right ones of the same shapes, in"
    )
    yield (
        "`benchmarks/orders/`. [Exploring](explore.md) looks for the bugs with each strategy; "
        "beside it stands how often they show on plain Gloo. `python -m benchmarks.orders "
        "--write docs/orders.md`"
    )
    yield "writes this page."
    yield ""


def _summary(
    wrong: Sequence[Program],
    right: Sequence[Program],
    known: Mapping[str, Figures],
    replays: Mapping[str, float],
) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    for name in SEARCHES:
        always = sum(_is_always_found(known[each.id], name) for each in wrong)
        yield (
            f"| bugs that `{name}` finds within {LIMIT} schedules, with every seed | "
            f"{always} of {len(wrong)} |"
        )
    either = sum(
        any(_is_always_found(known[each.id], name) for name in SEARCHES[:2]) for each in wrong
    )
    yield f"| with every seed by `pos` or by `pct` | {either} of {len(wrong)} |"
    small = [each for each in wrong if _largest(known[each.id]) is not None]
    close = sum(_largest(known[each.id]) <= each.minimum + MOST_MORE for each in small)
    yield (
        f"| failures that are made small have at most {MOST_MORE} choices and faults more than "
        f"the least by hand | {close} of {len(small)} |"
    )
    blamed = sum(bool(_blamed(known[each.id])) for each in right)
    yield f"| right programs in which anything is found | {blamed} of {len(right)} |"
    few = [each for each in right if known[each.id]["exhaustive"]["behaviours"] < FEW]
    proved = sum(known[each.id]["exhaustive"]["complete"] for each in few)
    yield (
        f"| right programs with fewer than {FEW:,} behaviours that `exhaustive` proves | "
        f"{proved} of {len(few)} |"
    )
    if replays["done"]:
        yield (
            f"| replays of {replays['tokens']} stored tokens that are exact | "
            f"{replays['exact']:,} of {replays['done']:,} |"
        )
    yield ""


def _is_always_found(figures: Figures, strategy: str) -> bool:
    return all(each["found"] for each in figures["searches"][strategy])


def _largest(figures: Figures) -> Any:
    """The most choices and faults that a failure was left with, by any strategy and seed."""
    sizes = [
        each["size"]
        for found in figures["searches"].values()
        for each in found
        if each["size"] is not None
    ]
    return max(sizes, default=None)


def _blamed(figures: Figures) -> list[str]:
    found = [each for name in SEARCHES for each in figures["searches"][name]]
    return [other for each in found for other in each["others"]] + figures["exhaustive"][
        "failures"
    ]


def _how(known: Mapping[str, Figures]) -> Iterator[str]:
    seeds = max((len(each["searches"]["pos"]) for each in known.values()), default=0)
    yield "## How it is measured"
    yield ""
    yield (
        f"- Each strategy has {LIMIT} schedules for each seed, of {seeds} (1 if there is only "
        "one order). A bug counts as found where "
        "a failure has the kind that the program's header says, and its story names one of the "
        "lines that the header says."
    )
    yield (
        "- *First*: in which schedule it came first, the median of the seeds and, in brackets, "
        "the least and the most. *Fail*: how many of all schedules fail so."
    )
    yield (
        "- *Size*: choices that differ from the default order, and faults, of the failure as "
        "it is told, the largest of all; beside it the least that is possible, found by hand."
    )
    yield (
        "- *Gloo*: how many of so many runs fail on plain torch and Gloo, each in processes of "
        "its own; where a fault decides, with one of the same kind at a moment that is drawn. "
        "A run that has not ended after 3 s counts as failed; all failures of r36 are such. "
        "The first 190 to 961 runs of a program were made on 16 cores with torch 2.11, the "
        "others on 2 busy ones with torch 2.13."
    )
    yield (
        "- *Behaviours*: how many runs differ in what a rank can tell, without faults; "
        "`exhaustive` has explored them all, or stopped at that number."
    )
    yield (f"- On {os.cpu_count()} cores with Python {platform.python_version()}.")
    yield ""


def _wrong_table(
    wrong: Sequence[Program], known: Mapping[str, Figures], gloo: Mapping[str, GlooRuns]
) -> Iterator[str]:
    titles = "".join(f" `{name}`: first | fail |" for name in SEARCHES)
    yield f"| program | decides |{titles} size | least | Gloo | what is wrong |"
    yield "|---|---|" + "---|---|" * len(SEARCHES) + "---|---|---|---|"
    for each in wrong:
        figures = known[each.id]
        cells = [f"{each.id} {each.name}", each.decides]
        for name in SEARCHES:
            cells += [_first(figures, name), _share(figures, name)]
        largest = _largest(figures)
        cells += ["" if largest is None else str(largest), str(each.minimum)]
        cells += [_gloo(gloo, each), each.what]
        yield f"| {' | '.join(cells)} |"


def _first(figures: Figures, strategy: str) -> str:
    found = [each["found"] for each in figures["searches"][strategy]]
    there = sorted(each for each in found if each)
    if not there:
        return "not found"
    text = f"{median(there):g}"
    if there[0] != there[-1]:
        text += f" ({there[0]}-{there[-1]})"
    return text if len(there) == len(found) else f"{text}, {len(there)} of {len(found)} seeds"


def _share(figures: Figures, strategy: str) -> str:
    found = figures["searches"][strategy]
    made = sum(each["schedules"] for each in found)
    return f"{100 * sum(each['failed'] for each in found) / made:.0f} %"


def _gloo(gloo: Mapping[str, GlooRuns], program: Program) -> str:
    runs = gloo.get(program.id)
    return "" if runs is None else f"{runs.bad} of {runs.runs:,}"


def _right_table(
    right: Sequence[Program], known: Mapping[str, Figures], gloo: Mapping[str, GlooRuns]
) -> Iterator[str]:
    yield "| program | behaviours | proved | found | Gloo | what is right |"
    yield "|---|---|---|---|---|---|"
    for each in right:
        figures = known[each.id]
        every = figures["exhaustive"]
        count = f"{every['behaviours']:,}" if every["complete"] else "more than 1,000"
        blamed = _blamed(figures)
        cells = [f"{each.id} {each.name}", count, "yes" if every["complete"] else "no"]
        cells += [blamed[0] if blamed else "nothing", _gloo(gloo, each), each.what]
        yield f"| {' | '.join(cells)} |"
