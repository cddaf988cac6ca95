"""`Work` and `Future` of an operation in flight. Waiting goes through the baton.

Made by the process group; C++ code (DDP's reducer, functional collectives) reaches `wait`
and `get_future` too.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend.call_events import withdraw
from phalanx.backend.devices import cuda_streams
from phalanx.backend.rank_errors import OpTimeoutError
from phalanx.backend.torch_private import private
from phalanx.backend.work import buffer_guard, profiler_events
from phalanx.backend.work.call_origin import OWN
from phalanx.backend.work.completion import complete_now
from phalanx.backend.work.steps import hear, poll
from phalanx.core.computing import charge, let_polling_pass
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.errors import PhalanxError
from phalanx.journal.events import WaitBegan, WaitEnded, make
from phalanx.matching.slots import Call

NO_TIMEOUT = timedelta(0)


def wait_for(call: Call, timeout: float, *, explicit: bool = False) -> None:
    """Park the calling thread until the op is complete; raise what it failed with.

    `explicit` says that the program itself named this timeout for this wait, so that it may
    count on it; the group's timeout is only a limit.
    """
    strand = here.strand
    if strand is None:
        raise RuntimeError(f"{call.name}: waited for by a thread that belongs to no rank")
    if not call.done:
        _park_until_done(strand, call, timeout, explicit)
    call.waited = True
    if strand.baton.choices is not None:
        hear(strand, call)
    early = buffer_guard.arrive(call) if call.flight is not None else None
    if private.recording:
        profiler_events.end(call)
    if strand.pending_callbacks:
        strand.baton.run_pending_callbacks(strand)
    if call.error is not None:
        raise call.error
    if early is not None:
        raise early
    if call.point is not None:
        cuda_streams.wait_for_point(call)


def _see_done(call: Call) -> bool:
    """Whether the op is complete, for a program that asks: to know it is to have waited."""
    if call.done and call.flight is not None:
        early = buffer_guard.arrive(call)
        if early is not None:
            raise early
    return call.done


def _park_until_done(strand: Strand, call: Call, timeout: float, explicit: bool) -> None:
    baton = strand.baton
    visiting = strand.helper and strand.state is not RUNNING
    charge(strand)
    if strand.state is not RUNNING:
        baton.rejoin(strand)  # before looking: what completes meanwhile wakes nobody
    if call.put_off is not None or call.parts:
        complete_now(call)
    limit = baton.clock.now() + timeout
    if strand.pending_callbacks:
        baton.run_pending_callbacks(
            strand
        )  # of what was complete when its future was asked for
    if call.done:
        if visiting:
            baton.leave(strand)
        return
    context, record = strand.local, call.mailbox.record
    ring = context.ring
    thread = id(strand) if strand.helper else 1 if strand.on_pending_callback else 0
    ident = None if call.serial is None else (call.strand.local.rank, call.serial)
    if call.asynchronous:  # others wait from the moment they are posted
        ring.flowed += 1
        began = (context.now(), context.rank, thread, call.mark, record, ident)
        ring.flow.append(make(WaitBegan, began))
    met = False
    try:
        while not call.done:
            if call.waiters is None:
                call.waiters = [strand]
            elif strand not in call.waiters:
                call.waiters.append(strand)
            woken = baton.park(strand, call, deadline=limit, sleeping=explicit)
            if strand.pending_callbacks:
                baton.run_pending_callbacks(strand)
            if not woken and not call.done:
                break
        else:
            met = True
    finally:
        ended = (context.now(), context.rank, thread, call.mark, record, ident, met)
        ring.flowed += 1
        ring.flow.append(make(WaitEnded, ended))
    if not met:
        call.waited = True  # in vain, and the program knows
        error = _timeout_error(call, timeout, explicit)
        if call.flight is not None:
            buffer_guard.give_up(call)
        if withdraw(call):
            call.finish(error)
        raise error
    if visiting:
        baton.leave(strand)


def _timeout_error(call: Call, timeout: float, explicit: bool) -> Exception:
    """In runs with faults it is the backend's, and closes connections as there."""
    losses = call.strand.local.session.losses
    error: Exception | None = (
        None if losses is None else losses.time_out(call, timeout, explicit)
    )
    return error or OpTimeoutError(
        f"{call.name}: Timed out waiting {timeout * 1000:.0f}ms for the other ranks"
    )


