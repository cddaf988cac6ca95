"""Hints: what the evidence shows beyond the bare verdict.

Used by `matching` and `waitgraph`. Each function is one rule; it looks at recorded ops and
returns a sentence about what was observed, or None. A rule must never guess: where the
records do not show a thing for certain, it stays silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from phalanx.matching.agreement_rules import crossed_pairs, split_rows
from phalanx.model import Deadlock, Meeting, Mismatch, Op, OpBlock, RankView, Site, Wait

LINES_HINT = (
    "the ranks were at different lines in the call before already: those calls may not have "
    "been meant for each other"
)
_NEW_LINE = "no rank called from "
_LEFT = "; this time "

_RECEIVES = frozenset({"recv", "irecv"})
_SENDS = frozenset({"send", "isend"})


def name_ranks(ranks: Iterable[int]) -> str:
    """`rank 2` or `ranks 0-2, 5`.

    >>> name_ranks([5, 0, 1, 2])
    'ranks 0-2, 5'
    """
    ordered = sorted(ranks)
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [
        f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    ]
    return ("rank " if len(ordered) == 1 else "ranks ") + ", ".join(parts)


def hint_mismatch(
    meeting: Meeting, ops: Sequence[Op], *, blocks: Sequence[OpBlock], differs: Sequence[str]
) -> str | None:
    """The first rule that has something to say about a mismatch."""
    if "root" in differs:
        return _each_named_itself(ops)
    if "splits" in differs:
        return _first_wrong_split(meeting, ops)
    if "operation" in differs:
        return _skipped_site(meeting, blocks) or _new_site(meeting, blocks)
    return None


def hint_deadlock(deadlock: Deadlock, views: Sequence[RankView]) -> str | None:
    """The first rule that has something to say about a deadlock."""
    waiting = [view for view in views if view.status == "waiting"]
    near = _near_miss(waiting)
    if near:
        return near
    if deadlock.cause == "finished-peer":
        needed = {rank for view in waiting if view.wait for rank in view.wait.needs}
        peers = {view.rank for view in views if view.status == "finished"} & needed
        return _too_few_calls([view for view in views if view.rank in peers], waiting)
    if deadlock.cause == "cycle":
        members = set(deadlock.cycle)
        ops = [view.wait.op for view in waiting if view.wait and view.rank in members]
        return _all_receive_or_send(ops, deadlock.in_flight) or _groups_crossed(ops)
    return None


def _each_named_itself(ops: Sequence[Op]) -> str | None:
    if all(op.root == op.rank for op in ops):
        return "each rank named itself as root"
    return None


def _first_wrong_split(meeting: Meeting, ops: Sequence[Op]) -> str | None:
    sent, expected = split_rows(ops, meeting.group)
    pairs = crossed_pairs(ops, meeting.group, sent, expected)
    size = len(meeting.group.ranks)
    for i, j in pairs:
        if len(sent[i]) == size and len(expected[j]) == size:
            to = meeting.group.ranks.index(ops[j].rank)
            source = meeting.group.ranks.index(ops[i].rank)
            return (
                f"rank {ops[i].rank} sends {_count(sent[i][to], 'row')} to rank {ops[j].rank}, "
                f"which expects {_count(expected[j][source], 'row')} from it"
            )
    return None


def _skipped_site(meeting: Meeting, blocks: Sequence[OpBlock]) -> str | None:
    """Until now one line always followed another; this time the odd ranks came without it."""
    usual = next((block.op.site for block in blocks if not block.odd), None)
    if usual is None or not meeting.history:
        return None
    for block in blocks:
        site = block.op.site
        if not block.odd or site is None or _is_same(site, usual):
            continue
        if not _always_follows(meeting, site, usual):
            continue
        if any(_last_site_is(meeting, rank, usual) for rank in block.ranks):
            continue
        return (
            f"in {_known_calls(meeting)} {_known_ranks(meeting)} reached {site} right after "
            f"{usual}{_LEFT}{name_ranks(block.ranks)} reached {site} without it"
        )
    return None


def _new_site(meeting: Meeting, blocks: Sequence[OpBlock]) -> str | None:
    """The odd ranks are at a line that no rank has called from before, and others are not."""
    seen = {(op.site.file, op.site.line) for op in _past(meeting) if op.site}
    if not seen or set(meeting.history) != set(meeting.group.ranks):
        return None
    usual = [block.op.site for block in blocks if not block.odd]
    if not any(site and (site.file, site.line) in seen for site in usual):
        return None
    for block in blocks:
        site = block.op.site
        if block.odd and site and (site.file, site.line) not in seen:
            return f"{_NEW_LINE}{site} in {_known_calls(meeting)}"
    return None


def says_less(hint: str, *, with_branch: bool) -> bool:
    """Whether a hint says less than the number of calls at each line does; with the branch that
    leads past one, they say what any hint about lines does."""
    return hint == LINES_HINT or hint.startswith(_NEW_LINE) or (with_branch and _LEFT in hint)


def _always_follows(meeting: Meeting, site: Site, before: Site) -> bool:
    for ops in meeting.history.values():
        found = False
        for at, op in enumerate(ops):
            if not _is_same(op.site, site):
                continue
            if at == 0 and op.number:
                continue
            if at == 0 or not _is_same(ops[at - 1].site, before):
                return False
            found = True
        if not found:
            return False
    return True


def _last_site_is(meeting: Meeting, rank: int, site: Site) -> bool:
    ops = meeting.history.get(rank, ())
    return not ops or _is_same(ops[-1].site, site)


def _is_same(site: Site | None, other: Site) -> bool:
    return site is not None and (site.file, site.line) == (other.file, other.line)


def _past(meeting: Meeting) -> Iterable[Op]:
    for ops in meeting.history.values():
        yield from ops


def _known_calls(meeting: Meeting) -> str:
    numbers = [op.number for op in _past(meeting) if op.number is not None]
    first, last = min(numbers, default=0), meeting.number - 1
    return f"call #{last}" if first == last else f"calls #{first}-#{last}"


def _known_ranks(meeting: Meeting) -> str:
    if set(meeting.history) == set(meeting.group.ranks):
        return "every rank"
    return name_ranks(meeting.history)


def _near_miss(waiting: Sequence[RankView]) -> str | None:
    for view in waiting:
        if view.wait and view.wait.near:
            text = view.wait.near[0]
            told = "waits for" in text
            return text if told else f"{text}; rank {view.rank} waits for {_wanted(view.wait)}"
    return None


def _wanted(wait: Wait) -> str:
    op = wait.op
    if op.key is not None:
        return f'key "{op.key}"'
    if op.tag is not None:
        return f"tag {op.tag}"
    if op.number is not None:
        return f'call #{op.number} on group "{op.group.name}"'
    return op.name


def _too_few_calls(peers: Sequence[RankView], waiting: Sequence[RankView]) -> str | None:
    """Finished peers made fewer calls on a group than the ranks that wait for them there."""
    for peer in peers:
        ops = [v.wait.op for v in waiting if v.wait and peer.rank in v.wait.needs]
        ops = [op for op in ops if op.number is not None]
        if not ops or any(_slot(op) != _slot(ops[0]) for op in ops):
            continue
        made = _calls_made(peer.last, ops[0])
        if made is not None:
            verb = "is" if len(ops) == 1 else "are"
            calls = _count(made, "call") if made else "no call"
            alike = [p.rank for p in peers if _calls_made(p.last, ops[0]) == made]
            return (
                f"{name_ranks(alike)} made {calls} on group "
                f'"{ops[0].group.name}"; {name_ranks(op.rank for op in ops)} {verb} '
                f"in call #{ops[0].number}"
            )
    return None


def _calls_made(last: Op | None, op: Op) -> int | None:
    """How many calls a rank made on the group of `op`, if its last call shows that."""
    if last is None:
        return 0
    if last.group != op.group or last.number is None or op.number is None:
        return None
    return last.number + 1 if last.number < op.number else None


def _slot(op: Op) -> tuple[str, int | None]:
    return op.group.name, op.number


def _all_receive_or_send(ops: Sequence[Op], in_flight: int) -> str | None:
    names = {op.name for op in ops}
    if names <= _RECEIVES and not in_flight:
        return (
            "every rank in the cycle is receiving and none has sent: "
            "one must send first, or use isend/irecv"
        )
    if names <= _SENDS:
        return (
            "every rank in the cycle is sending and none is receiving: "
            "one must receive first, or use isend/irecv"
        )
    return None


def _groups_crossed(ops: Sequence[Op]) -> str | None:
    """Two collectives of two groups hold each other up."""
    if len(ops) != 2 or any(op.number is None for op in ops):
        return None
    one, other = ops
    if one.group.name == other.group.name:
        return None
    return (
        f'rank {one.rank} is in group "{one.group.name}" while rank {other.rank} is in group '
        f'"{other.group.name}": ranks that share groups must use them in the same order'
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


Branch = str | bool | None
"""The place of a branch that tests the rank, around a call; None if there is none, False if
that is not known."""


def blame_branch(
    verdict: Mismatch, branches: Sequence[Branch], *, are_added: bool = False
) -> Mismatch:
    """Where two blocks disagree in the operation and no majority says who is wrong: the one
    whose ranks alone came there by a branch that tests the rank. `branches` has one for each
    block. If they only add to what all do, it is the same for whatever else differs."""
    blocks = verdict.blocks
    if verdict.ranks or len(blocks) != 2:
        return verdict
    if not are_added and "operation" not in verdict.differs:
        return verdict
    told = [at for at in (0, 1) if isinstance(branches[at], str)]
    if len(told) != 1 or branches[1 - told[0]] is not None:
        return verdict
    odd = blocks[told[0]]
    ordered = (blocks[1 - told[0]], replace(odd, odd=True))
    place = branches[told[0]]
    hint = hint_of_branch(odd.ranks, place)
    return replace(verdict, ranks=odd.ranks, blocks=ordered, hint=hint)


def hint_of_branch(ranks: Iterable[int], place: Branch) -> str:
    return f"{name_ranks(ranks)} came there by a branch that asks for the rank, at {place}"
