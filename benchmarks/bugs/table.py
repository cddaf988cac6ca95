"""The scores as tables: on the terminal, and as the document `docs/bugs.md`.

Used by the runner. Pure: scores in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from benchmarks.bugs.judging import Score
from benchmarks.bugs.programs import CLASSES, Program

RIGHT = ("named", True, True)

TITLES = {
    "gloo": "plain Gloo",
    "detail": "Gloo, DETAIL",
    "phalanx": "Phalanx",
    "processes": "Phalanx, processes",
}


def summary(scores: Sequence[Score]) -> str:
    """A few lines for the terminal."""
    lines = []
    for place in dict.fromkeys(score.place for score in scores):
        here = [score for score in scores if score.place == place]
        bugs, good = [s for s in here if s.letter != "X"], [s for s in here if s.letter == "X"]
        named = [s for s in bugs if s.outcome == "named"]
        lines.append(
            f"{TITLES[place]:19} kind {share(len(named), len(bugs))}, "
            f"rank {share(sum(s.rank for s in named), len(bugs))}, "
            f"line {share(sum(s.line for s in named), len(bugs))}, "
            f"rank and line {share(sum(s.rank and s.line for s in named), len(bugs))}; "
            f"wrong {count(bugs, 'wrong')}, symptom {count(bugs, 'symptom')}, "
            f"silent {count(bugs, 'silent') + count(bugs, 'hang')}; "
            f"median {duration(times(named))}; "
            f"false alarms {len(good) - count(good, 'clean')} of {len(good)}"
        )
    return "\n".join(lines)


def failures(scores: Sequence[Score], programs: Sequence[Program]) -> str:
    """What is not as it should be on Phalanx, a line each."""
    known = {program.id: program for program in programs}
    lines = []
    for score in scores:
        program = known[score.id]
        if score.outcome == "clean" or (score.outcome, score.rank, score.line) == RIGHT:
            continue
        expected = "|".join(program.kinds) or "nothing"
        faulty = "any" if program.faulty is None else ",".join(map(str, sorted(program.faulty)))
        wanted = ",".join(map(str, sorted(program.lines)))
        lacks = [] if score.outcome != "named" else ["rank"] * (not score.rank)
        lacks += ["line"] * (score.outcome == "named" and not score.line)
        verdict = f"{score.outcome}{' but for ' + ' and '.join(lacks) if lacks else ''}"
        said = "; ".join(score.said) or "nothing"
        lines.append(
            f"{score.place}:{score.id}: {verdict}. expected {expected}, ranks {faulty}, "
            f"lines {wanted}; got {said} ({program.what})"
        )
    return "\n".join(lines)


def by_class(scores: Sequence[Score]) -> str:
    """Rows of classes, columns of places: named with kind, rank, line, of how many."""
    places = list(dict.fromkeys(score.place for score in scores))
    head = "| class |" + "".join(f" {TITLES[place]}: kind | rank | line |" for place in places)
    rule = "|---|" + "---|---|---|" * len(places)
    rows = [head, rule]
    letters = [letter for letter in CLASSES if letter != "X"]
    for letter in [*letters, "all"]:
        cells = []
        for place in places:
            here = [
                score
                for score in scores
                if score.place == place
                and (score.letter == letter or (letter == "all" and score.letter != "X"))
            ]
            named = [score for score in here if score.outcome == "named"]
            rank, line = sum(s.rank for s in named), sum(s.line for s in named)
            cells += [f"{len(named)} of {len(here)}", str(rank), str(line)]
        name = "**all**" if letter == "all" else f"{letter} {CLASSES[letter]}"
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def totals(scores: Sequence[Score]) -> str:
    """One row for each place."""
    rows = [
        "| | kind right | rank right | line right | rank and line | other error only "
        "| silent or hangs | median time to report | false alarms |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for place in dict.fromkeys(score.place for score in scores):
        here = [score for score in scores if score.place == place]
        bugs, good = [s for s in here if s.letter != "X"], [s for s in here if s.letter == "X"]
        named = [s for s in bugs if s.outcome == "named"]
        cells = [
            share(len(named), len(bugs)),
            share(sum(s.rank for s in named), len(bugs)),
            share(sum(s.line for s in named), len(bugs)),
            share(sum(s.rank and s.line for s in named), len(bugs)),
            str(count(bugs, "symptom") + count(bugs, "wrong")),
            str(count(bugs, "silent") + count(bugs, "hang")),
            duration(times(named)),
            f"{len(good) - count(good, 'clean')} of {len(good)}",
        ]
        rows.append(f"| {TITLES[place]} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def each(scores: Sequence[Score], programs: Sequence[Program]) -> str:
    """A row for each program."""
    places = list(dict.fromkeys(score.place for score in scores))
    found = {(score.id, score.place): score for score in scores}
    rows = ["| | program | ranks | kind |" + "".join(f" {TITLES[place]} |" for place in places)]
    rows.append("|---|---|---|---|" + "---|" * len(places))
    for program in programs:
        cells = [cell(found.get((program.id, place))) for place in places]
        kinds = " or ".join(program.kinds) or "correct"
        name = f"**{program.id}**" if program.is_open else program.id
        profile = "" if program.profile == "gloo" else f" (profile {program.profile})"
        facts = [name, f"{program.what}{profile}", str(program.ranks), kinds]
        rows.append("| " + " | ".join([*facts, *cells]) + " |")
    return "\n".join(rows)


def cell(score: Score | None) -> str:
    if score is None:
        return ""
    if score.outcome != "named":
        return score.outcome
    lacks = [
        word for word, is_right in (("rank", score.rank), ("line", score.line)) if not is_right
    ]
    return "named" + (f", not the {' and the '.join(lacks)}" if lacks else "")


def document(scores: Sequence[Score], programs: Sequence[Program], *, machine: str) -> str:
    open_ids = {program.id for program in programs if program.is_open}
    opened = [s for s in scores if s.id in open_ids or s.letter == "X"]
    bugs = sum(bool(program.kinds) for program in programs)
    return DOCUMENT.format(
        bugs=bugs,
        correct=len(programs) - bugs,
        opened=len(open_ids),
        totals=totals(scores),
        opened_totals=totals(opened),
        by_class=by_class(scores),
        each=each(scores, programs),
        machine=machine,
    )


def share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.0f} %)" if whole else "0 of 0"


def count(scores: Sequence[Score], outcome: str) -> int:
    return sum(score.outcome == outcome for score in scores)


def times(scores: Sequence[Score]) -> list[float]:
    return [score.seconds for score in scores if score.seconds is not None]


def duration(seconds: Sequence[float]) -> str:
    if not seconds:
        return "-"
    middle = median(seconds)
    return f"{middle:.1f} s" if middle >= 1 else f"{middle * 1e3:.0f} ms"


DOCUMENT = """\
# The bug benchmark

