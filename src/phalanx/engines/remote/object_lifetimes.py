"""What a rank that is a process does with its groups: makes, keeps and destroys them.

Used by `watcher.py`, which hooks `made` in; `patches` are this module's own hooks. All that is
seen becomes events of the journal. Must never know the referee.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from phalanx import callsite
from phalanx.backend.evidence.env_groups import note_default_group
from phalanx.backend.evidence.group_watch import GroupWatch
from phalanx.backend.evidence.invalid_call import DESTROYED, outsider_patches
from phalanx.backend.evidence.model_names import model_patches
from phalanx.backend.evidence.replica_watch import ReplicaWatch, register
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.torch_private import private
from phalanx.callsite import Mark
from phalanx.checks.leak import KIND
from phalanx.checks.replicas.replica_samples import KIND as DRIFT
from phalanx.emulation.stdlib.warning_places import warning_patches
from phalanx.engines.remote.rank_notes import RankNotes
from phalanx.engines.remote.watched_groups import WatchedGroup
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.model import Group


class Lives:
    """One per watched process. `known` gives what is known of a group, `name` a name of it that
    all its members know; `tell` is for the journal, `ended` is called with the mailbox of each
    group that the program destroys."""

    def __init__(
        self,
        notes: RankNotes,
        kinds: frozenset[str],
        *,
        known: Callable[[Any], WatchedGroup | None],
        name: Callable[[Any], str | None],
        tell: Callable[..., None],
        ended: Callable[[GroupMailbox], None],
    ) -> None:
        self._notes = notes
        self._kinds = kinds
        self._known = known
        self._name = name
        self._tell = tell
        self._ended = ended
        self._watch = GroupWatch()
        self.reset()

    def reset(self) -> None:
        self.closed: weakref.WeakSet[Any] = weakref.WeakSet()
        self.saved: dict[str, Any] = {}
        """Models of DDP's, for `model_names.py`."""
        watched = DRIFT in self._kinds
        rank = self._notes.rank
        self.replicas = ReplicaWatch(rank, self.saved, self._count) if watched else None
        self._watch.forget()

    def patches(self) -> Iterator[tuple[Any, str, Any]]:
        original, lives = dist.ProcessGroup.shutdown, self

        def shutdown(self: Any) -> None:
            if type(self) is dist.ProcessGroup and self not in lives.closed:
                lives.note_destroyed(self, callsite.mark(1))
            original(self)

        yield dist.ProcessGroup, "shutdown", shutdown
        yield from outsider_patches(lambda: self._notes)
        yield from model_patches(self._wrapped, lambda: self)
        yield from warning_patches()

    def _wrapped(self, model: Any) -> None:
        _outlive(model)
        if self.replicas is not None:
            self.replicas.guarded(self.replicas.wrapped, model)

    def watch_steps(self, also: Callable[[], None]) -> Callable[[], None]:
        """Look at the steps of optimizers; returns what ends that, and calls `also`."""
        stop = register(lambda: self.replicas)

        def undo() -> None:
            also()
            stop()

        return undo

    def made(
        self, group: Any, members: tuple[int, ...], at: FrameType, backend: str = ""
    ) -> None:
        """The process is a member of a new group, which has no members given if it is the
        default one; `at` is the frame of torch's that makes it."""
        if not members:
            note_default_group(self._notes, self.saved, at, backend)
        if KIND in self._kinds and members and group.rank() == 0:
            self._watch.made(
                group,
                members,
                str(group.name()),
                at,
                is_closed=self.closed.__contains__,
                tables=_tables_of,
            )

    def note_destroyed(self, group: Any, mark: Mark | None) -> None:
        default = dist.group.WORLD
        ranks = tuple(dist.get_process_group_ranks(group))
        name = "world" if group is default else f"group {group.group_name}"
        self.closed.add(group)
        DESTROYED[group] = Group(name, ranks)
        known = self._known(group)
        if known is not None:
            self._ended(known.met)
        key, world = self._name(group), None if default is None else self._name(default)
        if key is not None:
            calls = 0 if world is None else self._count(default)
            self._tell("group-destroyed", mark, key, world, calls)

    def _count(self, group: Any) -> int:
        """How many collectives this rank has called on it."""
        known = self._known(group)
        return 0 if known is None else known.calls

    def refuse(self, group: Any, name: str) -> None:
        """A call on a closed group: Gloo's go on working, those of NCCL do not."""
        raise InvalidCallError(f'{name}: group "group {group.group_name}" has been destroyed')

    def end_run(self) -> None:
        """Write what is known only now."""
        for note in self._watch.take():
            self._notes.ring.add(note)
        for note in self.replicas.take() if self.replicas is not None else ():
            self._notes.ring.add(note)


def _outlive(model: Any) -> None:
    """Keep the group until the parts of DDP that are C++ are gone. If these had the last
    reference, the group's threads would be joined with Python's lock held, and one that puts a
    tensor away waits for that lock (`docs/upstream-bugs.md`); a reference of Python's is
    dropped without the lock."""
    for part in (getattr(model, "reducer", None), getattr(model, "logger", None)):
        if part is not None:
            weakref.finalize(part, _let_go, model.process_group).atexit = False


def outliving_patches() -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, replacement) for a rank that is not watched."""
    original = DistributedDataParallel.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _outlive(self)

    yield DistributedDataParallel, "__init__", init


def _let_go(group: Any) -> None:
    """Drop the reference that the caller has had."""


def _tables_of(group: Any) -> Iterable[Any]:
    """What of torch's refers to groups."""
    return private.tables_of_groups()
