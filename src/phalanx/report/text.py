"""The text of a verdict, of whatever kind.

Used by everything that raises, prints or records a verdict. The text does not begin with the
name of the error's class, because Python prints that itself. Must never add a time, an address
or a colour: equal verdicts give equal texts.
"""

from __future__ import annotations

import dataclasses

from phalanx.model import Deadlock, Finding, Mismatch, RankFailure, Stall, Unmet, Verdict
from phalanx.report.deadlock import headline_deadlock, render_deadlock
from phalanx.report.failure import FAULT, headline_failure, render_failure
from phalanx.report.finding import headline_finding, render_finding
from phalanx.report.handled import headline_handled, lay_causes, lay_notes
from phalanx.report.layout import ascii_text, compose, labelled
from phalanx.report.mismatch import headline_mismatch, render_mismatch
from phalanx.report.stall import headline_stall, render_stall
from phalanx.report.unmet import headline_unmet, render_unmet


def render(verdict: Verdict, *, replay: str | None = None) -> str:
    """The whole report; `replay` is the command that runs the same again.

    >>> print(render(Stall("stall", "error", (), seconds=30.0, blocks=())).splitlines()[0])
    no rank moved for 30 s
    """
    if verdict.names and not isinstance(verdict, RankFailure):
        text = render(dataclasses.replace(verdict, names=()))
        first, names = _lines(verdict, True), _lines(verdict, False)
        headline, _, rest = text.partition("\n\n")
        last = labelled("replay", replay, whole=True) if replay else ()
        return compose(headline, first, rest.split("\n") if rest else (), names, last)
    if verdict.handled:
        top, _, rest = render(dataclasses.replace(verdict, handled=())).partition("\n\n")
        last = labelled("replay", replay, whole=True) if replay else ()
        notes = lay_notes(verdict)
        return compose(headline_handled(verdict, top), lay_causes(verdict), [rest], notes, last)
    if isinstance(verdict, Mismatch):
        return render_mismatch(verdict, replay=replay)
    if isinstance(verdict, Deadlock):
        return render_deadlock(verdict, replay=replay)
    if isinstance(verdict, Stall):
        return render_stall(verdict, replay=replay)
    if isinstance(verdict, RankFailure):
        return render_failure(verdict, replay=replay)
    if isinstance(verdict, Unmet):
        return render_unmet(verdict, replay=replay)
    if isinstance(verdict, Finding):
        return render_finding(verdict, replay=replay)
    raise TypeError(f"no report for a {type(verdict).__name__}")


FIRST = frozenset({"branch", FAULT, "paired", "test"})
"""Labels of names that say how or where it began: they come right below the headline."""


def _lines(verdict: Verdict, is_first: bool) -> list[str]:
    chosen = [(label, text) for label, text in verdict.names if (label in FIRST) is is_first]
    return [line for label, text in chosen for line in labelled(label, text)]


def render_kind(verdict: Verdict, *, replay: str | None = None) -> str:
    """The report with its kind in front, which users write in order to silence it."""
    return f"[{verdict.kind}]: {render(verdict, replay=replay)}"


def headline(verdict: Verdict) -> str:
    """The first line of the report, which can stand alone."""
    return ascii_text(headline_handled(verdict, _headline(verdict)))


def _headline(verdict: Verdict) -> str:
    if isinstance(verdict, Mismatch):
        return headline_mismatch(verdict)
    if isinstance(verdict, Deadlock):
        return headline_deadlock(verdict)
    if isinstance(verdict, Stall):
        return headline_stall(verdict)
    if isinstance(verdict, RankFailure):
        return headline_failure(verdict)
    if isinstance(verdict, Unmet):
        return headline_unmet(verdict)
    if isinstance(verdict, Finding):
        return headline_finding(verdict)
    raise TypeError(f"no headline for a {type(verdict).__name__}")
