"""Rank space: which number a program gave for a root, and whether of the world or the group.

`note` is called for roots whose rank in the world and in the group differ; torch's own frames
tell which of the two was given. Deciding is done in `checks/rank_space.py`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterable
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.evidence.source_text import expression, gives_group_rank
from phalanx.checks import registry
from phalanx.checks.rank_space import Space, Use, find_rank_space
from phalanx.journal.events import GroupRecord
from phalanx.journal.reader import Journal
from phalanx.matching.slots import Call
from phalanx.model import Verdict

KIND = "rank-space"
MOST_USES = 256
_C10D = f"{os.sep}distributed_c10d.py"
_LOGGER = f"{os.sep}c10d_logger.py"
_BY_GROUP_RANK = re.compile(r"get_global_rank\([^()]*,\s*(\d+)\s*\)")


def note(kinds: Collection[str], call: Call) -> None:
    """Remember how the program named the root, if it made the call itself."""
    if KIND not in kinds or call.root is None:
        return
    given = _given(sys._getframe(2))
    if given is None:
        return
    space: Space = "group" if given < 0 else "world"
    number = call.root if given < 0 else given
    uses = call.mailbox.record.evidence.setdefault(KIND, {})
    key = (call.mark, call.name, space, number)
    if key not in uses and len(uses) < MOST_USES:
        uses[key] = describe_call(call), set()
    if key in uses:
        uses[key][1].add(call.mailbox.ranks[call.member])


def look(group: GroupRecord) -> list[Verdict]:
    """What was noted on a group, judged and forgotten."""
    noted = group.evidence.pop(KIND, None)
    if not noted:
        return []
    found = find_rank_space(
        _use(op, mark, space, number, tuple(sorted(ranks)))
        for (mark, _, space, number), (op, ranks) in noted.items()
    )
    return [] if found is None else [found]


def find_rank_spaces(journal: Journal, host: object) -> Iterable[Verdict]:
    return [each for group in journal.groups for each in look(group)]


registry.AT_END[KIND] = find_rank_spaces


def _use(op: Any, mark: Any, space: Space, number: int, ranks: tuple[int, ...]) -> Use:
    """A rank of the world that the same line computes from one of the group counts as that."""
    if space == "world" and mark is not None:
        written = _BY_GROUP_RANK.search(expression(mark) or "")
        if written is not None:
            return Use(op, "group", int(written[1]), ranks)
        return Use(op, space, number, ranks, converted=gives_group_rank(mark))
    return Use(op, space, number, ranks)


def _given(frame: FrameType | None) -> int | None:
    """The rank of the world that the program gave; -1 if it gave one of the group; None if it
    is not the program that calls."""
    found = -1
    while frame is not None:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            return found
        if file.endswith(_C10D):
            local = frame.f_locals
            for name in ("src", "dst"):
                if isinstance(local.get(name), int):
                    found = local[name]
        elif not callsite.is_own_file(file) and not file.endswith(_LOGGER):
            return None
        frame = frame.f_back
    return None
