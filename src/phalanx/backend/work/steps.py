"""What a call is about to do that other ranks may notice, in a run that is explored.

Used by the process group and by works; stores say theirs in `stores/store.py`. Which calls of
two ranks meet is decided by their order on each rank alone, so neither collectives nor messages
are steps, unless several threads of a rank make them. What is chosen is whose message a receive
from any source takes, and whether an operation that is polled is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from phalanx import callsite
from phalanx.backend.work import polling
from phalanx.backend.work.promises import DonePromise, SourcePromise
from phalanx.core.choices import Choices, Step
from phalanx.core.strand import DONE, RUNNING, Strand, here
from phalanx.matching.slots import Call

COMPLETE, NOT_YET = "complete", "not yet"
_SOURCE = "rank {}"


def before_call(call: Call) -> None:
    """A collective or a message is about to be posted."""
    strand = call.strand
    baton, context = strand.baton, strand.local
    if baton.choices is None:
        baton.switch_point(strand)
        return
    if context.helpers or context.uses_pools:
        met = call.mailbox
        place = ("calls", met.name, met.ranks[call.member])
        baton.make_step(strand, Step(call.name, place, writes=True, mark=call.mark))
    call.stamp = baton.choices.stamp(strand)


def choose_source(call: Call, meet: Callable[[Call, Call], None]) -> None:
    """Before a message is posted: whose a receive from any source takes. `meet` is called with
    a send and a receive that come together after all."""
    choices = call.strand.baton.choices
    if choices is None or call.peer is not None or call.name != "recv":
        return
    sources = _possible_sources(call)
    if not sources:
        return
    met = call.mailbox
    place = ("messages", met.name, met.ranks[call.member], call.tag)
    step = Step("receive from any", place, writes=True, mark=call.mark)
    names = [_SOURCE.format(met.ranks[source]) for source in sources]
    call.source = sources[choices.pick_value(call.strand, step, names)]
    value = choices.latest_value(call.strand)
    call.strand.local.session.promises.append(SourcePromise(call, value, meet, _SOURCE))


def _possible_sources(call: Call) -> list[int]:
    """Those whose messages are there, and then those who may still send one."""
    met = call.mailbox
    there = met.sources_for(call)
    over = {each.rank for each in call.strand.baton.strands if each.state is DONE}
    later = [
        member
        for member in range(met.size)
        if member not in there and member != call.member and met.ranks[member] not in over
    ]
    return there + later


def note_heard(calls: Sequence[Any]) -> None:
    """These have met: whoever waits for one of them hears of all that came before them."""
    heard = [each.stamp for each in calls]
    for each in calls:
        each.heard = heard


def hear(strand: Strand, call: Call) -> None:
    """The strand knows that the call is complete."""
    if call.heard is not None and strand.baton.choices is not None:
        strand.baton.choices.learn(strand, call.heard)
    for part in call.parts:
        hear(strand, part)


def poll(call: Call) -> bool | None:
    """Whether an operation is complete, as the run has chosen it; None if nothing is chosen:
    nobody explores, or it is not the program that asks. May block until it is complete."""
    strand = here.strand
    if strand is None or strand.baton.choices is None or call.seen_done:
        return None
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and callsite.is_own_file(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None or callsite.is_library(frame.f_code.co_filename):
        return None
    visiting = strand.state is not RUNNING
    if visiting:
        strand.baton.rejoin(strand)
    try:
        most = polling.most_in_vain(frame)
        call.seen_done = _polled(strand, call, strand.baton.choices, most)
        if call.seen_done:
            hear(strand, call)
        return call.seen_done
    finally:
        if visiting and strand.helper:
            strand.baton.leave(strand)


def _polled(strand: Strand, call: Call, choices: Choices, most: int) -> bool:
    """It may not be complete yet, however long all others have been there. That it is not, time
    and again, is tried as often as `most` says; more often by a rank that makes calls between
    its looks, of which it may make any number until then."""
    posted = strand.local.ring.posted
    if call.polls and call.polled_at != posted:
        most = polling.ELSEWHERE
    call.polled_at = posted
    call.polls += 1
    if call.polls > most:
        is_endless = most == polling.IN_WHILE and call.polls > polling.ENDLESS
        return _is_done_at_last(strand, call, None, is_endless)
    met = call.mailbox
    place = ("work", met.name, strand.rank, -1 if call.serial is None else call.serial)
    step = Step("poll", place, writes=True, mark=callsite.mark(3))
    values = (COMPLETE, NOT_YET) if call.done else (NOT_YET, COMPLETE)
    picked = values[choices.pick_value(strand, step, values)]
    if picked == NOT_YET:
        return False
    return _is_done_at_last(strand, call, choices.latest_value(strand), False)


def _is_done_at_last(strand: Strand, call: Call, value: object, is_endless: bool) -> bool:
    """Wait until it is complete, or nobody else can go on: what polls without end waits for
    good."""
    promise = DonePromise(strand, call, value, NOT_YET)
    if not call.done and not is_endless:
        strand.local.session.promises.append(promise)
    while promise.is_open():
        call.waiters = [*(call.waiters or ()), strand]
        strand.baton.park(strand, call)
        strand.baton.run_pending_callbacks(strand)
    return call.done
