"""Flip bits in what a call moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.backend.session import Session


def corrupt_call(
    session: Session, rank: int, *, bits: int = 1, part: str = "result", seed: int = 0
) -> None:
    """The next call that this rank makes of its groups is corrupted."""
