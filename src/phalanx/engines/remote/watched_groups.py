"""What the watcher of a rank remembers of process groups, and of the calls that are under way.

Used by `watcher.py` and by the link. `Line` says what the watcher needs of the link. Must never
ask the referee.
"""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from phalanx.backend.profiles.admission import Admission
from phalanx.backend.torch_private import private
from phalanx.callsite import Mark
from phalanx.errors import VerdictError
from phalanx.journal.events import described
from phalanx.matching.announcement import Form, GroupForm
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.model import Verdict


class Limit:
    """How long a call may wait: a time that the program named for it, or its group's."""

    def __init__(self, group: WatchedGroup, explicit: timedelta | None) -> None:
        self._group = group
        self.explicit = explicit is not None
        self._given = explicit

    def at_first(self, most: float) -> float:
        """Seconds to wait before `seconds` is asked for, which takes longer."""
        return min(most, (self._given or self._group.first_timeout).total_seconds())

    def seconds(self) -> float:
        given = self._group.timeout() if self._given is None else self._given
        return given.total_seconds()


class WatchedGroup:
    """What is known of a process group. `number` is None if the referee does not know it."""

    def __init__(self, group: Any, form: GroupForm | None, number: int | None) -> None:
        self.number = number
        self.calls = 0
        """How many collectives this rank has called."""
        self.key = "" if form is None else form.key
        self.met = _mailbox_of(form)
        self.member = 0 if form is None else form.member
        ranks = () if form is None else form.ranks
        self.shifted = frozenset(at for at, rank in enumerate(ranks) if at != rank)
        """Members whose place is not their rank in the world."""
        self._ref = weakref.ref(group)
        self._holds: dict[str, bool] = {}
        config = config_of(group)
        self.admission = Admission(config, lambda: config)
        self.first_timeout = self.timeout()

    def timeout(self) -> timedelta:
        group = self._ref()
        return timedelta(minutes=30) if group is None else private.group_timeout(group)

    def holds(self, group: Any, device: torch.device) -> bool:
        """Whether a call on such tensors makes the calling thread wait: NCCL's and the like
        only make the device wait."""
        kind = device.type
        known = self._holds.get(kind)
        if known is None:
            name = private.backend_name(group, device)
            known = self._holds[kind] = kind == "cpu" or name == "gloo"
        return known


def _mailbox_of(form: GroupForm | None) -> GroupMailbox:
    """The group as a report names it."""
    if form is None:
        return GroupMailbox("world", ())
    world = form.name == "0" and len(form.ranks) == dist.get_world_size()
    return GroupMailbox("world" if world else f"group {form.name}", form.ranks)


def form_of(group: Any, key: str, ranks: tuple[int, ...], *, default: bool) -> GroupForm:
    """What the referee is told of a group; `ranks` are its members."""
    name, member = group.group_name, group.rank()
    eager = group.bound_device_id is not None
    told = "" if default else described(group.group_desc)
    return GroupForm(key, name, ranks, member, config_of(group), eager, default, told)


def config_of(group: Any) -> str:
    """Such as "cpu:gloo,cuda:nccl"; of a group that torch has in no table, its name."""
    try:
        return str(dist.get_backend_config(group))
    except Exception:
        return str(group.name())


class PendingWork:
    """A call that was begun and is not over yet, as far as the program knows. The referee is
    asked before it is waited for, unless it has `met` already."""

    def __init__(
        self, number: int, name: str, group: WatchedGroup, *, any_source: bool, met: bool
    ) -> None:
        self.number = number
        self.name = name
        self.group = group
        self.any_source = any_source
        self.met = met
        self.is_over = False


class Recent(threading.local):
    """What a thread did last. `work` is kept alive until the caller has it; `blocking` is the
    call that the thread is about to wait for, in Python."""

    work: Any = None
    blocking: int | None = None


class Line(Protocol):
    """The way to the referee. `announce` and `wait` raise what the referee answers; both return
    whether everyone who belongs to the call has announced it. `note_wait`, `note_over` and
    `tell` are for the journal and send nothing at once."""

    def define_group(self, form: GroupForm) -> int: ...

    def define(self, form: Form) -> int: ...

    def forget_forms(self) -> None: ...

    def next_call_id(self) -> int: ...

    def announce(
        self, call_id: int, form: int, *, name: str, blocking: bool, limit: Limit
    ) -> bool: ...

    def wait(self, call_id: int, *, name: str, limit: Limit) -> bool: ...

    def note_wait(self, call_id: int) -> None: ...

    def note_over(self, call_id: int, *, failed: bool = False) -> None: ...

    def tell(self, what: str, mark: Mark | None, *fields: Any) -> None: ...

    def received(self, call_id: int, source: int) -> None: ...

    def report(self, verdict: Verdict) -> VerdictError: ...

    def failed(self, error: BaseException) -> None: ...
