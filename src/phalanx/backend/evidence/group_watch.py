"""Leak: groups made in a loop and never destroyed; a world that is left standing.

`made` is called for every end of a group. Deciding is done in `checks/leak.py`.
"""

from __future__ import annotations

import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType, MethodType
from typing import Any

from phalanx import callsite
from phalanx.backend.session import Session
from phalanx.checks.leak import FEW, MANY, Making, find_kept_world, find_leaks, find_left_world
from phalanx.model import Finding, Group, Op, Verdict

KIND = "leak"
SEARCHES = 4
"""How often in a run it is found out what refers to a group, which takes 30 ms."""
_DEPTH = 12
_ASKING = 3
_MAKERS = ("distributed_c10d.py", "c10d_logger.py")
"""Torch's files through which a program's own call to `new_group` goes."""


class _Entry:
    """Groups of one set of ranks that were made by one way through the program."""

    __slots__ = ("backend", "by_name", "ends", "lost", "made", "most", "place", "searches")

    def __init__(self, place: callsite.Mark | None, by_name: bool, backend: str) -> None:
        self.place = place
        self.backend = backend
        self.by_name = by_name
        self.ends: list[weakref.ref[Any]] = []
        self.made = 0
        self.most = 0
        self.lost = False
        self.searches = 0


Entries = dict[tuple[tuple[callsite.Mark, ...], tuple[int, ...]], _Entry]
"""By the way through the program, and by ranks."""


def made(end: Any, *, default: bool) -> None:
    """A rank's end of a new group; only the first member of each is looked at."""
    session: Session = end._session
    if KIND not in session.kinds:
        return
    if default:
        if not session.makes_world:
            session.began_at[end._context.rank] = callsite.mark(2)
        return
    if end._member:
        return
    add(
        session.notes.setdefault(KIND, {}),
        end,
        end._mailbox.ranks,
        end._backend_name,
        sys._getframe(2),
        is_closed=lambda one: bool(one._closed),
        is_lost=lambda one: _is_lost(session, one),
    )


def add(
    entries: Entries,
    end: Any,
    ranks: tuple[int, ...],
    backend: str,
    frame: FrameType,
    *,
    is_closed: Callable[[Any], bool],
    is_lost: Callable[[Any], bool],
) -> None:
    """A group was made at this frame; `end` is what the program has of it."""
    way, by_name = _way_here(frame)
    entry = entries.get((way, ranks))
    if entry is None:
        entry = entries[way, ranks] = _Entry(way[0] if way else None, by_name, backend)
    alive = [ref for ref in entry.ends if (one := ref()) is not None and not is_closed(one)]
    entry.ends = [*alive, weakref.ref(end)]
    entry.made += 1
    entry.most = max(entry.most, len(entry.ends))
    if not by_name and not entry.lost and len(alive) + 1 in (FEW, MANY):
        entry.lost = is_lost(alive[0]())


def find_leaked_groups(session: Session) -> Iterable[Verdict]:
    entries = session.notes.pop(KIND, {})
    session.notes.pop("leak-searches", None)
    return [*find_leaks(makings_in(entries)), *_left_world(session)]


def makings_in(entries: Entries) -> list[Making]:
    return [
        Making(
            ranks,
            callsite.resolve(entry.place),
            entry.made,
            entry.most,
            entry.lost,
            entry.by_name,
            entry.backend,
        )
        for (_, ranks), entry in entries.items()
        if entry.most >= FEW
    ]


def _left_world(session: Session) -> Iterable[Verdict]:
    """Worlds that the program itself began. Those that Phalanx began it also ends."""
    if session.makes_world:
        return
    left = [each.rank for each in session.ranks if each.torch_state.default_pg is not None]
    if left:
        group = session.ranks[left[0]].torch_state.default_pg
        backend = "nccl" if session.profile == "nccl" else group.name()
        site = callsite.resolve(session.began_at.get(left[0]))
        found = find_left_world(left, backend, site) or _kept_world(session, left)
        if found is not None:
            yield found


def _kept_world(session: Session, left: list[int]) -> Finding | None:
    """The first world that some members took down and others left: one rank, one end."""
    for met in (session.ranks[rank].torch_state.default_pg._mailbox for rank in left):
        if met is None:
            continue
        kept = [rank for rank in met.ranks if rank in met.ends]
        ended = [r for r in met.ranks if r not in met.ends and session.ranks[r].ended_at]
        if ended:
            group = Group(met.name, met.ranks)
            return find_kept_world(
                [_op(r, "init_process_group", group, session.began_at.get(r)) for r in kept],
                [
                    _op(r, "destroy_process_group", group, session.ranks[r].ended_at)
                    for r in ended
                ],
            )
    return None


def _op(rank: int, name: str, group: Group, mark: callsite.Mark | None) -> Op:
    return Op(rank, name, group, site=callsite.resolve(mark))


def _way_here(frame: FrameType | None) -> tuple[tuple[callsite.Mark, ...], bool]:
    """The user's frames, and whether torch itself made the group, as for a mesh."""
    marks: list[callsite.Mark] = []
    by_name = False
    while frame is not None and len(marks) < _DEPTH:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            marks.append((frame.f_code, frame.f_lasti))
        elif not marks and not callsite.is_own_file(file) and not file.endswith(_MAKERS):
            by_name |= f"{os.sep}torch{os.sep}" in file
        frame = frame.f_back
    return tuple(marks), by_name


def _is_lost(session: Session, end: Any) -> bool:
    """Whether nothing but torch's tables and ours refers to the group."""
    searches = session.notes.get("leak-searches", 0)
    if end is None or searches >= SEARCHES:
        return False
    session.notes["leak-searches"] = searches + 1
    state = end._context.torch_state
    known = {id(each) for each in vars(state).values()}
    known |= {id(each) for each in state.tags_to_pg.values()}
    known |= {id(end._mailbox.ends), id(vars(end))}
    return is_held_by_only(end, known)


def is_held_by_only(end: Any, known: set[int]) -> bool:
    """Whether only these refer to it; frames of whoever asks hold it for a moment."""
    asking = [sys._getframe(depth) for depth in range(_ASKING)]
    known = known.union(map(id, asking))  # not by `==`, which may be the program's
    return all(id(each) in known or type(each) is MethodType for each in gc.get_referrers(end))
