"""Hold the calls of all ranks against each other, after the fact: dumps to a verdict.

The calls are announced to the referee that also judges running ranks, in the order in which
each rank made them; then every rank takes the place in which its dump found it: waiting in a
call, ended, or neither. What the referee says is what it would have said at the time. Ranks
that left no dump, or that were in no call, may still move as far as anybody knows, so nothing
is proved that rests on them: that is a stall, and says so.

Pure: no files, no clock. Must never blame a rank for what was not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.checks.unmatched_message import find_leftovers
from phalanx.explain.dump_referee import DumpReferee
from phalanx.explain.group_members import find_members, part_restarts, without_guesses
from phalanx.explain.rank_dump import DumpedCall, RankDump
from phalanx.matching.announcement import Form, GroupForm
from phalanx.model import (
    Deadlock,
    Finding,
    Op,
    RankFailure,
    RankView,
    Site,
    Stall,
    Verdict,
    ViewBlock,
)

_CONSEQUENCE = re.compile(
    r"timed? ?out|timeout|connection (closed|reset|refused)|connectFullMesh|broken pipe|"
    r"peer (has )?(closed|left|gone)|aborted|watchdog|socket|unhandled (system|cuda) error|"
    r"monitoredBarrier|remote process exited|heartbeat|SIGTERM|SignalException",
    re.IGNORECASE,
)
"""What a rank raises because another one is gone, or does not come."""


@dataclass
class Replay:
    """A replay's result. `verdict` is None if nothing is wrong as far as the dumps tell."""

    verdict: Verdict | None
    unmet: tuple[Verdict, ...] = ()
    views: Mapping[int, RankView] | None = None
    undecided: frozenset[int] = frozenset()
    """Ranks that wait in a call which all members have entered."""
    is_uncounted: bool = False
    """Whether calls were left out because their numbers mean nothing."""
    presumed: Verdict | None = None
    """What would be proved if there were no more ranks than dumps show: these do not tell how
    many there were."""


def replay(dumps: Mapping[int, RankDump], world: int) -> Replay:
    """`dumps` by rank, of one kind each; `world` is how many ranks there were."""
    dumps, lost = part_restarts(dumps)
    groups = find_members(dumps, world)
    referee = DumpReferee(world, dumps, groups.users)
    firsts = _first_numbers(dumps, groups.members)
    steps = {
        rank: _steps(dump, dumps, groups.members, firsts, lost) for rank, dump in dumps.items()
    }
    ids = _announce_all(referee, dumps, groups.members, steps)
    users = referee.users_by_name()
    if referee.verdict is not None:
        views = without_guesses(_views(referee, dumps), users)
        return Replay(without_guesses(referee.verdict, users), views=views)
    undecided = _take_places(referee, dumps, ids)
    views = without_guesses(_views(referee, dumps), users)
    failure = _find_failure(dumps, views)
    if failure is not None:
        return Replay(failure, views=views)
    verdict = without_guesses(_find_why(referee, is_guess=groups.is_guess), users)
    stall = _find_stall(dumps, views)
    presumed = None
    told = any(map(_tells_world, dumps.values()))
    if not told and stall is not None and isinstance(verdict, (Deadlock, Finding)):
        presumed, verdict = verdict, replace(stall, ranks=verdict.ranks)
    verdict = verdict or stall
    unmet: tuple[Verdict, ...] = ()
    if verdict is None and len(dumps) == world and all(map(_has_finished, dumps.values())):
        unmet = find_leftovers(referee.leftovers())
    return Replay(verdict, unmet, views, frozenset(undecided), bool(lost), presumed)


def _find_why(referee: DumpReferee, *, is_guess: bool) -> Verdict | None:
    """Why ranks stand where they do, if that is proved: they can never move, or calls of one
    slot disagree, whoever else would have come there."""
    verdict = referee.prove() or referee.look_twice()
    if is_guess and isinstance(verdict, Deadlock):
        verdict = None  # a proof that rests on a guess is none
    return verdict or referee.find_disagreement()


# -- what the ranks did ---------------------------------------------------------------------


