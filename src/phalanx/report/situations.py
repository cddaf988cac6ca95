"""What ranks are doing, in words: waiting, sleeping, computing, finished ...

Used by the reports that list every rank (deadlock, stall, failure). Must never name a cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.model import Leave, Op, RankView, Site, ViewBlock, Wait, rank_list
from phalanx.report.calls import call_pieces, call_text, is_receive, is_send, short_name
from phalanx.report.layout import Block, verb

# What became of a rank that others need: said of one rank, and of several.
_FATES: Mapping[str, tuple[str, str]] = {
    "cycle": ("is in the cycle", "are in the cycle"),
    "waiting": ("waits too", "wait too"),
    "sleeping": ("sleeps", "sleep"),
    "ready": ("is ready to run", "are ready to run"),
    "computing": ("computes", "compute"),
    "outside": ("is outside Phalanx's sight", "are outside Phalanx's sight"),
    "holding": ("holds Python's lock", "hold Python's lock"),
    "lingering": ("has returned, but not its thread", "have returned, but not their threads"),
    "moving": ("can still move", "can still move"),
    "finished": ("has returned", "have returned"),
    "left": ("has left", "have left"),
    "killed": ("was killed", "were killed"),
    "failed": ("failed", "failed"),
}


_NOTIFIED = frozenset({"threading.Condition.wait"})


def situation_block(block: ViewBlock, notes: Sequence[str] = ()) -> Block:
    """A block that says what its ranks do or did, and where."""
    return Block(block.ranks, _pieces(block), site_of(block.view), tuple(notes))


def site_of(view: RankView) -> Site | None:
    """The line to show: that of the call waited in, where the rank is, or of its last call."""
    if view.wait is not None and view.status == "waiting":
        return view.wait.op.site or view.site
    left = left_at(view)
    if left is not None:
        return left
    last = view.last.site if view.last is not None else None
    return last or view.site if view.status == "finished" else view.site or last


def find_fates(blocks: Sequence[ViewBlock], cycle: Sequence[int] = ()) -> dict[int, str]:
    """The state of each rank, in the form that `need_text` takes."""
    fates: dict[int, str] = {r: _fate_of(b.view) for b in blocks for r in b.ranks}
    return {**fates, **dict.fromkeys(cycle, "cycle")}


def _fate_of(view: RankView) -> str:
    if view.left is not None and view.left.how == "killed":
        return "killed"
    return "left" if has_left(view) else view.status


def has_left(view: RankView) -> bool:
    """Whether a rank has ended in another way than by a `return`."""
    return view.status == "finished" and view.left is not None and view.left.how != "return"


def left_at(view: RankView) -> Site | None:
    """The line by which a rank left. The end of a function is no line to look at."""
    return view.left.site if view.left is not None and view.left.how != "end" else None


def left_text(left: Leave | None, *, place: bool = True) -> str:
    """How ranks left their program: "returned", "called sys.exit at train.py:9"."""
    if left is None:
        return "returned"
    at = f" at {left.site}" if place and left.site is not None else ""
    if left.how == "end":
        what = "the script" if left.site is None else f"{left.site.function}()"
        text = f"came to the end of {what}"
    elif left.how == "killed":
        text = f"was killed{at}"
    elif left.how == "return":
        text = f"returned{at}"
    else:
        text = f"called {'sys.exit' if left.how == 'exit' else 'os._exit'}{at}"
        return f"{text} in its handler of {left.signal}" if left.signal else text
    return f"{text} after {left.signal}" if left.signal else text


def need_text(wait: Wait, fates: Mapping[int, str]) -> str:
    """What would end this wait, and why it does not happen."""
    op = wait.op
    if op.key is not None:
        return f'needs a rank that sets "{op.key}"'
    if wait.joins is not None:
        return f"needs its thread {wait.joins} to end"
    if op.name in _NOTIFIED:
        return "needs a thread that notifies it"
    if not wait.needs:
        if op.number is not None and not op.group.ranks:
            return "needs members of its group; who these are is unknown"
        return "needs what no rank can give"
    if is_receive(op) or is_send(op):
        return f"needs {_counterpart(wait)}{_gone_text(wait, fates)}"
    if wait.any_of and len(wait.needs) > 1:
        return f"needs any of {rank_list(wait.needs)}{_gone_text(wait, fates)}"
    return "needs " + " and ".join(
        f"{rank_list(ranks)}, which {_fate_text(fate, ranks)}" if fate else rank_list(ranks)
        for fate, ranks in _by_fate(wait.needs, fates)
    )


def last_call_text(last: Op | None, ranks: Sequence[int]) -> str:
    if last is None:
        return f"{verb(ranks, 'it', 'they')} made no call"
    where = "" if last.number is None else f', call #{last.number} on group "{last.group.name}"'
    return f"{verb(ranks, 'its', 'their')} last call was {call_text(last)}{where}"


def _pieces(block: ViewBlock) -> tuple[str, ...]:
    view = block.view
    if not view.traced and view.status == "finished":
        return (left_text(view.left, place=False),)
    if not view.traced and view.wait is not None:
        return (f"in {short_name(view.wait.op)}",)
    if view.wait is not None and view.status == "waiting":
        name, *more = call_pieces(view.wait.op, where=True)
        return (f"in its thread {view.thread}: {name}" if view.thread else name, *more)
    if view.status == "moving":
        return (f"{verb(block.ranks, 'is', 'are')} not blocked",)
    if view.status == "finished":
        text = left_text(view.left, place=False)
        if left_at(view) is not None:
            return (text,)
        return (f"{text}; {last_call_text(view.last, block.ranks)}",)
    if view.status == "failed":
        return (f"failed: {view.error or 'unknown error'}",)
    if view.status == "lingering":
        return (f"returned; its thread {view.thread} has not ended",)
    if view.status == "holding":
        return ("holds Python's lock",)
    if view.status == "outside":
        return ("outside Phalanx's sight",)
    return ("ready to run" if view.status == "ready" else view.status,)


def _counterpart(wait: Wait) -> str:
    op = wait.op
    peers = rank_list(wait.needs)
    if wait.any_of and len(wait.needs) > 1:
        peers = f"any of {peers}"
    tag = "" if op.tag is None else f" with tag {op.tag}"
    return f"a {'send from' if is_receive(op) else 'receive by'} {peers}{tag}"


def _gone_text(wait: Wait, fates: Mapping[int, str]) -> str:
    """The call says enough about a single peer, unless that peer will never act again."""
    gone = [
        f"{rank_list(ranks)} {_fate_text(fate, ranks)}"
        for fate, ranks in _by_fate(wait.needs, fates)
        if fate in ("finished", "left", "failed")
    ]
    return "; " + " and ".join(gone) if gone else ""


def _by_fate(needs: Sequence[int], fates: Mapping[int, str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for rank in sorted(needs):
        found.setdefault(fates.get(rank, ""), []).append(rank)
    if "cycle" in found and "waiting" in found:
        # The cycle shown is one of many through these ranks: to part them would mislead.
        found["waiting"] += found.pop("cycle")
    return list(found.items())


def _fate_text(fate: str, ranks: Sequence[int]) -> str:
    return _FATES[fate][0 if len(ranks) == 1 else 1]
