"""One rank's end of a group: who it is, and how its calls meet those of the other members.

`RankGroup` adds the operations under torch's names. This half makes a `Call`, puts it into
its slot or mailbox, completes what is complete, and waits or hands out a `Work`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from phalanx import callsite
from phalanx.backend import call_events, group_history, meeting_checks
from phalanx.backend.collectives import data_movement, fused_movement
from phalanx.backend.collectives.data_movement import MoveData
from phalanx.backend.collectives.group_abort import abort_group
from phalanx.backend.devices import cuda_streams as device
from phalanx.backend.evidence import order_notes, result_notes, root_notes, thread_holds
from phalanx.backend.evidence.call_description import describe_pending
from phalanx.backend.evidence.result_notes import places
from phalanx.backend.rank_errors import InvalidCallError, one_for_each
from phalanx.backend.session import RankContext, Session
from phalanx.backend.torch_private import private
from phalanx.backend.work import buffer_guard, completion, operation_times, profiler_events
from phalanx.backend.work.call_origin import OWN, is_waited_for, origin_here
from phalanx.backend.work.steps import before_call, choose_source, note_heard
from phalanx.backend.work.work import OpWork, OwnWork, wait_for
from phalanx.checks.leak import KIND as LEAK
from phalanx.core.computing import charge
from phalanx.core.invariants import check_invariants
from phalanx.core.strand import RUNNING, here
from phalanx.errors import PhalanxError
from phalanx.journal.events import Completed, Met, Posted, described, make
from phalanx.journal.writer import MOST_PARTS
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call, Slot, finish_all

_UNSET = timedelta(0)
_NOWHERE = (None, 0)
_PERIOD_MASK = order_notes.PERIOD - 1

CPP_NAME = "phalanx"
"""What the group's backend is called towards C++ code."""

# torch's stubs give every method overloads that differ from version to version; towards the
# type checker our methods stand on their own.
_ProcessGroup: Any = dist.ProcessGroup
_BOUND: Any = _ProcessGroup.bound_device_id


