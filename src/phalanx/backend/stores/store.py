"""Stores: the in-process one, and waiting through the baton for all that torch has.

The rendezvous hands out an `InProcessStore`; programs make others (`TCPStore`, `FileStore`,
`HashStore`, `PrefixStore`). All are torch's own, but their waits are replaced during runs: a
rank whose key is missing parks, and is woken to look again whenever any rank changes any
store.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from phalanx import callsite
from phalanx.backend.call_events import store_used
from phalanx.backend.session import RankContext
from phalanx.backend.stores.explored_tcp_stores import (
    is_served_here,
    make_tcp_store,
    waiting_for_server,
)
from phalanx.backend.stores.store_keys import (
    CHANGING,
    STORE_READS,
    keys_in,
    remembering,
    uses_of_program,
)
from phalanx.backend.stores.store_proofs import NOTHING, proof_of
from phalanx.backend.work import polling
from phalanx.core.choices import Step
from phalanx.core.invariants import check_invariants
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.errors import WrongCommand
from phalanx.source_values import POLLED

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

DEFAULT_TIMEOUT = timedelta(minutes=5)
POLL = 0.02
"""Seconds between looks at a store that another process may change."""


class StoreWait:
    """Why a rank is parked: it waits for keys. The engines describe it in reports."""

    __slots__ = ("call", "keys", "mark", "store")

    def __init__(
        self, call: str, keys: list[str], mark: callsite.Mark | None, store: Any = None
    ) -> None:
        self.call = call
        self.keys = keys
        self.mark = mark
        self.store = store


def wake_store_waiters(strand: Strand | None) -> None:
    """Some key changed: whoever waits for a store in this run looks again."""
    if strand is None:
        return
    with holding_baton(strand):
        session = strand.local.session
        waiters, session.store_waiters = session.store_waiters, []
        for waiter in waiters:
            waiter.baton.wake(waiter)


def wait_for_keys(
    is_there: Callable[[], bool],
    keys: list[str],
    *,
    call: str,
    timeout: timedelta,
    shared_outside: bool,
    explicit: bool = False,
    mark: callsite.Mark | None = None,
    store: Any = None,
) -> None:
    """Park until `is_there()`; `DistStoreError` after `timeout`, as torch's stores do."""
    strand = here.strand
    assert strand is not None
    why = StoreWait(call, keys, mark or callsite.mark(2), store)
    limit = strand.baton.clock.now() + timeout.total_seconds()
    with holding_baton(strand):
        while not is_there():
            until = min(limit, strand.baton.clock.now() + POLL) if shared_outside else limit
            sleeping = shared_outside or explicit
            if not _park_once(strand, why, until, sleeping) and not is_there():
                _check_time(strand, why, limit, timeout)


def _park_once(strand: Strand, why: StoreWait, until: float | None, sleeping: bool) -> bool:
    waiters = strand.local.session.store_waiters
    if strand not in waiters:
        waiters.append(strand)
    woken = strand.baton.park(strand, why, deadline=until, sleeping=sleeping)
    strand.baton.run_pending_callbacks(strand)
    return woken


def _check_time(strand: Strand, why: StoreWait, limit: float, timeout: timedelta) -> None:
    if strand.baton.clock.now() >= limit:
        keys, seconds = ", ".join(map(repr, why.keys)), timeout.total_seconds()
        raise dist.DistStoreError(f"{why.call}: no rank set {keys} within {seconds:g} s")


@contextmanager
def holding_baton(strand: Strand) -> Iterator[None]:
    """A thread that a rank started runs without the baton. If it looked or woke others so,
    a key could be set between a rank's look and its park, and wake nobody."""
    visiting = strand.state is not RUNNING
    if visiting:
        strand.baton.rejoin(strand)
    try:
        yield
    finally:
        if visiting and strand.helper:
            strand.baton.leave(strand)


