"""Functions of torch that the program replaces (`torch.nn.Linear.forward = mine`).

Every rank's copy of a module does that, and torch is shared: the last one's would be used by
all, and one that wraps what it finds would wrap it once per rank. So when a rank gives the
baton away after it has imported modules of its own, torch is compared with what it was; what
the program has replaced is swapped with the baton from then on (`attributes.py`), and put back
after the run. Used by `isolating.py` and, at hand-overs, by
`isolation/switcher.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from phalanx.running.attributes import add, places
from phalanx.running.modules.seen import is_apart

PARTS = ("nn", "optim", "distributed", "utils.data", "autograd", "cuda", "amp", "serialization")
"""Besides `torch` itself, where programs replace something."""
LOOKS = 8
"""How many hand-overs are looked at, each for a millisecond, since a run has begun or any rank
was the first to import a module. What one rank does then, the others do as well."""

due: list[None] = []
"""One entry for each hand-over that is still to be looked at."""

_functions: list[tuple[Any, str, Any]] = []
"""Owner, name and value of what could be replaced, as it was before the run."""
_known: set[str] = set()
"""The modules they come from."""
_new: set[str] = set()
_harmless: set[str] = set()
"""Files that ranks have loaded in this run, and those after which nothing was replaced."""


def expect(file: str) -> None:
    """Code of the program's is about to be executed by the first of the ranks."""
    if file in _harmless or file in _new:
        return
    if not _new:
        _begin()
    _new.add(file)
    due.extend([None] * (LOOKS - len(due)))


def end() -> None:
    """After a run in which ranks had modules of their own: put back what was replaced so late
    that nobody has seen it."""
    if _new:
        late = list(_replaced())
        for place, name, value in late:
            setattr(place, name, value)
        watched = {(id(place), name) for place, name, _ in _functions}
        if not late and not any((id(place), name) in watched for place, name in places):
            _harmless.update(_new)
    _new.clear()
    due.clear()


def _begin() -> None:
    now = {name for name in sys.modules if _is_watched(name)}
    if now == _known:  # as in a run before: only values may have changed
        _functions[:] = [(place, name, vars(place).get(name)) for place, name, _ in _functions]
        return
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
    if name in ("torch", "torch._tensor"):
        return True
    part = name.removeprefix("torch.")
    return part != name and any(part == each or part.startswith(f"{each}.") for each in PARTS)


def _methods(kind: type) -> Iterator[tuple[Any, str, Any]]:
    for name, value in list(vars(kind).items()):
        if isinstance(value, FunctionType):
            yield kind, name, value


def look() -> None:
    """Before a rank gives the baton away: keep apart what it has replaced."""
    due.pop()
    for place, name, value in list(_replaced()):
        if (place, name) not in places:
            add(place, name, value)


def _replaced() -> Iterator[tuple[Any, str, Any]]:
    """What is not as it was before, by a function or class of the program's."""
    for place, name, value in _functions:
        now = vars(place).get(name)
        if now is not value and _is_programs(now):
            yield place, name, value


def _is_programs(thing: Any) -> bool:
    """Whether it was defined in a module that is each rank's own."""
    if isinstance(thing, FunctionType):
        return is_apart(str(thing.__globals__.get("__name__")))
    return isinstance(thing, type) and is_apart(thing.__module__)
