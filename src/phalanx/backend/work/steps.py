"""What a call is about to do that other ranks may notice, in a run that is explored.

Used by the process group and by works; stores say theirs in `stores/store.py`. Collectives
have no steps: which calls meet is decided by their order on each rank alone.
"""

from __future__ import annotations

from phalanx.core.choices import Choices, Step
from phalanx.matching.slots import Call


def before_message(call: Call) -> None:
    """A message is about to be posted."""
    choices = call.strand.baton.choices
    if choices is None:
        call.strand.baton.switch_point(call.strand)
    else:
        _make_message_step(call, choices)


def _make_message_step(call: Call, choices: Choices) -> None:
    """Let others come first, and choose whose message a receive from any source takes. What is
    sent to one rank with one tag has a place in common; a receive that names its source has
    none, since the messages of a source come in order."""
    met, sending = call.mailbox, call.name == "send"
    if not sending and call.peer is not None:
        return
    receiver = met.ranks[(call.peer or 0) if sending else call.member]
    place = ("messages", met.name, receiver, call.tag)
    step = Step(call.name, place, writes=True, mark=call.mark)
    call.strand.baton.make_step(call.strand, step)
    if sending:
        return
    sources = met.sources_for(call)
    if len(sources) > 1:
        step = Step("receive from any", place, writes=True, mark=call.mark)
        names = [f"rank {met.ranks[source]}" for source in sources]
        call.source = sources[choices.pick_value(call.strand, step, names)]