class InProcessStore(dist.HashStore):  # type: ignore[misc]
    """What the rendezvous hands out: torch's own store in memory, shared by the ranks."""

    address = ""
    """Where the ranks said they would meet that got it."""
    waits_for_clients = False
    """Whether torch's own store at this address lets nobody have it before all ranks do."""
    has_queues = False
    """Whether something was ever put into a queue, which torch does not count as a key."""

    def is_as_new(self, keys: int) -> bool:
        """Whether it has so many keys, and is otherwise as it was made."""
        return (
            self.num_keys() == keys and self.timeout == DEFAULT_TIMEOUT and not self.has_queues
        )


def store_patches() -> list[tuple[Any, str, Any]]:
    """What to replace on torch's store classes during runs: (class, name, replacement).

    The classes themselves are patched, not the names in modules, because programs import
    them by name before a run starts.
    """
    patches: list[tuple[Any, str, Any]] = [
        (Store, name, _waking(name, getattr(Store, name))) for name in CHANGING
    ]
    for name in _PARAMETERS:
        patches.append((Store, name, _waiting_for_keys(name, getattr(Store, name))))
    patches.append((Store, "check", _polling(Store.check)))
    for made_by_peers in (dist.TCPStore, dist.FileStore):
        original = made_by_peers.__init__
        patches.append((made_by_peers, "__init__", _stepping_out(original)))
    patches.append((PrefixStore, "__init__", remembering(PrefixStore.__init__)))
    return patches


def _waking(name: str, original: Any) -> Any:
    def change(self: Store, *args: Any, **kwargs: Any) -> Any:
        if here.strand is not None and here.strand.local.strikes is not None:
            _may_strike(here.strand, self, name, args, kwargs)
        if _is_out_of_reach(self, name):
            return None
        step = None
        if here.strand is not None and here.strand.baton.choices is not None:
            step = _make_step(here.strand, self, name, args, kwargs)
        result = _answer(step, original, self, *args, **kwargs)
        if step is not None:
            _note_change(here.strand, step, name, args, kwargs, result)
        if name == "queue_push" and isinstance(below := _underlying(self), InProcessStore):
            below.has_queues = True
        strand = here.strand
        if strand is not None:
            use = _note(strand, self, name, args, kwargs, answer=result)
            wake_store_waiters(strand)
            _may_switch(strand, use)
        return result

    return change


def _is_out_of_reach(store: Any, name: str) -> bool:
    """In a run with faults, whether what the rank does here goes into the void; it may raise,
    and wait."""
    strand = here.strand
    if strand is None or strand.local.session.losses is None:
        return False
    with holding_baton(strand):
        return not strand.local.session.losses.reach(strand, store, name)


def _polling(original: Any) -> Any:
    """`check` in a loop is how programs poll: give way, or the others never get to set it."""

    def check(self: Store, keys: list[str]) -> Any:
        if here.strand is not None and here.strand.local.strikes is not None:
            _may_strike(here.strand, self, "check", (keys,), {})
        _is_out_of_reach(self, "check")
        step = None
        if here.strand is not None and here.strand.baton.choices is not None:
            step = _make_step(here.strand, self, "check", (keys,), {})
        found = _answer(step, original, self, keys)
        strand = here.strand
        if step is not None:
            if not found:
                _look_in_vain(strand, step, 1)
        elif not found and strand is not None:
            strand.baton.give_way(strand)
            found = original(self, keys)
        if strand is not None:
            _note(strand, self, "check", (keys,), {}, found=found)
        return found

    return check


def _may_strike(strand: Strand, store: Any, name: str, args: Any, kwargs: Any) -> None:
    """In a run with faults: one may be at this operation, if it is the program's. It happens
    before it is known whether the operation reaches its store."""
    if list(uses_of_program(store, name, args, kwargs)):
        strand.local.strikes.at_store(strand)


def _make_step(strand: Strand, store: Any, name: str, args: Any, kwargs: Any) -> Step | None:
    """In a run that is explored: let others come first to the keys that the program names. None
    if it is not the program that calls."""
    step = _step_of(strand, store, name, args, kwargs, depth=4)
    if step is not None:
        if name == "compare_set":  # what it expects: with something else it may find it
            step.asks = str(args[1] if len(args) > 1 else kwargs.get("expected_value"))
        with holding_baton(strand):
            polling.before_look(strand, step, strand.local.session.store_versions)
            strand.baton.make_step(strand, step)
    return step


