"""The way by which ranks came to their calls: say what the program's source shows about it.

Used by every engine for verdicts about calls that disagree or cannot end. `stacks` are the
lines of the program that led each rank to the call it stands in, that of the call last.

- A call in a library, or in a function that several lines call: which line of the user's code
  called it.
- A deadlock in which ranks have left: by which `return`, if the source leaves no other way past
  the lines where the others are.
- A deadlock whose ranks came to their call by a branch that asks for the rank.
- A mismatch whose ranks at fault, and no others, came to their call by such a branch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from phalanx.matching.hints import Branch, blame_branch, hint_of_branch, name_ranks
from phalanx.model import (
    Caller,
    Deadlock,
    Leave,
    Mismatch,
    Op,
    RankView,
    Site,
    StackLine,
    Verdict,
    ViewBlock,
)
from phalanx.source_exits import find_exits
from phalanx.source_text import (
    branch_at_line,
    is_added_branch,
    is_called_from_several,
    is_here,
    lines_of,
)

Stack = tuple[StackLine, ...]
Stacks = Mapping[int, Stack]
_Any = TypeVar("_Any", bound=Verdict)

MOST_RANKS = 16
"""How many ranks of a block have their sources looked at."""


def with_paths(verdict: _Any, stacks: Stacks) -> _Any:
    """The verdict with what the source says about the ways of its ranks."""
    found: Verdict = verdict
    if isinstance(verdict, Deadlock):
        found = _with_branch_of_waiting(_with_departures(verdict, stacks), stacks)
    if isinstance(verdict, Mismatch):
        found = _with_branch_of_odd(_with_added_branch(verdict, stacks), stacks)
    if isinstance(verdict, (Mismatch, Deadlock)):
        found = replace(found, callers=_callers(verdict, stacks))
    assert isinstance(found, type(verdict))
    return found


# -- who called the function that makes the call ----------------------------------------------


def _callers(verdict: Mismatch | Deadlock, stacks: Stacks) -> tuple[Caller, ...]:
    alike: dict[tuple[Site, Site], list[int]] = {}
    for ranks, op in _calls(verdict):
        for rank in ranks:
            stack = _stack_to(op, stacks.get(rank, ()))
            caller = find_caller(stack) if stack else None
            if caller is not None:
                alike.setdefault((stack[-1].site, caller), []).append(rank)
    return tuple(
        Caller(tuple(sorted(ranks)), call, site) for (call, site), ranks in alike.items()
    )


def _calls(verdict: Verdict) -> Iterator[tuple[tuple[int, ...], Op]]:
    if isinstance(verdict, Mismatch):
        yield from ((block.ranks, block.op) for block in verdict.blocks)
    elif isinstance(verdict, Deadlock):
        for block in verdict.blocks:
            if block.view.wait is not None and block.view.status == "waiting":
                yield block.ranks, block.view.wait.op


def _stack_to(op: Op, stack: Stack) -> Stack:
    """The stack if the rank still stands in this call."""
    return stack if stack and stack[-1].site == op.site else ()


def find_caller(stack: Stack) -> Site | None:
    """The user's line that called the function in which the call is, if that is worth a line: a
    library's function, one of another file, or one that several lines call."""
    call = stack[-1]
    for line in reversed(stack[:-1]):
        if line.installed:
            continue
        if call.installed or line.site.file != call.site.file:
            return line.site
    if call.installed or len(stack) < 2:
        return None
    file, function = call.site.file, call.site.function
    if not is_here(call.site) or not is_called_from_several(file, function):
        return None
    return stack[-2].site


# -- branches that ask for the rank -----------------------------------------------------------


def with_branch(verdict: Mismatch, stacks: Stacks) -> Mismatch:
    """The verdict, with the ranks that alone are in such a branch as those at fault, if that is
    clear and nothing else says who is. The same operation may be meant to meet another: then
    the branch must be one that all come past, those in it and those who are not."""
    if verdict.ranks or len(verdict.blocks) != 2:
        return verdict
    ways = [_branch_of(each.ranks, each.op, stacks) for each in verdict.blocks]
    return blame_branch(verdict, ways, are_added=all(map(_is_added, ways)))


def _with_added_branch(verdict: Mismatch, stacks: Stacks) -> Mismatch:
    """The same, but only for a branch that adds a call: whatever else ranks did before, they
    are at fault that are in it alone."""
    if verdict.ranks or len(verdict.blocks) != 2 or verdict.number is None:
        return verdict
    ways = [_branch_of(each.ranks, each.op, stacks) for each in verdict.blocks]
    return blame_branch(verdict, ways, are_added=True) if all(map(_is_added, ways)) else verdict


BRANCH = "branch"
"""Label of the line that says so, right below the headline."""


def _with_branch_of_odd(verdict: Mismatch, stacks: Stacks) -> Mismatch:
    """Only the ranks at fault are in such a branch. If that adds a call to what all do, they
    have not gone past the calls of the others, as counts of calls would have it."""
    odd = [block for block in verdict.blocks if block.odd]
    usual = [block for block in verdict.blocks if not block.odd]
    if not odd or not usual or verdict.number is None:
        return verdict
    ways = {_branch_of(each.ranks, each.op, stacks) for each in odd}
    place = ways.pop() if len(ways) == 1 else None
    if not isinstance(place, str) or any(
        _branch_of(each.ranks, each.op, stacks) is not None for each in usual
    ):
        return verdict
    added = _is_added(place)
    if not added and ("operation" not in verdict.differs or verdict.uneven is not None):
        return verdict
    ranks = sorted(rank for each in odd for rank in each.ranks)
    are = "is" if len(ranks) == 1 else "are"
    told = f"{place} asks for the rank, and only {name_ranks(ranks)} {are} in it"
    told = f"{told}: {_line_at(place)}"
    if added:
        verdict = replace(verdict, uneven=None)
    hint = verdict.hint
    if hint == hint_of_branch(ranks, place):
        hint = None
    return replace(verdict, hint=hint, names=((BRANCH, told), *verdict.names))


