"""What a run that is explored has chosen before it is there: it waits for that alone.

A receive from any source takes the message of a certain rank, an operation that is polled is
complete by then. So each possible end is tried by itself, whatever comes first. When nobody can
go on, and before any time passes, the oldest promise that can be is given up: it was in vain,
and the run goes on as with another value. Only the holder of the baton, or whoever passes it
on, touches promises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.backend.torch_private.private import no_function_modes
from phalanx.core.choices import Choices
from phalanx.core.strand import Strand
from phalanx.matching.slots import Call

if TYPE_CHECKING:
    from phalanx.backend.session import Session


class Promise(Protocol):
    def is_open(self) -> bool:
        """Whether it may still be kept or given up."""
        ...

    def give_up(self, choices: Choices) -> bool:
        """Let the run go on without it. False if that would help nobody."""
        ...


def give_one_up(session: Session, choices: Choices) -> bool:
    """Whether one could be given up, so that somebody can go on."""
    session.promises = [each for each in session.promises if each.is_open()]
    return any(promise.give_up(choices) for promise in session.promises)


class SourcePromise:
    """A receive from any source takes a message of the member that `call.source` names."""

    def __init__(
        self, call: Call, value: Any, meet: Callable[[Call, Call], None], name: str
    ) -> None:
        self._call = call
        self._value = value
        self._meet = meet
        self._name = name

    def is_open(self) -> bool:
        return self._call in self._call.mailbox.receives.get(self._call.member, ())

    def give_up(self, choices: Choices) -> bool:
        call, met = self._call, self._call.mailbox
        sources = met.sources_for(call)
        if not sources:
            return False
        choices.in_vain(self._value, self._name.format(met.ranks[sources[0]]))
        met.receives[call.member].remove(call)
        call.source = sources[0]
        send = met.post_receive(call, call.source)
        assert send is not None
        with no_function_modes():  # it is no rank that moves the data
            self._meet(send, call)
        return True


class DonePromise:
    """An operation that a strand polls is complete: the strand waits until it is. `value` names
    what was chosen, and is None if nothing was."""

    def __init__(self, strand: Strand, call: Call, value: Any, instead: str) -> None:
        self._strand = strand
        self._call = call
        self._value = value
        self._instead = instead
        self.is_given_up = False

    def is_open(self) -> bool:
        return not (self._call.done or self.is_given_up)

    def give_up(self, choices: Choices) -> bool:
        if self._value is not None:
            choices.in_vain(self._value, self._instead)
        self.is_given_up = True
        self._strand.baton.wake(self._strand)
        return True
