"""Put replaced names in and take them out again: all or none, and exactly as they were.

The only module that puts replacements of ours into torch, the standard library or anything
else that is not ours. What may be replaced is listed in `patch_table.py`; a name without a row
there is refused. Whoever replaces something makes (owner, name, replacement) tuples and calls
`put_in`; names that several users need at a time belong in a `Held`, which counts them.

A forked child keeps what is in place: it is no rank, and for it every replacement does what the
original does.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from phalanx.emulation.patch_table import IF_STILL_OURS, TABLE, PatchRow

Patch = tuple[Any, str, Any]
"""Owner, name, replacement."""

_ABSENT: Any = object()


def put_in(when: str, patches: Iterable[Patch]) -> Callable[[], None]:
    """Replace these names, which must have rows of that mode; the function that undoes it. If
    one of them fails, those before it are taken back and the error is raised."""
    done: list[tuple[Any, str, Any, Any]] = []
    """Owner, name, what was there, and our replacement where that decides about the undoing."""
    try:
        for owner, name, replacement in patches:
            row = _row(when, owner, name)
            before = read(owner, name)
            ours = replacement if row.undo == IF_STILL_OURS else _ABSENT
            done.append((owner, name, before, ours))  # first, since Ctrl-C may come in between
            _write(owner, name, replacement)
    except BaseException:
        _take_out(done)
        raise
    return lambda: _take_out(done)


@contextmanager
def replaced(when: str, patches: Iterable[Patch]) -> Iterator[None]:
    """`put_in` for the time of a block."""
    take_out = put_in(when, patches)
    try:
        yield
    finally:
        take_out()


def read(owner: Any, name: str) -> Any:
    """What stands there, not what looking it up would give: a `staticmethod` is one, and what
    a class inherits it does not have."""
    if name == "__class__":
        return owner.__class__
    return vars(owner).get(name, _ABSENT)


def _take_out(done: list[tuple[Any, str, Any, Any]]) -> None:
    """Put back what was there, last first. If one fails or Ctrl-C comes in between, the others
    are put back all the same; then the first error is raised."""
    problem: BaseException | None = None
    while done:
        try:
            _put_back(*done[-1])
            done.pop()
        except BaseException as error:
            problem = problem or error
            if isinstance(error, Exception):
                done.pop()
    if problem is not None:
        raise problem


def _put_back(owner: Any, name: str, before: Any, ours: Any) -> None:
    if ours is not _ABSENT and read(owner, name) is not ours:
        return
    if before is not _ABSENT:
        _write(owner, name, before)
    elif name in vars(owner):
        delattr(owner, name)


def _write(owner: Any, name: str, value: Any) -> None:
    """Also into a class that is written in C, whose attributes cannot be set: everybody has
    such a class by the name under which it was imported, and a subclass in its place would be
    another class. Only of CPython's own, whose dictionary is that of the class."""
    try:
        setattr(owner, name, value)
    except TypeError:
        (attributes,) = gc.get_referents(vars(owner))
        attributes[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class Kept:
    """Patches that take long to make: made once, and anew if somebody has replaced one of the
    originals since."""

    def __init__(self, make: Callable[[], Iterable[Patch]]) -> None:
        self._make = make
        self._made: list[Patch] = []
        self._originals: list[Any] = []

    def patches(self) -> list[Patch]:
        """Must be called while they are not in place."""
        if not self._made or self._originals != self._now():
            self._made = list(self._make())
            self._originals = self._now()
        return self._made

    def forget(self) -> None:
        self._made = []

    def _now(self) -> list[Any]:
        return [_Same(read(owner, name)) for owner, name, _ in self._made]


class _Same:
    """Compares by identity and ignores `__eq__`."""

    __slots__ = ("_thing",)

    def __init__(self, thing: Any) -> None:
        self._thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._thing is self._thing

    __hash__ = None  # type: ignore[assignment]


class Held:
    """What is in place while anybody holds it. `begin` is given a stack, on which it leaves
    what undoes the things it has done; what it raises undoes those before."""

    def __init__(self, begin: Callable[[ExitStack], object]) -> None:
        self._begin = begin
        self._count = 0
        self._stack = ExitStack()
        self._lock = lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]

    def hold(self) -> None:
        with self._lock:
            if self._count == 0:
                with ExitStack() as stack:
                    self._begin(stack)
                    self._stack = stack.pop_all()
            self._count += 1

    def release(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._stack.close()

    @contextmanager
    def held(self) -> Iterator[None]:
        self.hold()
        try:
            yield
        finally:
            self.release()


_rows: dict[tuple[str, int, str], tuple[PatchRow, Any]] = {}
"""By mode, owner's identity and name, with the owner, so that its identity stays its own."""


def _row(when: str, owner: Any, name: str) -> PatchRow:
    found = _known(when, owner, name)
    if found is None:  # or its module was not imported when somebody asked last
        for row in TABLE:
            place = find_owner(row.owner)
            if place is not None:
                for mode in filter(None, (row.when, row.also)):
                    _rows[mode, id(place), row.name] = row, place
        found = _known(when, owner, name)
    if found is None:
        raise LookupError(
            f"{owner!r}.{name} has no row in patch_table.py for the mode {when!r}: add one "
            "that says what it is replaced for"
        )
    return found[0]


def _known(when: str, owner: Any, name: str) -> tuple[PatchRow, Any] | None:
    """By its name, or as one of a module whose functions are replaced one and all."""
    place = when, id(owner)
    return _rows.get((*place, name)) or _rows.get((*place, "*"))


def find_owner(path: str) -> Any:
    """The module, class or object of this dotted path; None if it is not imported, or if this
    version has none."""
    head, rest = path, list[str]()
    while head and head not in sys.modules:
        head, _, last = head.rpartition(".")
        rest.insert(0, last)
    found: Any = sys.modules.get(head)
    for part in rest:
        # of a module only what it has: torch imports parts of itself when it is asked for them
        is_plain = type(found) is ModuleType
        found = vars(found).get(part) if is_plain else getattr(found, part, None)
    return found
