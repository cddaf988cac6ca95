"""Where ops meet: slots by number, mailboxes by peer and tag. No threads at all."""

from __future__ import annotations

from types import SimpleNamespace

from phalanx.matching.mailboxes import GroupMailbox
from phalanx.matching.slots import Call


class Bench:
    """A baton that notes who was woken and what was posted."""

    def __init__(self) -> None:
        self.woken = []
        self.posted = []

    def wake(self, strand) -> None:
        self.woken.append(strand.rank)

    def post(self, strand, pending_callback) -> None:
        self.posted.append((strand.rank, pending_callback))


def call(met: GroupMailbox, member: int, name: str = "all_reduce", **facts) -> Call:
    made = Call(met, member, SimpleNamespace(baton=Bench(), rank=member), name, None)
    for key, value in {"signature": name, **facts}.items():
        setattr(made, key, value)
    return made


def group(size: int = 3) -> GroupMailbox:
    return GroupMailbox("world", tuple(range(size)))


def test_the_slot_comes_out_with_the_last_member_in_group_order() -> None:
    met = group()
    calls = {member: call(met, member) for member in (2, 0, 1)}
    assert met.join(calls[2]) is None
    assert met.join(calls[0]) is None
    slot = met.join(calls[1])
    assert slot.calls == [calls[0], calls[1], calls[2]]
    assert (slot.number, slot.clash, met.slots) == (0, False, {})


def test_the_nth_call_of_each_member_meets_the_nth_of_the_others() -> None:
    met = group(2)
    for _ in range(3):  # member 0 runs ahead
        assert met.join(call(met, 0)) is None
    assert sorted(met.slots) == [0, 1, 2]
    assert [met.join(call(met, 1)).number for _ in range(3)] == [0, 1, 2]
    assert met.next_number == [3, 3] and not met.slots


def test_calls_with_other_signatures_clash_also_before_the_slot_is_full() -> None:
    met = group()
    met.join(call(met, 0))
    assert not met.slots[0].clash
    met.join(call(met, 1, "barrier"))
    assert met.slots[0].clash
    assert met.join(call(met, 2)).clash


def test_a_call_as_its_own_signature_is_equal_to_nothing() -> None:
    met = group(2)
    for member in (0, 1):
        mine = call(met, member)
        mine.signature = mine
        slot = met.join(mine)
    assert slot.clash


def send(met, member, to, tag=0) -> Call:
    return call(met, member, "send", peer=to, tag=tag)


def receive(met, member, source, tag=0) -> Call:
    return call(met, member, "recv", peer=source, tag=tag)


def test_a_message_waits_for_its_receive_and_the_other_way_round() -> None:
    met = group()
    first = send(met, 0, 1)
    assert met.post_send(first) is None
    assert met.in_flight() == 1
    assert met.post_receive(receive(met, 1, 0)) is first
    assert met.in_flight() == 0
    waiting = receive(met, 1, 0)
    assert met.post_receive(waiting) is None
    assert met.post_send(send(met, 0, 1)) is waiting


def test_messages_between_two_ranks_do_not_overtake() -> None:
    met = group()
    sent = [send(met, 0, 1, tag) for tag in (0, 1, 0)]
    for message in sent:
        met.post_send(message)
    taken = [met.post_receive(receive(met, 1, 0, tag)) for tag in (0, 0, 1)]
    assert taken == [sent[0], sent[2], sent[1]]


def test_receives_do_not_overtake_either() -> None:
    met = group()
    waiting = [receive(met, 1, source) for source in (None, 0)]
    for wanted in waiting:
        met.post_receive(wanted)
    assert [met.post_send(send(met, 0, 1)) for _ in range(2)] == waiting


def test_tag_source_and_destination_must_fit() -> None:
    met = group()
    met.post_send(send(met, 0, 1, tag=5))
    assert met.post_receive(receive(met, 1, 0, tag=4)) is None
    assert met.post_receive(receive(met, 1, 2, tag=5)) is None
    assert met.post_receive(receive(met, 2, 0, tag=5)) is None
    assert met.post_send(send(met, 2, 0)) is None


def test_any_source_takes_the_message_that_came_first() -> None:
    met = group()
    early, late = send(met, 2, 1), send(met, 0, 1)
    met.post_send(early)
    met.post_send(late)
    assert met.post_receive(receive(met, 1, None)) is early


def test_a_withdrawn_call_meets_nobody() -> None:
    met = group()
    wanted, sent = receive(met, 1, 0), send(met, 1, 2)
    met.post_receive(wanted)
    met.post_send(sent)
    met.withdraw(wanted)
    met.withdraw(sent)
    met.withdraw(sent)
    assert met.post_send(send(met, 0, 1)) is None
    assert met.post_receive(receive(met, 2, 1)) is None


def test_abandon_ends_what_is_open_and_brings_the_members_together() -> None:
    met = group()
    error = RuntimeError("nobody will come")
    calls = [call(met, 0), send(met, 0, 1), receive(met, 0, 1)]
    met.join(calls[0])
    met.post_send(calls[1])
    met.post_receive(calls[2])
    met.abandon(error)
    assert (met.slots, met.sends, met.receives, met.in_flight()) == ({}, {}, {}, 0)
    assert [each.error for each in calls] == [error] * 3
    assert len(set(met.next_number)) == 1


def test_finish_wakes_who_waits_and_posts_callbacks_to_the_calls_own_rank() -> None:
    met = group()
    done = call(met, 1)
    baton = done.strand.baton
    waiter = SimpleNamespace(baton=baton, rank=7)
    done.waiters, done.callbacks = [waiter], ["first", "second"]
    error = ValueError()
    done.finish(error)
    assert done.done and done.error is error
    assert baton.woken == [7]
    assert baton.posted == [(1, "first"), (1, "second")]
    done.finish()
    assert baton.woken == [7] and done.error is error
