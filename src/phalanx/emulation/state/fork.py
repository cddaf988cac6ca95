"""A rank's own state in a process that the rank forks."""

from __future__ import annotations

import os
from typing import Any

from phalanx.core.strand import here
from phalanx.emulation.random import helper_thread_rng, randomness
from phalanx.emulation.state import exits
from phalanx.emulation.state.environ import own_environ


def _become_a_process() -> None:
    """In a forked child, such as a data loader's worker: it is no rank, but starts with the
    environment, generators and settings of the rank that forked it. The other threads do not
    exist there."""
    for lock in (randomness.lock, helper_thread_rng.lock):
        lock._at_fork_reinit()
    own, strand = own_environ(), here.strand
    if strand is not None:
        switcher: Any = strand.baton.switcher
        switcher.visits = None  # perhaps held by a thread that is not there
        switcher.enter(strand)
        strand.local.saved.pop(exits.FUNCTIONS, None)
    here.strand = None
    if own is not None:
        os.environ.clear()
        os.environ.update(own)


def install() -> None:
    """Register the functions above, once per process. The threads engine calls this when it is
    imported."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_become_a_process)
