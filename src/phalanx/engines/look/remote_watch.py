"""What ranks in processes of their own do, for `--live` and `phalanx look`: the referee knows
who waits for whom, and the ranks say where they are when they are asked.

Used by the processes engine and by the launcher of torchrun, in the thread that hears ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phalanx.engines.remote.control_messages import Position, Where
from phalanx.journal.writer import JournalWriter
from phalanx.model import RankView, Site, Snapshot
from phalanx.report.live.live_rows import RunState, figures_of
from phalanx.system import monotonic

LOOK = -1
"""The number of a question that comes from here."""

Heard = tuple[Snapshot, Sequence[int], Sequence[float]]
"""What the referee knows: all ranks, their steps, and how long they have been idle."""


def heard_by(referee: Any) -> Heard:
    """Of a `RemoteReferee`."""
    journal: JournalWriter = referee.journal
    return (referee.snapshot(), *figures_of(journal.rings, monotonic()))


class RemoteWatch:
    """`members` are all ranks of this machine and `living` says which of them can answer;
    `heard` asks the referee and is None where there is none; `asking` says whether a rank is at
    the terminal."""

    def __init__(
        self,
        *,
        members: Callable[[], Sequence[int]],
        living: Callable[[], Mapping[int, Any]],
        heard: Callable[[], Heard | None],
        asking: Callable[[], bool],
    ) -> None:
        self._members = members
        self._living = living
        self._heard = heard
        self._asking = asking
        self._awaited: set[int] = set()
        self._stacks: dict[int, tuple[Site, ...]] = {}

    def ask(self) -> None:
        """A rank that has not answered yet, because it is stopped or never lets another thread
        run, is not asked again: its socket would fill up."""
        living = self._living()
        self._awaited &= living.keys()
        for rank, member in living.items():
            if rank not in self._awaited:
                self._awaited.add(rank)
                member.send(Where(LOOK))

    def take_in(self, position: Position) -> None:
        self._awaited.discard(position.rank)
        self._stacks[position.rank] = position.stack

    def has_answers(self) -> bool:
        return not self._awaited & self._living().keys()

    def state(self, *, stacks: bool) -> RunState | None:
        living = self._living()
        heard = self._heard()
        if heard is None:
            heard = (
                Snapshot(tuple(self._view(rank, living) for rank in self._members())),
                (),
                (),
            )
        where = {rank: stack for rank, stack in self._stacks.items() if rank in living}
        return RunState(*heard, where, asking=self._asking())

    def _view(self, rank: int, living: Mapping[int, Any]) -> RankView:
        status = "computing" if rank in living else "finished"
        return RankView(rank, status, traced=False)  # type: ignore[arg-type]
