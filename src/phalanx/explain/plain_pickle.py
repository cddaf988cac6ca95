"""Read a pickle that nobody vouches for: plain data comes out of it, or an error.

A pickle can name any function and have it called. This reader lets none be named: dicts, lists,
tuples, sets, text, bytes and numbers are built by the opcodes of the format itself, and that is
all that a dump consists of. What a few bytes can make huge is refused as well: sizes that are
announced, places in the memo, keys that take for ever to hash, and parts that occur in each
other again and again, so that a walk through them never ends.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable
from typing import Any, NoReturn

from phalanx.explain.rank_dump import DumpError

LARGEST = 1 << 30
"""Bytes of a dump: a ring of the default size has a few megabytes."""

_NAMING = frozenset(
    {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX"}
    | {"EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}
)

_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_HOLDING = frozenset({"list", "tuple", "dict", "set", "frozenset", "any"})
"""What `pickletools` calls values that hold others; the rest can be keys."""
MOST_VALUES = 1 << 26
"""Values in a dump, counted as often as they occur. Entries with all their frames have about
400 each."""


class _PlainUnpickler(pickle.Unpickler):
    """The second lock: the opcodes have been looked at before."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it refers to objects outside")


def load_plain(data: bytes, name: str) -> Any:
    """The plain data in a pickle. Raises `DumpError`; carries nothing out."""
    if len(data) > LARGEST:
        raise DumpError(f"{name}: {len(data) >> 20} MiB; no dump of a ring is that large")
    try:
        _check_opcodes(data, name)
        value = _PlainUnpickler(io.BytesIO(data)).load()
    except DumpError:
        raise
    except RecursionError:
        raise DumpError(f"{name}: nested too deeply for a dump; it was not read") from None
    except MemoryError:
        raise DumpError(f"{name}: it asks for more memory than there is; not read") from None
    except Exception as error:  # whatever a damaged pickle leads to
        raise DumpError(_damaged(name, error)) from None
    _check_sharing(value, name)
    return value


def _check_opcodes(data: bytes, name: str) -> None:
    stack = _KeyStack(len(data), name)
    for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
        if opcode.name in _NAMING:
            named = _shown(argument).replace(" ", ".") if isinstance(argument, str) else ""
            what = f" ({named})" if named else ""
            raise DumpError(
                f"{name}: this pickle would build objects or call functions{what}; a dump "
                "of the Flight Recorder has plain data only. It was not read: find out "
                "where it came from"
            )
        if number >= MOST_VALUES:
            raise DumpError(f"{name}: more than {MOST_VALUES} values; no dump has that many")
        stack.follow(opcode, argument)


class _KeyStack:
    """Follows the opcodes without building anything: which values can be keys. A tuple of
    tuples that share their parts takes for ever to hash, and nothing can interrupt that."""

    def __init__(self, size: int, name: str) -> None:
        self._size = size
        self._name = name
        self._stack: list[bool | None] = []
        """Whether each value can be a key; None is a mark."""
        self._memo: dict[int, bool | None] = {}

    def follow(self, opcode: pickletools.OpcodeInfo, argument: Any) -> None:
        name, stack = opcode.name, self._stack
        if name in _PUTS:
            self._put(int(argument))
        elif name == "MEMOIZE":
            self._put(len(self._memo))
        elif name in _GETS:
            stack.append(self._memo[int(argument)])
        elif name == "DUP":
            stack.append(stack[-1])
        elif name == "MARK":
            stack.append(None)
        else:
            taken = self._take(opcode)
            self._check_keys(name, taken)
            stack += [each.name not in _HOLDING for each in opcode.stack_after]

    def _put(self, place: int) -> None:
        """The memo is an array: a place in it costs as much memory as all before it."""
        if not 0 <= place <= self._size:
            raise DumpError(
                f"{self._name}: the pickle asks for place {place} of its memo, and has "
                f"{self._size} bytes; it was not read"
            )
        self._memo[place] = self._stack[-1]

    def _take(self, opcode: pickletools.OpcodeInfo) -> list[bool | None]:
        stack, before = self._stack, opcode.stack_before
        if pickletools.markobject not in before:
            count = len(before)
            if count > len(stack):
                raise ValueError(f"{opcode.name} finds too few values")
            taken = stack[len(stack) - count :]
            del stack[len(stack) - count :]
            return taken
        taken = []
        while (last := stack.pop()) is not None:
            taken.append(last)
        del stack[len(stack) - before.index(pickletools.markobject) :]
        return taken[::-1]

    def _check_keys(self, opcode: str, taken: Iterable[bool | None]) -> None:
        taken = list(taken)
        if opcode == "SETITEM":
            taken = taken[1:2]
        elif opcode in ("SETITEMS", "DICT"):
            taken = taken[::2]
        elif opcode not in ("ADDITEMS", "FROZENSET"):
            return
        if not all(taken):
            raise DumpError(
                f"{self._name}: the pickle has keys that are no text and no numbers; those of "
                "a dump are. It was not read"
            )


def _check_sharing(value: Any, name: str) -> None:
    """Refuse data that is small in the file and endless to whoever walks through it."""
    weights: dict[int, int | None] = {}
    """By identity; None while the parts are being weighed."""
    path = [value]
    while path:
        at = path[-1]
        parts = _parts(at)
        if weights.setdefault(id(at), None) is None:
            missing = [part for part in parts if _is_holding(part) and id(part) not in weights]
            if missing:
                path += missing
                continue
            known = [weights[id(p)] if _is_holding(p) else _weight(p) for p in parts]
            if None in known:
                raise DumpError(f"{name}: the pickle holds itself; no dump does")
            weights[id(at)] = 1 + sum(each for each in known if each is not None)
        path.pop()
    if (weights[id(value)] or 0) > MOST_VALUES:
        raise DumpError(
            f"{name}: parts of the pickle occur in each other again and again; no dump has "
            f"more than {MOST_VALUES} values"
        )


def _parts(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return list(value) if _is_holding(value) else []


def _is_holding(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set, frozenset))


def _weight(value: Any) -> int:
    """Long text is cut by readers, so each occurrence costs a copy."""
    return 126 if isinstance(value, str) and len(value) > 1000 else 1


def _damaged(name: str, error: Exception) -> str:
    return (
        f"{name}: the pickle is damaged or ends in the middle ({_shown(str(error))}); the rank "
        "may have died while it wrote: leave the file out"
    )


def _shown(text: str) -> str:
    return text.splitlines()[0][:80] if text else "no more is known"
