"""Mistakes that only some ranks make, or in which ranks disagree: the others wait for a call
that does not come.

Each case has a group of its own with a short timeout, because it may leave the group broken. At
least one rank must get an error; the others may get anything, as long as no rank hangs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from phalanx.conformance.case_context import Context
from phalanx.conformance.case_model import Case
from phalanx.conformance.families.mistake_cases import OUTSIDE, d, each, other, t

RANKS = 3
"""The only number of ranks: each case costs a timeout on a real backend."""


def lopsided(me: Context, group: Any) -> Any:
    """Rank 0's own call is wrong; the others wait for it."""
    count = me.size if me.rank else 1
    return d.all_gather(each(me, count), t(me), group=group)


ALONE: tuple[tuple[str, str, Callable[[Any, Any], Any]], ...] = (
    ("all_gather", "list too short on one rank", lopsided),
    ("isend", "to oneself", lambda me, g: d.isend(t(me), me.rank, group=g).wait()),
    ("recv", "from oneself", lambda me, g: d.recv(t(me), me.rank, group=g)),
    ("irecv", "from oneself", lambda me, g: d.irecv(t(me), me.rank, group=g).wait()),
    (
        "batch_isend_irecv",
        "to oneself",
        lambda me, g: [
            w.wait() for w in d.batch_isend_irecv([d.P2POp(d.isend, t(me), me.rank, group=g)])
        ],
    ),
    (
        "send",
        "receiver out of range",
        lambda me, g: d.send(t(me), group_dst=OUTSIDE, group=g),
    ),
    (
        "recv",
        "sender out of range",
        lambda me, g: d.recv(t(me), group_src=OUTSIDE, group=g),
    ),
    (
        "all_reduce",
        "one rank does not come",
        lambda me, g: d.all_reduce(t(me), group=g) if me.rank else None,
    ),
    (
        "barrier",
        "one rank does not come",
        lambda me, g: d.barrier(group=g) if me.rank else None,
    ),
    (
        "broadcast",
        "the root does not come",
        lambda me, g: d.broadcast(t(me), group_src=0, group=g) if me.rank else None,
    ),
    ("recv", "nobody sends", lambda me, g: d.recv(t(me), other(me), group=g)),
    ("send", "nobody receives", lambda me, g: d.send(t(me, 1000), other(me), group=g)),
    (
        "all_reduce",
        "sizes differ by rank",
        lambda me, g: d.all_reduce(t(me, 40 + 40 * me.rank), group=g),
    ),
    (
        "all_reduce",
        "dtypes differ by rank",
        lambda me, g: d.all_reduce(
            t(me, 40, torch.float64 if me.rank else torch.float32), group=g
        ),
    ),
    (
        "broadcast",
        "sizes differ by rank",
        lambda me, g: d.broadcast(t(me, 40 + 40 * me.rank), group_src=0, group=g),
    ),
    (
        "all_gather",
        "sizes differ by rank",
        lambda me, g: d.all_gather(
            each(me, me.size, 40 + 40 * me.rank), t(me, 40 + 40 * me.rank), group=g
        ),
    ),
    (
        "broadcast",
        "roots differ by rank",
        lambda me, g: d.broadcast(t(me), group_src=me.rank, group=g),
    ),
    (
        "all_reduce",
        "another collective on one rank",
        lambda me, g: (
            d.all_reduce(t(me), group=g)
            if me.rank
            else d.all_gather(each(me, me.size), t(me), group=g)
        ),
    ),
    (
        "recv",
        "message too long",
        lambda me, g: (
            d.send(t(me, 80), 1, group=g)
            if me.rank == 0
            else d.recv(t(me, 40), 0, group=g)
            if me.rank == 1
            else None
        ),
    ),
    (
        "all_to_all_single",
        "splits disagree",
        lambda me, g: d.all_to_all_single(
            t(me, me.size),
            t(me, me.size),
            [1] * me.size,
            [me.size] + [0] * (me.size - 1),
            group=g,
        ),
    ),
)

_ALONE = {(operation, words): call for operation, words, call in ALONE}


def cases(ranks: int) -> Iterator[Case]:
    if ranks != RANKS:
        return
    for operation, words, _ in ALONE:
        yield Case(
            family="disagreements",
            operation=operation,
            variant=("mistake", words.replace(" ", "-")),
            ranks=ranks,
            program="disagreement",
            given={"operation": operation, "words": words},
            raises=("RuntimeError",),
            everywhere=False,
            alone=True,
        )


def disagreement(me: Context, operation: str, words: str) -> None:
    """On a group that is not used afterwards."""
    _ALONE[operation, words](me, me.fresh(timeout=me.short))


PROGRAMS = {"disagreement": disagreement}
