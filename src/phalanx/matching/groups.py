"""Whether ranks make their groups alike: where calls of `new_group` meet, and the rules.

torch asks every rank to make every group, members or not, in one order. The n-th `new_group` of
each rank of a default group is held against the others' n-th; a group is written as its
members and its backend.

| what ranks did | verdict |
|---|---|
| other members, backend or order at the same number | error, as soon as it is seen |
| some made fewer groups than others when all have returned, or are waited for in one | error |
| groups of one rank beside each other, or beside a larger one that its members make | none |
| groups of `use_local_synchronization=True` | none: only members make these |

On Gloo the first hangs, and the second does as soon as another group is made. A rank whose
call does not fit is held until all have come to theirs, so that all can be asked who is odd, or
until they cannot come any more. Used by the referee; engines add the calls and let ranks wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from phalanx.callsite import Mark, resolve
from phalanx.matching.descriptions import ranks_of
from phalanx.matching.hints import name_ranks
from phalanx.matching.mailboxes import GroupMailbox
from phalanx.model import CallBlock, Finding, Group, Op, Site, Wait

_RULE = (
    "every rank calls new_group for every group, members or not, in the same order "
    "(only members with use_local_synchronization=True)"
)

Made = tuple[tuple[int, ...], str]
"""A group as ranks make it: its members and its backend."""

Spot = tuple[Made, Mark | Site | None]
"""A group, and where a rank made it."""


class Creation(NamedTuple):
    """One call of `new_group`: by which rank, for which members and backend, from where.

    `number` counts the rank's calls. `holds` says that its backend connects the members there,
    so that they wait for each other.
    """

    rank: int
    number: int
    group: Made
    place: Mark | Site | None
    holds: bool = False

    def as_op(self) -> Op:
        return _op(self.rank, (self.group, self.place))


class GroupCreations:
    """The calls of `new_group` by the ranks of one default group, in order.

    `has_begun` says of a member whether it takes part: one that has not made its default group
    is not counted among those that made fewer groups than others.
    """

    def __init__(
        self, world: GroupMailbox, has_begun: Callable[[int], bool] | None = None
    ) -> None:
        self._world = world
        self._has_begun = has_begun or (lambda member: True)
        self.made: dict[int, list[Spot]] = {}
        self.first: list[Spot] = []
        """What was made first, by number."""
        self._mixed: set[int] = set()
        """Numbers at which not all ranks make the same group, which may be in order."""
        self.disagree_at: int | None = None
        self.waiting: list[Any] = []
        """Whoever waits in one of these calls, in the engine's terms."""

    def add(
        self, rank: int, group: Made, place: Mark | Site | None, *, holds: bool = False
    ) -> Creation:
        """Ranks that make the same at the same line share what is kept of it: with thousands
        of ranks there are millions of these calls."""
        own = self.made.get(rank)
        if own is None:
            own = self.made[rank] = []
        number, spot = len(own), (group, place)
        if number == len(self.first):
            self.first.append(spot)
        first = self.first[number]
        same = first[0] == group
        if same:
            spot = first if first[1] == place else (first[0], place)
        else:
            self._mixed.add(number)
        own.append(spot)
        if self._mixed and number in self._mixed and self.disagree_at is None:
            there = {
                member: self.made[each][number][0]
                for member, each in self._known_ranks()
                if len(self.made.get(each, ())) > number
            }
            if do_clash(there):
                self.disagree_at = number
        return Creation(rank, number, group, place, holds)

    def last_of(self, rank: int, count: int) -> list[Spot]:
        """So many groups that the rank has made last."""
        return self.made.get(rank, [])[-count:]

    def repeat(self, rank: int, spots: list[Spot], place: Mark | Site | None) -> bool:
        """The rank makes these groups at this place; all at once, if that is what came first
        there. False: the groups are to be added one by one."""
        own = self.made.setdefault(rank, [])
        number = len(own)
        if spots[0][1] != place or self.first[number : number + len(spots)] != spots:
            return False
        if self._mixed or self.disagree_at is not None:
            return False
        own += spots
        return True

    def missing(self, call: Creation) -> tuple[int, ...]:
        """Whom a call waits for: members that have not come to theirs, or, where calls
        disagree, anyone."""
        world = self._world
        return tuple(world.ranks[member] for member in self._missing_members(call))

    def _missing_members(self, call: Creation) -> list[int]:
        """A place that nobody has taken is missing, whoever it will be."""
        world, number = self._world, call.number
        if self.disagree_at is not None:
            number, whom = self.disagree_at, tuple(range(world.size))
        else:
            whom = self._members(call)
        return [
            member
            for member in whom
            if not world.is_known(member)
            or len(self.made.get(world.ranks[member], ())) <= number
        ]

    def _members(self, call: Creation) -> tuple[int, ...]:
        """The members that wait for each other in this call, if its rank is one of them."""
        world = self._world
        members = tuple(at for at in call.group[0] if at < world.size)
        there = call.holds and call.rank in [world.ranks[member] for member in members]
        return members if there else ()

    def _known_ranks(self) -> list[tuple[int, int]]:
        """Members and the ranks that they are, as far as that is known."""
        ranks = enumerate(self._world.ranks)
        return [(member, rank) for member, rank in ranks if self._world.is_known(member)]

    def wait_in(self, call: Creation) -> Wait:
        """Where calls disagree, the rank's own call at that number."""
        at = self.disagree_at
        own = self.made.get(call.rank, ())
        shown = call.as_op() if at is None or at >= len(own) else _op(call.rank, own[at])
        return Wait(op=shown, needs=self.needs(call))

    def needs(self, call: Creation) -> tuple[int, ...]:
        """The ranks without which the call can never end; none if not all of them are known."""
        return ranks_of(self._world, self._missing_members(call))

    def find_mismatch(self) -> Finding | None:
        if self.disagree_at is None:
            return None
        return find_creation_mismatch(self._ops(), self.disagree_at)

    def find_missing(self, gone: Collection[int] | None = None) -> Finding | None:
        """Who made fewer groups than others and cannot any more; None: all have ended."""
        if len({len(self.made.get(rank, ())) for rank in self._ranks()}) < 2:
            return None
        found = find_missing_creation(self._ops())
        if found is None or gone is None or set(gone).issuperset(found.ranks):
            return found
        return None

    def forget(self) -> None:
        """What is to be said about these calls is said."""
        self.made.clear()
        self.first.clear()
        self._mixed.clear()
        self.waiting.clear()
        self.disagree_at = None

    def _ranks(self) -> list[int]:
        """Those that take part."""
        return [rank for member, rank in self._known_ranks() if self._has_begun(member)]

    def _ops(self) -> dict[int, list[Op]]:
        return {
            rank: [_op(rank, spot) for spot in self.made.get(rank, ())]
            for rank in self._ranks()
        }


