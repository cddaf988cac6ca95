"""Functions of torch that the program replaces (`torch.nn.Linear.forward = mine`).

Every rank's copy of a module replaces them, but torch is shared: all ranks would use the last
rank's function, and a function that wraps the one it finds would wrap it once per rank. So when
a rank that has imported modules of its own hands the baton over, torch is compared with its
former state. A full comparison takes a millisecond and is made a few times; at every hand-over
only the names that the program's code sets (`attribute_stores.py`) are compared. A replaced
name is swapped with the baton from then on (`torch_attributes.py`) and put back after the run.
Used by `isolating.py` and, at hand-overs, by `switcher.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

from phalanx.backend.torch_private.private_registries import OF_TENSOR
from phalanx.emulation.modules.attribute_stores import Stored, mentioned, stored
from phalanx.emulation.modules.isolation_rule import is_installed
from phalanx.emulation.modules.module_view import is_apart, on_adoption
from phalanx.emulation.state.torch_attributes import add, places

PARTS = ("nn", "optim", "distributed", "utils.data", "autograd", "cuda", "amp", "serialization")
"""The parts of torch, besides `torch` itself, in which programs replace names."""
LOOKS = 8
"""The number of hand-overs with a full comparison, each a millisecond, after a run has begun or
a rank was the first to import a module. What one rank does then, the others do as well."""

due: list[None] = []
"""One entry for each full comparison that is still to be made."""

watched: list[PatchedName] = []
"""Names that are compared at every hand-over, because the program's code mentions them."""
MOST_PLACES = 16
"""A name that torch has in more places than this is watched only in those whose own name the
code mentions."""

_noted: set[str] = set()
"""Files whose code was read in this run."""
_stored: dict[int, tuple[CodeType, set[Stored], set[str]]] = {}
_functions: list[tuple[Any, str, Any]] = []
"""Owner, name and value of what could be replaced, as it was before the run."""
_known: set[str] = set()
"""The modules they come from."""
_new: set[str] = set()
_harmless: set[str] = set()
"""Files that ranks have loaded in this run, and files after which nothing was replaced."""


class PatchedName:
    """One name in one module or class, as an attribute to swap."""

    __slots__ = ("is_apart", "names", "original", "place", "which")

    def __init__(self, place: Any, which: str) -> None:
        self.place = place
        self.which = which
        self.names = vars(place)
        self.original = self.names.get(which, MISSING)
        self.is_apart = False

    @property
    def content(self) -> tuple[Any, ...]:
        """The value in a tuple, which is not copied; empty if the name is not set."""
        return (self.names[self.which],) if self.which in self.names else ()

    @content.setter
    def content(self, value: tuple[Any, ...]) -> None:
        if value:
            setattr(self.place, self.which, value[0])
        elif self.which in self.names:
            delattr(self.place, self.which)

    def set_apart(self, original: Any) -> None:
        self.is_apart = True
        if not any(self.is_same(each) for each, _ in places):
            add(self, "content", () if original is MISSING else (original,))

    def is_same(self, other: Any) -> bool:
        return (
            type(other) is PatchedName
            and other.place is self.place
            and other.which == self.which
        )


MISSING: Any = object()


def expect_code(file: str, code: CodeType) -> None:
    """After `expect`, with the code to be executed: watch the names that it may set."""
    if file in _noted:
        return
    _noted.add(file)
    known = _stored.get(id(code))
    if known is None:
        if len(_stored) >= MOST_CODES:
            _stored.clear()
        known = _stored[id(code)] = code, *_settings_of(file, code)
    for slot in _slots(known[1], known[2]):
        if not any(slot.is_same(each) for each in watched):
            watched.append(slot)


MOST_CODES = 4096


def _settings_of(file: str, code: CodeType) -> tuple[set[Stored], set[str]]:
    """The names that it may set, and those that it mentions. Of a library, only names with a
    known owner: libraries replace functions while they are imported, and have strings for
    everything."""
    if is_installed(file):
        return stored(code, by_strings=False, owners=_index()[1].keys()), set()
    return stored(code), mentioned(code)


