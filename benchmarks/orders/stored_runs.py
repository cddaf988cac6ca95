"""A run that was found, kept as its token, and whether the token gives it again."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.explore.one_run import repeat
from phalanx.explore.subjects import ScriptSubject
from phalanx.explore.tokens import checksum_of, read_token
from phalanx.faults import parse_faults


@dataclass(frozen=True)
class Stored:
    """What repeats a run, and what it must be again."""

    token: str
    fingerprint: str
    program: str = ""


def is_exact(subject: ScriptSubject, stored: Stored) -> bool:
    """Whether the token gives the same run: what it chose, at which lines, and who ran when."""
    token = read_token(stored.token)
    faults = parse_faults(token.faults) if token.faults else ()
    again = subject.with_changes(ranks=token.ranks, faults=faults)
    execution, followed = repeat(again, token.deviations)
    same = checksum_of(execution.trace) == token.checksum
    return followed and same and execution.fingerprint == stored.fingerprint
