"""The guard of buffers in flight: which memory belongs to operations not yet waited for.

The process group tells it of every asynchronous call that the program itself made, `work.py`
when the program has waited for one. In between, `buffer_modes.py` asks it about the tensors
that the program's own lines touch. One `Book` per rank; most ranks never need one.

A result whose `Work` was dropped may be used where the backend orders the two: Gloo's barrier
waits for all that was called before it on its group, NCCL carries out the calls on a group
one after another, and a group that is destroyed ends its work first.

Writes that no mode sees (NumPy, native code) are found by what is in the memory: kept when
the call is made and compared when data moves and when the program waits; of large tensors,
samples. The version counter, which views share, is proof where a tensor is its whole storage.
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.torch_private.private import function_modes, no_function_modes
from phalanx.backend.torch_private.private_modes import version_of
from phalanx.backend.work import buffer_modes, tensor_memory
from phalanx.backend.work.call_origin import OWN
from phalanx.checks.in_flight_buffer import How, Touch, find_in_flight
from phalanx.checks.silencing import split_silenced
from phalanx.checks.unwaited_work import Unwaited, find_used_unwaited
from phalanx.matching.slots import Call

if TYPE_CHECKING:
    from phalanx.errors import VerdictError
    from phalanx.matching.mailboxes import GroupMailbox
    from phalanx.model import Op, Site, Verdict

_WRITES_INPUTS = frozenset({"all_reduce", "all_reduce_coalesced"})
_MOST_DONE = 64
"""How many operations may be outstanding before those that are complete are cleaned up."""


class FlightHost(Protocol):
    """The rank that a book belongs to."""

    in_flight: Any
    """Its book, once it has one."""

    @property
    def guards(self) -> bool:
        """Whether touching a tensor in flight is an error."""

    @property
    def expects_waits(self) -> bool:
        """Whether using a result whose `Work` was dropped is an error."""

    def report(self, verdict: Verdict) -> VerdictError:
        """The error that the rank is to raise."""

    def note_flight(self) -> None:
        """The rank has something in flight."""

    def note_touch(self, call: Call | None, how: str) -> None:
        """The program used a tensor of a call in flight, at the line that is running."""


class Region:
    """Memory of one tensor of one operation in flight."""

    __slots__ = ("_windows", "flight", "high", "kept", "low", "tensor", "version", "writes")

    def __init__(self, flight: Flight, tensor: Tensor, low: int, high: int, writes: bool):
        self.flight = flight
        self.tensor: Any = tensor
        """The tensor; a weak reference to it once the `Work` is gone and the op done."""
        self.low = low
        self.high = high
        self.writes = writes
        """Whether the operation writes there."""
        try:
            self.version: int | None = version_of(tensor)
        except RuntimeError:  # one made in inference mode has none
            self.version = None
        self.kept: Sequence[bytes] = ()
        self._windows: tuple[Any, ...] = ()

    def own_tensor(self) -> Tensor | None:
        held = self.tensor
        found: Tensor | None = held() if isinstance(held, weakref.ref) else held
        return found

    def keep(self) -> None:
        """Remember what is there, if that can be read cheaply."""
        tensor = self.tensor
        if tensor.is_cpu and tensor.is_contiguous():
            self._windows = tensor_memory.windows(self.low, self.high)
            self.keep_again()

    def keep_again(self) -> None:
        if self._windows:
            self.kept = [window.raw for window in self._windows]

    def compare_nothing(self) -> None:
        """For memory that a real backend writes to whenever it likes."""
        self.version, self.kept, self._windows = None, (), ()

    def is_replaced(self) -> bool:
        return bool(self.tensor.data_ptr() != self.low)

    def is_changed(self) -> bool:
        for window, kept in zip(self._windows, self.kept, strict=True):
            if window.raw != kept:
                return True
        tensor = self.tensor
        if self.version is None or version_of(tensor) == self.version:
            return False
        if self.flight.book.saw_empty:  # a write to that, if a view of this, counts as well
            return False
        return bool(tensor.untyped_storage().nbytes() == self.high - self.low)


class Flight:
    """One operation between the call and the program's wait for it. Defaults stand on the
    class, because one is made for every asynchronous call."""

    regions: Sequence[Region] = ()
    changed: How | None = None
    functional = False
    done = False
    """Complete, and the call itself no longer kept."""
    dropped = False
    """The program has no `Work` any more."""
    followed = False
    """The program has asked for the future."""
    over = False
    ordered = False
    """Complete by the rules of the backend, because of what the rank has called since."""
    read: Site | None = None
    op: Op | None = None

    def __init__(self, book: Book, call: Call) -> None:
        self.book = book
        self.call: Call | None = call
        self.group = None if call.tag is not None else call.mailbox
        """Of a collective; None of a message, which a barrier does not wait for."""

    def described(self) -> Op:
        if self.op is None:
            assert self.call is not None
            self.op = describe_call(self.call)
        return self.op

    def drop(self) -> None:
        """Called when the `Work` is collected, wherever that happens: only notes it."""
        if not self.over and not self.followed and not self.dropped:
            self.dropped = True
            self.book.dropped.append(self)


class Book:
    """What one rank has in flight, by address; and what it never waited for, by line."""

    def __init__(self, context: FlightHost) -> None:
        self.context = context
        self.flights: dict[Flight, None] = {}
        self.dropped: list[Flight] = []
        self.left: dict[Any, Unwaited] = {}
        self.lows: list[int] = []
        self.saw_empty = False
        """Whether the program used a tensor without elements while something was in flight."""
        self.fold_at = self._sweep_at = _MOST_DONE
        self._regions: list[Region] = []
        self._longest = 0

    def add(self, region: Region) -> None:
        if not self.lows:
            self.saw_empty = False
        place = bisect_left(self.lows, region.low)
        self.lows.insert(place, region.low)
        self._regions.insert(place, region)
        self._longest = max(self._longest, region.high - region.low)

    def remove(self, region: Region) -> None:
        place = bisect_left(self.lows, region.low)
        while self._regions[place] is not region:
            place += 1
        del self.lows[place], self._regions[place]
        if not self.lows:
            self._longest = 0

    def is_near(self, low: int, high: int) -> bool:
        """Whether something may be there: a first look, for the many calls where not."""
        lows = self.lows
        place = bisect_left(lows, high)
        return place > 0 and lows[place - 1] + self._longest > low

    def around(self, low: int, high: int) -> Iterator[Region]:
        """Regions with bytes between the two. Another thread of the rank may change the
        lists meanwhile, hence the copy."""
        lows = self.lows
        place = bisect_left(lows, low - self._longest)
        for region in self._regions[place : bisect_left(lows, high)]:
            if region.high > low:
                yield region

    def touched_by(self, tensor: Tensor) -> Iterator[Region]:
        low, high = tensor_memory.extent(tensor)
        if low == high:
            return
        for region in self.around(low, high):
            own = region.own_tensor()
            if own is None:
                self.forget(region.flight)
            elif own is tensor or tensor_memory.share_bytes(own, tensor):
                yield region

    def judge_touch(self, tensor: Tensor, how: How, by: str) -> None:
        """A line of the program reads or writes this tensor; raise if it must not."""
        for region in self.touched_by(tensor):
            if how == "read" and not region.writes:
                continue
            flight = region.flight
            site = callsite.resolve(callsite.mark(2))
            touch = Touch(how, flight.described(), by=by, site=site)
            if flight.dropped and region.writes:
                self.judge_dropped(flight, touch)
                continue
            self.context.note_touch(flight.call, how)
            raise self.context.report(find_in_flight(touch))

    def judge_dropped(self, flight: Flight, touch: Touch) -> None:
        """The result is used, and nobody can wait for it any more. Where the backend orders
        the two, or the line says that it is meant, that is told with the unwaited work."""
        found = find_used_unwaited(touch)
        meant = split_silenced([found])[1]
        if flight.ordered or meant or not self.context.expects_waits:
            self.note_read(flight, touch.site)
            return
        self.context.note_touch(flight.call, touch.how)
        raise self.context.report(found)

    def order(self, group: GroupMailbox) -> None:
        """What was called on this group is complete before the rank goes on."""
        for flight in self.flights:
            if flight.group is group:
                flight.ordered = True

    def forget(self, flight: Flight) -> None:
        for region in flight.regions:
            self.remove(region)
        flight.regions = ()
        self.flights.pop(flight, None)

    # -- what was never waited for --------------------------------------------------------

    def fold(self) -> None:
        """Count works that the program has dropped and whose operation is done. Of their
        tensors only the places are kept, as long as somebody else keeps them alive."""
        waiting = []
        while self.dropped:
            flight = self.dropped.pop(0)
            if flight.call is not None and not flight.call.done:
                waiting.append(flight)
            elif not flight.over:
                self._count(flight)
        self.dropped += waiting
        if len(self.flights) > self._sweep_at:
            self._sweep()
            self._sweep_at = 2 * len(self.flights) + _MOST_DONE

    def _sweep(self) -> None:
        """Forget works that were dropped and whose tensors nobody has any more."""
        for flight in [each for each in self.flights if each.over]:
            if all(region.own_tensor() is None for region in flight.regions):
                self.forget(flight)

    def fold_functional(self) -> None:
        """Keep no tensors of functional results that are complete. They may still be used, so
        whether anybody waited for them is known at the end only."""
        for flight in self.flights:
            if flight.functional and flight.call is not None and flight.call.done:
                flight.described()
                flight.call, flight.done = None, True
        self.fold_at = 2 * len(self.flights)

    def _count(self, flight: Flight) -> None:
        op = flight.described()
        flight.over, flight.call = True, None
        for region in flight.regions:
            region.tensor = weakref.ref(region.tensor)
        if not flight.regions:
            self.flights.pop(flight, None)
        self.leave(op, read=flight.read, functional=flight.functional)

    def leave(self, op: Op, *, read: Site | None, functional: bool, count: int = 1) -> None:
        key = (op.name, op.site, op.group, functional)
        known = self.left.get(key)
        if known is not None:
            count, read = known.count + count, known.read or read
            op = min(known.op, op, key=lambda each: each.number or 0)
        self.left[key] = Unwaited(op, count, read, functional)

    def note_read(self, flight: Flight, site: Site | None) -> None:
        """A result was used although its `Work` is gone: told with the unwaited work."""
        flight.read = flight.read or site
        if flight.over:
            self.leave(flight.described(), read=site, functional=flight.functional, count=0)

    def unwaited(self) -> list[Unwaited]:
        """All that is left at the end of a run; told once."""
        self.fold()
        for flight in list(self.flights):
            call = flight.call
            done = flight.done or (call is not None and call.done)
            if done and not (flight.over or flight.followed):
                self._count(flight)
            self.forget(flight)
        found, self.left = list(self.left.values()), {}
        return found


def check_departure(book: Book, call: Call) -> None:
    """Refuse an operation with a tensor that another one in flight may write, or that it
    would write itself."""
    if call.name == "barrier" or (call.tag is None and "nccl" in call.mailbox.record.backend):
        book.order(call.mailbox)
    for tensor, writes in _tensors_of(call):
        if not book.is_near(*tensor_memory.extent(tensor)):
            continue
        for region in book.touched_by(tensor):
            if writes or region.writes:
                touch = Touch("used", region.flight.described(), other=describe_call(call))
                book.context.note_touch(region.flight.call, "used")
                raise book.context.report(find_in_flight(touch))


def depart(context: FlightHost, call: Call) -> None:
    """An asynchronous call of the program's own has been made."""
    book: Book | None = context.in_flight
    if book is None:
        book = context.in_flight = Book(context)
    elif book.dropped:
        book.fold()
    flight = call.flight = Flight(book, call)
    book.flights[flight] = None
    context.note_flight()
    if call.origin != OWN:
        flight.functional = True
        if len(book.flights) > book.fold_at:
            book.fold_functional()
    elif context.guards:
        _watch(book, flight, call)


