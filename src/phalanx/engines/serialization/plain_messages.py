"""What ranks and the referee tell each other, as data that can bring no code.

Used at both ends of the referee's wire, which may be a network. A pickle can name any function
and have it called; these name one, whose stand-in at the reader's end builds values of a closed
set: those of Python itself, the frozen words of Phalanx, and descriptions of code that show
where a line is and cannot be executed. Everything else is refused. Who knows the token can tell
the referee wrong things and make it use up memory, but can run nothing.
"""

from __future__ import annotations

import functools
import hashlib
import io
import marshal
import opcode
import pickle
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import CodeType
from typing import Any

from phalanx import model
from phalanx.checks.replicas.replica_samples import Sample, SamplerFacts
from phalanx.checks.results.noted_results import Cut, Lost, OffRoot, Reached
from phalanx.checks.unwaited_work import Unwaited
from phalanx.journal import events
from phalanx.matching import announcement

_BASIC = (bool, int, float, str, bytes, tuple)

LONGEST_CODE = 1 << 22
"""Bytes of instructions of one function."""
MOST_ARGUMENTS = 1 << 12

_NOP = opcode.opmap["NOP"]
_HAS_COLUMNS = sys.version_info >= (3, 11)
_BYTES = dict.fromkeys(range(10), 1) | {10: 2, 11: 2, 12: 2}
_NUMBERS = {13: 1, 14: 4}
"""What follows the first byte of an entry in a table of positions, by kind: so many bytes, or
so many numbers of any length."""


class NotPlain(ValueError):
    """A message holds what no message may hold."""


def made(kind: str, parts: tuple[Any, ...]) -> Any:
    """What the pickles name; a reader puts `_Maker` in its place, and nobody calls this."""
    raise NotPlain(f"{kind} is built by `load_plain` only")


def dump_plain(thing: Any, names: Mapping[Any, str] | None = None) -> bytes:
    """The message for `load_plain`. Records of groups travel by their `names`. What is of no
    kind that travels goes as its text."""
    file = io.BytesIO()
    _MessagePickler(file, names or {}).dump(thing)
    return file.getvalue()


def load_plain(data: bytes, named: Callable[[str], Any] | None = None) -> Any:
    """What is in a message; raises if it is not plain data. `named` finds the record of a group
    by its name."""
    return _MessageUnpickler(io.BytesIO(data), named).load()


class _MessagePickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, names: Mapping[Any, str]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = names

    def reducer_override(self, thing: Any) -> Any:
        """Asked of everything that is not exactly of a type of Python's own."""
        kind = type(thing)
        if kind in _FIELDS:
            return made, (kind.__name__, tuple(getattr(thing, name) for name in _FIELDS[kind]))
        if kind in _TUPLES:
            return made, (kind.__name__, tuple(thing))
        if kind is CodeType:
            return made, ("code", _parts_of_code(thing))
        if kind is events.GroupRecord:
            return made, ("group", (self._names[thing],))
        if thing is made:
            return NotImplemented
        return _as_basic(thing)


def _as_basic(thing: Any) -> Any:
    """Numbers, texts and tuples of classes of their own, such as `torch.Size`, as what they
    are."""
    kinds: tuple[Any, ...] = _BASIC
    for kind in kinds:
        if isinstance(thing, kind):
            return made, (kind.__name__, (kind(thing),))
    return made, ("str", (str(thing),))


class _Maker:
    """Stands for `made` in a reader. Without attributes: a pickle could set them."""

    __slots__ = ()

    def __call__(self, kind: str, parts: tuple[Any, ...]) -> Any:
        if type(kind) is not str or type(parts) is not tuple:
            raise NotPlain("a value is described by its kind and its parts")
        build = _BUILD.get(kind)
        if build is None:
            raise NotPlain(f"{kind[:80]!r} is nothing that travels")
        return build(parts)


class _GroupMaker(_Maker):
    """The same for messages that name groups."""

    __slots__ = ("_named",)

    def __init__(self, named: Callable[[str], Any]) -> None:
        self._named = named

    def __call__(self, kind: str, parts: tuple[Any, ...]) -> Any:
        if kind == "group" and type(parts) is tuple and len(parts) == 1:
            return self._named(parts[0])
        return super().__call__(kind, parts)


_MAKER = _Maker()


