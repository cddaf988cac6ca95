"""Watch the calls that a process makes on real process groups, and announce them.

For ranks that are processes. All callers, Python code, DDP's reducer, functional collectives,
pass through torch's dispatcher; a kernel of ours stands there, before those of the devices.
What a call is to meet is asked over a `Line` to the desk; a call that would make its rank
wait is held here, in Python, until the others have announced theirs too, so that a verdict is
raised at the caller and the backend only gets calls that fit. Must never decide anything.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx import callsite
from phalanx.backend import private
from phalanx.backend.admission import Admission
from phalanx.backend.watch_forms import READERS, Arguments, Parts, is_doubtful
from phalanx.core.forms import Form, GroupForm

NO_TIMEOUT = timedelta(0)

MOST_FORMS = 4096
"""Programs whose sizes change all the time would fill the memory of both ends."""

MOST_BUFFERS = 4096

# Files of torch whose functions go into C++ that calls collectives and waits for them there.
_WAITING_IN_CPP = ("torch/distributed/utils.py", "torch/nn/parallel/distributed.py")
_C10D = "torch/distributed/distributed_c10d.py"
_BACKWARD = "torch/autograd/graph.py"

_API, _WAITING, _NATIVE, _IN_BACKWARD, _OTHER = range(5)


def _codes(*names: str) -> frozenset[Any]:
    functions: list[Any] = [inspect.unwrap(getattr(dist, name)) for name in names]
    return frozenset(function.__code__ for function in functions)


# `send` is `isend` and a wait, in torch's own code too.
_BEGINNING, _ENDING = _codes("isend", "irecv"), _codes("send", "recv")


def load_operators() -> None:
    """Have torch make its objects for the operators now, which takes some milliseconds."""
    for name in READERS:
        getattr(torch.ops.c10d, name).default  # noqa: B018, it is made when it is looked up


class Line(Protocol):
    """The way to the desk. `announce` and `wait` raise what the desk answers; both return
    whether everyone who belongs to the call has announced it."""

    def define_group(self, form: GroupForm) -> int: ...

    def define(self, form: Form) -> int: ...

    def forget_forms(self) -> None: ...

    def next_ticket(self) -> int: ...

    def announce(
        self, ticket: int, form: int, *, name: str, blocking: bool, limit: Limit
    ) -> bool: ...

    def wait(self, ticket: int, *, name: str, limit: Limit) -> bool: ...

    def received(self, ticket: int, source: int) -> None: ...


class Limit:
    """How long a call may wait: a time that the program named for it, or its group's."""

    def __init__(self, group: _Group, explicit: timedelta | None) -> None:
        self._group = group
        self.explicit = explicit is not None
        self._given = explicit

    def at_first(self, most: float) -> float:
        """Seconds to wait before `seconds` is asked for, which takes longer."""
        return min(most, (self._given or self._group.first_timeout).total_seconds())

    def seconds(self) -> float:
        given = self._group.timeout() if self._given is None else self._given
        return given.total_seconds()


class _Group:
    """What is known of a process group. `number` is None if the desk does not know it."""

    def __init__(self, group: Any, number: int | None) -> None:
        self.number = number
        self._ref = weakref.ref(group)
        self._holds: dict[str, bool] = {}
        config = _config_of(group)
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


def _config_of(group: Any) -> str:
    """Such as "cpu:gloo,cuda:nccl"; of a group that torch has in no table, its name."""
    try:
        return str(dist.get_backend_config(group))
    except Exception:
        return str(group.name())


class _Ticket:
    """A call that was announced and not yet met."""

    def __init__(self, number: int, name: str, group: _Group, any_source: bool) -> None:
        self.number = number
        self.name = name
        self.group = group
        self.any_source = any_source


