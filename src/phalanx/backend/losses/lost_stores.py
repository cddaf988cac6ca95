"""Stores whose server is gone: what operations on them give. Filled in below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.backend.losses.injuries import Injuries

if TYPE_CHECKING:
    from phalanx.backend.session import Session


def lose_store(session: Session) -> None:
    """All stores that a server serves lose it: operations on them fail, waits in progress, too,
    as a `TCPStore`'s do."""


def restore_store(session: Session) -> None:
    """A server is there again, at the same address and with nothing in it."""


def lose_stores_of(session: Session, rank: int) -> None:
    """The stores that this rank's process serves are lost with it."""


def wake_cut_off(injuries: Injuries) -> None:
    """A cut has ended: who could not reach a store goes on."""
