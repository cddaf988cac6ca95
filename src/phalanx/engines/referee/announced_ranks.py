"""What the referee keeps of each rank in another process, and what it answers one.

Used by `remote_referee.py`, which changes it; the codec reads the answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from phalanx.checks.call_paths import with_branch
from phalanx.engines.referee.announced_calls import AnnouncedCall, AnnouncedMailbox
from phalanx.engines.referee.remote_journal import FormFields
from phalanx.matching.announcement import Form
from phalanx.model import Deadlock, Leave, Mismatch, Status, Verdict

_Judged = TypeVar("_Judged", Mismatch, Deadlock)
Answer = Literal["met", "go", "verdict", "stop", "withdrawn", "lost"]


@dataclass(frozen=True)
class Reply:
    """What a rank is told about one of its calls.

    met        go on; everyone who belongs to it has announced it
    go         go on; not everyone has, so ask before you wait for it
    verdict    raise this
    stop       unwind: another rank failed
    withdrawn  you gave up waiting, and nobody will meet the call any more
    lost       another member gave up waiting in this call; `text` says who
    """

    rank: int
    call_id: int
    answer: Answer
    verdict: Verdict | None = None
    text: str = ""


class AnnouncedRank:
    """What the referee knows of one rank. `calls` holds its calls that are not met, or
    failed."""

    def __init__(self) -> None:
        self.groups: dict[int, tuple[AnnouncedMailbox, int] | None] = {}
        self.forms: dict[int, tuple[Form, Hashable | None, FormFields]] = {}
        self.calls: dict[int, AnnouncedCall] = {}
        self.asking: dict[int, AnnouncedCall] = {}
        self.threads = 1
        self.last: AnnouncedCall | None = None
        self.gone: Status | None = None
        self.error: str | None = None
        self.left: Leave | None = None

    def forget_groups(self) -> None:
        """Those that are gone."""
        self.groups = {
            number: at
            for number, at in self.groups.items()
            if at is None or not at[0].is_deserted()
        }

    @property
    def main_call(self) -> AnnouncedCall:
        """In which its main thread waits, or the first that does."""
        calls = list(self.asking.values())
        return next((call for call in calls if not call.thread), calls[0])

    @property
    def is_free(self) -> bool:
        """Whether it may act without any other rank."""
        if self.gone is not None:
            return False
        asking = self.asking
        return len(asking) < self.threads or any(call.timed for call in asking.values())


def refined(verdict: _Judged, ranks: Sequence[AnnouncedRank]) -> _Judged:
    """A mismatch with those at fault whom the ways to the ranks' last calls show."""
    if not isinstance(verdict, Mismatch):
        return verdict
    last = {rank: each.last for rank, each in enumerate(ranks) if each.last is not None}
    return with_branch(verdict, {rank: call.form.stack for rank, call in last.items()})