def _first_numbers(
    dumps: Mapping[int, RankDump], members: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The first number of each group that all rings that begin late still have."""
    firsts = dict.fromkeys(members, 0)
    for dump in dumps.values():
        if dump.begins_late:
            own: dict[str, int] = {}
            for call in dump.calls:
                if call.number is not None:
                    own.setdefault(call.group, call.number)
            for key, number in own.items():
                firsts[key] = max(firsts.get(key, 0), number)
    return firsts


def _steps(
    dump: RankDump,
    dumps: Mapping[int, RankDump],
    members: Mapping[str, tuple[int, ...]],
    firsts: Mapping[str, int],
    lost: Collection[str],
) -> list[int]:
    """The places of the calls that can be held against those of others. Not those on a group
    whose numbers mean nothing (`lost`), nor a second call of one number. How many groups were
    made before a ring begins is not known."""
    late = any(each.begins_late for each in dumps.values())
    seen: set[tuple[str, int]] = set()
    found = []
    for at, call in enumerate(dump.calls):
        ranks = members.get(call.group, ())
        if dump.rank not in ranks and call.made is None:
            continue
        if call.made is not None and late:
            continue
        if call.number is not None:
            if call.group in lost or (call.group, call.number) in seen:
                continue
            seen.add((call.group, call.number))
        if call.is_message:
            if call.done and (late or not _has_partner(call, ranks, dumps)):
                continue
            if call.peer is not None and not 0 <= call.peer < len(ranks):
                continue
        elif call.number is not None and call.number < firsts.get(call.group, 0):
            continue
        if call.root is not None and not 0 <= call.root < len(ranks):
            call = dump.calls[at] = replace(call, root=None)
        found.append(at)
    return found


def _has_partner(call: DumpedCall, ranks: Sequence[int], dumps: Mapping[int, RankDump]) -> bool:
    """Whether the other end of a message would be in a dump, had it been there."""
    peer = call.peer if call.peer is not None else call.source
    if peer is None or not 0 <= peer < len(ranks):
        return False
    other = dumps.get(ranks[peer])
    return other is not None and other.records_messages


def _announce_all(
    referee: DumpReferee,
    dumps: Mapping[int, RankDump],
    members: Mapping[str, tuple[int, ...]],
    steps: Mapping[int, Sequence[int]],
) -> dict[int, dict[int, int]]:
    """All calls, one of each rank in turn; the ids by rank and place. Ends at the first calls
    that disagree: what comes later may be their consequence."""
    groups: dict[int, dict[str, int]] = {}
    for rank, dump in dumps.items():
        own = groups[rank] = {}
        for key in {**dump.groups, **{call.group: None for call in dump.calls}}:
            ranks = members.get(key, ())
            if rank in ranks:
                own[key] = len(own)
                form = _group_form(dump, key, ranks, rank)
                referee.define_group(rank, own[key], form)
    ids: dict[int, dict[int, int]] = {rank: {} for rank in dumps}
    longest = max(map(len, steps.values()), default=0)
    for turn in range(longest):
        for rank in sorted(dumps):
            if turn >= len(steps[rank]):
                continue
            at = steps[rank][turn]
            call = dumps[rank].calls[at]
            number = groups[rank].get(call.group)
            if number is None:
                continue
            call_id = ids[rank][at] = at + 1
            referee.define_form(rank, call_id, _form(call, number))
            referee.note(rank, call_id, call, call_id)
            if referee.verdict is not None:
                return ids
    return ids


def _group_form(dump: RankDump, key: str, ranks: tuple[int, ...], rank: int) -> GroupForm:
    group = dump.groups.get(key)
    name = group.name if group is not None else key
    if group is not None and group.description not in ("", "default_pg", "undefined"):
        name = f"{name}: {group.description}"
    backend = group.backend if group is not None else ""
    return GroupForm(key, name, ranks, ranks.index(rank), backend)


def _form(call: DumpedCall, group: int) -> Form:
    return Form(
        name=call.name,
        group=group,
        root=call.root,
        peer=call.source if call.peer is None else call.peer,
        tag=call.tag,
        reduce_op=call.reduce_op,
        inputs=call.inputs,
        outputs=call.outputs,
        input_splits=call.input_splits,
        output_splits=call.output_splits,
        site=call.site,
        made=call.made,
        holds=call.made is not None and "gloo" in call.made[1],
    )


# -- where the ranks were -------------------------------------------------------------------


def _take_places(
    referee: DumpReferee, dumps: Mapping[int, RankDump], ids: Mapping[int, Mapping[int, int]]
) -> set[int]:
    """Every rank stands where its dump found it. Returned are those in calls that all members
    have entered."""
    undecided: set[int] = set()
    for rank, dump in dumps.items():
        if _has_finished(dump):
            referee.end(rank, "finished", None)
            continue
        if failed_itself(dump):
            referee.end(rank, "failed", dump.error)
            continue
        at = _stopped_in(dump)
        call_id = None if at is None else ids[rank].get(at)
        if call_id is not None and not referee.stop_in(rank, call_id):
            undecided.add(rank)
    return undecided


def _tells_world(dump: RankDump) -> bool:
    """Whether it says how many ranks there were, at least."""
    return dump.world is not None or any(group.ranks for group in dump.groups.values())


def _has_finished(dump: RankDump) -> bool:
    return dump.status == "finished"


def _stopped_in(dump: RankDump) -> int | None:
    """The call that the rank waits in, or raised in."""
    if dump.waits_in is None and dump.status == "failed":
        return dump.first_open
    return dump.waits_in


def failed_itself(dump: RankDump) -> bool:
    """Whether its error is its own, and not what it raised in a call because of others."""
    if dump.status != "failed":
        return False
    return _stopped_in(dump) is None or not is_consequence(dump.error)


def is_consequence(error: str | None) -> bool:
    """Whether a rank raises such a thing because of what another one does."""
    return error is not None and _CONSEQUENCE.search(error) is not None


def _views(referee: DumpReferee, dumps: Mapping[int, RankDump]) -> dict[int, RankView]:
    """Where everybody stands, before anybody is told anything."""
    views = {}
    for view in referee.snapshot().ranks:
        dump = dumps.get(view.rank)
        if dump is None:
            views[view.rank] = RankView(view.rank, "outside")
        elif view.status == "computing":
            views[view.rank] = replace(view, site=_where(dump))
        elif view.status == "failed":
            views[view.rank] = replace(view, site=dump.error_at)
        else:
            views[view.rank] = view
    return views


def _where(dump: RankDump) -> Site | None:
    main = dump.main
    return main.lines[-1] if main is not None and main.lines else None


# -- what follows ---------------------------------------------------------------------------


def _find_failure(
    dumps: Mapping[int, RankDump], views: Mapping[int, RankView]
) -> RankFailure | None:
    """Ranks whose own error it was; the others were left waiting, or noticed it."""
    ended = {rank: dump for rank, dump in dumps.items() if failed_itself(dump)}
    first = {rank: dump for rank, dump in ended.items() if not is_consequence(dump.error)}
    failed = first or ended
    if not failed:
        return None
    by_text: dict[str, list[int]] = {}
    for rank, dump in sorted(failed.items()):
        by_text.setdefault(dump.error or "unknown error", []).append(rank)
    others = [views[rank] for rank in sorted(views) if rank not in failed]
    late = tuple(
        (rank, dump.error or "")
        for rank, dump in sorted(dumps.items())
        if dump.status == "failed" and rank not in failed
    )
    return RankFailure(
        kind="rank-failed",
        severity="error",
        ranks=tuple(sorted(failed)),
        raised=tuple((tuple(ranks), text) for text, ranks in by_text.items()),
        sites={r: d.error_at for r, d in failed.items() if d.error_at is not None},
        stopped=_blocks(others),
        late=late,
    )


def _find_stall(dumps: Mapping[int, RankDump], views: Mapping[int, RankView]) -> Stall | None:
    """Ranks wait for one that was in no call, or that left no dump."""
    waiting = [view for view in views.values() if view.status == "waiting"]
    if not waiting:
        return None
    blamed = _waited_for(views)
    stacks = {rank: dump.main.lines for rank, dump in dumps.items() if dump.main is not None}
    return Stall(
        kind="stall",
        severity="error",
        ranks=blamed,
        seconds=_seconds(dumps, views),
        blocks=_blocks(views.values()),
        stacks={rank: lines for rank, lines in stacks.items() if lines},
    )


def _seconds(dumps: Mapping[int, RankDump], views: Mapping[int, RankView]) -> float:
    """How long the rank that came last had waited when its dump was made; 0 if unknown."""
    times = []
    for rank, view in views.items():
        dump = dumps.get(rank)
        if view.status == "waiting" and dump is not None and dump.waits_in is not None:
            since = dump.calls[dump.waits_in].time
            if since is not None and dump.taken is not None and dump.taken >= since:
                times.append(dump.taken - since)
    return float(f"{min(times):.2g}") if times else 0.0


def _waited_for(views: Mapping[int, RankView]) -> tuple[int, ...]:
    """Those that ranks wait for and that do not wait themselves, at the end of the chain."""
    needed = {
        rank
        for view in views.values()
        if view.status == "waiting" and view.wait is not None and not view.wait.any_of
        for rank in view.wait.needs
    }
    return tuple(sorted(r for r in needed if r in views and views[r].status != "waiting"))


def _blocks(views: Iterable[RankView]) -> tuple[ViewBlock, ...]:
    alike: dict[object, list[RankView]] = {}
    for view in sorted(views, key=lambda each: each.rank):
        alike.setdefault(_situation(view), []).append(view)
    return tuple(ViewBlock(tuple(v.rank for v in same), same[0]) for same in alike.values())


def _situation(view: RankView) -> object:
    if view.wait is not None and view.status == "waiting":
        op = view.wait.op
        return (*_call_key(op), view.wait.needs, view.wait.any_of, view.wait.near)
    last = _call_key(view.last) if view.last is not None and view.status != "outside" else None
    return view.status, view.site, last, view.error


def _call_key(op: Op) -> tuple[object, ...]:
    return op.name, op.group.name, op.number, op.site, op.root, op.peer, op.tag, op.reduce_op
