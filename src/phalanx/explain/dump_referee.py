"""The referee that also judges running ranks, for calls that were made long ago.

Used by `dump_replay.py`, which announces the calls of all dumps to it. Differs from its parent
in what the absence of a rank means: one that left no dump has no vote, and says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from phalanx.callsite import shown_path
from phalanx.checks.message_race import Taken, hint_taken
from phalanx.engines.referee.announced_calls import AnnouncedCall, last_op
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.explain.rank_dump import DumpedCall, RankDump
from phalanx.matching.hints import Branch, blame_branch
from phalanx.matching.slots import Slot
from phalanx.model import Deadlock, Group, Mismatch, Op, OpBlock, RankView, Verdict
from phalanx.source_text import branch_at_line

_Judged = TypeVar("_Judged", Mismatch, Deadlock)


class DumpReferee(RemoteReferee):
    """The referee for calls that have been made long ago. Until `_take_places`, every rank
    counts as one that can move, so that nothing is judged before all calls are announced."""

    def __init__(
        self,
        size: int,
        dumps: Mapping[int, RankDump],
        users: Mapping[str, frozenset[int]] | None = None,
    ) -> None:
        """`users` has the keys of groups whose members are not known, with those that are."""
        self._dumps = dumps
        self._users = users or {}
        super().__init__(size)

    def reset(self) -> None:
        super().reset()
        self._taken: dict[int, list[Taken]] = {}

    def note(self, rank: int, call_id: int, call: DumpedCall, form: int) -> None:
        """The rank made this call."""
        at = self._ranks[rank].groups[self._ranks[rank].forms[form][0].group]
        if at is not None and call.number is not None:
            mailbox, member = at
            mailbox.next_number[member] = call.number
        self.announce(rank, call_id, form, blocking=False, threads=2)
        if call.made is not None and call.done:
            self._let_go(rank, call_id)
        last = self._ranks[rank].last
        if call.peer is None and call.source is not None and last is not None:
            op = last_op(last)
            taken = self._taken.setdefault(rank, [])
            taken.append(Taken(op, op.group.ranks[call.source], len(taken), len(taken)))

    def _view(self, rank: int) -> RankView:
        """A receive from any source may have had what the rank waits for."""
        view = super()._view(rank)
        wait = view.wait
        text = None if wait is None else hint_taken(self._taken.get(rank, ()), wait.op)
        if wait is None or text is None or wait.op.name != "recv":
            return view
        return replace(view, wait=replace(wait, near=(text, *wait.near), robbed=True))

    def _let_go(self, rank: int, call_id: int) -> None:
        """It is known to have returned, whoever else came."""
        call = self._ranks[rank].asking.get(call_id)
        if call is not None:
            self._answer(call, "go")

    def stop_in(self, rank: int, call_id: int) -> bool:
        """The rank was found waiting in this call. Returns whether the call is still unmet."""
        call = self._ranks[rank].asking.get(call_id) or self._ranks[rank].calls.get(call_id)
        if call is None or call.verdict is not None:
            return False
        if call.mailbox.is_undecided(call) or call in call.mailbox.deciding:
            return False
        self._ask(call, timed=False, threads=1)
        return True

    def end(self, rank: int, how: str, error: str | None) -> None:
        """The rank had ended by then."""
        here = self._ranks[rank]
        here.gone = "failed" if how == "failed" else "finished"
        here.error = error
        here.asking.clear()
        self._update(rank)

    def refine(self, verdict: _Judged) -> _Judged:
        """Ranks without a dump might have voted otherwise; two ranks have no majority, and
        the branches of the program may tell who is odd."""
        if not isinstance(verdict, Mismatch):
            return verdict
        absent = self._absent(verdict.group)
        if absent:
            verdict = _sure_of(verdict, absent)
        if len(verdict.blocks) != 2:
            return verdict
        return blame_branch(verdict, [self._branch(block) for block in verdict.blocks])

    def _absent(self, group: Group) -> frozenset[int]:
        """Ranks without a dump that are members of a group, or may be."""
        unknown = group.name in self.users_by_name()
        members = range(self.size) if unknown else group.ranks
        return frozenset(rank for rank in members if rank not in self._dumps)

    def users_by_name(self) -> dict[str, frozenset[int]]:
        """The groups whose members are not known, as reports name them."""
        found = {}
        for key, users in self._users.items():
            mailbox = self.find_mailbox(key)
            if mailbox is not None:
                found[mailbox.name] = users
        return found

    def _branch(self, block: OpBlock) -> Branch:
        found = {_branch_of(self._dumps[rank], block.op) for rank in block.ranks}
        return found.pop() if len(found) == 1 else False

    def prove(self) -> Verdict | None:
        """Whether no rank can move, and why. Those that wait are told, and wait no more."""
        self._prove()
        return self.verdict

    def look_twice(self) -> Verdict | None:
        """Ranks that need only each other, though others may move."""
        for _ in range(2):
            self.look()
        return self.verdict

    def find_disagreement(self) -> Mismatch | None:
        """Calls of one slot that disagree, though members of it are missing: they never met,
        and cannot, whatever the others do. The first that was made."""
        slots = [slot for each in self._mailboxes.values() for slot in each.slots.values()]
        for slot in sorted(filter(_is_clash, slots), key=_first_made):
            verdict = self._referee.find_slot_mismatch(slot, self)
            if verdict is not None:
                return verdict
        return None


def _is_clash(slot: Slot) -> bool:
    return slot.clash


def _first_made(slot: Slot) -> int:
    calls = [call for call in slot.calls if isinstance(call, AnnouncedCall)]
    return min(call.call_id for call in calls)


def _sure_of(verdict: Mismatch, absent: frozenset[int]) -> Mismatch:
    """A majority counts only if it stays one whatever the absent ranks called. Hints speak of
    all ranks; those about splits are of two."""
    splits = "splits" in verdict.differs
    usual = sum(len(block.ranks) for block in verdict.blocks if not block.odd)
    sure = splits or usual > len(verdict.ranks) + len(absent)
    blocks = verdict.blocks
    if not sure:
        blocks = tuple(replace(block, odd=False) for block in blocks)
    return replace(
        verdict,
        ranks=verdict.ranks if sure else (),
        blocks=tuple(sorted(blocks, key=lambda b: (b.odd, -len(b.ranks), b.ranks))),
        missing=tuple(rank for rank in verdict.missing if rank not in absent),
        hint=verdict.hint if splits else None,
    )


def _branch_of(dump: RankDump, op: Op) -> Branch:
    """The branch that tests the rank around a call, as a stack in the dump tells."""
    main = dump.main
    for at in range(len(dump.calls) - 1, -1, -1):
        call = dump.calls[at]
        if (call.name, call.number, call.site) == (op.name, op.number, op.site):
            if main is not None and main.waits_in == at and main.branch is not False:
                return main.branch
            break
    else:
        return False
    for file, line in call.stack:
        if not file.endswith(".py") or not os.path.exists(file):
            return False
        branch = branch_at_line(file, line)
        if branch is not None:
            return f"{shown_path(file)}:{branch}"
    return None if call.stack else False
