"""One collective of a group whose connections are injured, played step by step.

Members play the steps of Gloo's algorithm (`gloo_steps.py`) as far as they come. A step that
names a lost member fails, a wait whose message can come no more goes on until the member's
timeout. Used by `injured_mailbox.py`. No torch, no waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from phalanx.backend.losses.gloo_steps import RECV, SEND, WAIT_SEND, Step

GOING, DONE, FAILED = "going", "done", "failed"


class MemberSteps:
    """How far one member has come."""

    __slots__ = ("at", "completions", "exceptions", "member", "posted", "state", "steps", "why")

    def __init__(self, member: int, steps: list[Step]) -> None:
        self.member = member
        self.steps = steps
        self.at = 0
        self.state = GOING
        self.why = ""
        """Why it failed."""
        self.posted: list[Step] = []
        """What it has begun to send and to receive, and nobody has met."""
        self.completions: Counter[tuple[str, str]] = Counter()
        self.exceptions: dict[str, str] = {}
        """What a buffer fails with at its next wait."""

    def fail(self, why: str) -> None:
        self.state, self.why = FAILED, why
        self.posted.clear()  # whoever counts on them hears nothing

    def waits_to_send(self) -> bool:
        return self.at < len(self.steps) and self.steps[self.at][0] == WAIT_SEND


class SteppedCollective:
    """`closed` says what a member's end of a connection is closed with, if it is; `is_cut`
    whether nothing arrives between two members."""

    def __init__(
        self, closed: Callable[[int, int], str | None], is_cut: Callable[[int, int], bool]
    ) -> None:
        self._closed = closed
        self._is_cut = is_cut
        self.members: dict[int, MemberSteps] = {}
        """In the order in which they came."""

    def add(self, member: int, steps: list[Step]) -> None:
        self.members[member] = MemberSteps(member, steps)

    def close_end(self, member: int, peer: int, why: str) -> None:
        """What the member has begun with that peer fails."""
        progress = self.members.get(member)
        if progress is None or progress.state is not GOING:
            return
        for step in [each for each in progress.posted if each[2] == peer]:
            progress.posted.remove(step)
            progress.exceptions[step[1]] = why

    def drop(self, member: int) -> None:
        """The member is gone, with all that it had begun."""
        self.members.pop(member, None)

    def run(self) -> None:
        """Go on as far as any member can."""
        moved = True
        while moved:
            for progress in self.members.values():
                self._match(progress)
            moved = sum(map(self._advance, self.members.values())) > 0

    def _advance(self, progress: MemberSteps) -> bool:
        before = progress.at
        while progress.state is GOING:
            if progress.at == len(progress.steps):
                progress.state = DONE
                return True
            if not self._take(progress, progress.steps[progress.at]):
                break
            progress.at += 1
        return progress.at > before

    def _take(self, progress: MemberSteps, step: Step) -> bool:
        verb, buffer, peer = step
        if verb in (SEND, RECV):
            why = self._closed(progress.member, peer)
            if why is not None:
                progress.fail(why)
                return False
            progress.posted.append(step)
            self._match(progress)
            return True
        key = (verb, buffer)
        if progress.completions[key]:
            progress.completions[key] -= 1
            return True
        if buffer in progress.exceptions:
            progress.fail(progress.exceptions[buffer])
        return False

    def _match(self, progress: MemberSteps) -> None:
        for step in list(progress.posted):
            verb, buffer, peer = step
            other = self.members.get(peer)
            if other is None or self._is_cut(progress.member, peer):
                continue
            wanted = RECV if verb == SEND else SEND
            met = next(
                (s for s in other.posted if s[0] == wanted and s[2] == progress.member), None
            )
            if met is not None:
                progress.posted.remove(step)
                other.posted.remove(met)
                progress.completions[f"wait {verb}", buffer] += 1
                other.completions[f"wait {wanted}", met[1]] += 1
