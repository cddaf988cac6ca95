"""Tell the journal what the program of a rank that is a process does with stores.

Used by `watcher.py`, which puts the replacements in. The stores do what they always do: nothing
here waits. What torch does with them on its own account is left out.

The time of an event is what orders it, for ranks of one machine (`journal/causal_order.py`): a
change is told before it is made, and a look after it, so whoever has seen a change is told of
later. What does both at once (`add`, `compare_set`) is told as a change and as a look.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, Store

from phalanx import callsite
from phalanx.backend.stores.store_keys import (
    CHANGING,
    READING,
    remembering,
    store_fields,
    uses_of_program,
)
from phalanx.backend.stores.store_proofs import NOTHING, proof_of


def store_patches(
    rank: int, tell: Callable[..., None], strike: Callable[[], None] | None = None
) -> Iterator[tuple[Any, str, Any]]:
    """(owner, name, replacement) for the classes of torch. `tell` takes the kind of an event,
    its line and its fields. `strike` is called before each operation of the program itself."""
    for name in (*CHANGING, *READING):
        yield Store, name, _telling(rank, tell, strike, name, getattr(Store, name))
    yield PrefixStore, "__init__", remembering(PrefixStore.__init__)


_ANSWERING = frozenset({"add", "compare_set", "delete_key"})
"""Changes whose answer depends on what others did before."""


def _telling(
    rank: int,
    tell: Callable[..., None],
    strike: Callable[[], None] | None,
    name: str,
    original: Any,
) -> Any:
    before, after = name in CHANGING, name in READING

    def use(self: Any, *args: Any, **kwargs: Any) -> Any:
        if strike is not None and not callsite.is_library(sys._getframe(1).f_code.co_filename):
            strike()
        if before:
            _tell(rank, tell, self, name, args, kwargs)
        result = original(self, *args, **kwargs)
        if after:
            found = result is not False if name == "check" else True
            _tell(rank, tell, self, name, args, kwargs, found=found, answer=result)
        elif name in _ANSWERING:
            _tell(rank, tell, self, name, args, kwargs, looks=True, answer=result)
        return result

    return use


def _tell(
    rank: int,
    tell: Callable[..., None],
    store: Any,
    name: str,
    args: Any,
    kwargs: Any,
    *,
    found: bool = True,
    looks: bool = False,
    answer: Any = None,
) -> None:
    for place, key, shown, value in uses_of_program(store, name, args, kwargs):
        where = (rank, place) if isinstance(place, int) else place  # one of this process only
        proof = NOTHING
        if name == "add" and not looks:
            proof = (value if type(value) is int else None), "dropped"  # the look tells more
        elif name in ("get", "add"):
            proof = proof_of(sys._getframe(2), name, answer)
        kind, fields = store_fields(
            where, key, shown, name, value=value, found=found, proof=proof
        )
        if looks:
            proves, used = proof
            is_read = value == 0 or used == "dropped"
            kind, fields = "store-read", (*fields[:4], found, proves, used if is_read else "")
        tell(kind, callsite.mark(2), *fields)