def _slots(names: set[Stored], mentioned: set[str]) -> Iterator[PatchedName]:
    by_name, by_owner = _index()
    for owner, name in names:
        owners = by_owner.get(owner or "", ())
        found = [place for place in owners if name in vars(place)]
        if not found and mentioned:
            found = by_name.get(name, [])
            if len(found) > MOST_PLACES:
                found = [place for place in found if _last_name(place) in mentioned]
        if not found and not name.startswith("__"):  # new in a class
            found = [place for place in owners if isinstance(place, type)]
        yield from (PatchedName(place, name) for place in found)


def _index() -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The places of every name, and the modules and classes by their own last name."""
    if not _indexed:
        by_name: dict[str, list[Any]] = {}
        owners: dict[int, Any] = {}
        for place, name, _ in _functions:
            by_name.setdefault(name, []).append(place)
            owners[id(place)] = place
        by_owner: dict[str, list[Any]] = {}
        for place in owners.values():
            by_owner.setdefault(_last_name(place), []).append(place)
        _indexed[:] = [by_name, by_owner]
    return _indexed[0], _indexed[1]


_indexed: list[Any] = []


def _last_name(place: Any) -> str:
    return str(place.__name__).rpartition(".")[2]


def expect(file: str) -> None:
    """The first rank is about to execute code of the program."""
    if file in _harmless or file in _new:
        return
    if not _new:
        _begin()
    _new.add(file)
    due.extend([None] * (LOOKS - len(due)))


on_adoption.append(expect)


def end() -> None:
    """After a run in which ranks had modules of their own: put back what was replaced after the
    last comparison."""
    if _new:
        late = list(_replaced())
        for place, name, value in late:
            setattr(place, name, value)
        if not late and not any(type(place) is PatchedName for place, _ in places):
            _harmless.update(_new)
    for slot in watched:
        if slot.names.get(slot.which, MISSING) is not slot.original:
            slot.content = () if slot.original is MISSING else (slot.original,)
    _new.clear()
    _noted.clear()
    due.clear()
    watched.clear()


def _begin() -> None:
    now = {name for name in sys.modules if _is_watched(name)}
    if now == _known:  # as in a run before: only values may have changed
        _functions[:] = [(place, name, vars(place).get(name)) for place, name, _ in _functions]
        return
    _indexed.clear()
    _stored.clear()
    _functions[:] = list(_found(now))
    _known.clear()
    _known.update(now)


def _found(names: Iterable[str]) -> Iterator[tuple[Any, str, Any]]:
    for name in names:
        for each, value in list(vars(sys.modules[name]).items()):
            if issubclass(type(value), _KINDS):  # by isinstance some give a warning
                yield sys.modules[name], each, value
            if issubclass(type(value), type) and value.__module__ == name:
                yield from _methods(value)


_KINDS = (FunctionType, BuiltinFunctionType, type)


def _is_watched(name: str) -> bool:
    if name in ("torch", OF_TENSOR):
        return True
    part = name.removeprefix("torch.")
    return part != name and any(part == each or part.startswith(f"{each}.") for each in PARTS)


def _methods(kind: type) -> Iterator[tuple[Any, str, Any]]:
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield kind, name, value


def look() -> None:
    """A full comparison before a rank hands the baton over: what it has replaced becomes its
    own."""
    due.pop()
    for place, name, value in list(_replaced()):
        PatchedName(place, name).set_apart(value)


def look_at_watched() -> None:
    """The same for what the program's code mentions, at every hand-over."""
    for slot in watched:
        now = slot.names.get(slot.which, MISSING)
        if now is not slot.original and not slot.is_apart and not _is_ours(now):
            slot.set_apart(slot.original)


def _is_ours(thing: Any) -> bool:
    """Whether this package has put it there."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__")).partition(".")[0] == "phalanx"
    return type(thing).__module__.partition(".")[0] == "phalanx"


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    """The names that hold a function or class of the program and did not before."""
    for place, name, value in _functions:
        now = vars(place).get(name)
        if now is not value and _is_programs(now):
            yield place, name, value


def _is_programs(thing: Any) -> bool:
    """Whether it was defined in a module that is each rank's own."""
    if isinstance(thing, FunctionType):
        return is_apart(str(thing.__globals__.get("__name__")))
    return isinstance(thing, type) and is_apart(thing.__module__)
