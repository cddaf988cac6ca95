"""Thread race: a thread calls a collective while another of its rank is inside one there.

`check` is called for calls of ranks of which more than one thread has made any. Threads that
run errands of another one (`running/threads.py`: couriers) stand for that one.
"""

from __future__ import annotations

from phalanx.analysis.thread_race import Use, find_thread_race
from phalanx.backend.describe import describe_call
from phalanx.core.baton import Strand
from phalanx.core.meeting import Call
from phalanx.errors import RankStopped

KIND = "thread-race"


def check(call: Call) -> None:
    """Raise if the call, which has not met the others yet, races with one of its rank."""
    strand = call.strand
    context = strand.local
    context.threaded = True
    if KIND not in context.session.kinds or strand in context.couriers:
        return
    for other in list(strand.baton.strands):
        inside = other.inside
        if inside is None or other is strand or other.local is not context:
            continue
        if inside.assembly is call.assembly and other not in context.couriers:
            _judge(call, other, inside)


def _judge(call: Call, other: Strand, inside: Call) -> None:
    strand = call.strand
    finding = find_thread_race(
        Use(describe_call(call), main=not strand.helper),
        Use(describe_call(inside), main=not other.helper, asynchronous=inside.asynchronous),
    )
    if finding is None:
        return
    context = strand.local
    error = context.session.report(finding)
    if not strand.helper or context.tell_failure is None:
        raise error
    context.tell_failure(error)  # an exception in a thread would be printed and forgotten
    raise RankStopped
