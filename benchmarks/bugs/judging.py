"""What a run amounts to: was the cause named, with the right rank and the right line?

Phalanx is judged by the data of its verdicts. A run on Gloo has only text, so words decide; the
table `WORDS` errs on the side of Gloo. Pure functions over what `places.py` brought back.

| outcome | Phalanx | Gloo |
|---|---|---|
| named | a verdict of an expected kind | an error or warning with words of such a kind |
| wrong | only verdicts of other kinds | - |
| symptom | a rank failed, and no verdict | any other error, a timeout, a crash |
| silent | nothing said | the program ends well, or hangs beyond the time limit |
| clean | a correct program, nothing said | a correct program ends well |
| false alarm | a correct program, anything said | a correct program fails or is complained of |
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bugs.programs import Program

WORDS = {
    "invalid-call": (
        r"invalid|must |should |expect|not part of|not in |out of range|not initialized|"
        r"not been initialized|twice|required|requires|divisible|doesn't equal|sum up|"
        r"cannot |does not support|unsupported|only |has no |not contiguous|wrong|None is|"
        r"destroyed|not equal|incorrect|mismatch|not match|doesn't match|contiguous|smaller|"
        r"larger|can't |check failed|enforce fail"
    ),
    "mismatch": (
        r"mismatch|not match|doesn't match|Detected .* collectives|enforce fail|"
        r"inconsistent|different (shape|size|dtype|number|op|root)|same (size|shape|type)|"
        r"sizes? do(es)? not|is not equal|model parameters|verifies? .* parameters"
    ),
    "deadlock": r"failed to pass monitoredBarrier|deadlock|never (called|joined|arrive)",
    "in-flight-buffer": r"in[- ]flight|still in use|modified by an inplace|not been waited",
    "unwaited-work": r"unwaited|not waited|never waited|still .* un-?waited",
    "unmatched-message": r"unmatched|nobody received|never received",
    "crossed-order": r"crossed|out of order|different order",
    "message-race": r"\brace\b|arrival order",
    "thread-race": r"\brace\b|concurrent(ly)? (use|call)|thread[- ]safe",
    "rank-space": r"global rank|group rank",
    "leak": r"\bleak|destroy_process_group\(\) was not called|not destroyed",
    "backend-hazard": r"hazard|unbatched|serializ|may hang|undefined behavior",
}
"""By kind, what a message of Gloo or of DETAIL has to say to count as naming the cause."""

CONSEQUENCE = (
    r"connection (was )?(closed|reset)|closed by peer|timed? ?out|timeout|"
    r"application timeout|broken pipe|socket|rendezvous|store->|wait timeout"
)
"""Words of errors that say that another rank is not there, not why."""


@dataclass(frozen=True)
class Score:
    """How one program fared on one place."""

    id: str
    letter: str
    place: str
    outcome: str
    rank: bool = False
    line: bool = False
    seconds: float | None = None
    said: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def judge_verdicts(
    program: Program, place: str, told: dict[str, Any] | None, *, hung: bool = False
) -> Score:
    """A run on Phalanx; None if it ended in no result."""
    if told is None:
        outcome = "hang" if hung else "symptom"
        end = "it hung" if hung else "the process died"
        return Score(program.id, program.letter, place, outcome, said=(end,))
    verdicts: list[dict[str, Any]] = told["verdicts"]
    kinds = [each["kind"] for each in verdicts]
    said = tuple(describe(each) for each in verdicts)
    score = partial(Score, program.id, program.letter, place, said=said)
    if not program.kinds:
        return score(outcome="false alarm" if verdicts else "clean")
    right = [each for each in verdicts if each["kind"] in program.kinds]
    if not right:
        outcome = "silent"
        if verdicts:
            symptoms = set(kinds) <= {"rank-failed", "crash", "stall"}
            outcome = "symptom" if symptoms else "wrong"
        return score(outcome=outcome, seconds=told["seconds"])
    return score(
        outcome="named",
        rank=any(names_rank(program, each["ranks"]) for each in right),
        line=any(names_line(program, each["sites"]) for each in right),
        seconds=told["seconds"],
        extra=tuple(sorted({kind for kind in kinds if kind not in program.kinds})),
    )


def describe(verdict: dict[str, Any]) -> str:
    ranks = ",".join(map(str, verdict["ranks"])) or "-"
    lines = ",".join(str(line) for _, line in verdict["sites"])
    return f"{verdict['kind']} ranks {ranks} lines {lines}"


def names_rank(program: Program, ranks: Sequence[int]) -> bool:
    """Ranks at fault, all or some, and no other; or it cannot be decided."""
    return program.faulty is None or (bool(ranks) and set(ranks) <= program.faulty)


def names_line(program: Program, sites: Sequence[Sequence[Any]]) -> bool:
    name = Path(program.file).name
    return not program.lines or any(
        file == name and line in program.lines for file, line in sites
    )


def judge_texts(
    program: Program,
    place: str,
    results: Sequence[dict[str, Any] | None],
    codes: Sequence[int | None],
    outputs: Sequence[str],
    *,
    hung: bool,
) -> Score:
    """A run on Gloo: results by rank, None where a process told none."""
    score = partial(Score, program.id, program.letter, place)
    errors = {r["rank"]: r for r in results if r is not None and r["error"] is not None}
    died = {
        rank: code
        for rank, (result, code) in enumerate(zip(results, codes, strict=True))
        if result is None and code is not None and code != -signal.SIGKILL
    }
    said = (_what_came(errors, died, hung=hung),)
    if not program.kinds:
        bad = bool(errors or died or hung)
        return score("false alarm" if bad else "clean", said=said)
    naming = {
        rank: each
        for rank, each in errors.items()
        if _names_cause(program, rank, each["error"])
    }
    if naming:
        texts = " ".join(each["error"] for each in naming.values())
        lines = {line for each in naming.values() for line in each["lines"]}
        return score(
            "named",
            rank=_text_names_rank(program, set(naming), texts),
            line=not program.lines or bool(program.lines & lines),
            seconds=min(each["seconds"] for each in naming.values()),
            said=(_first_line(next(iter(naming.values()))["error"]),),
        )
    printing = {
        rank for rank, text in enumerate(outputs) if _prints_cause(program, text, rank in died)
    }
    if "rank-failed" in program.kinds:  # the launcher says which rank ended, and with what
        ended = {rank for rank, code in died.items() if code > 0}
        printing |= ended & (program.faulty or ended)
    if printing:
        return score("named", rank=_text_names_rank(program, printing, ""), said=said)
    first = min((each["seconds"] for each in errors.values()), default=None)
    return score("symptom" if errors or died else "silent", seconds=first, said=said)


def _what_came(errors: dict[int, dict[str, Any]], died: dict[int, int], *, hung: bool) -> str:
    if errors:
        return _first_line(next(iter(errors.values()))["error"])
    if died:
        rank, code = next(iter(died.items()))
        return f"rank {rank} ended with {code}"
    return "hangs" if hung else "passes"


def _prints_cause(program: Program, text: str, has_died: bool) -> bool:
    """Warnings, and what C++ prints when it takes a rank down."""
    kinds = [kind for kind in program.kinds if kind != "invalid-call" or has_died]
    return _has_words(kinds, text)


def _names_cause(program: Program, rank: int, text: str) -> bool:
    if "rank-failed" in program.kinds and rank in (program.faulty or ()):
        return True
    if re.search(CONSEQUENCE, text, re.IGNORECASE) and not re.search(
        "monitoredBarrier|Detected mismatch", text
    ):
        return False
    return _has_words(program.kinds, text)


def _has_words(kinds: Sequence[str], text: str) -> bool:
    return any(re.search(WORDS[kind], text, re.IGNORECASE) for kind in kinds if kind in WORDS)


def _text_names_rank(program: Program, raised: set[int], text: str) -> bool:
    """The error came up in ranks at fault only, or its text names them, maybe with others."""
    if program.faulty is None or raised <= program.faulty:
        return True
    text = re.sub(r"\[Rank \d+\]:", "", text)  # who says so
    named = {int(each) for each in re.findall(r"[Rr]anks? (\d+)", text)}
    return named >= program.faulty


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:160] if text.strip() else ""
