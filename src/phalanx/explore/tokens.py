"""Replay tokens: a run of a program as short text, which a shell and pytest take as it is.

`4-12.1-30.2-a7f3` means: on 4 ranks, the default order but for choice 12, where candidate 1
goes first, and choice 30, where candidate 2 does; the last part is a checksum of what the run
chose, so that a program which has changed since is recognised.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from phalanx.errors import UsageError
from phalanx.explore.trace import Trace

_FORM = re.compile(r"\d+(-\d+\.\d+)*-[0-9a-f]{4}")


@dataclass(frozen=True)
class Token:
    """What a token says."""

    ranks: int
    deviations: Mapping[int, int] = field(default_factory=dict)
    checksum: str = ""

    def __str__(self) -> str:
        words = [f"{index}.{chosen}" for index, chosen in sorted(self.deviations.items())]
        return "-".join([str(self.ranks), *words, self.checksum])


def token_of(ranks: int, trace: Trace) -> Token:
    return Token(ranks, trace.deviations(), checksum_of(trace))


def read_token(text: str) -> Token:
    """Raises `UsageError` for what is no token."""
    if not isinstance(text, str) or not _FORM.fullmatch(text):
        raise UsageError(
            f"replay={text!r}: give the token that a failure was reported with, "
            "such as '4-12.1-a7f3'"
        )
    ranks, *words, checksum = text.split("-")
    pairs = (word.split(".") for word in words)
    return Token(int(ranks), {int(index): int(chosen) for index, chosen in pairs}, checksum)


def checksum_of(trace: Trace) -> str:
    """Of all that was chosen, by whom and from how many; lines of the program do not count."""
    digest = hashlib.blake2b(digest_size=2)
    for choice in trace.choices:
        count = len(choice.candidates) or len(choice.values)
        digest.update(f"{choice.thread} {choice.kind} {choice.chosen} {count};".encode())
    return digest.hexdigest()
