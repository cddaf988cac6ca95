"""What the program does with keys of torch's stores, as the journal has it.

Used by `store.py` for ranks that are threads, and by the watcher of those that are processes.
Must never wait, nor touch a store.
"""

from __future__ import annotations

import hashlib
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed
from torch.distributed.distributed_c10d import PrefixStore

from phalanx import callsite

dist: Any = torch.distributed  # torch's type stubs leave several of the names below out

CHANGING = ("set", "add", "append", "compare_set", "multi_set", "queue_push", "delete_key")
READING = ("get", "wait", "multi_get", "queue_pop", "check")

STORE_READS = frozenset({"get", "multi_get", "wait", "check"})
"""Those that leave the keys as they are."""

MOST_OF_KEY = 160
"""Characters of a store's key that are kept."""

LARGEST_AMOUNT = 1 << 50
"""Of an `add`: what is larger is not counted with."""

_bases: weakref.WeakKeyDictionary[Any, tuple[Any, str]] = weakref.WeakKeyDictionary()
"""Where the keys of a `PrefixStore` made during runs are: torch does not tell its prefix."""

ports: set[int] = set()
"""Those of the stores over TCP that this process has used."""


def uses_of_program(
    store: Any, name: str, args: Any, kwargs: Any, *, depth: int = 3
) -> Iterator[tuple[Any, ...]]:
    """(store, key, shown, value) for each key that the program itself names in this call of a
    store's method, whose frame is so far above; nothing if torch's own code called it. `value`
    is what is set or added."""
    if not callsite.is_called_by_program(sys._getframe(depth)):
        return
    given = [*args, *kwargs.values()]
    value = given[1] if name in ("set", "add") and len(given) > 1 else None
    for key in keys_in(given[0] if given else None):
        place = _place(store, key)
        if place is not None:
            yield *place, key, value


def store_fields(
    store: Any,
    key: str,
    shown: str,
    name: str,
    *,
    value: Any,
    found: bool,
    proof: tuple[int | None, str] = (None, ""),
) -> tuple[str, tuple[Any, ...]]:
    """The kind of the event, and its fields after the first four. `value` is what was set or
    added, None where nothing was; `proof` is what `store_proofs.py` says about the answer."""
    whole = key if len(key) <= MOST_OF_KEY else f"{key[:MOST_OF_KEY]}#{_digest(key)}"
    common = store, name, whole, shown[:MOST_OF_KEY]
    if name in STORE_READS:
        return "store-read", (*common, found, *proof)
    if name == "add":
        is_count = type(value) is int and abs(value) < LARGEST_AMOUNT
        return "store-written", (*common, None, value if is_count else None, *proof)
    digest = None if value is None else _digest(str(value))
    return "store-written", (*common, digest, None, *proof)


def is_news(kind: str, fields: Sequence[Any]) -> bool:
    """Whether such an event shows that the program goes on. To look for keys that are not there
    is what a program does that polls."""
    return kind != "store-read" or bool(fields[4])


def _digest(text: str) -> int:
    """The same in all processes."""
    data = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=7).digest()
    return int.from_bytes(data, "little")


def remembering(original: Any) -> Any:
    """`PrefixStore.__init__`, so that keys are known by their whole name."""

    def construct(self: Any, prefix: str, store: Any) -> None:
        original(self, prefix, store)
        below = _place(store, prefix)
        if below is not None:
            _bases[self] = below

    return construct


def _place(store: Any, key: str) -> tuple[Any, str] | None:
    """A store, which ranks may reach by clients of their own, and the whole key; None if that
    is unknown."""
    if isinstance(store, PrefixStore):
        base = _bases.get(store)
        return None if base is None else (base[0], f"{base[1]}/{key}")
    if isinstance(store, dist.TCPStore):
        ports.add(store.port)
        return ("tcp", store.port), key
    if isinstance(store, dist.FileStore):
        return ("file", store.path), key
    return id(store), key


def keys_in(given: Any) -> list[str]:
    """None if these are no keys: torch's own method then says what it takes."""
    keys = [given] if isinstance(given, str) else given
    return keys if isinstance(keys, list) and all(isinstance(k, str) for k in keys) else []
