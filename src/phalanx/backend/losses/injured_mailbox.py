"""The mailbox of a group that has lost something: a member, or connections between members.

Members of a group are connected in pairs. Of a closed pair each end says why; a pair that is
cut only carries nothing. Collectives are played step by step (`stepped_collective.py`), so that
each member fails, waits or goes on as it does on Gloo; a message needs its own pair alone. NCCL
notices nothing: whatever needs a lost member waits. Made from the group's own mailbox by
`injure`. Called by whoever holds the baton.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from phalanx.backend.losses import injured_calls
from phalanx.backend.losses.gloo_steps import steps_of, steps_with_all
from phalanx.backend.losses.injuries import Injuries
from phalanx.backend.losses.stepped_collective import DONE, FAILED, SteppedCollective
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call, Slot

NCCL = "nccl"


def injure(met: GroupMailbox, injuries: Injuries) -> InjuredMailbox:
    """The same mailbox, which from now on knows of its connections."""
    if isinstance(met, InjuredMailbox):
        return met
    injured: Any = met
    injured.__class__ = InjuredMailbox
    injured.begin(injuries)
    found: InjuredMailbox = injured
    return found


class InjuredMailbox(GroupMailbox):
    """`moves` holds what moves the data of open collectives, by their number."""

    injuries: Injuries
    closed: dict[tuple[int, int], str]
    """Why a member's end of the connection to another one is closed."""
    unheard: list[tuple[int, int, str]]
    """Ends that close as soon as the network lets them hear of it."""
    moves: dict[int, Callable[[list[Call]], None]]
    stepped: dict[int, SteppedCollective]

    def begin(self, injuries: Injuries) -> None:
        self.injuries = injuries
        self.closed, self.unheard, self.moves, self.stepped = {}, [], {}, {}
        for end in self.ends.values():
            injured_calls.take_over(end)

    @property
    def is_nccl(self) -> bool:
        return self.record.backend == NCCL

    def claim(self, member: int, rank: int, end: Any = None) -> int | None:
        holder = super().claim(member, rank, end)
        if holder is None and end is not None:
            injured_calls.take_over(end)
        return holder

    # -- connections ----------------------------------------------------------------------

    def is_cut(self, one: int, other: int) -> bool:
        return self.injuries.is_cut(self.ranks[one], self.ranks[other])

    def play_open(self) -> None:
        """Before something is lost: what members have done by now."""
        for slot in self.slots.values():
            if slot.number not in self.stepped:
                self._play(slot, [call for call in slot.calls if call is not None])

    def leave(self, rank: int) -> bool:
        """Who destroys its end of a group closes its connections."""
        was_last = super().leave(rank)
        if not was_last and not self.is_nccl and rank in self.ranks:
            why = f"Connection closed by peer (rank {rank} destroyed the group)"
            self.close_member(self.ranks.index(rank), why, why)
        return was_last

    def lose_member(self, member: int, why: str) -> None:
        """Its process is gone, and with it all that it had begun."""
        self.play_open()
        self.take_back(member)
        for played in self.stepped.values():
            played.drop(member)
        if not self.is_nccl:
            for peer in self._peers(member):
                self._close_far_end(peer, member, why)

    def close_member(self, member: int, own: str, others: str) -> None:
        """A member closes all its connections: what it says itself, and what its peers say."""
        self.play_open()
        for peer in self._peers(member):
            self.close_end(member, peer, own)
        for peer in self._peers(member):
            self._close_far_end(peer, member, others)

    def close_end(self, member: int, peer: int, why: str) -> None:
        if (member, peer) in self.closed:
            return
        self.closed[member, peer] = why
        for number, played in list(self.stepped.items()):
            played.close_end(member, peer, why)
            self._settle(number)
        for call in self._messages(member, peer):
            self._end(call, why)

    def mend(self) -> None:
        """A cut has ended: what was held up arrives."""
        unheard, self.unheard = self.unheard, []
        for member, peer, why in unheard:
            self._close_far_end(member, peer, why)
        for number in list(self.stepped):
            self._settle(number)
        self._match_messages()

    def _peers(self, member: int) -> Iterable[int]:
        return (peer for peer in range(self.size) if peer != member)

    def _close_far_end(self, member: int, peer: int, why: str) -> None:
        if self.is_cut(member, peer):
            self.unheard.append((member, peer, why))
        else:
            self.close_end(member, peer, why)

    # -- collectives ----------------------------------------------------------------------

    def join(self, call: Call) -> Slot | None:
        """The slot only if all members are through with their steps now."""
        full = super().join(call)
        number = call.number
        assert number is not None
        slot = full if full is not None else self.slots[number]
        if self._is_plain(slot, call):
            if full is not None:
                self._forget(number)
            return full
        self.slots[number] = slot
        self._play(slot, [call])
        played = self.stepped[number]
        states = [each.state for each in played.members.values()]
        if full is not None and states == [DONE] * self.size and not _is_begun(slot):
            self._forget(number)
            return full
        self._settle(number)
        return None

    def _is_plain(self, slot: Slot, call: Call) -> bool:
        """Whether all members are through with it at once, when the last one has come."""
        if self._has_injuries():
            return False
        one_by_one = not self.is_nccl and call.name in injured_calls.ONE_BY_ONE
        return slot.clash or not (one_by_one or slot.number in self.stepped)

    def take_back(self, member: int) -> list[Call]:
        """What the member is through with may still be needed."""
        calls = [call for call in self.open_calls() if call.member == member]
        for slot in self.slots.values():
            call = slot.calls[member]
            if call is not None and not call.done:
                slot.calls[member] = None
                slot.arrived -= 1
        for call in calls:
            self.withdraw(call)
        return calls

    def open_calls(self) -> list[Call]:
        """Members may be through with a collective that others wait in."""
        return [call for call in super().open_calls() if not call.done]

    def step_of(self, call: Call) -> bool:
        """Whether the call waits until something is sent; else until it is received."""
        played = self.stepped.get(-1 if call.number is None else call.number)
        progress = None if played is None else played.members.get(call.member)
        return progress is not None and progress.waits_to_send()

    def _has_injuries(self) -> bool:
        cut = self.injuries.cuts and any(
            self.is_cut(one, other) for one in range(self.size) for other in range(one)
        )
        return bool(self.closed or self.unheard or cut)

    def _play(self, slot: Slot, calls: list[Call]) -> None:
        played = self.stepped.get(slot.number)
        if played is None:
            played = SteppedCollective(lambda *ends: self.closed.get(ends), self.is_cut)
            self.stepped[slot.number] = played
            calls = [call for call in slot.calls if call is not None]
        for call in calls:
            if self.is_nccl:
                steps = steps_with_all(call.member, self.size)
            else:
                count, width = injured_calls.payload_of(call)
                steps = steps_of(
                    call.name, call.member, self.size, root=call.root, count=count, width=width
                )
            played.add(call.member, steps)
            played.run()

    def _settle(self, number: int) -> None:
        """Go on with one collective, and end the calls of members that are through."""
        played, slot = self.stepped[number], self.slots.get(number)
        played.run()
        if slot is None:
            return
        for member, progress in list(played.members.items()):
            call = slot.calls[member]
            if call is None or call.done:
                continue
            if progress.state is FAILED and not injured_calls.is_late(call):
                injured_calls.end(slot, call, RuntimeError(progress.why))
            elif progress.state is DONE:
                injured_calls.complete_part(slot, call, self.moves.get(number))
        if self._is_over(slot):
            injured_calls.note_end(slot)
            self._forget(number)

    def _is_over(self, slot: Slot) -> bool:
        """Whether all are through that can come."""
        dead = self.injuries.dead
        return all(
            self.ranks[member] in dead if call is None else call.done
            for member, call in enumerate(slot.calls)
        )

    def _forget(self, number: int) -> None:
        self.slots.pop(number, None)
        self.stepped.pop(number, None)
        self.moves.pop(number, None)

    # -- messages -------------------------------------------------------------------------

    def post_send(self, call: Call) -> Call | None:
        assert call.peer is not None
        why = self.closed.get((call.member, call.peer))
        if why is not None:
            self.messages += 1
            call.finish(RuntimeError(why))
            return None
        if not self.is_cut(call.member, call.peer):
            return super().post_send(call)
        self.messages += 1
        self.sends.setdefault(call.peer, []).append(call)
        return None

    def post_receive(self, call: Call, source: int = -1) -> Call | None:
        if call.peer is not None:
            why = self.closed.get((call.member, call.peer))
            if why is not None:
                call.finish(RuntimeError(why))
                return None
        pending = self.sends.get(call.member, [])
        for index, send in enumerate(pending):
            if self._fits(send, call, source):
                return pending.pop(index)
        self.receives.setdefault(call.member, []).append(call)
        return None

    def sources_for(self, call: Call) -> list[int]:
        return [s for s in super().sources_for(call) if not self.is_cut(s, call.member)]

    def _fits(self, send: Call, receive: Call, source: int) -> bool:
        wanted = receive.peer if receive.peer is not None or source < 0 else source
        return (
            send.tag == receive.tag
            and wanted in (None, send.member)
            and not self.is_cut(send.member, receive.member)
        )

    def _match_messages(self) -> None:
        for member, waiting in self.receives.items():
            pending = self.sends.get(member, [])
            for receive in list(waiting):
                fitting = [s for s in pending if self._fits(s, receive, receive.source)]
                if fitting:
                    send = fitting[0]
                    pending.remove(send)
                    waiting.remove(receive)
                    self.ends[self.ranks[member]]._deliver(send, receive)

    def _messages(self, member: int, peer: int) -> list[Call]:
        """What this member has begun with that peer."""
        calls = [call for call in self.sends.get(peer, ()) if call.member == member]
        return calls + [call for call in self.receives.get(member, ()) if call.peer == peer]

    def _end(self, call: Call, why: str) -> None:
        if not injured_calls.is_late(call):
            self.withdraw(call)
            call.finish(RuntimeError(why))


def _is_begun(slot: Slot) -> bool:
    """Whether some members are through with it already."""
    return any(call is not None and call.done for call in slot.calls)