{bugs} small programs of plain `torch.distributed` that are wrong, and {correct} correct ones
that look odd, in `benchmarks/bugs/`. Each says which kind of finding (`docs/checks.md`) it must
give, which ranks are at fault and which lines a report must name. They run on Gloo, on Gloo
under `TORCH_DISTRIBUTED_DEBUG=DETAIL`, and on Phalanx. `make bench-bugs` writes this page.

{totals}

The {opened} programs of the open set, which were chosen without knowledge of the checks, alone:

{opened_totals}

## How it is judged

- **Kind**: Phalanx by the data of its verdict (`error.verdict`, `world.findings`), never by
  text. Gloo by the words of its errors and warnings; the words for each kind are in
  `benchmarks/bugs/judging.py` and are meant to be generous: "Detected mismatch between
  collectives", a failed enforcement of a message's size, a list of ranks that did not pass a
  monitored barrier all count.
- **Rank**: ranks at fault are named and no others. On Gloo the error came up in them only, or
  its text names them, even among others. Where nobody can say who is wrong (one against one),
  anything counts.
- **Line**: at least one of the lines marked in the program is in the report; on Gloo, in the
  traceback of an error that names the cause.
- **Other error only**: a timeout, a closed connection, a crash, or a verdict of another kind.
- **Silent or hangs**: wrong data without a message, or no end within 8 s. Gloo's groups have
  a timeout of 3 s here, which is part of its time to report; torch's default is 30 minutes.
- **False alarm**: anything said about a correct program, or a correct program that fails.
- **Time to report** is counted from the start of the ranks, in a fresh process with torch
  loaded, so for Phalanx it is mostly that of starting for the first time.
- Programs marked `profile nccl` concern NCCL's behaviour. Phalanx runs them with
  `--profile nccl`; on Gloo they are right, so the wrong ones are not run there.
- The rules of the checks are made with these programs at hand, so the figures say what is
  covered. They do not say how many unknown bugs would be found.
- With torch 2.13 on CPUs, every program with DDP dies of a segmentation fault under DETAIL.

## By class

{by_class}

## Each program

The programs of the open set are in bold.

{each}

Measured on {machine}.
"""