class Watcher:
    """The hooks in torch, and what they need to know. One per process."""

    def __init__(self, line: Line, rank: int) -> None:
        self.line = line
        self.rank = rank
        self._callers: dict[Any, int] = {}
        self._recent = threading.local()
        self._incarnations: dict[str, int] = {}
        self._proposals = count()
        self._adding = threading.Lock()
        self._libraries: list[torch.library.Library] = []
        self._wait: Any = None
        self._make: Any = None
        self.reset()

    def reset(self) -> None:
        """Forget groups and calls; the other end does the same."""
        self._groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._forms: dict[Any, tuple[int, bool]] = {}
        self._works: weakref.WeakKeyDictionary[Any, _Ticket] = weakref.WeakKeyDictionary()
        self._buffers: dict[int, _Ticket] = {}
        self._recent.work = None

    # -- hooks ------------------------------------------------------------------------------

    def start(self) -> None:
        calls, waits = private.library_of("c10d"), private.library_of(private.FUNCTIONAL)
        self._libraries = [calls, waits]
        for name, read in READERS.items():
            private.watch_operator(calls, name, self._watching(read))
        private.watch_operator(waits, "wait_tensor", self._wait_for_tensor)
        self._make = getattr(c10d, private.NEW_GROUP_NAME)
        setattr(c10d, private.NEW_GROUP_NAME, self._make_group)
        self._wait = original = dist.Work.wait
        watcher = self

        def wait(self: Any, timeout: timedelta = NO_TIMEOUT) -> bool:
            ticket = watcher._works.get(self)
            if ticket is None:
                return bool(original(self, timeout))
            return watcher._wait_for_work(self, ticket, timeout)

        dist.Work.wait = wait  # type: ignore[method-assign]

    def stop(self) -> None:
        if self._libraries:
            dist.Work.wait = self._wait  # type: ignore[method-assign]
            setattr(c10d, private.NEW_GROUP_NAME, self._make)
        while self._libraries:
            private.forget_library(self._libraries.pop())

    def _watching(self, read: Callable[[Arguments], Parts]) -> Any:
        def around(given: Arguments, proceed: Callable[[], Any]) -> Any:
            if private.function_modes():  # they see nothing of the inside of a backend
                with private.no_function_modes():
                    return look(given, proceed)
            return look(given, proceed)

        def look(given: Arguments, proceed: Callable[[], Any]) -> Any:
            group = dist.ProcessGroup.unbox(given["process_group"])
            if type(group) is not dist.ProcessGroup or private.is_fake(given):
                return proceed()
            known = self._groups.get(group) or self._add_group(group)
            if known.number is None:
                return proceed()
            return self._call(group, known, read(given), given, proceed)

        return around

    # -- one call ---------------------------------------------------------------------------

    def _call(
        self, group: Any, known: _Group, parts: Parts, given: Arguments, proceed: Any
    ) -> Any:
        form, doubtful = self._form(group, known, parts, given)
        try:
            caller = self._caller(sys._getframe(4))
        except ValueError:  # nobody of Python's called: a thread of autograd's own, for a GPU
            caller = _IN_BACKWARD if private.is_in_backward() else _OTHER
        holds = known.holds(group, parts.device(given))
        limit = self._limit(known, parts, given)
        blocking = holds and self._is_blocking(parts, given, caller, limit)
        ticket = self.line.next_ticket()

        def announce() -> bool:
            return self.line.announce(
                ticket, form, name=parts.name, blocking=blocking, limit=limit
            )

        if doubtful:
            result = proceed()
            met = announce()
        else:
            met = announce()
            result = proceed()
        any_source = parts.name == "recv" and parts.peer is None
        if holds and not blocking and (not met or any_source):
            self._remember(_Ticket(ticket, parts.name, known, any_source), result)
            if caller == _IN_BACKWARD:
                private.call_after_backward(lambda: self._wait_at_desk(ticket, parts, known))
            elif caller == _OTHER:
                self._remember_buffers(parts, _Ticket(ticket, parts.name, known, False))
        return result

    def _is_blocking(self, parts: Parts, given: Arguments, caller: int, limit: Limit) -> bool:
        if parts.tag is not None:
            return caller == _WAITING
        if parts.name == "monitored_barrier":
            return not limit.explicit
        return caller == _NATIVE or not given.get("async_op", True)

    def _limit(self, known: _Group, parts: Parts, given: Arguments) -> Limit:
        explicit = timedelta(milliseconds=given.get("timeout", -1))
        if parts.name == "monitored_barrier":  # for which torch fills in the default
            return Limit(known, explicit if explicit < known.timeout() else None)
        return Limit(known, explicit if explicit > NO_TIMEOUT else None)

    def _form(
        self, group: Any, known: _Group, parts: Parts, given: Arguments
    ) -> tuple[int, bool]:
        place = callsite.mark(5) or callsite.mark_of_main_thread()
        key = (known.number, place, parts.key())
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
                self.line.forget_forms()
            assert known.number is not None
            number = self.line.define(parts.form(known.number, place))
            doubtful = is_doubtful(group, known.admission, parts, given)
            found = self._forms[key] = number, doubtful
        return found

    def _caller(self, frame: Any) -> int:
        """Who called the operator: the innermost frame of Python's, below which is C++."""
        code = frame.f_code if frame is not None else None
        if code in _BEGINNING and frame.f_back is not None:
            code = frame.f_back.f_code
        kind = self._callers.get(code)
        if kind is None:
            file = code.co_filename if code is not None else ""
            kind = _OTHER
            if code in _ENDING:
                kind = _WAITING
            elif file.endswith(_C10D):
                kind = _API
            elif file.endswith(_WAITING_IN_CPP):
                kind = _NATIVE
            elif file.endswith(_BACKWARD):
                kind = _IN_BACKWARD
            self._callers[code] = kind
        return kind

    # -- groups -----------------------------------------------------------------------------

    def _add_group(self, group: Any) -> _Group:
        with self._adding:
            known = self._groups.get(group)  # another thread may have been faster
            if known is None:
                known = self._groups[group] = _Group(group, self._define_group(group))
            return known

    def _define_group(self, group: Any) -> int | None:
        with suppress(Exception):  # no store, or one that is gone: it is left alone
            key = self._names.get(group) or self._key(private.store_of(group), "phalanx")
            ranks = tuple(dist.get_process_group_ranks(group))
            form = GroupForm(key, group.group_name, ranks, group.rank())
            return self.line.define_group(form)
        return None

    def _make_group(self, size: int, rank: int | None, *args: Any, **options: Any) -> Any:
        """A group gets its name before its backend connects: all members do so, and when they
        have, the store may go."""
        key = None
        if rank is not None and rank >= 0:
            with suppress(Exception):
                _, _, store, name = args[:4]
                key = self._key(store, f"phalanx {name}")
        made = self._make(size, rank, *args, **options)
        if key is not None and isinstance(made[0], dist.ProcessGroup):
            self._names.setdefault(made[0], key)
        return made

    def _key(self, store: Any, at: str) -> str:
        """The members of a group have its part of the store in common: the first one leaves
        a name there. A group made again over the same store is another one each time."""
        proposal = f"{self.rank}.{os.getpid()}.{next(self._proposals)}"
        place = bytes(store.compare_set(at, "", proposal)).decode()
        turn = self._incarnations[place] = self._incarnations.get(place, 0) + 1
        return f"{place}.{turn}"

    # -- waiting for what was begun ---------------------------------------------------------

    def _remember(self, ticket: _Ticket, result: Any) -> None:
        """Torch makes the Python object of a `Work` anew unless there is one, so this one is
        kept until the caller has it."""
        work = private.work_in(result)
        if work is not None:
            self._works[work] = ticket
            self._recent.work = work

    def _remember_buffers(self, parts: Parts, ticket: _Ticket) -> None:
        if len(self._buffers) >= MOST_BUFFERS:
            self._buffers.clear()
        for tensor in parts.tensors():
            self._buffers[tensor.untyped_storage().data_ptr()] = ticket

    def _wait_for_tensor(self, given: Arguments, proceed: Callable[[], Any]) -> Any:
        """Functional collectives are waited for by the tensor they write."""
        if self._buffers and not private.is_fake(given):
            at = given["tensor"].untyped_storage().data_ptr()
            ticket = self._buffers.pop(at, None)
            if ticket is not None:
                limit = Limit(ticket.group, None)
                self.line.wait(ticket.number, name=ticket.name, limit=limit)
        return proceed()

    def _wait_at_desk(self, ticket: int, parts: Parts, known: _Group) -> None:
        """DDP's reducer waits for its buckets in C++ at the end of backward: ours first."""
        self.line.wait(ticket, name=parts.name, limit=Limit(known, None))

    def _wait_for_work(self, work: Any, ticket: _Ticket, timeout: timedelta) -> bool:
        explicit = timeout if timeout is not None and timeout > NO_TIMEOUT else None
        self.line.wait(ticket.number, name=ticket.name, limit=Limit(ticket.group, explicit))
        done = bool(self._wait(work, timeout))
        self._works.pop(work, None)
        self._recent.work = None
        if ticket.any_source:
            self.line.received(ticket.number, private.source_of(work))
        return done
