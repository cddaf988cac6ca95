"""Collects what ranks began and never waited for. See `checks/unwaited_work.py` for the rules.

`guard.Book` keeps it on the way; ranks without asynchronous calls have none.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.backend.session import Session
from phalanx.checks.unwaited_work import find_unwaited
from phalanx.model import Verdict


def find_unwaited_work(session: Session) -> Iterable[Verdict]:
    books = [rank.in_flight for rank in session.ranks if rank.in_flight is not None]
    return find_unwaited(left for book in books for left in book.unwaited()) if books else ()
