"""Races between messages and between writes: the rule table, and random orders."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.checks.early_read import Look, Write
from phalanx.checks.message_race import Arrival, Taken, find_rival, hint_taken, message_race
from phalanx.checks.store_race import find_claim_race, find_unordered_write, store_race
from phalanx.matching.happens_before import Ordering, knows, merged
from phalanx.model import Group, Op, Site

WORLD = Group("world", (0, 1, 2))
LINE = Site("server.py", 4, "serve", "dist.recv(part)")
RECEIVE = Op(0, "recv", WORLD, tag=0, site=LINE)


def taken(source: int = 1, posted: int = 1, number: int = 1) -> Taken:
    return Taken(RECEIVE, source, number, posted, "f4[2]")


def test_a_named_receive_whose_message_was_on_its_way() -> None:
    assert find_rival([taken()], Arrival(2, {}, 2)) is not None
    assert find_rival([taken()], Arrival(1, {}, 2)) is None
    assert find_rival([taken()], Arrival(2, {0: 1}, 2)) is None
    assert find_rival([taken(posted=2)], Arrival(2, {}, 1)) is None


def test_receives_from_any_source_may_be_exchanged_if_they_are_alike() -> None:
    alike = Arrival(2, {}, 2, any_source=True, layout="f4[2]")
    assert find_rival([taken()], alike) is None
    assert find_rival([taken()], Arrival(2, {}, 2, any_source=True, layout="f4[9]")) is not None


def test_messages_of_one_sender_do_not_overtake() -> None:
    first = taken()
    head = Arrival(2, {}, 2, any_source=True, layout="f4[2]")
    assert find_rival([first], head) is None
    assert find_rival([first], Arrival(2, {}, 3)) is None


def test_a_message_that_nobody_received() -> None:
    assert find_rival([taken()], Arrival(2, {})) is not None


def test_the_hint_names_the_receive_that_had_the_message() -> None:
    waiting = Op(0, "recv", WORLD, peer=1, tag=0)
    text = hint_taken([taken()], waiting)
    assert text is not None and "server.py:4" in text and "from rank 1" in text
    assert hint_taken([taken(source=2)], waiting) is None
    assert hint_taken([taken()], Op(0, "recv", WORLD, peer=1, tag=7)) is None


def test_findings_read_well() -> None:
    send = Op(2, "send", WORLD, peer=0, tag=0)
    assert message_race(taken(), send, None).headline.endswith("which nobody received")
    assert "of another size" in message_race(taken(), send, RECEIVE).headline


def write(rank: int, value: int, number: int = 1) -> Write:
    return Write(Op(rank, "set", WORLD, key="k"), value, number)


def test_writes_of_other_values_that_nobody_ordered() -> None:
    assert find_unordered_write([write(0, 1)], write(1, 2), {}) is not None
    assert find_unordered_write([write(0, 1)], write(1, 1), {}) is None
    assert find_unordered_write([write(0, 1)], write(1, 2), {0: 1}) is None
    assert find_unordered_write([write(1, 1)], write(1, 2), {}) is None
    finding = store_race((write(1, 2), write(0, 1)), Op(2, "get", WORLD, key="k"))
    assert finding.ranks == (0, 1) and finding.blocks[-1].ranks == (2,)


def look(rank: int, number: int, *, found: bool = False, line: Site = LINE) -> Look:
    return Look(Op(rank, "check", WORLD, key="k", site=line), number, found)


def test_to_look_and_to_set_are_two_steps() -> None:
    claim = (look(0, 1), write(0, 1, 2))
    assert find_claim_race(claim, look(1, 1), latest=1, known={1: 1}) is not None
    assert find_claim_race(claim, look(1, 1), latest=0, known={0: 2}) is not None
    assert find_claim_race(claim, look(1, 1), latest=1, known={0: 2}) is None
    assert find_claim_race(claim, look(1, 1), latest=0, known={1: 1}) is None
    elsewhere = look(1, 1, line=Site("other.py", 1, "wait"))
    assert find_claim_race(claim, elsewhere, latest=1, known={}) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("event"), st.integers(0, 3)),
        st.tuples(st.just("tell"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("meet"), st.sets(st.integers(0, 3), min_size=1)),
    ),
    max_size=40,
)


@given(STEPS)
@settings(max_examples=80)
def test_what_is_known_is_what_could_be_heard(steps) -> None:
    """Against sets of events, handed on in full."""
    order = Ordering(4)
    heard: list[set[tuple[int, int]]] = [set() for _ in range(4)]
    for what, *who in steps:
        if what == "event":
            heard[who[0]].add((who[0], order.event(who[0])))
        elif what == "tell":
            order.learn(who[1], order.known_to(who[0]))
            heard[who[1]] |= heard[who[0]]
        else:
            order.meet(who[0])
            together = set().union(*(heard[rank] for rank in who[0]))
            for rank in who[0]:
                heard[rank] |= together
    for rank in range(4):
        known = order.known_to(rank)
        for other in range(4):
            for number in range(1, 41):
                assert knows(known, other, number) == ((other, number) in heard[rank])


@given(*[st.dictionaries(st.integers(0, 3), st.integers(1, 5))] * 2)
def test_merging_is_symmetric(one: dict[int, int], other: dict[int, int]) -> None:
    assert merged(one, other) == merged(other, one)


@given(st.permutations([1, 2, 3, 4]), st.data())
@settings(max_examples=50)
def test_receives_from_any_source_alone_are_never_accused(order, data) -> None:
    """Whoever comes first, and whatever they knew."""
    log: list[Taken] = []
    for place, source in enumerate(order, 1):
        known = data.draw(st.dictionaries(st.just(0), st.integers(1, 4)))
        arrival = Arrival(source, known, place, any_source=True, layout="f4[2]")
        assert find_rival(log, arrival) is None
        log.append(taken(source, place, place))


@given(st.integers(2, 6), st.data())
@settings(max_examples=50)
def test_one_receive_that_names_its_source_is_found(size: int, data) -> None:
    """All senders send at once; one of the later receives names its source."""
    named = data.draw(st.integers(2, size))
    log: list[Taken] = []
    found = []
    for place in range(1, size + 1):
        any_source = place != named
        arrival = Arrival(place, {}, place, any_source=any_source, layout="f4[2]")
        rival = find_rival(log, arrival)
        if rival is not None:
            found.append(place)
        if any_source:
            log.append(taken(place, place, place))
    assert found == [named]
