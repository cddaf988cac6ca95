"""What a rank that is a process does with its groups: makes, keeps and destroys them.

Used by `watcher.py`, which hooks `made` in; `patches` are this module's own hooks. What was
seen is told at the end of a run, in values that travel; the functions at the end put together
what all ranks have told. Deciding is done in `checks/leak.py` and `checks/group_lifecycle.py`.
Must never know the referee.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import FrameType, SimpleNamespace
from typing import Any

import torch.distributed as dist

from phalanx import callsite
from phalanx.backend.evidence import group_watch
from phalanx.backend.evidence.invalid_call import DESTROYED, join_outsiders, outsider_patches
from phalanx.backend.evidence.model_names import model_patches
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.torch_private import private
from phalanx.callsite import Mark, resolve
from phalanx.checks.group_lifecycle import Destroyed, find_destroy_mismatch, find_kept_group
from phalanx.checks.leak import Making, find_kept_world, find_leaks, find_left_world
from phalanx.model import Finding, Group, Op, Site, Verdict

MOST_DESTROYED = 4096


@dataclass
class ProgramWorld:
    """A default group that the program itself made, and where it was made and taken down."""

    ranks: tuple[int, ...]
    backend: str
    began: Site | None
    ended: Site | None = None


@dataclass
class Told:
    """What one rank has to tell. `destroyed` are calls, with the names of their groups, by the
    name of the default group of that time; an op's number says how many collectives of the
    latter went before, `calls` how many there were in the end."""

    makings: list[Making] = field(default_factory=list)
    worlds: dict[str, ProgramWorld] = field(default_factory=dict)
    destroyed: dict[str, list[Destroyed]] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    outsiders: list[Finding] = field(default_factory=list)


class Lives:
    """One per watched process. `count` gives the number of the rank's collectives on a group,
    `name` a name of the group that all its members know."""

    def __init__(
        self,
        rank: int,
        kinds: frozenset[str],
        *,
        count: Callable[[Any], int],
        name: Callable[[Any], str | None],
    ) -> None:
        self.rank = rank
        self._kinds = kinds
        self._count = count
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.closed: weakref.WeakSet[Any] = weakref.WeakSet()
        self.saved: dict[str, Any] = {}
        """Models of DDP's, for `model_names.py`."""
        self._entries: dict[Any, Any] = {}
        self._worlds: dict[str, ProgramWorld] = {}
        self._destroyed: deque[tuple[str, str, Op, Mark | None]] = deque(maxlen=MOST_DESTROYED)
        self._calls: dict[str, int] = {}
        self._outsiders: list[Any] = []
        self._searches = 0

    def patches(self) -> Iterator[tuple[Any, str, Any]]:
        original, lives = dist.ProcessGroup.shutdown, self

        def shutdown(self: Any) -> None:
            if type(self) is dist.ProcessGroup and self not in lives.closed:
                lives.note_destroyed(self, callsite.mark(1))
            original(self)

        yield dist.ProcessGroup, "shutdown", shutdown
        yield from outsider_patches(self._context)
        yield from model_patches(lambda: self)

    def _context(self) -> Any:
        """What `invalid_call.py` asks of a rank."""
        size = dist.get_world_size() if dist.is_initialized() else 0
        session = SimpleNamespace(size=size, findings=self._outsiders)
        return SimpleNamespace(rank=self.rank, session=session)

    # -- making ---------------------------------------------------------------------------

    def made(
        self, group: Any, members: tuple[int, ...], key: str | None, at: FrameType
    ) -> None:
        """The process is a member of a new group, which has no members given if it is the
        default one; `at` is the frame of torch's that makes it."""
        if group_watch.KIND not in self._kinds:
            return
        backend = str(group.name())
        if not members:
            began = resolve(callsite.mark_of(at))
            if key is not None and began is not None:  # else Phalanx made it, and ends it
                ranks = tuple(range(group.size()))
                self._worlds[key] = ProgramWorld(ranks, backend, began)
        elif group.rank() == 0:
            group_watch.add(
                self._entries,
                group,
                members,
                backend,
                at,
                is_closed=self.closed.__contains__,
                is_lost=self._is_lost,
            )

    def _is_lost(self, group: Any) -> bool:
        """Whether nothing but torch's tables refers to the group."""
        if group is None or self._searches >= group_watch.SEARCHES:
            return False
        self._searches += 1
        tables = private.tables_of_groups()
        return group_watch.is_held_by_only(group, {id(each) for each in tables})

    # -- destroying -----------------------------------------------------------------------

    def note_destroyed(self, group: Any, mark: Mark | None) -> None:
        """Those that go with the default group, all in one call, are left out: torch itself
        sees to their order."""
        default, key = dist.group.WORLD, self._name(group)
        ranks = tuple(dist.get_process_group_ranks(group))
        named = Group("world" if group is default else f"group {group.group_name}", ranks)
        self.closed.add(group)
        DESTROYED[group] = named
        world = None if default is None else self._name(default)
        if world is None or key is None:
            return
        calls = self._calls[world] = self._count(default)
        if group is not default:
            what, site = "destroy_process_group", resolve(mark)
            op = Op(self.rank, what, named, number=calls, site=site)
            self._destroyed.append((world, key, op, mark))
            return
        if key in self._worlds:
            self._worlds[key].ended = resolve(mark)
        while self._destroyed and self._destroyed[-1][3] == mark:
            self._destroyed.pop()

    def refuse(self, group: Any, name: str) -> None:
        """A call on a closed group: Gloo's go on working, those of NCCL do not."""
        raise InvalidCallError(f'{name}: group "group {group.group_name}" has been destroyed')

    # -- the end --------------------------------------------------------------------------

    def take(self) -> Told | None:
        """What there is to tell, once."""
        default = dist.group.WORLD
        alive = None if default is None else self._name(default)
        if alive is not None:
            self._calls[alive] = self._count(default)
        told = Told(
            makings=group_watch.makings_in(self._entries),
            worlds=dict(self._worlds),
            calls=dict(self._calls),
            outsiders=list(self._outsiders),
        )
        for world, key, op, _ in self._destroyed:
            told.destroyed.setdefault(world, []).append(Destroyed(key, op))
        self._entries.clear()
        self._destroyed.clear()
        self._outsiders.clear()
        self._calls.clear()
        self._worlds = {key: each for key, each in self._worlds.items() if key == alive}
        self._searches = 0
        some = told.makings or told.worlds or told.calls or told.outsiders
        return told if some else None


