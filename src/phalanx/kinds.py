"""The kinds of things that checks find, and how a user chooses among them.

Used by the doors, which take `checks=...` and `--checks`, and by the engines. Must never import
anything but errors and words.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from phalanx.errors import UsageError

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "invalid-call": "one rank's own arguments are wrong",
        "mismatch": "calls that meet disagree",
        "deadlock": "ranks wait that can never move again: proved",
        "stall": "time ran out, and nothing is proved",
        "in-flight-buffer": "a tensor of an operation not yet waited for is used",
        "unwaited-work": "the Work of an operation is dropped or never waited for",
        "unmatched-message": "a message nobody received, or a receive nobody answered",
        "crossed-order": "two collectives or messages of the same shape are paired crosswise",
        "lost-result": "a collective writes into a copy that nobody keeps",
        "backend-hazard": "the run passed, but by the backend's rules it may hang or corrupt",
        "message-race": "a result depended on the order in which messages arrived",
        "thread-race": "two threads of a rank use one group with nothing that orders them",
        "rank-space": "a rank of the world was given where another call gives one of the group",
        "replica-drift": "replicas of a model have other parameters on some ranks",
        "leak": "groups that are made again and again and never destroyed",
    }
)

EXPLORE_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "different-results": "the result depends on the order, or on a fault",
        "invariant": "what phalanx.always says did not hold",
        "uncontrolled-chance": "something that is no choice decides what a run does",
    }
)
"""What only an exploration finds, besides all others; `compare` and `always` ask for them."""

ALL = frozenset(KINDS)
ALWAYS = frozenset({"invalid-call", "deadlock", "stall"})
"""Without these a run could not end."""


MOMENTS = ("earliest", "latest", "seeded")
"""When asynchronous operations may be made to complete."""

PROFILES = ("gloo", "nccl")
"""Backends by whose rules hazards can be made errors."""


def parse_checks(given: object, *, where: str | None = None) -> frozenset[str]:
    """What is to be checked, from "all", "none", or kinds by name, "-kind" to leave one out.
    `where` is how the user wrote it, for the text of an error.

    >>> sorted(ALL - parse_checks("all,-leak"))
    ['leak']
    >>> sorted(parse_checks("mismatch") - ALWAYS)
    ['mismatch']
    """
    where = where or f"checks={given!r}"
    if not isinstance(given, str) or not given.strip():
        raise _refusal(where)
    chosen: set[str] | None = None
    for word in (part.strip() for part in given.split(",")):
        name = word.removeprefix("-")
        if word == "all":
            chosen = set(ALL)
        elif word == "none" and chosen is None:
            chosen = set()
        elif name not in KINDS:
            raise _refusal(where, word)
        elif word.startswith("-"):
            if name in ALWAYS:
                raise UsageError(f"{where}: {name} is always found; it cannot be left out")
            chosen = (set(ALL) if chosen is None else chosen) - {name}
        else:
            chosen = (chosen or set()) | {name}
    return frozenset(chosen or ()) | ALWAYS


def is_on(given: str) -> bool:
    """Whether anything is checked at all. With "none" engines do not even look."""
    return given.strip() != "none"


def check_profile(given: object, *, where: str | None = None) -> None:
    if given is not None and given not in PROFILES:
        raise UsageError(
            f"{where or f'profile={given!r}'}: give {' or '.join(PROFILES)}, the backend that "
            "the program is meant for; without it that is the one it asks for"
        )


def _refusal(where: str, word: str | None = None) -> UsageError:
    near = get_close_matches((word or "").removeprefix("-"), KINDS, n=1)
    wrong = f"there is no kind {word.removeprefix('-')!r}" if word else "no kind is given"
    end = f"; did you mean {near[0]!r}?" if near else "."
    return UsageError(
        f"{where}: {wrong}{end} Give all, none, or kinds with commas between them, e.g. "
        f"mismatch,leak or all,-leak. Kinds are {', '.join(KINDS)}"
    )
