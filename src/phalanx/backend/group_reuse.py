"""Hand the default group of one world over to the next, where nobody can tell the difference.

Making a group takes torch longer than a small test takes to run. Whoever runs many tests on
the same number of ranks (see `core/thread_pool.py`) gets it from here: the next world inherits
the group if the last one left everything about it as it was when it was made, and it starts
with nothing in it: no calls, no keys in its store. Otherwise torch makes a new one.
"""

from __future__ import annotations

from typing import Any

from phalanx.backend.session import RankContext, Session
from phalanx.backend.stores.store import InProcessStore

MEETING_KEYS = 1
"""What making the group leaves in its store: where its members meet."""


def take_stock(context: RankContext) -> None:
    """Right after the default group was made, in the rank. The group forgets it again when it
    is destroyed, or its number could be that of another one."""
    if context.torch_state.default_pg is None:  # somebody has replaced what makes it
        return
    *others, members, options = _state(context)
    ranks = list(options["global_ranks_in_group"])  # a list that can change in place
    context.stock = (*others, dict(members), {**options, "global_ranks_in_group": ranks})


def leaves_untouched(context: RankContext) -> bool:
    """Whether the rank leaves torch's tables and its group as they were. Asked in the rank when
    its body ends, and again if more came after that; a thread of its own could still make
    another group."""
    context.untouched = context.stock is not None and _state(context) == context.stock
    if context.helpers:
        context.untouched = False
    return context.untouched


def can_be_inherited(session: Session) -> bool:
    """After a run that went well."""
    store = session.stores["init"]
    return (
        len(session.mailboxes) == 1
        and len(session.stores) == 1
        and isinstance(store, InProcessStore)
        and store.is_as_new(MEETING_KEYS)
        and all(context.untouched for context in session.ranks)
    )


def made_more(session: Session) -> bool:
    """Whether a rank has made other groups besides one: a program may keep these by thread."""
    return any(sum(context.incarnations.values()) > 1 for context in session.ranks)


def inherit(session: Session, former: Session) -> None:
    """Give a new world, which has its `TorchState`s already, the groups of one that ended."""
    session.stores["init"] = former.stores["init"]
    session.has_nccl = former.has_nccl
    (place, met), *_ = former.mailboxes.items()
    met = session.mailboxes[place] = met.anew()
    session.journal.keep(met.record)
    for context, before in zip(session.ranks, former.ranks, strict=True):
        context.incarnations = before.incarnations
        context.initialised = True
        context.torch_state.default_pg.move_to(context, met)
        context.stock = before.stock
    former.dissolve()


def _state(context: RankContext) -> tuple[Any, ...]:
    """What a program could have changed, as far as torch and our group keep it."""
    state = context.torch_state
    group = state.default_pg
    if group is None:
        return ()
    return (
        id(group),
        state.group_count,
        len(state.pg_map),
        *state.pg_names.values(),
        *state.pg_backend_config.values(),
        *state.pg_to_tag.values(),
        len(state.pg_group_ranks),
        *map(len, state.tags_to_pg.values()),
        len(state.pg_coalesce_state),
        len(state.comms),
        *group.what_can_change(),
        state.pg_group_ranks.get(group, {}),
        vars(group.options),
    )
