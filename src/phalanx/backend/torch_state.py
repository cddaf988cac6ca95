"""What torch keeps once per process and ranks need once each: its `_world` object, and
containers on classes.

Threads that belong to no rank get the original, so real process groups of the surrounding
program keep working during a run. Used by `install`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from phalanx.backend.session import context_here
from phalanx.core.baton import here

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
    """Each field is a property that looks the rank up first."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __getattr__(self, name: str) -> Any:
        # pg_config_info and whatever a later torch adds: computed from the fields above
        attribute = getattr(type(self._original), name, None)
        if isinstance(attribute, property) and attribute.fget is not None:
            return attribute.fget(self)
        return getattr(self._original, name)


def _field(name: str) -> property:
    def read(self: PerRankWorld) -> Any:
        strand = here.strand
        return getattr(self._original if strand is None else strand.local.torch_state, name)

    def write(self: PerRankWorld, value: Any) -> None:
        strand = here.strand
        setattr(self._original if strand is None else strand.local.torch_state, name, value)

    return property(read, write)


for _name in _FIELDS:
    setattr(PerRankWorld, _name, _field(_name))


class PerRank:
    """Stands in for a dict or set that belongs to a class: one for each rank."""

    def __init__(self, original: Any, make: Callable[[], Any]) -> None:
        self._original = original
        self._make = make

    def _mine(self) -> Any:
        context = context_here()
        if context is None:
            return self._original
        key = f"per rank {id(self)}"
        if key not in context.saved:
            context.saved[key] = self._make()
        return context.saved[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __getitem__(self, key: Any) -> Any:
        return self._mine()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._mine()[key] = value

    def __contains__(self, key: Any) -> bool:
        return key in self._mine()

    def __iter__(self) -> Iterator[Any]:
        return iter(self._mine())

    def __len__(self) -> int:
        return len(self._mine())

    def __repr__(self) -> str:
        return repr(self._mine())
