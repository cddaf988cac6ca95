"""The referee of a run with faults: it holds no call of which a member may never come.

What such a rank would wait for, it is to see from its backend: `loose_groups.py` says of which
groups. All else is as without faults. Must never know what a fault does.
"""

from __future__ import annotations

from phalanx.engines.referee.announced_calls import AnnouncedCall
from phalanx.engines.referee.announced_ranks import Reply
from phalanx.engines.referee.loose_groups import LooseGroups
from phalanx.engines.referee.remote_referee import RemoteReferee
from phalanx.model import Leave, Site


class FaultyReferee(RemoteReferee):
    """`let_go` follows each change of `loose`."""

    def begin(self) -> None:
        self.loose = LooseGroups()
        super().begin()

    def let_go(self) -> list[Reply]:
        """Whoever waits for a call of a loose group goes on to the backend."""
        if not self.loose.is_faulty:
            return []
        replies = []
        for call in self._waiting_calls():
            if self.loose.has(call.mailbox.form.key, call.mailbox.ranks):
                call.entered = True
                replies.append(self._answer(call, "go"))
        return replies

    def _prove(self) -> list[Reply]:
        """Every call that is held comes by here before anything is said of it."""
        return self.let_go() or super()._prove()

    def killed(self, rank: int, site: Site | None) -> list[Reply]:
        """The plan has killed this rank, which is no reason to stop the others."""
        self._ranks[rank].left = Leave("killed", site)
        self.journal.end_rank(rank, "killed", "")
        return self._leave(rank, "finished")

    def _is_left_over(self, call: AnnouncedCall) -> bool:
        """Not in a loose group: the backend has said in the rank what became of it."""
        is_loose = self.loose.has(call.mailbox.form.key, call.mailbox.ranks)
        return not is_loose and super()._is_left_over(call)

    def broken_off(self, rank: int, call_id: int) -> list[Reply]:
        """The backend has ended this call of the rank with an error."""
        call = self.journal.open_call(rank, call_id)
        if call is None or not self.loose.is_faulty:
            return []
        self.loose.break_off(call.mailbox.form.key)
        return self.let_go()