def _watch(book: Book, flight: Flight, call: Call) -> None:
    regions = []
    for tensor, writes in _tensors_of(call):
        low, high = tensor_memory.extent(tensor)
        if low < high:
            regions.append(Region(flight, tensor, low, high, writes))
    if not call.done:
        _poison_outputs(call, regions)
    flight.regions = regions
    for region in regions:
        region.keep()
        book.add(region)
    if regions:
        buffer_modes.enter(book)


def _poison_outputs(call: Call, regions: Sequence[Region]) -> None:
    """Until data moves, nobody may take an output for a result. Outputs only: what goes in
    is still needed, also where it lies in an output (an all_gather in place)."""
    if not call.outputs:
        return
    given = [
        tensor_memory.extent(tensor) for tensor in tensor_memory.plain_tensors(call.inputs)
    ]
    for region in regions:
        if region.writes and tensor_memory.can_be_poisoned(region.tensor):
            apart = all(high <= region.low or region.high <= low for low, high in given)
            if apart:
                tensor_memory.poison(region.tensor)


def before_moving(calls: Iterable[Call]) -> Exception | None:
    """Data is about to move: has anybody changed it since? A tensor without its memory must
    not be touched at all, so that is an error for everyone."""
    for call in calls:
        flight: Flight | None = call.flight
        if flight is None or not flight.regions:
            continue
        for region in flight.regions:
            if region.is_replaced():
                return _error(flight, "replaced")
            if flight.changed is None and region.is_changed():
                flight.changed = "changed"
    return None