def _op(rank: int, spot: Spot) -> Op:
    (members, backend), place = spot
    site = place if isinstance(place, Site) else resolve(place)
    return Op(rank, "new_group", Group(backend, members), site=site)


def find_creation_mismatch(made: Mapping[int, Sequence[Op]], number: int) -> Finding | None:
    """What the ranks' calls of `new_group` at one place disagree in."""
    ops = {rank: made[rank][number] for rank in sorted(made) if len(made[rank]) > number}
    votes = Counter(op.group for op in ops.values())
    if not do_clash({rank: (op.group.ranks, op.group.name) for rank, op in ops.items()}):
        return None
    (usual, count), *_ = votes.most_common(1)
    decided = 2 * count > len(ops)
    odd = tuple(rank for rank, op in ops.items() if decided and op.group != usual)
    blocks = [
        CallBlock(ranks, op, mark="<- differs" if set(ranks) & set(odd) else "")
        for ranks, op in ops_alike(ops.values())
    ]
    blocks.sort(key=lambda block: (bool(block.mark), -len(block.ranks), block.ranks))
    odd_one, usual_one = blocks[-1], blocks[0]
    headline = (
        f"{name_ranks(odd_one.ranks)} called {_text(odd_one.op)} "
        f"where {name_ranks(usual_one.ranks)} called it with {name_members(usual_one.op)}"
    )
    waited = [rank for rank in sorted(made) if len(made[rank]) <= number]
    facts = [("place", f"new_group #{number} of each rank"), ("rule", _RULE)]
    if not decided:
        facts.append(("differs", "no majority: which ranks are at fault cannot be decided"))
    if waited:
        facts.append(("missing", f"{name_ranks(waited)} had not called it"))
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=odd,
        headline=headline,
        blocks=tuple(blocks),
        facts=tuple(facts),
        hint=_other_order(made, number),
    )


def do_clash(made: Mapping[int, Made]) -> bool:
    """Whether groups that ranks make at one place get in each other's way. A group of one rank
    connects with nobody, so it may stand beside others of one, and beside a larger one that
    all its members make."""
    larger = {each for each in set(made.values()) if len(each[0]) > 1}
    return len(larger) > 1 or any(
        rank in made and made[rank] != each for each in larger for rank in each[0]
    )


def find_missing_creation(made: Mapping[int, Sequence[Op]]) -> Finding | None:
    """Groups that some ranks have made and others never will."""
    fewest = min(map(len, made.values()), default=0)
    without = tuple(rank for rank in sorted(made) if len(made[rank]) == fewest)
    ops = [made[rank][fewest] for rank in sorted(made) if len(made[rank]) > fewest]
    if not ops:
        return None
    blocks = tuple(CallBlock(ranks, op) for ranks, op in ops_alike(ops))
    callers = name_ranks(op.rank for op in ops)
    return Finding(
        kind="mismatch",
        severity="error",
        ranks=without,
        headline=f"{callers} called {_text(blocks[0].op)} where {name_ranks(without)} did not",
        blocks=blocks,
        facts=(("place", f"new_group #{fewest} of each rank"), ("rule", _RULE)),
        hint=_not_members(blocks, without),
    )


def ops_alike(ops: Iterable[Op]) -> list[tuple[tuple[int, ...], Op]]:
    found: dict[object, list[Op]] = {}
    for op in ops:
        found.setdefault((op.group, op.site), []).append(op)
    return [(tuple(op.rank for op in same), same[0]) for same in found.values()]


def _text(op: Op) -> str:
    return f"new_group({name_members(op)})"


def name_members(op: Op) -> str:
    return str(list(op.group.ranks)) if len(op.group.ranks) < 7 else name_ranks(op.group.ranks)


def _not_members(blocks: Sequence[CallBlock], without: Sequence[int]) -> str | None:
    members = {rank for block in blocks for rank in block.op.group.ranks}
    if members.isdisjoint(without):
        isnt = "is not a member" if len(without) == 1 else "are no members"
        return (
            f"{name_ranks(without)} {isnt} of the group, and must call new_group all the same"
        )
    return None


def _other_order(made: Mapping[int, Sequence[Op]], number: int) -> str | None:
    """The same groups were made, in another order."""
    kinds = {tuple(sorted(str(op.group) for op in ops[number:])) for ops in made.values()}
    if len(kinds) == 1:
        return "the ranks made the same groups in different orders"
    return None
