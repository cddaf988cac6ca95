"""Two threads of one rank on one group: decide whether anything can have ordered their calls.

Used by `backend/evidence/thread_holds.py` and `engines/remote/single_rank_watcher.py` when a
thread makes a collective call while another thread of
its rank has made calls too. Pure.

| the other thread                                        | verdict                          |
|---------------------------------------------------------|----------------------------------|
| is inside a synchronous collective on the same group    | race: it has run no line of the  |
|                                                         | program since it began, so it    |
|                                                         | cannot have told this one        |
| is inside a send or receive with the same peer and tag  | race: which is which is open     |
| is inside one with another peer or tag                  | legal: these tell them apart     |
| is inside a call on another group                       | legal: a group for each          |
| waits for an asynchronous call                          | unknown: it may have told this   |
|                                                         | thread between call and wait     |
| is elsewhere                                            | unknown: locks and queues order  |

Its users see where the other thread is; this says which calls are in each other's way.
"""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model import CallBlock, Finding, Op


@dataclass(frozen=True)
class ThreadCall:
    """A call of one thread. `main` says that it is the rank's own thread, `callback` that a
    future's callback makes it."""

    op: Op
    main: bool
    callback: bool = False


def find_thread_race(arriving: ThreadCall, inside: ThreadCall) -> Finding | None:
    """`arriving` is about to call; `inside` has not come back from its call."""
    one, other = arriving.op, inside.op
    if one.group != other.group or _is_message(one) != _is_message(other):
        return None
    if _is_message(one) and (one.name, one.peer, one.tag) != (
        other.name,
        other.peer,
        other.tag,
    ):
        return None
    first, second = sorted((inside, arriving), key=lambda use: not use.main)
    rank, group = arriving.op.rank, arriving.op.group
    names = " and ".join(dict.fromkeys((first.op.name, second.op.name)))
    return Finding(
        kind="thread-race",
        severity="error",
        ranks=(rank,),
        headline=(
            f'two threads of rank {rank} call {names} on "{group.name}" at once, unordered'
        ),
        blocks=(
            CallBlock((rank,), first.op, (_thread_text(first, 1),)),
            CallBlock((rank,), second.op, (_thread_text(second, 2),)),
        ),
        facts=(("rule", _RULES[_is_message(one)]),),
        hint=(
            "neither thread waits for the other: give the thread a group of its own "
            "(dist.new_group), or let one thread make all calls on this one"
        ),
    )


_RULES = {
    False: "calls on a group are matched by their order, which must be the same on all ranks",
    True: "messages between two ranks with one tag are matched by their order",
}


def _is_message(op: Op) -> bool:
    return op.peer is not None or op.tag is not None


def _thread_text(use: ThreadCall, place: int) -> str:
    if use.main:
        return "in the rank's main thread"
    if use.callback:
        return "in a callback of a future, which elsewhere runs in a thread of its own"
    return "in a thread that the rank started" if place == 2 else "in another of its threads"