def _step_of(
    strand: Strand, store: Any, name: str, args: Any, kwargs: Any, *, depth: int
) -> Step | None:
    """For a method of a store that the program calls so far above `uses_of_program`."""
    if strand.local.invariants:
        check_invariants(strand)
    names = strand.local.session.store_names
    uses = list(uses_of_program(store, name, args, kwargs, depth=depth))
    if not uses:
        return None
    places = [("store", names.setdefault(use[0], len(names)), use[1]) for use in uses]
    return Step(f"store.{name}", *places, writes=name not in STORE_READS, mark=callsite.mark(3))


def _answer(step: Step | None, original: Any, store: Any, *args: Any, **kwargs: Any) -> Any:
    """Of the store, which torch asks natively; `step` is that of a run that is explored."""
    strand = here.strand
    if step is None or strand is None:
        return original(store, *args, **kwargs)
    if not is_served_here(strand.local.session.tcp_servers, _underlying(store)):
        return original(store, *args, **kwargs)
    with waiting_for_server(strand):
        return original(store, *args, **kwargs)


def _note_change(
    strand: Any, step: Step, name: str, args: Any, kwargs: Any, result: Any
) -> None:
    """It was made. Where nothing has changed the program has only looked."""
    if _has_changed(name, [*args, *kwargs.values()], result):
        strand.local.session.store_versions.change(step.places)
        strand.look = None
    else:
        _look_in_vain(strand, step, 2)


def _has_changed(name: str, given: Sequence[Any], result: Any) -> bool:
    if name == "add":
        return len(given) < 2 or given[1] != 0
    if name == "compare_set":
        return len(given) < 3 or result == str(given[2]).encode()
    return name != "delete_key" or bool(result)


def _look_in_vain(strand: Any, step: Step, depth: int) -> None:
    """It has found nothing. What goes on looking although nobody else can go on has to be seen
    to wait."""
    versions = strand.local.session.store_versions
    polling.after_look(strand, step, versions, sys._getframe(depth + 1))
    if strand.look.is_endless():
        keys = [str(place[-1]) for place in step.places if isinstance(place, tuple)]
        with holding_baton(strand):
            _park_once(strand, StoreWait(step.kind, keys, step.mark), None, sleeping=False)


def _note(
    strand: Strand,
    store: Any,
    name: str,
    args: Any,
    kwargs: Any,
    *,
    found: bool = True,
    answer: Any = None,
) -> str | None:
    """Write into the journal what the program itself does, two frames up, and return what it
    does with the answer; None if it is not the program that does it."""
    uses = list(uses_of_program(store, name, args, kwargs))
    proof = NOTHING
    if uses and name in _ANSWERED:
        proof = proof_of(sys._getframe(2), name, answer)
    if uses and found:
        strand.baton.progress += 1  # it need not hand the baton over
    for place, key, shown, value in uses:
        store_used(strand, place, key, shown, name, value=value, found=found, proof=proof)
    return proof[1] if uses else None


_ANSWERED = frozenset({"add", "get", "multi_get"})
"""Methods whose answer the program may compare or use."""


def _may_switch(strand: Strand, use: str | None) -> None:
    """Other seeds let another rank go on here: what it does to the key may come first. A loop
    that asks again always gives way: the others may be those it waits for."""
    if use is None or strand.state is not RUNNING:
        return
    if use == POLLED:
        strand.baton.give_way(strand)
    else:
        strand.baton.switch_point(strand)


_PARAMETERS = {
    "get": ("key",),
    "wait": ("keys", "timeout"),
    "multi_get": ("keys",),
    "queue_pop": ("key", "block"),
}