def after_moving(calls: Iterable[Call]) -> None:
    for call in calls:
        if call.flight is not None:
            for region in call.flight.regions:
                if region.writes:
                    region.keep_again()


def arrive(call: Call) -> Exception | None:
    """The program has waited: its tensors are its own again. Returns the error if it changed
    them before."""
    error = None
    for flight in _flights(call):
        if not flight.over:
            error = _arrive(flight, failed=call.error is not None) or error
    return error


def follow(call: Call) -> None:
    """The program has asked for the future: whoever gets it learns when it is done."""
    for flight in _flights(call):
        flight.followed = True


def give_up(call: Call) -> None:
    """The wait failed or timed out, and the program knows."""
    for flight in _flights(call):
        flight.over, flight.call = True, None
        flight.book.forget(flight)
        if not flight.book.lows:
            buffer_modes.leave(flight.book)


def _flights(call: Call) -> Sequence[Flight]:
    if call.flight is None:
        return ()
    return call.flight if isinstance(call.flight, list) else (call.flight,)


def _arrive(flight: Flight, *, failed: bool) -> Exception | None:
    flight.over = True
    book, regions = flight.book, flight.regions
    book.forget(flight)
    if not book.lows:
        buffer_modes.leave(book)
    how = None if failed or not regions else flight.changed or _change(regions)
    error = None if how is None else _error(flight, how)
    flight.call = None  # which knows the flight: nothing is to be left for the collector
    return error


