"""Groups that are made again and again, and a world that is never taken down. Pure.

How many groups of a line were alive, each rank notes when a run has ended
(`backend/evidence/group_watch.py`); worlds are made and destroyed in the journal.

| seen                                                       | verdict                        |
|------------------------------------------------------------|--------------------------------|
| `FEW` groups or more of the same ranks, made at one line by |                               |
| the same way, alive at once, and the program can no longer |                                |
| reach the first: nothing of its own refers to it           | leak                           |
| the same by a mesh, `MANY` times: meshes know their groups |                                |
| by name only                                               | leak                           |
| groups of the same ranks that the program keeps            | legal: one for each purpose    |
| groups of other ranks, or at other lines                   | legal: subgroups               |
| each destroyed before the next one                         | legal                          |
| the program made the world on NCCL and left it             | leak: NCCL asks for it         |
| some ranks took the world down that the program made,      | leak of the others             |
| others never did                                           |                                |
| none did, on Gloo; or Phalanx made the world               | legal                          |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from phalanx.journal.events import GroupDestroyed, GroupMade, GroupRecord, Noted
from phalanx.journal.reader import Journal
from phalanx.matching.hints import name_ranks
from phalanx.model import CallBlock, Finding, Group, Op, Site

KIND = "leak"
FEW, MANY = 3, 8


@dataclass(frozen=True)
class Making:
    """Groups of one set of ranks, made at one place. `most` were alive at once; `lost` says
    that the program cannot reach the first of them any more, `by_name` that this cannot be
    seen because they were made by a mesh.

    These count one way to that place, which decides. `at_line` counts what a reader sees there,
    by whatever way: groups of these ranks, how many at once, and groups of any ranks."""

    ranks: tuple[int, ...]
    site: Site | None
    made: int
    most: int
    lost: bool
    by_name: bool = False
    backend: str = "gloo"
    at_line: tuple[int, int, int] | None = None


class ProfileHost(Protocol):
    """What this check asks of the engine besides the journal."""

    @property
    def profile(self) -> str | None: ...


def find_leaked_groups(journal: Journal, host: ProfileHost) -> Iterator[Finding]:
    yield from find_leaks(map(_making, journal.noted(KIND)))
    yield from _find_left_worlds(journal, host.profile)


def _making(event: Noted) -> Making:
    ranks, *rest = event.what
    return Making(ranks, event.site, *rest)


def _find_left_worlds(journal: Journal, profile: str | None) -> Iterator[Finding]:
    """Worlds that the program itself made. Those that Phalanx made it also ends."""
    worlds: dict[GroupRecord, dict[int, GroupMade]] = {}
    for made in journal.rare(GroupMade):
        if made.default and made.by_program:
            worlds.setdefault(made.group, {})[made.rank] = made
    if not worlds:
        return
    ended: dict[GroupRecord, dict[int, GroupDestroyed]] = {}
    for event in journal.rare(GroupDestroyed):
        ended.setdefault(event.group, {})[event.rank] = event
    for world, ends in worlds.items():
        gone = ended.get(world, {})
        left = [rank for rank in sorted(ends) if rank not in gone]
        if left:
            backend = "nccl" if profile == "nccl" else world.backend
            group = Group(world.name, world.ranks)
            found = find_left_world(left, backend, ends[left[0]].site) or find_kept_world(
                [Op(r, "init_process_group", group, site=ends[r].site) for r in left],
                [
                    Op(r, "destroy_process_group", group, site=gone[r].site)
                    for r in sorted(gone)
                ],
            )
            if found is not None:
                yield found


def find_leaks(makings: Iterable[Making]) -> tuple[Finding, ...]:
    """One finding for each line."""
    by_site: dict[Site | None, list[Making]] = {}
    for making in makings:
        if making.most >= (MANY if making.by_name else FEW) and (making.lost or making.by_name):
            by_site.setdefault(making.site, []).append(making)
    return tuple(_leak(found) for found in by_site.values())


def _leak(found: Sequence[Making]) -> Finding:
    largest = max(found, key=lambda making: (making.most, making.ranks))
    ranks = tuple(sorted({rank for making in found for rank in making.ranks}))
    name = "init_device_mesh" if largest.by_name else "new_group"
    site = largest.site
    group = Group(largest.backend, largest.ranks)
    op = Op(rank=ranks[0], name=name, group=group, site=site)
    return Finding(
        kind="leak",
        severity="warning",
        ranks=ranks,
        headline=_headline(largest),
        blocks=(CallBlock(ranks, op),),
        facts=(("rule", "each group holds connections and memory until it is destroyed"),),
        hint=(
            "make it once and keep it, or call dist.destroy_process_group(group) when it is "
            "done with"
        ),
    )


def _headline(making: Making) -> str:
    made, most, total = making.at_line or (making.made, making.most, making.made)
    others = f", and {total - made} of other ranks" if total > made else ""
    return (
        f"{making.site} made a group of the same ranks {made} times{others}; "
        f"{most} were alive at once"
    )


def find_left_world(ranks: Sequence[int], backend: str, site: Site | None) -> Finding | None:
    """The ranks that made a world on NCCL and ended without taking it down."""
    if not ranks or "nccl" not in backend:
        return None
    op = Op(
        rank=ranks[0],
        name="init_process_group",
        group=Group("world", tuple(ranks)),
        site=site,
    )
    who = "a rank" if len(ranks) == 1 else f"{len(ranks)} ranks"
    return Finding(
        kind="leak",
        severity="warning",
        ranks=tuple(ranks),
        headline=f"{who} ended without destroy_process_group, which NCCL asks for",
        blocks=(CallBlock(tuple(ranks), op),),
        facts=(
            (
                "rule",
                "NCCL warns at exit, and what is in flight may be lost or hang",
            ),
        ),
        hint="call dist.destroy_process_group() as the last thing on every rank",
    )


def find_kept_world(kept: Sequence[Op], ended: Sequence[Op]) -> Finding | None:
    """Ranks that made a world and ended without taking it down, where others did so.
    `kept` and `ended` are their calls of `init_process_group` and `destroy_process_group`."""
    if not kept or not ended:
        return None
    ranks, callers = (tuple(op.rank for op in ops) for ops in (kept, ended))
    return Finding(
        kind="leak",
        severity="warning",
        ranks=ranks,
        headline=(
            f"{name_ranks(ranks)} ended without destroy_process_group, "
            f"where {name_ranks(callers)} called it"
        ),
        blocks=(*_by_line(ended), *_by_line(kept, "<- never ended")),
        facts=(("rule", "all ranks take the world down, or leave it to the end of the run"),),
        hint="call dist.destroy_process_group() as the last thing on every rank",
    )


def _by_line(ops: Sequence[Op], mark: str = "") -> list[CallBlock]:
    alike: dict[Site | None, list[Op]] = {}
    for op in ops:
        alike.setdefault(op.site, []).append(op)
    return [
        CallBlock(tuple(op.rank for op in same), same[0], (), mark) for same in alike.values()
    ]
