"""What checks look at besides the calls that meet: one module per kind.

Each has a function from the session to findings, run when all ranks have ended well; the
deciding is done in `checks/`, over values. It must cost nothing where there is nothing to
see: a test's whole run takes a millisecond. One that breaks must not break the program: it is
told as a warning, and the run goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from phalanx.backend import group_history
from phalanx.backend.observers.observe_groups import find_leaked_groups
from phalanx.backend.observers.observe_order import find_crossed_order
from phalanx.backend.observers.observe_roots import find_rank_spaces
from phalanx.backend.observers.observe_works import find_unwaited_work
from phalanx.backend.session import Session
from phalanx.checks import registry
from phalanx.errors import PhalanxWarning, text_of
from phalanx.model import Verdict

Check = Callable[[Session], Iterable[Verdict]]


def _find_backend_hazards(session: Session) -> list[Verdict]:
    return registry.find_at_end(session.journal.reader(), session)


AT_END: Mapping[str, Check] = MappingProxyType(
    {
        "mismatch": group_history.find_at_end,
        "backend-hazard": _find_backend_hazards,
        "crossed-order": find_crossed_order,
        "leak": find_leaked_groups,
        "rank-space": find_rank_spaces,
        "unwaited-work": find_unwaited_work,
    }
)
"""By kind."""


def find_at_end(session: Session) -> list[Verdict]:
    """What was found on the way, and what can be seen only now."""
    found, session.findings = session.findings, []
    for kind, check in AT_END.items():
        if kind in session.kinds:
            try:
                found += check(session)
            except Exception as problem:
                tell_broken(kind, problem)
    return found


def tell_broken(kind: str, problem: Exception) -> None:
    text = (
        f"[{kind}]: the check itself failed, so nothing is known about this kind; the run is "
        f"not concerned ({type(problem).__name__}: {text_of(problem)}). Leave it out with "
        f"checks='all,-{kind}', and please report it"
    )
    warnings.warn(PhalanxWarning(text), stacklevel=2)
