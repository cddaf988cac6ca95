"""Stores: the in-process one, and waiting through the baton for the ones torch has.

`InProcessStore` is a plain dictionary that all ranks of a session share; the rendezvous
hands it out. Stores that a program makes itself (`TCPStore`, `FileStore`, `HashStore`,
`PrefixStore`) stay torch's own, but their waits are replaced during runs: a rank whose key
is missing parks, and is woken to look again whenever any rank changes any store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore, Store

from phalanx import callsite
from phalanx.core.baton import Strand, here

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

DEFAULT_TIMEOUT = timedelta(minutes=5)
POLL = 0.02
"""Seconds between looks at a store that another process may change."""


class StoreWait:
    """Why a rank is parked: it waits for keys. Rendered by the running layer."""

    __slots__ = ("call", "keys", "mark")

    def __init__(self, call: str, keys: list[str], mark: callsite.Mark | None) -> None:
        self.call = call
        self.keys = keys
        self.mark = mark


def wake_store_waiters(strand: Strand | None) -> None:
    """Some key changed: whoever waits for a store in this run looks again."""
    if strand is not None:
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
) -> None:
    """Park until `is_there()`; `DistStoreError` after `timeout`, as torch's stores do."""
    strand = here.strand
    assert strand is not None
    baton = strand.baton
    why = StoreWait(call, keys, callsite.mark(2))
    limit = baton.clock.now() + timeout.total_seconds()
    while not is_there():
        strand.local.session.store_waiters.append(strand)
        until = min(limit, baton.clock.now() + POLL) if shared_outside else limit
        woken = baton.park(strand, why, deadline=until, sleeping=shared_outside or explicit)
        baton.run_errands(strand)
        if not woken and baton.clock.now() >= limit:
            if is_there():
                return
            seconds = timeout.total_seconds()
            raise dist.DistStoreError(
                f"{call}: no rank set {', '.join(map(repr, keys))} within {seconds:g} s"
            )


class InProcessStore(Store):
    """All methods of a torch store over one dictionary, for the ranks of one session."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[str, bytes] = {}
        self._queues: dict[str, deque[bytes]] = {}
        self._timeout = DEFAULT_TIMEOUT

    @property
    def timeout(self) -> timedelta:
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def clone(self) -> InProcessStore:
        return self

    def set(self, key: str, value: str | bytes) -> None:
        self._data[key] = _as_bytes(value)
        wake_store_waiters(here.strand)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        current = self._data.get(key)
        if current is None and _as_bytes(expected) != b"":
            return _as_bytes(expected)
        if current is None or current == _as_bytes(expected):
            self.set(key, desired)
        return self._data[key]

    def get(self, key: str) -> bytes:
        self._await([key], "store.get", self._timeout)
        return self._data[key]

    def add(self, key: str, amount: int) -> int:
        value = int(self._data.get(key, b"0")) + amount
        self.set(key, str(value))
        return value

    def append(self, key: str, value: str | bytes) -> None:
        self.set(key, self._data.get(key, b"") + _as_bytes(value))

    def check(self, keys: list[str]) -> bool:
        return all(key in self._data or self._queues.get(key) for key in keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        explicit = timeout is not None and timeout != self._timeout
        self._await(keys, "store.wait", timeout or self._timeout, explicit=explicit)

    def delete_key(self, key: str) -> bool:
        return self._data.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._data)

    def list_keys(self) -> list[str]:
        return list(self._data)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: list[str], values: list[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def queue_push(self, key: str, value: str | bytes) -> None:
        self._queues.setdefault(key, deque()).append(_as_bytes(value))
        wake_store_waiters(here.strand)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        if not self._queues.get(key):
            if not block:
                raise dist.DistQueueEmptyError(f"the queue {key!r} is empty")
            self._await([key], "store.queue_pop", self._timeout)
        return self._queues[key].popleft()

    def queue_len(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def has_extended_api(self) -> bool:
        return True

    def _await(
        self, keys: list[str], call: str, timeout: timedelta, *, explicit: bool = False
    ) -> None:
        if self.check(keys):
            return
        wait_for_keys(
            lambda: self.check(keys),
            keys,
            call=call,
            timeout=timeout,
            shared_outside=False,
            explicit=explicit,
        )


def store_patches() -> list[tuple[Any, str, Any]]:
    """What to replace on torch's store classes during runs: (class, name, replacement).

    The classes themselves are patched, not the names in modules, because programs import
    them by name before a run starts.
    """
    changing = ("set", "add", "append", "compare_set", "multi_set", "queue_push", "delete_key")
    patches: list[tuple[Any, str, Any]] = [
        (Store, name, _waking(getattr(Store, name))) for name in changing
    ]
    for name in ("get", "wait", "multi_get", "queue_pop"):
        patches.append((Store, name, _waiting_for_keys(name, getattr(Store, name))))
    patches.append((Store, "check", _polling(Store.check)))
    for made_by_peers in (dist.TCPStore, dist.FileStore):
        original = made_by_peers.__init__
        patches.append((made_by_peers, "__init__", _stepping_out(original)))
    return patches


def _waking(original: Any) -> Any:
    def change(self: Store, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        wake_store_waiters(here.strand)
        return result

    return change


def _polling(original: Any) -> Any:
    """`check` in a loop is how programs poll: give way, or the others never get to set it."""

    def check(self: Store, keys: list[str]) -> Any:
        found = original(self, keys)
        strand = here.strand
        if not found and strand is not None:
            strand.baton.give_way(strand)
            found = original(self, keys)
        return found

    return check


def _waiting_for_keys(name: str, original: Any) -> Any:
    check = Store.check

    def read(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        blocking = name != "queue_pop" or (args[0] if args else kwargs.get("block", True))
        if here.strand is not None and blocking:
            wanted = [keys] if isinstance(keys, str) else list(keys)
            given = args[0] if name == "wait" and args else kwargs.get("timeout")
            wait_for_keys(
                lambda: check(self, wanted),
                wanted,
                call=f"store.{name}",
                timeout=given or self.timeout,
                shared_outside=_is_shared_outside(self),
                explicit=given is not None,
            )
        return original(self, keys, *args, **kwargs)

    return read


def _is_shared_outside(store: Store) -> bool:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return isinstance(store, (dist.TCPStore, dist.FileStore))


def _stepping_out(original: Any) -> Any:
    """Constructors that wait for peers natively: the rank leaves the baton meanwhile."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        strand = here.strand
        if strand is None:
            original(self, *args, **kwargs)
            return
        strand.baton.leave(strand)
        try:
            original(self, *args, **kwargs)
        finally:
            strand.baton.rejoin(strand)

    return construct


def _as_bytes(value: str | bytes | list[int]) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