def _line_at(place: str) -> str:
    file, _, line = place.rpartition(":")
    return "".join(lines_of(file)[int(line) - 1 : int(line)]).strip()


def _is_added(branch: Branch) -> bool:
    """Whether a branch, if that is one, only adds to what all do."""
    if not isinstance(branch, str):
        return True
    file, _, line = branch.rpartition(":")
    return is_added_branch(file, int(line))


def _with_branch_of_waiting(verdict: Deadlock, stacks: Stacks) -> Deadlock:
    """Ranks that wait for ranks that have left, and came there by such a branch: those that
    have left did not, or they would be there too. Or those have left by one."""
    if verdict.cause != "finished-peer":
        return verdict
    ways = {_branch_of(ranks, op, stacks) for ranks, op in _calls(verdict)}
    place = ways.pop() if len(ways) == 1 else None
    ranks = [rank for each, _ in _calls(verdict) for rank in each]
    came = "came there"
    if not isinstance(place, str):
        gone = [b for b in verdict.blocks if b.view.left and set(b.ranks) & set(verdict.missed)]
        place = _branch_of_leaving([block.view.left for block in gone])
        ranks = [rank for block in gone for rank in block.ranks]
        came = "left"
    if place is None:
        return verdict
    if verdict.uneven is None and verdict.absence is None:
        only = "only " if came == "came there" else ""
        told = f"{place} asks for the rank, and {only}{name_ranks(ranks)} {came} by it"
        text = f"{told}: {_line_at(place)}"
        return replace(verdict, names=((BRANCH, text), *verdict.names))
    told = f"{name_ranks(ranks)} {came} by a branch that asks for the rank, at {place}"
    return replace(verdict, hint=f"{verdict.hint}; {told}" if verdict.hint else told)


def _branch_of_leaving(ways: Sequence[Leave | None]) -> str | None:
    """The branch around the line by which ranks left, if that is one."""
    sites = {left.site for left in ways if left is not None and left.how != "end"}
    site = sites.pop() if len(sites) == 1 else None
    if site is None or not is_here(site):
        return None
    line = branch_at_line(site.file, site.line)
    return None if line is None else f"{site.file}:{line}"


def _branch_of(ranks: Sequence[int], op: Op, stacks: Stacks) -> Branch:
    """The place of the branch if all these ranks are in it, None if no rank is in one, False if
    that is not known."""
    if len(ranks) > MOST_RANKS:
        return False
    found = {_branch_on(_stack_to(op, stacks.get(rank, ()))) for rank in ranks}
    return found.pop() if len(found) == 1 else False


def _branch_on(stack: Stack) -> Branch:
    if not stack:
        return False
    for line in dict.fromkeys(reversed(stack)):  # once each, also in a recursion
        if line.installed:
            continue
        if not is_here(line.site):
            return False
        branch = branch_at_line(line.site.file, line.site.line)
        if branch is not None:
            return f"{line.site.file}:{branch}"
    return None


# -- by which return --------------------------------------------------------------------------


def _with_departures(verdict: Deadlock, stacks: Stacks) -> Deadlock:
    waiting = [_stack_to(op, stacks.get(ranks[0], ())) for ranks, op in _calls(verdict)]
    known = [stack for stack in waiting if stack]
    if not known or len(known) != len(waiting):
        return verdict
    blocks = [_departed(block, known) for block in verdict.blocks]
    return replace(verdict, blocks=tuple(blocks))


def _departed(block: ViewBlock, stacks: Sequence[Stack]) -> ViewBlock:
    view = block.view
    known = view.left is not None and view.left.site is not None
    if view.status != "finished" or known or (view.left and view.left.how == "os-exit"):
        return block
    found = {_exit(view, stack) for stack in stacks}
    exit_ = found.pop() if len(found) == 1 else None
    if exit_ is None:
        return block
    how, site = exit_
    if how == "end" and (view.left is None or view.left.how == "return"):
        return block  # a function that comes to its end has returned
    signal = view.left.signal if view.left is not None else None
    left = Leave("return" if how == "return" else "end", site, signal)
    return replace(block, view=replace(view, left=left))


def _exit(view: RankView, stack: Stack) -> tuple[str, Site] | None:
    """The only way by which a rank can have left one of the functions that it entered as the
    others did, without coming to the line where these are."""
    found: list[tuple[str, Site]] = []
    last = view.last.site if view.last is not None else None
    again = False
    for step in stack:
        site = step.site
        here = last is not None and (last.file, last.function) == (site.file, site.function)
        after = last.line if here and last is not None else None
        known = not step.installed and is_here(site)
        exits = find_exits(site.file, site.line, after=after, again=again) if known else None
        if exits is None:
            return None
        again = again or exits.in_loop
        for how, line in exits.ways:
            source = "".join(lines_of(site.file)[line - 1 : line]).strip()
            found.append((how, Site(site.file, line, site.function, source)))
    if len(found) != 1 or found[0][1].function == "<module>":
        return None
    return found[0]
