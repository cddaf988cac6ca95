"""What a run loses by faults, as its ranks see it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.backend.session import Session


def begin_losses(session: Session, baton: Any) -> None: ...


def lose_rank(session: Session, rank: int) -> None: ...


def partition(session: Session, one: Iterable[int], other: Iterable[int]) -> None: ...


def heal(session: Session, one: Iterable[int], other: Iterable[int]) -> None: ...


def lose_store(session: Session) -> None: ...


def restore_store(session: Session) -> None: ...


def corrupt_call(session: Session, rank: int, fault: Any) -> None: ...
