"""Stand-in for torch's process-wide `_world` object: the calling rank's own state.

Threads that belong to no rank get the original object, so real process groups of the
surrounding program keep working during a run. Installed by `torch_patches.py`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from phalanx.core.strand import here

_FIELDS = (
    "default_pg",
    "pg_map",
    "pg_names",
    "pg_group_ranks",
    "pg_backend_config",
    "group_count",
    "tags_to_pg",
    "pg_to_tag",
    "pg_coalesce_state",
    "comms",
)


class PerRankWorld:
    """Each field is a property that looks the rank up first.

    torch reads three fields in every collective, so the look-up is a chain of attributes that C
    code follows. In a thread of no rank the chain breaks off with an AttributeError, and
    Python asks `__getattr__`.
    """

    _here = here

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        if name not in _FIELDS:
            # pg_config_info and whatever a later torch adds: computed from the fields
            attribute = getattr(type(self._original), name, None)
            if isinstance(attribute, property) and attribute.fget is not None:
                return attribute.fget(self)
        return getattr(self._original, name)


def _field(name: str) -> property:
    def write(self: PerRankWorld, value: Any) -> None:
        strand = here.strand
        setattr(self._original if strand is None else strand.local.torch_state, name, value)

    return property(attrgetter(f"_here.strand.local.torch_state.{name}"), write)


for _name in _FIELDS:
    setattr(PerRankWorld, _name, _field(_name))