class _MessageUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, named: Callable[[str], Any] | None) -> None:
        super().__init__(file)
        self._maker = _MAKER if named is None else _GroupMaker(named)

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) != (__name__, "made"):
            raise NotPlain(f"a message names {module}.{name}"[:200])
        return self._maker

    def persistent_load(self, pid: Any) -> Any:
        raise NotPlain("a message refers to something outside")


# -- the closed set ---------------------------------------------------------------------------


_NOTED = (Cut, Lost, OffRoot, Reached, Unwaited)


def _frozen_words() -> dict[type, tuple[str, ...]]:
    words = (*vars(model).values(), *vars(announcement).values(), *_NOTED)
    return {
        word: tuple(each.name for each in fields(word))
        for word in words
        if isinstance(word, type) and is_dataclass(word)
    }


_FIELDS = _frozen_words()
_TUPLES: frozenset[Any] = frozenset((*events.KINDS.values(), Sample, SamplerFacts))


def _word(kind: type, names: tuple[str, ...], parts: tuple[Any, ...]) -> Any:
    """Without its `__init__`, which would take it field by field."""
    word: Any = object.__new__(kind)
    vars(word).update(zip(names, parts, strict=True))
    return word


def _event(kind: Any, parts: tuple[Any, ...]) -> Any:
    return kind(*parts)


def _basic(kind: type, parts: tuple[Any, ...]) -> Any:
    (value,) = parts
    if type(value) is not kind:
        raise NotPlain(f"{kind.__name__} is described by another kind of value")
    return value


def _parts_of_code(code: CodeType) -> tuple[Any, ...]:
    """Where its lines are, and what it takes. The digest tells apart what is written at one
    place."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return (
        code.co_filename,
        code.co_name,
        getattr(code, "co_qualname", code.co_name),
        code.co_firstlineno,
        arguments,
        len(code.co_code),
        code.co_linetable,
        hashlib.blake2b(marshal.dumps(code), digest_size=16).digest(),
    )


_KINDS_OF_PARTS = (str, str, str, int, tuple, int, bytes, bytes)


def _code(parts: tuple[Any, ...]) -> CodeType:
    if tuple(map(type, parts)) != _KINDS_OF_PARTS:
        raise NotPlain("code is described by other values")
    return _code_of(*parts)


@functools.lru_cache(maxsize=4096)
def _code_of(
    file: str,
    name: str,
    qualname: str,
    first: int,
    arguments: tuple[str, ...],
    length: int,
    table: bytes,
    digest: bytes,
) -> CodeType:
    """One object for equal code: ranks run the same, and it is compared again and again. It
    has places and no instructions."""
    usual = 0 <= length <= LONGEST_CODE and length % 2 == 0 and 0 <= first < 1 << 31
    if not usual or not _is_well_formed(table):
        raise NotPlain("code is described by a table that no compiler writes")
    if len(arguments) > MOST_ARGUMENTS or any(type(each) is not str for each in arguments):
        raise NotPlain("code is described with arguments that no compiler writes")
    places: dict[str, Any] = {"co_qualname": qualname} if _HAS_COLUMNS else {}
    return _NOTHING.replace(
        co_filename=file,
        co_name=name,
        co_firstlineno=first,
        co_varnames=arguments,
        co_nlocals=len(arguments),
        co_argcount=len(arguments),
        co_code=bytes((_NOP, 0)) * (length // 2),
        co_consts=(digest,),
        co_linetable=table,
        **places,
    )


def _nothing() -> None: ...


_NOTHING = _nothing.__code__


def _is_well_formed(table: bytes) -> bool:
    """Whether what reads the table stays inside it: Python's own reader trusts it."""
    if not _HAS_COLUMNS:
        return len(table) % 2 == 0
    at, end = 0, len(table)
    while at < end:
        if not table[at] & 0x80:
            return False
        kind = (table[at] >> 3) & 15
        at += 1 + _BYTES.get(kind, 0)
        for _ in range(_NUMBERS.get(kind, 0)):
            while at < end and table[at] & 0x40:
                at += 1
            at += 1
    return at == end


_BUILD: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    **{k.__name__: functools.partial(_word, k, names) for k, names in _FIELDS.items()},
    **{k.__name__: functools.partial(_event, k) for k in _TUPLES},
    **{k.__name__: functools.partial(_basic, k) for k in _BASIC},
    "code": _code,
}