def _waiting_for_keys(name: str, original: Any) -> Any:
    check = Store.check

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        strand = here.strand
        if strand is not None and strand.local.strikes is not None:
            _may_strike(strand, self, name, args, kwargs)
        _is_out_of_reach(self, name)
        given = dict(zip(_PARAMETERS[name], args, strict=False), **kwargs)
        keys, timeout = given.get("keys", given.get("key")), given.get("timeout")
        wanted = keys_in(keys)
        step = None
        if strand is not None and strand.baton.choices is not None:
            step = _step_of(strand, self, name, args, kwargs, depth=3)
        if strand is not None and wanted and given.get("block", True):
            if name == "queue_pop":
                self.queue_len(keys)  # a store that has no queues says so here, at once
            wait = partial(
                wait_for_keys,
                lambda: check(self, wanted),
                wanted,
                call=f"store.{name}",
                timeout=timeout or self.timeout,
                shared_outside=_is_shared_outside(strand, self),
                explicit=timeout is not None or _has_own_timeout(self),
                mark=callsite.mark(1),
                store=self,
            )
            if step is None:
                wait()
            else:
                _step_when_there(strand, step, lambda: check(self, wanted), wait)
        elif step is not None and strand is not None:
            with holding_baton(strand):
                strand.baton.make_step(strand, step)
        result = _answer(step, original, self, *args, **kwargs)
        strand = here.strand
        if strand is not None:
            if step is not None and step.writes:
                strand.local.session.store_versions.change(step.places)
            _may_switch(strand, _note(strand, self, name, args, kwargs, answer=result))
        return result

    return read


def _step_when_there(
    strand: Strand, step: Step, is_there: Callable[[], bool], wait: Callable[[], object]
) -> None:
    """In a run that is explored: the step is made once all is there, or raises as `wait` does.
    Others may come first to what is there, and take it away again."""
    baton = strand.baton
    strand.look = None
    step.parks = True
    with holding_baton(strand):
        while True:
            step.is_possible = None
            if not is_there():
                baton.choices.wait(strand, step)  # type: ignore[union-attr]
                wait()
            step.is_possible = is_there
            baton.make_step(strand, step)
            if is_there():
                return


def _is_shared_outside(strand: Strand, store: Any) -> bool:
    """Whether other processes may change it."""
    below = _underlying(store)
    if is_served_here(strand.local.session.tcp_servers, below):
        return False
    return isinstance(below, (dist.TCPStore, dist.FileStore))


def _has_own_timeout(store: Any) -> bool:
    """Whether the program set one; that of `InProcessStore` is the process group's."""
    in_process = isinstance(_underlying(store), InProcessStore)
    return not in_process and store.timeout < DEFAULT_TIMEOUT


def _underlying(store: Any) -> Any:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store


def refuse_rpc(context: RankContext, caller: FrameType | None) -> None:
    """Raise `WrongCommand` if it is `init_rpc` that makes a store in a rank."""
    while caller is not None and context.session.size > 1:
        name = str(caller.f_globals.get("__name__"))
        if name.startswith("torch.distributed.rpc"):
            raise WrongCommand(
                "torch.distributed.rpc has one agent in each process, and here ranks are "
                "threads of one process: take engine='processes'"
            )
        caller = caller.f_back if name.startswith("torch.distributed") else None


def _stepping_out(original: Any) -> Any:
    """Constructors that wait for peers natively: the rank leaves the baton meanwhile."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        strand = here.strand
        if strand is None:
            original(self, *args, **kwargs)
            return
        refuse_rpc(strand.local, sys._getframe(1))
        make = partial(_make_outside, strand, original, self, *args, **kwargs)
        losses = strand.local.session.losses
        if losses is None:
            make()
        else:
            losses.make_store(strand, make, self, args, kwargs)

    return construct


def _make_outside(strand: Strand, original: Any, *args: Any, **kwargs: Any) -> None:
    if strand.baton.choices is not None and isinstance(args[0], dist.TCPStore):
        with holding_baton(strand):
            make_tcp_store(strand, partial(_await, strand), original, *args, **kwargs)
            wake_store_waiters(strand)
        return
    strand.baton.leave(strand)
    try:
        original(*args, **kwargs)
    finally:
        strand.baton.rejoin(strand)


def _await(
    strand: Strand, holds: Callable[[], bool], address: str, seconds: float, explicit: bool
) -> bool:
    """Park until it holds, for so many seconds at most. Others hear of what came before."""
    why = StoreWait("TCPStore", [address], callsite.mark(2))
    until = strand.baton.clock.now() + seconds
    wake_store_waiters(strand)
    while not holds():
        if not _park_once(strand, why, until, explicit) and not holds():
            return False
    return True