def find_outsiders(told: Mapping[int, Told]) -> Iterable[Verdict]:
    """In the program, as the two below: from what the ranks have told, by rank. Of those that
    had nothing to tell there is nothing."""
    return join_outsiders(each for rank in sorted(told) for each in told[rank].outsiders)


def find_lifecycle_mismatches(told: Mapping[int, Told]) -> Iterator[Verdict]:
    for world in dict.fromkeys(world for each in told.values() for world in each.destroyed):
        ops = {rank: each.destroyed.get(world, []) for rank, each in sorted(told.items())}
        calls = {rank: each.calls.get(world, 0) for rank, each in told.items()}
        found = find_destroy_mismatch(ops) or find_kept_group(ops, calls)
        if found is not None:
            yield found


def find_lifetime_leaks(told: Mapping[int, Told], profile: str | None) -> Iterator[Verdict]:
    yield from find_leaks(m for rank in sorted(told) for m in told[rank].makings)
    yield from _find_left_worlds(told, profile)


def _find_left_worlds(told: Mapping[int, Told], profile: str | None) -> Iterable[Finding]:
    worlds: dict[str, dict[int, ProgramWorld]] = {}
    for rank in sorted(told):
        for key, world in told[rank].worlds.items():
            worlds.setdefault(key, {})[rank] = world
    for ends in worlds.values():
        left = [rank for rank, end in ends.items() if end.ended is None]
        if not left:
            continue
        first = ends[left[0]]
        backend = "nccl" if profile == "nccl" else first.backend
        group = Group("world", first.ranks)
        found = find_left_world(left, backend, first.began) or find_kept_world(
            [Op(r, "init_process_group", group, site=ends[r].began) for r in left],
            [
                Op(r, "destroy_process_group", group, site=end.ended)
                for r, end in ends.items()
                if end.ended is not None
            ],
        )
        if found is not None:
            yield found
