"""Put the error that ranks were handling before what they did meanwhile.

Used by `text`. Must never decide which error is the cause: the verdict says so.
"""

from __future__ import annotations

from phalanx.model import Deadlock, HandledError, Mismatch, Stall, Verdict, rank_list
from phalanx.report.calls import short_name
from phalanx.report.layout import Block, labelled, lay_blocks, shorten, verb

_HEADLINE_RANKS = 24


def headline_handled(verdict: Verdict, headline: str) -> str:
    """The headline with the cause in front, if an error is the cause."""
    causes = [each for each in verdict.handled if each.cause]
    if not causes:
        return headline
    first = causes[0]
    others = [rank for each in causes[1:] for rank in each.ranks]
    more = f", {_ranks(others)} another error" if others else ""
    name = first.error.partition(":")[0]
    return (
        f"{_ranks(first.ranks)} raised {name} at {first.site}{more}"
        f"{_then(verdict, first) or f'; {headline}'}"
    )


def _then(verdict: Verdict, cause: HandledError) -> str | None:
    """In few words what came of it, if that is plain."""
    if isinstance(verdict, Stall):
        return f"; {_stall_text(verdict)}"
    if isinstance(verdict, Mismatch) and "operation" in verdict.differs:
        calls = [each for each in verdict.blocks if set(each.ranks) <= set(cause.ranks)]
        if len({each.op.name for each in calls}) == 1:
            rest = {r for each in verdict.blocks for r in each.ranks} - set(cause.ranks)
            return f", then called {calls[0].op.name}, unlike {_ranks(sorted(rest))}"
    if isinstance(verdict, Deadlock):
        for block in verdict.blocks:
            wait = block.view.wait
            if block.ranks == cause.ranks and wait is not None and wait.needs:
                it = verb(block.ranks, "it waits", "they wait")
                needs = _ranks(wait.needs)
                return f"; handling it, {it} for {needs} in {short_name(wait.op)}"
    return None


def _stall_text(verdict: Stall) -> str:
    if verdict.over_limit:
        return f"the run is over the limit of {verdict.seconds:g} s"
    return f"no rank moved for {verdict.seconds:g} s"


def lay_causes(verdict: Verdict) -> list[str]:
    return lay_blocks(shorten([_block(each) for each in verdict.handled if each.cause]))


def lay_notes(verdict: Verdict) -> list[str]:
    """Errors that ranks were handling and that are no cause."""
    lines = []
    for each in verdict.handled:
        if not each.cause:
            was = verb(each.ranks, "was", "were")
            text = f"{rank_list(each.ranks)} {was} handling {each.error}, raised at {each.site}"
            lines += labelled("handling", text)
    return lines


def _block(each: HandledError) -> Block:
    they = verb(each.ranks, "it", "they")
    note = f"handling it, {they} came to the line that is shown below"
    return Block(each.ranks, (f"raised {each.error}",), each.site, (note,))


def _ranks(ranks: tuple[int, ...] | list[int]) -> str:
    return rank_list(ranks, width=_HEADLINE_RANKS)