class Endpoint(_ProcessGroup):  # type: ignore[misc]
    """What torch may ask a group about itself, and how a call is carried out."""

    def __init__(
        self,
        context: RankContext,
        backend_name: str,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
    ) -> None:
        super().__init__(rank, size)
        self._store = store
        self.options = SimpleNamespace(
            global_ranks_in_group=[],
            group_name="",
            _timeout=timeout,
            backend=backend_name,
        )
        self._context = context
        self._session: Session = context.session
        self._backend_name = backend_name
        self._member = rank
        self._count = size
        self._limit = timeout.total_seconds()
        self._name = self._description = ""
        self._place = ("", 0)
        self._mailbox: GroupMailbox | None = None
        self._closed = False
        self._bound: torch.device | None = None
        self._coalescing: list[OpWork] | None = None
        self._batch: int | None = None
        self._splits = 0

    # -- what torch asks a group about itself ---------------------------------------------

    def _own_end(self) -> Endpoint:
        """The calling rank's end of this group. torch binds some groups once per process, in
        default arguments, so a rank may hold another one's object."""
        strand = here.strand
        if strand is None or strand.local is self._context or self._mailbox is None:
            return self
        end: Endpoint = self._mailbox.ends.get(strand.local.rank, self)
        return end

    def __eq__(self, other: object) -> bool:
        """All ends of one group are equal, so that torch finds a rank's own by any of them."""
        if self is other:
            return True
        return (
            isinstance(other, Endpoint)
            and self._place[0] != ""
            and ((self._session, self._place) == (other._session, other._place))
        )

    def __hash__(self) -> int:
        return hash(self._place)

    def rank(self) -> int:
        return self._own_end()._member

    def size(self) -> int:
        return self._count

    def name(self) -> str:
        return self._backend_name

    def getBackendName(self) -> str:  # noqa: N802, the name C++ looks for
        """Not "gloo": DDP's logger would then cast this object to the C++ class of Gloo."""
        return CPP_NAME

    def _set_group_name(self, name: str) -> None:
        super()._set_group_name(name)
        self._name = name
        context = self._context
        members = self.options.global_ranks_in_group or range(self._count)
        self._place = self._meeting_key()
        self._mailbox = self._session.mailbox(self._place, name, members)
        self._note_backend(self._backend_name)
        referee = self._session.referee
        other = referee.claim(self._mailbox, self._member, context.rank, self)
        if other is not None:
            raise InvalidCallError(
                f"ranks {other} and {context.rank} of this run both call themselves rank "
                f"{self._member} of a group of {self._count}; do all ranks make all groups, in "
                "the same order and with the same members?"
            )
        default = context.torch_state.default_pg is None
        by_program = not (default and self._session.makes_world)
        call_events.group_made(
            context, self._mailbox, self._member, default=default, by_program=by_program
        )
        if not default and not self._member and LEAK in self._session.kinds:
            self._session.group_watch.made(
                self,
                self._mailbox.ranks,
                self._backend_name,
                sys._getframe(1),
                is_closed=lambda end: end._closed,
                tables=_tables_of,
            )

    def _set_group_desc(self, description: str) -> None:
        super()._set_group_desc(description)
        self._description = description  # asking C++ for it takes every test some microseconds
        if self._mailbox is not None and self._mailbox.name != "world":
            self._mailbox.record.description = described(description)

    @property
    def bound_device_id(self) -> torch.device | None:
        bound: torch.device | None = _BOUND.__get__(self)
        return bound

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        _BOUND.__set__(self, device)
        self._bound = device

    def what_can_change(self) -> tuple[Any, ...]:
        """What a program may have set on this object besides its options: for `group_reuse`."""
        own = (self._limit, self._splits, self._closed, self._description, self._bound)
        return (*own, self._met.record.eager, len(vars(self)))

    def move_to(self, context: RankContext, met: GroupMailbox) -> None:
        """Become the group of another world, as if it were new."""
        self._context, self._session, self._mailbox = context, context.session, met
        self._coalescing = self._batch = None

    def _meeting_key(self) -> tuple[str, int]:
        """Where the members of this group meet: the first one leaves a name in the group's
        part of the store. A group made again over the same store is another one each time."""
        context = self._context
        proposal = f"{context.rank}.{len(context.incarnations)}"
        place = bytes(self._store.compare_set(self._session.meeting_key, "", proposal)).decode()
        turn = context.incarnations.get(place, 0)
        context.incarnations[place] = turn + 1
        return place, turn

    @property
    def group_name(self) -> str:
        """By this name functional collectives find the group in the map of their thread."""
        strand = here.strand
        if strand is not None and strand.helper and self._name:
            private.register_once(self._name, self)
        return self._name

    def get_group_store(self) -> Store:
        return self._store

    @property
    def _device_types(self) -> list[torch.device]:
        cuda = [torch.device("cuda")] if torch.cuda.is_available() else []
        if self._backend_name == "nccl":
            return cuda
        return [torch.device("cpu"), *cuda]

    def _get_backend(self, of: torch.device) -> Endpoint:
        return self

    supports_splitting = True
    supports_coalescing = True
    supports_time_estimate = False

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> Endpoint | None:
        """A group of some members of this one, by their ranks here; None for the others."""
        self._splits += 1
        group_history.note_split(self._context, self._met, self._splits, ranks)
        if self._member not in ranks:
            return None
        name = group_name or f"{self._name}:split:{self._splits}:{'-'.join(map(str, ranks))}"
        limit = timeout or timedelta(seconds=self._limit)
        store = PrefixStore(f"{name}/", self._store)
        place = list(ranks).index(self._member)
        part = type(self)(self._context, self._backend_name, store, place, len(ranks), limit)
        mine = self.options.global_ranks_in_group or range(self._count)
        part.options.global_ranks_in_group = [mine[rank] for rank in ranks]
        part.options.group_name = name
        part._set_group_name(name)
        part._set_group_desc(group_desc or f"{self.group_desc}:split:{self._splits}")
        return part

    def comm_split_count(self) -> int:
        return self._splits

    def eager_connect_single_device(self, device: Any = None) -> None:
        """NCCL connects here when the program binds a device to the group."""
        self.bound_device_id = device
        if self._mailbox is not None:
            self._mailbox.record.eager = True

    def perform_nocolor_split(self, device: Any) -> None:
        """Ranks outside a new group take part in NCCL's split; here nothing is to be done."""

    def _set_sequence_number_for_group(self) -> None: ...

    def _get_sequence_number_for_group(self) -> int:
        return self._met.next_number[self._member]

    def calls_made(self) -> int:
        """How many collectives the calling rank has called here."""
        end = self._own_end()
        return end._met.next_number[end._member]

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self._limit = timeout.total_seconds()

    set_timeout = _set_default_timeout

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None: ...

    def shutdown(self) -> None:
        if self._session.put_off:
            completion.complete_all(self._session, self._mailbox)
        if not self._closed and self._mailbox is not None:
            is_default = self._context.torch_state.default_pg is self
            call_events.group_destroyed(self._context, self._mailbox, default=is_default)
            if self._context.in_flight is not None:
                self._context.in_flight.order(self._mailbox)
            if is_default:
                self._context.stock = None
        if (
            not self._closed
            and self._mailbox is not None
            and self._mailbox.leave(self._context.rank)
        ):
            self._session.end_group(self._place)
            calls = self._mailbox.open_calls()
            self._session.leftovers += [describe_pending(c) for c in calls if not c.waited]
        self._closed = True

    abort = abort_group

    def __repr__(self) -> str:
        return f"<{self._backend_name} group {self._name!r}, rank {self._member}/{self._count}>"

    # -- inside ---------------------------------------------------------------------------

    def _note_backend(self, backend: str) -> None:
        """For checks that look back when the group may be gone."""
        if self._mailbox is not None:
            record = self._mailbox.record
            record.backend = backend
            record.eager |= self._bound is not None
        self._session.has_nccl |= "nccl" in backend

    @property
    def _met(self) -> GroupMailbox:
        if self._mailbox is None:
            raise PhalanxError(
                "this group was made by hand; use init_process_group or new_group"
            )
        return self._mailbox

    def _call(self, name: str) -> Call:
        if self._closed:
            raise InvalidCallError(f"{name}: group {self._name!r} has been destroyed")
        strand = here.strand
        if strand is None:
            raise RuntimeError(
                f"{name}: called by a thread that belongs to no rank of this run"
            )
        end = self if strand.local is self._context else self._own_end()
        if strand.local is not end._context:
            raise InvalidCallError(
                f"{name}: rank {strand.rank} uses rank {self._context.rank}'s end of a group; "
                f"rank {strand.rank} is not a member, or has destroyed its own"
            )
        if strand.local.invariants:
            check_invariants(strand)
        return Call(self._mailbox or self._met, end._member, strand, name, callsite.mark(3))

    def _submit(
        self, call: Call, move_data: MoveData, opts: Any, sample: Tensor | None
    ) -> OpWork | None:
        """Meet the others; wait for them unless the caller wants a `Work`."""
        strand = call.strand
        baton = strand.baton
        visiting = strand.state is not RUNNING
        if visiting:
            baton.rejoin(strand)
        if baton.clock.rate:
            charge(strand)
        if baton.schedule.preempts or baton.choices is not None:
            before_call(call)
        if sample is not None and sample.is_cuda:
            device.record_arrival(call, sample)
        if private.recording and private.is_recorded():
            profiler_events.begin(call, self._backend_name)
        context, session = strand.local, self._session
        if context.helpers or context.uses_pools or strand.on_pending_callback:
            thread_holds.check(call)
        call.asynchronous = opts is None or opts.asyncOp or self._coalescing is not None
        if context.in_flight is not None or call.asynchronous:
            self._before_departure(call)
        context.last_call = call
        call.batch = self._batch
        baton.critical = True
        try:
            slot = call.mailbox.join(call)
            ring, signature = context.ring, call.signature
            serial = call.serial = ring.posted
            ring.posted = serial + 1
            ring.calls.append(
                make(
                    Posted,
                    (
                        session.now(),
                        context.rank,
                        id(strand) if strand.helper else 1 if strand.on_pending_callback else 0,
                        call.mark,
                        call.mailbox.record,
                        call.name,
                        serial,
                        call.member,
                        call.number,
                        call.root,
                        None,
                        None,
                        None if call.op is None else call.op[0],
                        call.asynchronous,
                        call.batch,
                        call.device,
                        None if signature is call or len(signature) > MOST_PARTS else signature,
                    ),
                )
            )
            if call.number & _PERIOD_MASK < session.watched:  # type: ignore[operator]
                order_notes.note(context, call)
            if slot is not None:
                ring.flowed += 1
                record, number = call.mailbox.record, call.number
                event = (session.now(), context.rank, 0, call.mark, record, number, (), None)
                ring.flow.append(make(Met, event))
                if session.races is not None:
                    session.races.add(ring.flow[-1])
                if baton.choices is not None:
                    note_heard(slot.calls)
                self._complete(slot, move_data)
        finally:
            baton.critical = False
        root = call.root
        if root is not None and call.mailbox.ranks[root] != root and session.compares_roots:
            root_notes.note(context, call)
        mark = call.mark or _NOWHERE
        follow = session.follows_results and places.get((id(mark[0]), mark[1]), 0) is not None
        if not call.asynchronous:
            strand.inside = call
            try:
                if not call.done:
                    given = _UNSET if opts is None else opts.timeout
                    explicit = given > _UNSET  # the program named it for this very call
                    limit = given.total_seconds() if explicit else self._limit
                    wait_for(call, limit, explicit=explicit)
                elif call.error or call.point or strand.pending_callbacks:
                    wait_for(call, 0.0)
                if private.recording:
                    profiler_events.end(call)
                if follow:
                    result_notes.note(context, call)
                call.inputs = call.outputs = ()  # the call is remembered, what it moved is not
            finally:
                if visiting and strand.helper:
                    baton.leave(strand)
            return None
        if follow:
            result_notes.note(context, call)
        if call.origin:
            buffer_guard.depart(context, call)
        if visiting and strand.helper:
            baton.leave(strand)
        given = _UNSET if opts is None else opts.timeout
        limit = given.total_seconds() if given > _UNSET else self._limit
        return self._hand_out(call, limit)

    def _before_departure(self, call: Call) -> None:
        """For a call that is asynchronous, or made while others are in flight."""
        session = self._session
        if session.put_off:
            completion.count_call(session)
        book = call.strand.local.in_flight
        if book is not None and book.lows:
            buffer_guard.check_departure(book, call)
        if call.asynchronous and session.tracks:
            call.origin = origin_here(3)

    def _hand_out(self, call: Call, limit: float) -> OpWork:
        if self._coalescing is not None:
            work = OpWork(call, limit)
            self._coalescing.append(work)
            return work
        return OwnWork(call, limit) if call.origin == OWN else OpWork(call, limit)

    def _complete(self, slot: Slot, move_data: MoveData) -> None:
        calls: list[Call] = slot.calls  # type: ignore[assignment]
        errors = None
        if slot.clash:
            calls[0].uneven = True
            errors = meeting_checks.judge_meeting(self._session, slot)
        session = self._session
        if errors is None and session.completion != "earliest":
            move = partial(self._move, calls, move_data, None)
            if completion.put_off(session, calls, move):
                return
        self._move(calls, move_data, errors)

    def _move(
        self, calls: list[Call], move_data: MoveData, errors: Sequence[Exception] | None
    ) -> None:
        in_flight = errors is None and self._session.flown
        if in_flight:
            error = buffer_guard.before_moving(calls)
            errors = one_for_each(error, len(calls)) if error is not None else None
        if errors is None:
            recorded = private.recording and private.is_recorded()
            if recorded:
                private.record_functions(False)
            try:
                if calls[0].point is None:
                    move_data(calls)
                else:
                    device.run_in_order(calls, partial(fused_movement.move, move_data, calls))
            except Exception as error:
                errors = one_for_each(error, len(calls))
            finally:
                if recorded:
                    private.record_functions(True)
        if in_flight:
            buffer_guard.after_moving(calls)
        if errors is not None:
            meeting_checks.note_unheard(self._session, errors, calls)
        elif (network := self._session.network) is not None:
            operation_times.complete_later(self._session, network, calls)
            return
        last = calls[-1]
        mover = (here.strand or last.strand).local
        mover.ring.flowed += 1
        record, failed = last.mailbox.record, errors is not None
        event = (mover.now(), mover.rank, 0, None, record, last.number, (), failed)
        mover.ring.flow.append(make(Completed, event))
        finish_all(calls, errors)

    def _exchange(self, call: Call, sample: Tensor) -> OpWork:
        strand = call.strand
        baton = strand.baton
        visiting = strand.state is not RUNNING
        if visiting:
            baton.rejoin(strand)
        charge(strand)
        before_call(call)
        if sample.is_cuda:
            device.record_arrival(call, sample)
        if private.recording and private.is_recorded():
            profiler_events.begin(call, self._backend_name)
        context = strand.local
        if context.helpers or context.uses_pools or strand.on_pending_callback:
            thread_holds.check(call)
        call.asynchronous = True
        self._before_departure(call)
        call.asynchronous = not is_waited_for()
        context.last_call = call
        call.batch = context.batch_of(strand) if context.batches else self._batch
        posted = call_events.post_message(context, call, sample)
        sending, session = call.name == "send", self._session
        order_notes.note_message(context, call, is_on=session.watched > 0)
        if call.peer is None and not sending and session.races is None:
            session.watch_races()
        if session.races is not None:
            session.races.add(posted)
        met = call.mailbox
        choose_source(call, self._deliver)
        baton.critical = True
        try:
            other = met.post_send(call) if sending else met.post_receive(call, call.source)
            if other is not None:
                self._deliver(*((call, other) if sending else (other, call)))
        finally:
            baton.critical = False
        if session.follows_results and not sending:
            result_notes.note(context, call)
        if call.origin:
            buffer_guard.depart(context, call)
        if visiting and strand.helper:
            baton.leave(strand)
        work = self._hand_out(call, self._limit)
        work.without_future = sample.is_cpu or self._backend_name == "gloo"
        return work

    def _deliver(self, send: Call, receive: Call) -> None:
        receive.source = send.member
        if send.stamp is not None:
            note_heard((send, receive))
        met = call_events.meet_message(send, receive)
        errors = meeting_checks.judge_message(self._session, send, receive)
        session = self._session
        if session.races is not None:
            session.races.add(met)
        if errors is None and session.completion != "earliest":
            move = partial(self._hand_over, send, receive, None)
            if completion.put_off(session, [send, receive], move):
                return
        self._hand_over(send, receive, errors)

    def _hand_over(self, send: Call, receive: Call, errors: Sequence[Exception] | None) -> None:
        pair = (send, receive)
        in_flight = send.flight is not None or receive.flight is not None
        if errors is None and in_flight:
            error = buffer_guard.before_moving(pair)
            errors = one_for_each(error, 2) if error is not None else None
        if errors is None:
            try:
                device.run_in_order(
                    [send, receive], lambda: data_movement.message(send, receive)
                )
            except Exception as error:
                errors = one_for_each(error, 2)
        if errors is None and in_flight:
            buffer_guard.after_moving(pair)
        if errors is not None:
            meeting_checks.note_unheard(self._session, errors, pair)
        elif (network := self._session.network) is not None:
            operation_times.deliver_later(self._session, network, send, receive)
            return
        call_events.complete_message(send, receive, errors)


def _tables_of(end: Endpoint) -> list[Any]:
    """What refers to a group besides the program: torch's tables and ours."""
    state = end._context.torch_state
    return [*vars(state).values(), *state.tags_to_pg.values(), end._met.ends, vars(end)]
