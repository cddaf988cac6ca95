"""What ranks do at one instant as rows of text, ranks that are alike in one row.

`phalanx run --live` and `phalanx look` show the same rows, which are made here from a snapshot
and from figures of the journal. Rows hold only text and numbers, so that they can travel as
JSON. Must never name a cause: a wait is no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from phalanx.callsite import MOST_FRAMES
from phalanx.journal.ring import Ring
from phalanx.model import Op, RankView, Site, Snapshot, Wait, rank_list
from phalanx.report.calls import call_text, short_name
from phalanx.report.layout import visible_line
from phalanx.report.situations import site_of
from phalanx.shown.folded_stack import fold

NOTIFIED = "threading.Condition.wait"
RUNNING = ("computing", "ready", "moving")
"""On threads one of the ranks that could run does. Which one is chance, so all of them run."""
RANKS_WIDTH = 28


@dataclass(frozen=True)
class RunState:
    """All ranks at one instant. `steps` says how many calls each rank has made, `idle` how many
    seconds ago it last did something that the journal knows; `stacks` are the lines of the
    program in which ranks are, innermost last. It is `asking` if a rank waits for the user."""

    snapshot: Snapshot
    steps: Sequence[int] = ()
    idle: Sequence[float] = ()
    stacks: Mapping[int, tuple[Site, ...]] = field(default_factory=dict)
    asking: bool = False


@dataclass(frozen=True)
class LiveRow:
    """Ranks that do the same. They have made from `fewest` to `most` calls, and the one that
    has stood there longest does so for `seconds`."""

    ranks: tuple[int, ...]
    state: str
    fewest: int
    most: int
    call: str = ""
    line: str = ""
    waits_for: str = ""
    seconds: float = 0.0
    thread: str = ""
    stack: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        text = rank_list(self.ranks, width=RANKS_WIDTH).partition(" ")[2]
        return f"{text} {self.thread}" if self.thread else text

    @property
    def steps(self) -> str:
        return f"{self.fewest}" if self.fewest == self.most else f"{self.fewest}-{self.most}"


def figures_of(rings: Sequence[Ring], now: float) -> tuple[list[int], list[float]]:
    """`steps` and `idle` of all ranks; ranks may write meanwhile."""
    steps = [ring.posted - ring.first for ring in rings]
    return steps, [max(0.0, now - _last_time(ring, now)) for ring in rings]


def _last_time(ring: Ring, now: float) -> float:
    times = []
    for lane in (ring.calls, ring.flow, ring.rare):
        try:
            times.append(lane[-1].time)
        except IndexError:
            continue
    return max(times, default=now)


def rows_of(
    state: RunState, *, most: int | None = None, with_stacks: bool = False
) -> list[LiveRow]:
    """In the order of the lowest ranks. Where there would be more than `most`, ranks count as
    alike that are in the same call at the same line, whomever they wait for. `with_stacks`
    tells ranks apart that came to their line in other ways, and shows how they came."""
    views = [*state.snapshot.ranks, *state.snapshot.threads]
    rows = _fold(state, views, _exactly, with_stacks)
    if most is not None and len(rows) > most:
        rows = _fold(state, views, _roughly, with_stacks)
    return rows


def _fold(
    state: RunState,
    views: Iterable[RankView],
    key: Callable[[RankView], Hashable],
    with_stacks: bool,
) -> list[LiveRow]:
    alike: dict[Hashable, list[RankView]] = {}
    for view in views:
        stack = state.stacks.get(view.rank) if with_stacks and not view.thread else None
        alike.setdefault((key(view), stack), []).append(view)
    rows = [_row(state, together, with_stacks) for together in alike.values()]
    return sorted(rows, key=lambda row: (row.ranks[0], row.thread))


def _exactly(view: RankView) -> Hashable:
    op = _op_of(view)
    called = (op.name, op.group, op.number, op.peer, op.tag, op.key) if op else None
    needs = view.wait.needs if view.wait is not None else None
    return (*_basics(view), called, needs)


def _roughly(view: RankView) -> Hashable:
    op = _op_of(view)
    return (*_basics(view), op.name if op else None)


def _basics(view: RankView) -> tuple[Hashable, ...]:
    """Ranks that run are alike wherever in the lines after their last call."""
    state = state_word(view)
    op = view.last if state == "running" else None
    site = site_of(view) if op is None else op.site
    return (state, site, _thread_of(view), view.error)


def state_word(view: RankView) -> str:
    return "running" if view.status in RUNNING else view.status


def _op_of(view: RankView) -> Op | None:
    return view.wait.op if view.wait is not None else view.last


def _thread_of(view: RankView) -> str:
    """The thread of a view that is about one. A rank that lingers names one, too."""
    return view.thread or "" if view.status == "waiting" else ""


def _row(state: RunState, views: Sequence[RankView], with_stacks: bool) -> LiveRow:
    first = views[0]
    ranks = tuple(sorted({view.rank for view in views}))
    steps = [state.steps[rank] for rank in ranks if rank < len(state.steps)] or [0]
    idle = [state.idle[rank] for rank in ranks if rank < len(state.idle)]
    stack = state.stacks.get(first.rank, ()) if with_stacks and not _thread_of(first) else ()
    return LiveRow(
        ranks=ranks,
        state=state_word(first),
        fewest=min(steps),
        most=max(steps),
        call=plain(_call(first)),
        line=plain(_line(state, views)),
        waits_for=plain(_waits_for(first, views)),
        seconds=round(max(idle, default=0.0), 1),
        thread=plain(_thread_of(first)),
        stack=_stack_lines(stack),
    )


def _call(view: RankView) -> str:
    if view.status == "failed":
        return view.error or ""
    if view.status == "lingering":
        return f"thread {view.thread}"
    if view.wait is not None:
        op = view.wait.op
        return _op_text(op) if view.traced else f"in {short_name(op)}"
    if view.last is None:
        return ""
    return f"after {_op_text(view.last)}"


def _op_text(op: Op) -> str:
    group = "" if op.group.name == "world" or op.key is not None else f" on {op.group.name}"
    number = "" if op.number is None else f" #{op.number}"
    return f"{call_text(op)}{group}{number}"


def _line(state: RunState, views: Sequence[RankView]) -> str:
    view = views[0]
    site = site_of(view)
    if view.status not in ("waiting", "finished", "failed"):
        stack = state.stacks.get(view.rank)
        site = stack[-1] if stack else site
    return "" if site is None else f"{site.file}:{site.line}"


def _waits_for(first: RankView, views: Sequence[RankView]) -> str:
    wait = first.wait
    if wait is None or first.status not in ("waiting", "outside"):
        return ""
    op = wait.op
    if op.key is not None:
        return f'a rank that sets "{op.key}"'
    if wait.joins is not None:
        return f"its thread {wait.joins}"
    if op.name == NOTIFIED:
        return "a thread that notifies it"
    return _ranks_text(wait, views)


def _ranks_text(wait: Wait, views: Sequence[RankView]) -> str:
    needs = {rank for view in views if view.wait is not None for rank in view.wait.needs}
    if not needs:
        return ""
    ranks = rank_list(needs, width=RANKS_WIDTH)
    return f"any of {ranks}" if wait.any_of and len(needs) > 1 else ranks


def _stack_lines(stack: tuple[Site, ...]) -> tuple[str, ...]:
    lines = ["[more lines further out]"] if len(stack) >= MOST_FRAMES else []
    lines += [_stack_line(p) if isinstance(p, Site) else str(p) for p in fold(stack)]
    return tuple(map(plain, lines))


def _stack_line(site: Site) -> str:
    source = f"  {site.source}" if site.source else ""
    return f"{site.file}:{site.line} in {site.function}{source}"


def plain(text: str) -> str:
    """One line without anything that a terminal would act on.

    >>> print(plain("a\\x1b[31mb"))
    a\\x1b[31mb
    """
    return visible_line(text)


def rows_as_data(rows: Sequence[LiveRow]) -> list[dict[str, Any]]:
    """As JSON has it."""
    return [asdict(row) for row in rows]


def rows_from_data(data: Any) -> list[LiveRow]:
    """The inverse. Raises `ValueError` for what is no such data, and cleans its text."""
    try:
        return [
            LiveRow(
                ranks=tuple(int(rank) for rank in each["ranks"]) or (0,),
                state=plain(str(each["state"])),
                fewest=int(each["fewest"]),
                most=int(each["most"]),
                call=plain(str(each["call"])),
                line=plain(str(each["line"])),
                waits_for=plain(str(each["waits_for"])),
                seconds=float(each["seconds"]),
                thread=plain(str(each["thread"])),
                stack=tuple(plain(str(line)) for line in each["stack"]),
            )
            for each in data
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"no rows of a run: {error!r}") from error