_WITHOUT_FUTURE = ("send", "recv")
_WITHOUT_RESULT = (*_WITHOUT_FUTURE, "reduce_scatter_tensor")


class OpWork(dist.Work):
    """The `Work` of one call."""

    without_future = False
    """Whether messages of this backend have none: Gloo's."""

    def __init__(self, call: Call, timeout: float) -> None:
        private.start_unnamed(super().__init__)
        self.call = call
        self.timeout = timeout
        self._future: OpFuture | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        if timeout is None or timeout <= NO_TIMEOUT:
            wait_for(self.call, self.timeout)
        else:
            wait_for(self.call, timeout.total_seconds(), explicit=True)
        return True

    def synchronize(self) -> None:
        self.wait()

    def block_current_stream(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """A rank that polls must let the others run, or it would poll for ever."""
        strand = here.strand
        call = self.call
        chosen = poll(call)
        if chosen is not None:
            return chosen and _see_done(call)
        if not call.done and strand is not None:
            for part in (call, *call.parts):
                if part.put_off is not None:
                    part.put_off.poll()
            if not call.done:
                strand.baton.give_way(strand)
                let_polling_pass(strand)
                strand.baton.run_pending_callbacks(strand)
        return _see_done(call)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> BaseException | None:
        """To ask for it is to have heard of it."""
        call = self.call
        call.waited = call.waited or call.error is not None
        return call.error

    def result(self) -> list[torch.Tensor]:
        """As Gloo has it: only of what is complete, and not of every operation."""
        call = self.call
        if call.name in _WITHOUT_RESULT:
            raise RuntimeError(f"result() of {call.name} is not implemented by Gloo either")
        if not call.done:
            raise RuntimeError(
                f"{call.name}: Work needs to be completed before calling result(); wait() first"
            )
        _see_done(call)
        if call.name == "gather" and call.root != call.member:
            return []
        if call.name == "all_gather_into_tensor":
            return list(call.outputs[0].chunk(call.mailbox.size))
        return _tensors(call)

    def source_rank(self) -> int:
        if self.call.name != "recv":
            raise RuntimeError(
                f"sourceRank() may only be called on the work of a receive, not of "
                f"{self.call.name}"
            )
        return self.call.source

    _source_rank = source_rank

    def get_future(self) -> OpFuture:
        if self.call.name in _WITHOUT_FUTURE and self.without_future:
            raise RuntimeError(
                f"getFuture not implemented by Gloo for {self.call.name}; wait() for it"
            )
        if self._future is None:
            buffer_guard.follow(self.call)
            complete_now(self.call)
            self._future = OpFuture.of(self.call, self.timeout)
        return self._future


class OwnWork(OpWork):
    """The `Work` of a call that the program itself made: somebody asks whether it was waited
    for."""

    def __del__(self) -> None:
        flight = self.call.flight
        if flight is None:
            return
        for each in flight if isinstance(flight, list) else (flight,):
            each.drop()


class WorkOfAll(OwnWork):
    """The `Work` of a coalesced batch: done when all parts are."""

    def __init__(self, works: list[OpWork]) -> None:
        parts = [work.call for work in works]
        super().__init__(Call.of_parts(parts), works[-1].timeout)


class OpFuture(torch.futures.Future[Any]):
    """Completed in its own rank's thread, so that callbacks run as that rank.

    Callbacks run where the rank waits for something, in the order in which the collectives
    completed: that order is the same on every rank, so callbacks that communicate match.

    C++ code that waits for a future natively does not give the baton away. DDP's reducer
    does so at the end of backward; therefore a future asked for during a backward pass
    queues a wait of our own, which runs before the reducer's. Anybody else who waits
    natively is noticed by the monitor.
    """

    _call: Call | None = None
    _timeout: float = 0.0
    _before: OpFuture | None = None
    _failed: Exception | None = None

    @classmethod
    def of(cls, call: Call, timeout: float) -> OpFuture:
        tensors = _tensors(call)
        devices: list[Any] = sorted({t.device for t in tensors if t.is_cuda}, key=str)
        future = cls(devices=devices) if devices else cls()
        future._call, future._timeout = call, timeout
        if call.waited or (call.done and call.strand.helper):
            future._settle()
            return future
        if call.done:
            call.strand.pending_callbacks.append(future._settle)
        else:
            call.callbacks = [*(call.callbacks or ()), future._settle]
        if private.is_in_backward():
            private.call_after_backward(lambda: wait_for(call, timeout))
        return future

    def done(self) -> bool:
        """A rank that polls gives way, and sees what has completed meanwhile."""
        origin = self._origin()
        strand = here.strand
        if not super().done() and origin._call is not None and strand is not None:
            chosen = poll(origin._call)
            if chosen is False:
                return False
            if not origin._call.done:
                strand.baton.give_way(strand)
                let_polling_pass(strand)
            if origin._call.done:
                origin._settle()
        return super().done()

    def wait(self) -> Any:
        """Through the baton; then torch's own wait returns at once."""
        origin = self._origin()
        call, strand = origin._call, here.strand
        if call is not None and strand is not None:
            if not call.done:
                _park_until_done(strand, call, origin._timeout, False)
            origin._settle()
        return super().wait()

    def then(self, callback: Callable[[Any], Any]) -> OpFuture:
        """Chained futures wait through the baton as well."""
        following = type(self)()
        following._before = self

        def run(done: Any) -> None:
            try:
                following.set_result(callback(self))
            except Exception as error:
                following._fail(error)

        self.add_done_callback(run)
        if private.is_in_backward():
            private.call_after_backward(following._raise_if_failed)
        return following

    @property
    def label(self) -> str | None:
        """What tells its callbacks from those of other operations, which may run before: those
        of operations that the program began, on threads of Gloo. None: they are in order."""
        call = self._call
        if call is None or call.origin != OWN or "gloo" not in call.mailbox.record.backend:
            return None
        return f"call {call.serial}"

    def _fail(self, error: Exception) -> None:
        """Programs find torch's text for this; the original is the cause. What the op itself
        failed with stays as it is."""
        if isinstance(error, PhalanxError):
            self._failed = error
        else:
            self._failed = RuntimeError(
                "Got the following error when running the callback: "
                f"{type(error).__name__}: {error}"
            )
            self._failed.__cause__ = error
        self.set_exception(self._failed)

    def _raise_if_failed(self) -> None:
        """To C++ code, like DDP's reducer, an exception in a future is a value like any
        other; so a hook's failure is raised here, before the reducer looks."""
        if self._failed is not None:
            raise self._failed

    def _origin(self) -> OpFuture:
        future = self
        while future._before is not None:
            future = future._before
        return future

    def _settle(self) -> None:
        """Give the future its value or error; again and again if need be."""
        call = self._call
        assert call is not None
        if super().done():
            return
        if here.strand is not None:
            hear(here.strand, call)
        early = buffer_guard.arrive(call) if call.flight is not None else None
        if call.error is not None or early is not None:
            self.set_exception(_as_exception(call.error or early))
            return
        if call.point is not None:
            cuda_streams.wait_for_point(call)
        self.set_result(_tensors(call))


def _as_exception(error: BaseException | None) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(str(error))


def _tensors(call: Call) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for item in call.outputs or call.inputs:
        found.extend(item) if isinstance(item, (list, tuple)) else found.append(item)
    return found
