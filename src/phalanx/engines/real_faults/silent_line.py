"""The line of a rank that nobody checks: its calls are only counted, for a plan of faults."""

from __future__ import annotations

from itertools import count
from typing import Any

from phalanx.backend.rank_errors import error_for
from phalanx.callsite import Mark
from phalanx.engines.remote.watched_groups import Limit
from phalanx.errors import VerdictError
from phalanx.matching.announcement import Form, GroupForm
from phalanx.model import Verdict


class SilentLine:
    """In place of a `Link`: every call is met, and nothing is told."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def define_group(self, form: GroupForm) -> int:
        return next(self._numbers)

    def define(self, form: Form) -> int:
        return next(self._numbers)

    def forget_forms(self) -> None:
        pass

    def next_call_id(self) -> int:
        return next(self._numbers)

    def announce(
        self, call_id: int, form: int, *, name: str, blocking: bool, limit: Limit
    ) -> bool:
        return True

    def wait(self, call_id: int, *, name: str, limit: Limit) -> bool:
        return True

    def note_wait(self, call_id: int) -> None:
        pass

    def note_over(self, call_id: int, *, failed: bool = False) -> None:
        pass

    def tell(self, what: str, mark: Mark | None, *fields: Any) -> None:
        pass

    def received(self, call_id: int, source: int) -> None:
        pass

    def report(self, verdict: Verdict) -> VerdictError:
        return error_for(verdict, None)

    def failed(self, error: BaseException) -> None:
        pass
