"""Which attributes a program's code may set on things that are not its own.

`stored(code)` names them: `torch.nn.Linear.forward = mine`, `setattr(dist, "all_reduce", mine)`
and `mock.patch("torch.nn.functional.relu")`. Such an assignment leaves nothing that could be
looked up cheaply later, but the code says which names it sets, so only these need to be
compared at every hand-over. Used by `monkeypatches.py`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Set
from types import CodeType
from typing import Any

Stored = tuple[str | None, str]
"""The last name of the owner (None if the code does not tell), and the attribute's name."""

SETTERS = {"setattr", "patch", "monkeypatch", "__setattr__"}
"""Code that mentions one of these may set every name that it has a string for."""

_STORE = dis.opmap["STORE_ATTR"]
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_DEREF", "LOAD_FAST")


def stored(
    code: CodeType, *, by_strings: bool = True, owners: Set[str] | None = None
) -> set[Stored]:
    """What this code, and all code inside of it, may set. Given `owners`, functions that
    mention none of them are left out: to disassemble a whole library takes a second."""
    codes = [*_nested(code)]
    found = {each for one in codes if _mentions(one, owners) for each in _assigned(one)}
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


def _mentions(code: CodeType, owners: Set[str] | None) -> bool:
    return owners is None or not owners.isdisjoint(
        (*code.co_names, *code.co_varnames, *code.co_freevars)
    )


def _assigned(code: CodeType) -> Iterator[Stored]:
    """What it assigns to, except attributes of `self`."""
    if _STORE not in code.co_code[::2]:
        return
    owner = None
    for each in dis.get_instructions(code):
        if each.opname == "EXTENDED_ARG":
            continue
        if each.opname == "STORE_ATTR" and owner != "self":
            yield owner, each.argval
        owner = _loaded(each)


def _loaded(instruction: dis.Instruction) -> str | None:
    """The last name of what it loads. Some load two things, the owner as the second."""
    if not instruction.opname.startswith(_LOADS):
        return None
    value = instruction.argval
    return value[-1] if isinstance(value, tuple) else str(value)


def _named(constants: Any) -> Iterator[Stored]:
    for each in constants:
        if isinstance(each, str) and len(each) < 100:
            before, _, name = each.rpartition(".")
            if name.isidentifier():
                yield before.rpartition(".")[2] or None, name
