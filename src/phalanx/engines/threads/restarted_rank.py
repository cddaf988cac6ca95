"""A rank that is a thread begins an attempt of a script that may start again.

Used by `script_on_threads.py`, in each rank's thread. The first rank that comes makes what all
attempts share.
"""

from __future__ import annotations

from phalanx.backend.session import RankContext
from phalanx.backend.stores.rendezvous import keep_store
from phalanx.backend.stores.store import InProcessStore
from phalanx.core.choices import Choices
from phalanx.core.strand import here
from phalanx.engines.restarts.attempts import Attempts


def begin_attempt(context: RankContext, attempts: Attempts, choices: Choices | None) -> None:
    """The rank finds the store of the attempt before. In a run that is explored, all of that
    attempt happened before what the rank does."""
    if attempts.store is None:
        attempts.store = InProcessStore()
    keep_store(context, attempts.store, attempts.number)
    if choices is not None and here.strand is not None and attempts.stamps:
        choices.learn(here.strand, attempts.stamps)
