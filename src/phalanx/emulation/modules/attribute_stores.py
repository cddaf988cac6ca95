"""Which attributes the program's code may set on things that are not its own.

`torch.nn.Linear.forward = mine`, `setattr(dist, "all_reduce", mine)` and
`mock.patch("torch.nn.functional.relu")` leave no trace that could be asked for cheaply, but the
code says which names it sets. So only those need to be compared at hand-overs. Used by
`monkeypatches.py`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

Stored = tuple[str | None, str]
"""The last name of whose attribute, where the code tells it; the attribute's name."""

SETTERS = {"setattr", "patch", "monkeypatch", "__setattr__"}
"""Who mentions one of these may set whatever it has a string for."""

_EXTENDED, _STORE = dis.opmap["EXTENDED_ARG"], dis.opmap["STORE_ATTR"]
_CACHE = dis.opmap.get("CACHE", 0)
_shifted = {
    dis.opmap[name]
    for name, since in (("LOAD_GLOBAL", (3, 11)), ("LOAD_ATTR", (3, 12)))
    if sys.version_info >= since
}
"""Instructions whose number of a name is followed by a bit of another meaning."""


def stored(code: CodeType, *, by_strings: bool = True) -> set[Stored]:
    """By this code and all that is in it."""
    codes = [*_nested(code)]
    found = {each for one in codes for each in _assigned(one)}
    if by_strings and any(not SETTERS.isdisjoint(one.co_names) for one in codes):
        found.update(each for one in codes for each in _named(one.co_consts))
    return found


def mentioned(code: CodeType) -> set[str]:
    """All names in it."""
    return {name for one in _nested(code) for name in one.co_names}


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _nested(each)


def _assigned(code: CodeType) -> Iterator[Stored]:
    """Except on `self`."""
    raw = code.co_code
    if _STORE not in raw[::2]:
        return
    extended, before = 0, (0, 0)
    for operation, number in zip(raw[::2], raw[1::2], strict=True):
        if operation == _CACHE:
            continue
        if operation == _EXTENDED:
            extended = (extended | number) << 8
            continue
        number, extended = number | extended, 0
        if operation == _STORE:
            owner = _loaded(code, *before)
            if owner != "self":
                yield owner, code.co_names[number]
        before = operation, number


def _loaded(code: CodeType, operation: int, number: int) -> str | None:
    """The last name of what this instruction loads."""
    name = dis.opname[operation]
    if name in ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR"):
        return code.co_names[number >> 1 if operation in _shifted else number]
    if name.startswith("LOAD_FAST"):
        place = number & 15 if name.count("LOAD_FAST") == 2 else number
        return code.co_varnames[place] if place < len(code.co_varnames) else None
    return None


def _named(constants: Any) -> Iterator[Stored]:
    for each in constants:
        if isinstance(each, str) and len(each) < 100:
            before, _, name = each.rpartition(".")
            if name.isidentifier():
                yield before.rpartition(".")[2] or None, name
