"""Let ranks that make the same mesh share the work of making its groups.

torch asks every rank to call `new_group` for every group of a mesh, also for those that it is
not in: in a mesh of 16 x 16 x 16 these are 768 calls of each of 4,096 ranks, and three of them
make a group. Here one rank goes torch's way and notes its calls. The others, if all that
these depend on is the same, call `new_group` for their own groups, and only count the rest: the
numbers of groups, by which ranks find each other, and what is compared between ranks stay as
they would be. Used by the hook at `DeviceMesh`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch.distributed as dist

from phalanx import callsite
from phalanx.backend.group_history import KIND, creations_of, note_creation
from phalanx.backend.session import RankContext
from phalanx.matching.groups import Spot

DEFAULT = (None, None)
"""What torch has for a dimension whose groups are as the default group."""


class MeshGroup(NamedTuple):
    """One group of a mesh, as `new_group` is called for it."""

    ranks: tuple[int, ...]
    backend: Any
    timeout: Any
    description: str | None


class MeshPlan:
    """The groups of a mesh in the order in which they are made, and which of them each rank is
    in. `spots` are these groups as the comparison between ranks has them."""

    def __init__(self, groups: list[MeshGroup], spots: list[Spot]) -> None:
        self.groups = groups
        self.spots = spots
        self.own: dict[int, list[int]] = {}
        for index, group in enumerate(groups):
            for rank in group.ranks:
                self.own.setdefault(rank, []).append(index)


def make(
    context: RankContext,
    original: Callable[..., list[Any]],
    layout: Any,
    rank_map: Any,
    names: Any,
    override: Any,
) -> list[Any]:
    """Make the groups of a mesh, or the rank's part of them; their names, by dimension."""
    key = _key(context, layout, rank_map, names, override)
    if key is None:
        return original(layout, rank_map, names, override)
    known: MeshPlan | None = context.session.meshes.get(key)
    if known is not None:
        return _make_own(context, known)
    noted: list[Any] = []
    context.makes = noted
    try:
        found = original(layout, rank_map, names, override)
    finally:
        context.makes = None
    plan = _plan(context, noted)
    if found and len(found) == len(plan.own.get(context.torch_state.default_pg.rank(), ())):
        context.session.meshes[key] = plan
    return found


def _plan(context: RankContext, noted: list[Any]) -> MeshPlan:
    """From what torch's maker of groups was given."""
    groups = [
        MeshGroup(tuple(args[2]), args[3], kwargs.get("timeout"), kwargs.get("group_desc"))
        for args, kwargs in noted
    ]
    creations = creations_of(context)
    spots = creations.last_of(context.rank, len(groups)) if creations is not None else []
    return MeshPlan(groups, spots)


def _key(
    context: RankContext, layout: Any, rank_map: Any, names: Any, override: Any
) -> Hashable | None:
    """All that the calls depend on; None where it could be more than this."""
    state = context.torch_state
    group = state.default_pg
    if (
        context.makes is not None
        or any(each != DEFAULT for each in override)
        or group.bound_device_id is not None
        or context.environ.get("TORCH_DIST_INIT_BARRIER", "0") != "0"
    ):
        return None
    backend, _ = state.pg_map[group]
    ranks = tuple(rank_map.tolist())
    return (*group._place, state.group_count, str(backend), layout, ranks, names)


def _make_own(context: RankContext, plan: MeshPlan) -> list[Any]:
    """Call `new_group` for the rank's own groups, and count the others."""
    state = context.torch_state
    mark = callsite.mark(2)
    names, at = [], 0
    for index in plan.own.get(state.default_pg.rank(), ()):
        _skip(context, plan, at, index, mark)
        group = plan.groups[index]
        made: Any = dist.new_group(
            list(group.ranks),
            timeout=group.timeout,
            backend=group.backend,
            group_desc=group.description,
        )
        names.append(made.group_name)
        at = index + 1
    _skip(context, plan, at, len(plan.groups), mark)
    return names


def _skip(
    context: RankContext, plan: MeshPlan, start: int, end: int, mark: callsite.Mark | None
) -> None:
    """Do for groups that the rank is not in what is left of `new_group` then."""
    if start == end:
        return
    state = context.torch_state
    state.group_count += end - start
    places = {member: place for place, member in enumerate(plan.groups[end - 1].ranks)}
    state.pg_group_ranks[dist.GroupMember.NON_GROUP_MEMBER] = places
    creations = creations_of(context) if KIND in context.session.kinds else None
    if creations is None or creations.repeat(context.rank, plan.spots[start:end], mark):
        return
    for group in plan.groups[start:end]:
        note_creation(context, group.ranks, str(group.backend), mark)