def _change(regions: Sequence[Region]) -> How | None:
    if not function_modes():
        return _find_change(regions)
    with no_function_modes():
        return _find_change(regions)


def _find_change(regions: Sequence[Region]) -> How | None:
    for region in regions:
        if region.is_replaced():
            return "replaced"
        if region.is_changed():
            return "changed"
    return None


def _error(flight: Flight, how: How) -> Exception:
    site = callsite.resolve(callsite.mark(2))
    by = "seen here: the tensor now has other memory" if how == "replaced" else ""
    touch = Touch(how, flight.described(), by=by, site=site)
    flight.book.context.note_touch(flight.call, how)
    return flight.book.context.report(find_in_flight(touch))


def _tensors_of(call: Call) -> Iterable[tuple[Tensor, bool]]:
    """Its tensors, and whether the operation writes to them."""
    given = call.inputs
    if call.name == "all_reduce" and len(given) == 1 and type(given[0]) is Tensor:
        return ((given[0], True),)  # the usual case, and the quickest
    return _all_tensors_of(call)


def _all_tensors_of(call: Call) -> Iterator[tuple[Tensor, bool]]:
    name = call.name
    if name == "broadcast":
        writes = call.member != call.root
    elif name == "reduce":
        writes = call.member == call.root
    else:
        writes = name in _WRITES_INPUTS
    for tensor in tensor_memory.plain_tensors(call.inputs):
        yield tensor, writes
    for tensor in tensor_memory.plain_tensors(call.outputs):
        yield tensor, True
