"""Watch the calls that a process makes on real process groups, and announce them.

For ranks that are processes. All callers, Python code, DDP's reducer, functional collectives,
pass through torch's dispatcher; a kernel of ours stands there, before those of the devices.
A `Link` asks the referee what the call meets; a call that would make its rank
wait is held here, in Python, until the others have announced theirs too, so that a verdict is
raised at the caller and the backend only gets calls that fit. What this process sees alone
goes to `single_rank_watcher.py`. Must never decide anything.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from itertools import count
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx import callsite
from phalanx.backend.evidence.invalid_call import find_invalid_call
from phalanx.backend.evidence.order_notes import PERIOD
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.torch_private import private
from phalanx.backend.work.buffer_modes import backward_patches
from phalanx.callsite import Mark
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import WATCHED
from phalanx.engines.remote.c10d_arguments import (
    READERS,
    Arguments,
    Doubt,
    Parts,
    check_places,
    find_doubt,
    making_form,
    place_of,
)
from phalanx.engines.remote.c10d_callers import (
    API,
    BATCHED,
    IN_BACKWARD,
    NATIVE,
    OTHER,
    WAITING,
    as_batched,
    caller_of,
    known_to_wait,
)
from phalanx.engines.remote.call_place import CallPlace, place_here
from phalanx.engines.remote.object_lifetimes import Lives
from phalanx.engines.remote.rank_notes import RankNotes
from phalanx.engines.remote.single_rank_watcher import Alone
from phalanx.engines.remote.store_watch import store_patches
from phalanx.engines.remote.watched_groups import (
    Limit,
    Line,
    PendingWork,
    Recent,
    WatchedGroup,
    config_of,
    form_of,
)
from phalanx.kinds import ALL
from phalanx.matching.announcement import GroupForm
from phalanx.model import Finding
from phalanx.system import getpid

if TYPE_CHECKING:
    from phalanx.engines.real_faults.call_faults import CallFaults

NO_TIMEOUT = timedelta(0)

MOST_FORMS = 4096
"""Programs whose sizes change all the time would fill the memory of both ends."""

MOST_BUFFERS = 4096

_PERIOD_MASK = PERIOD - 1


class Watcher:
    """The hooks in torch, and what they need to know. One per process."""

    def __init__(
        self,
        line: Line,
        rank: int,
        kinds: frozenset[str] = ALL,
        faults: CallFaults | None = None,
    ) -> None:
        self.line = line
        self._faults = faults
        self.rank = rank
        self.notes = RankNotes(rank)
        self.alone = Alone(kinds, self.notes, line.report, self._let_go, line.failed, line.tell)
        known, ended = self._known, self.alone.end_group
        self.lives = Lives(
            self.notes, kinds, known=known, name=self._name, tell=line.tell, ended=ended
        )
        self._makes = "mismatch" in kinds
        self._recent = Recent()
        self._incarnations: dict[str, int] = {}
        self._proposals = count()
        self._adding = threading.Lock()
        self._libraries: list[torch.library.Library] = []
        self._take_out: Callable[[], None] | None = None
        self._wait: Any = None
        self._is_complete: Any = None
        self._make: Any = None
        self.reset()

    def reset(self) -> None:
        """Forget groups and calls; the other end does the same."""
        self.lives.reset()
        self.notes.forget()
        self._groups: weakref.WeakKeyDictionary[Any, WatchedGroup] = weakref.WeakKeyDictionary()
        self._told: dict[str, WatchedGroup] = {}
        """By key, also those that are gone, until what was noted of them is told."""
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._recent.blocking = None
        self._forms: dict[Any, tuple[int, Doubt | None, Any]] = {}
        self._works: weakref.WeakKeyDictionary[Any, PendingWork] = weakref.WeakKeyDictionary()
        self._buffers: dict[int, PendingWork] = {}
        self._recent.work = None
        self._refused: tuple[str, Doubt] | None = None
        self._doubted: Doubt | None = None
        """What is wrong with the last call, if it need not fail before it is waited for."""

    # -- hooks ------------------------------------------------------------------------------

    def start(self) -> None:
        calls, waits = private.library_of("c10d"), private.library_of(private.FUNCTIONAL)
        self._libraries = [calls, waits]
        for name, read in READERS.items():
            private.watch_operator(calls, name, self._watching(read))
        wait, patches = self._wait_for_tensor, self._patches()
        if self._faults is not None:
            wait, patches = self._faults.around_waits(wait, patches)
        private.watch_operator(waits, "wait_tensor", wait)
        self._take_out = self.lives.watch_steps(put_in(WATCHED, patches))

    def _patches(self) -> Iterator[tuple[Any, str, Any]]:
        self._make = getattr(c10d, private.NEW_GROUP_NAME)
        yield c10d, private.NEW_GROUP_NAME, self._make_group
        coalesced = private.COALESCED_NAME
        yield dist, coalesced, known_to_wait(getattr(dist, coalesced))
        yield from self.lives.patches()
        faults = self._faults
        strike = None if faults is None else faults.at_store
        yield from store_patches(self.rank, self.line.tell, strike)
        yield from backward_patches()
        self._wait = original = dist.Work.wait
        self._is_complete = dist.Work.is_completed
        watcher, flying, recent = self, self.alone.flying, self._recent

        def wait(self: Any, timeout: timedelta = NO_TIMEOUT) -> bool:
            blocking, recent.blocking = recent.blocking, None
            call_id = watcher._works.get(self)
            if call_id is None and self not in flying and watcher._doubted is None:
                if blocking is None:
                    return bool(original(self, timeout))
                return watcher._wait_for_backend(self, blocking, timeout)
            return watcher._wait_for_work(self, call_id, timeout)

        yield dist.Work, "wait", wait
        for name in ("is_completed", "is_success", "synchronize", "result", "get_future"):
            yield dist.Work, name, self._asking(getattr(dist.Work, name))

    def _asking(self, original: Any) -> Any:
        """A method of a `Work` by which the program gets to know that it is complete. Of a
        future nobody here sees the end, so whoever asks for it has what it wants."""
        watcher, alone = self, self.alone
        tells = original is not dist.Work.get_future

        def ask(self: Any, *args: Any) -> Any:
            answer = original(self, *args)
            if answer is not False:
                if tells and (call_id := watcher._works.get(self)) is not None:
                    watcher._note_over(call_id)
                alone.arrive(self)
            return answer

        return ask

    def stop(self) -> None:
        if self._take_out is not None:
            self._take_out()
            self._take_out = None
        while self._libraries:
            private.forget_library(self._libraries.pop())

    def take_notes(self) -> bytes | None:
        """What only this process has seen, at the end of a run; None if that is nothing."""
        self._let_go()
        self.alone.end_run()
        self.lives.end_run()
        found = self._take()
        alive = {group.key for group in self._groups.values()}
        self._told = {key: group for key, group in self._told.items() if key in alive}
        for group in self._told.values():
            group.met.dull_places.clear()
        return found

    def take_dropped(self) -> bytes | None:
        """The same for a program that has failed: what it had dropped may be the reason."""
        self.alone.note_dropped()
        return self._take()

    def _take(self) -> bytes | None:
        return self.notes.take({group.met.record: key for key, group in self._told.items()})

    def _known(self, group: Any) -> WatchedGroup | None:
        return None if group is None else self._groups.get(group)

    def _name(self, group: Any) -> str | None:
        return self._names.get(group)

    def _watching(self, read: Callable[[Arguments], Parts]) -> Any:
        lives, faults = self.lives, self._faults

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
            if group in lives.closed:
                lives.refuse(group, read(given).name)
            if known.number is None:
                return proceed()
            parts = read(given)
            if faults is not None:
                proceed = faults.before_call(group, known, parts, given, proceed)
            return self._call(group, known, parts, given, proceed)

        return around

    # -- one call ---------------------------------------------------------------------------

    def _call(
        self, group: Any, known: WatchedGroup, parts: Parts, given: Arguments, proceed: Any
    ) -> Any:
        try:
            caller = caller_of(sys._getframe(4))
        except ValueError:  # no Python frame called: a thread of autograd's own, for a GPU
            caller = IN_BACKWARD if private.is_in_backward() else OTHER
        if parts.tag is not None and caller == BATCHED:
            parts, caller = as_batched(parts, sys._getframe(4)), API
        at = place_here(4)
        form, doubt = self._form(group, known, parts, given, at)
        place = at.mark
        holds = known.holds(group, parts.device(given))
        limit = self._limit(known, parts, given)
        waits = self._is_blocking(parts, given, caller, limit)
        blocking = holds and waits
        self.alone.note_result(known, parts, place, waits=waits)
        number = self._look_alone(known, parts, place)
        line, recent = self.line, self._recent
        call_id = line.next_call_id()
        if recent.blocking is not None:  # it was waited for out of sight
            line.note_over(recent.blocking)
            recent.blocking = None

        def announce() -> bool:
            return line.announce(call_id, form, name=parts.name, blocking=blocking, limit=limit)

        def carry_out() -> Any:
            try:
                return proceed()
            except BaseException:
                line.note_over(call_id, failed=True)
                raise

        self._doubted = doubt
        alone, thread = self.alone, get_ident()
        use = (known.met, known.member, parts, place, number)
        if alone.inside:
            alone.check_threads(thread, use)
        entered = blocking and thread not in alone.inside
        if entered:
            alone.inside[thread] = use
        try:
            met, result = self._carry_out(announce, carry_out, doubt)
        finally:
            if entered:
                del alone.inside[thread]
        any_source = parts.name == "recv" and parts.peer is None
        if holds and not blocking and caller in (API, OTHER) and self.alone.tracks:
            self._begin_alone(known, parts, number, result, call_id)
        if waits and caller in (API, WAITING):
            recent.blocking = call_id
        elif waits:
            line.note_over(call_id)
        if any_source or not waits:
            pending = PendingWork(
                call_id, parts.name, known, any_source=any_source, met=met or not holds
            )
            self._remember(pending, result)
            if caller == IN_BACKWARD:
                private.call_after_backward(lambda: self._wait_for_referee(pending))
            elif caller == OTHER:
                self._remember_buffers(parts, pending)
        return result

    def _carry_out(
        self, announce: Callable[[], bool], proceed: Any, doubt: Doubt | None
    ) -> tuple[bool, Any]:
        if doubt is not None:
            if doubt.certain:
                raise doubt.error.with_traceback(None)
            result = self._try(proceed, doubt)
            return announce(), result
        return announce(), proceed()

    def _try(self, proceed: Any, doubt: Doubt) -> Any:
        """A call that the backend may refuse; whether it did is asked later."""
        try:
            return proceed()
        except Exception as error:
            self._refused = str(error), doubt
            raise

    def judge_error(self, error: BaseException) -> Finding | None:
        """What was wrong with the rank's own call. Of the backend's errors only the expected
        ones count: a lost connection is no wrong argument."""
        if isinstance(error, InvalidCallError):
            return find_invalid_call(error)
        if self._refused is not None and str(error) == self._refused[0]:
            doubt = self._refused[1].error
            if isinstance(doubt, InvalidCallError):  # its words are those of other engines
                return find_invalid_call(doubt.with_traceback(error.__traceback__))
        return None if isinstance(error, RuntimeError) else find_invalid_call(error)

    def _look_alone(self, known: WatchedGroup, parts: Parts, place: Mark | None) -> int | None:
        """What can be seen here before the call; its number, unless it is a message."""
        alone, number = self.alone, known.calls
        if parts.outputs and parts.tag is None:
            check_places(parts, known.member)
        if alone.in_flight is not None:
            alone.before_call(known.met, known.member, parts, place)
        if parts.tag is not None:
            if alone.watched:
                alone.note_message(known, parts, place)
            return None
        known.calls = number + 1
        if number & _PERIOD_MASK < alone.watched:
            alone.note_call(known.met, known.member, parts, place, number)
        root = parts.root
        if root is not None and alone.compares_roots and root in known.shifted:
            alone.note_root(known.met, known.member, parts, place)
        return number

    def _begin_alone(
        self, known: WatchedGroup, parts: Parts, number: int | None, result: Any, call_id: int
    ) -> None:
        work = private.work_in(result)
        if work is not None:
            self._recent.work = work
            mark = callsite.mark(5)
            self.alone.begin(
                known.met,
                known.member,
                parts,
                mark,
                number=number,
                work=work,
                call_id=call_id,
            )

    def _is_blocking(self, parts: Parts, given: Arguments, caller: int, limit: Limit) -> bool:
        if parts.tag is not None:
            return caller == WAITING
        if parts.name == "monitored_barrier":
            return not limit.explicit
        return caller == NATIVE or not given.get("async_op", True)

    def _limit(self, known: WatchedGroup, parts: Parts, given: Arguments) -> Limit:
        explicit = timedelta(milliseconds=given.get("timeout", -1))
        if parts.name == "monitored_barrier":  # for which torch fills in the default
            return Limit(known, explicit if explicit < known.timeout() else None)
        return Limit(known, explicit if explicit > NO_TIMEOUT else None)

    def _form(
        self,
        group: Any,
        known: WatchedGroup,
        parts: Parts,
        given: Arguments,
        at: CallPlace,
    ) -> tuple[int, Doubt | None]:
        key = (known.number, at.key, parts.key())
        found = self._forms.get(key)
        if found is None:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
                self.line.forget_forms()
            assert known.number is not None
            number = self.line.define(parts.form(known.number, at))
            doubt = find_doubt(group, known.admission, parts, given)
            found = self._forms[key] = number, doubt, at.codes
        return found[:2]

    # -- groups -----------------------------------------------------------------------------

    def _add_group(self, group: Any) -> WatchedGroup:
        with self._adding:
            known = self._groups.get(group)  # another thread may have been faster
            if known is None:
                form = self._group_form(group)
                number = None if form is None else self.line.define_group(form)
                known = self._groups[group] = WatchedGroup(group, form, number)
                self._told[known.key] = known
            return known

    def _group_form(self, group: Any) -> GroupForm | None:
        with suppress(Exception):  # no store, or one that is gone: it is left alone
            key = self._names.get(group) or self._key(private.store_of(group), "phalanx")
            ranks = tuple(dist.get_process_group_ranks(group))
            return form_of(group, key, ranks, default=group is dist.group.WORLD)
        return None

    def _make_group(self, size: int, rank: int | None, *args: Any, **options: Any) -> Any:
        """A group gets its name before its backend connects: all members do so, and when they
        have, the store may go."""
        key = None
        with suppress(ValueError):  # called by other means than torch 2.11 to 2.13 do
            members, backend, store, name = args[:4]
            if self._makes and members and str(name).isdigit():  # else only members call it
                self._announce_making(tuple(members), str(backend))
            if rank is not None and rank >= 0:
                with suppress(Exception):
                    key = self._key(store, f"phalanx {name}")
        made = self._make(size, rank, *args, **options)
        if key is not None and isinstance(made[0], dist.ProcessGroup):
            self._names.setdefault(made[0], key)
            self._tell_made(made[0], tuple(members), key)
            self.lives.made(made[0], tuple(members), sys._getframe(1), str(backend))
        return made

    def _tell_made(self, group: Any, members: tuple[int, ...], key: str) -> None:
        """A group that no line of the program asks for was made by Phalanx; the default group
        has no members given."""
        mark = callsite.mark(3)
        ranks = members or tuple(range(group.size()))
        form = form_of(group, key, ranks, default=not members)
        self.line.tell("group-made", mark, form, mark is not None)

    def _announce_making(self, members: tuple[int, ...], backend: str) -> None:
        """All ranks make all groups, in one order. Members of Gloo's wait for each other
        there, out of our sight: so they do here first."""
        group = dist.group.WORLD
        if group is None or type(group) is not dist.ProcessGroup:
            return
        known = self._groups.get(group) or self._add_group(group)
        if known.number is None:
            return
        at = place_here(3)
        holds = "gloo" in (backend if backend != "None" else config_of(group))
        key = (known.number, at.key, (members, backend))
        found = self._forms.get(key)
        if found is None:
            form = making_form(known.number, (members, backend), at, holds=holds)
            found = self._forms[key] = self.line.define(form), None, at.codes
        limit, call_id = Limit(known, None), self.line.next_call_id()
        self.line.announce(call_id, found[0], name="new_group", blocking=True, limit=limit)

    def _key(self, store: Any, at: str) -> str:
        """The members of a group have its part of the store in common: the first one leaves
        a name there. A group made again over the same store is another one each time."""
        proposal = f"{self.rank}.{getpid()}.{next(self._proposals)}"
        place = bytes(store.compare_set(at, "", proposal)).decode()
        turn = self._incarnations[place] = self._incarnations.get(place, 0) + 1
        return f"{place}.{turn}"

    # -- waiting for what was begun ---------------------------------------------------------

    def _remember(self, call_id: PendingWork, result: Any) -> None:
        """Torch makes the Python object of a `Work` anew unless there is one, so this one is
        kept until the caller has it."""
        work = private.work_in(result)
        if work is not None:
            self._works[work] = call_id
            self._recent.work = work

    def _let_go(self) -> None:
        self._recent.work = None

    def _remember_buffers(self, parts: Parts, call_id: PendingWork) -> None:
        if len(self._buffers) >= MOST_BUFFERS:
            self._buffers.clear()
        for tensor in parts.tensors():
            if (at := place_of(tensor)) is not None:
                self._buffers[at] = call_id

    def _wait_for_tensor(self, given: Arguments, proceed: Callable[[], Any]) -> Any:
        """Functional collectives are waited for by the tensor they write."""
        if self._buffers and not private.is_fake(given):
            at = place_of(given["tensor"])
            call_id = None if at is None else self._buffers.pop(at, None)
            if call_id is not None:
                self._ask_referee(call_id)
                result = proceed()
                self._note_over(call_id)
                return result
        return proceed()

    def _wait_for_referee(self, call_id: PendingWork) -> None:
        """DDP's reducer waits for its buckets in C++ at the end of backward: ask the referee
        first."""
        self._ask_referee(call_id)
        self._note_over(call_id)

    def _ask_referee(self, call_id: PendingWork, explicit: timedelta | None = None) -> None:
        if not call_id.met:
            limit = Limit(call_id.group, explicit)
            self.line.wait(call_id.number, name=call_id.name, limit=limit)

    def _note_over(self, call_id: PendingWork) -> None:
        """The program knows that it is complete."""
        if not call_id.is_over:
            call_id.is_over = True
            self.line.note_over(call_id.number)

    def _wait_for_backend(self, work: Any, number: int, timeout: timedelta) -> bool:
        """The last part of a call that blocks: the referee has let it go on."""
        try:
            done = bool(self._wait(work, timeout))
        except BaseException:
            self.line.note_over(number, failed=True)
            raise
        self.line.note_over(number)
        return done

    def _wait_for_work(
        self, work: Any, call_id: PendingWork | None, timeout: timedelta
    ) -> bool:
        try:
            if call_id is None:
                done = bool(self._wait(work, timeout))
            else:
                done = self._wait_for_call(work, call_id, timeout)
        except BaseException as error:
            self.alone.give_up(work)
            if self._doubted is not None:
                self._refused = str(error), self._doubted
            raise
        self._recent.work = None
        self.alone.arrive(work)
        return done

    def _wait_for_call(self, work: Any, call_id: PendingWork, timeout: timedelta) -> bool:
        explicit = timeout if timeout is not None and timeout > NO_TIMEOUT else None
        if not (call_id.is_over or self._is_complete(work)):
            self.line.note_wait(call_id.number)
        self._ask_referee(call_id, explicit)
        if call_id.is_over:
            done = bool(self._wait(work, timeout))
        else:
            call_id.is_over = True
            done = self._wait_for_backend(work, call_id.number, timeout)
        self._works.pop(work, None)
        if call_id.any_source:
            self.line.received(call_id.number, private.source_of(work))
        return done
