"""The kinds of things that checks find, and how a user chooses among them.

Used by the doors, which take `checks=...` and `--checks`, and by the engines. Must never import
anything but errors and words.
"""

from __future__ import annotations

from collections.abc import Mapping
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
        "crossed-order": "two collectives of the same shape are paired crosswise",
        "backend-hazard": "the run passed, but by the backend's rules it may hang or corrupt",
        "message-race": "a result depended on the order in which messages arrived",
        "thread-race": "two threads of a rank use one group with nothing that orders them",
        "rank-space": "a rank of the world was given where another call gives one of the group",
        "leak": "groups that are made again and again and never destroyed",
    }
)

ALL = frozenset(KINDS)
ALWAYS = frozenset({"invalid-call", "deadlock", "stall"})
"""Without these a run could not end."""


def parse_checks(given: object) -> frozenset[str]:
    """What is to be checked, from "all", "none", or kinds by name, "-kind" to leave one out.

    >>> sorted(ALL - parse_checks("all,-leak"))
    ['leak']
    >>> sorted(parse_checks("mismatch") - ALWAYS)
    ['mismatch']
    """
    if not isinstance(given, str) or not given.strip():
        raise _refusal(given)
    chosen: set[str] | None = None
    for word in (part.strip() for part in given.split(",")):
        name = word.removeprefix("-")
        if word == "all":
            chosen = set(ALL)
        elif word == "none" and chosen is None:
            chosen = set()
        elif name not in KINDS:
            raise _refusal(given)
        elif word.startswith("-"):
            chosen = (set(ALL) if chosen is None else chosen) - {name}
        else:
            chosen = (chosen or set()) | {name}
    return frozenset(chosen or ()) | ALWAYS


def _refusal(given: object) -> UsageError:
    names = ", ".join(KINDS)
    return UsageError(
        f"checks={given!r}: give 'all', 'none', or kinds with commas between them, "
        f"e.g. 'mismatch,deadlock' or 'all,-leak'; kinds are {names}"
    )
