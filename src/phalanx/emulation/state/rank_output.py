"""The descriptors to which a rank and its child processes write.

A rank may have put a file of its own at descriptor 1 or 2 (`descriptors.py`); then Python's
streams follow, as in a process. Otherwise a child inherits the descriptors of the process,
which ranks share. A door that shows what ranks print sets `for_children(rank, place)`, which
returns a descriptor to give to the child in place of 1 or 2. Used by `replaced_calls.py` and
`rank_children.py`; set by the command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from phalanx.core.strand import RUNNING, Strand
from phalanx.emulation.state.borrowed_state import visiting
from phalanx.emulation.state.descriptors import KEPT, STANDARD, originals

for_children: list[Callable[[int, int], int]] = []
"""The functions set so far, the innermost last."""

PLACES = {"stdout": 1, "stderr": 2}
A_FILE = 0
"""`destination` returns this for a file of the rank's own."""

_write = os.write


def child_streams(strand: Strand, given: dict[str, object]) -> dict[str, int]:
    """Arguments to add to those of `subprocess.Popen`: none that the program has given, and
    none for a descriptor at which the rank has put a file of its own."""
    if not for_children:
        return {}
    wanted = {
        name: destination(strand, place)
        for name, place in PLACES.items()
        if given.get(name) is None
    }
    return {
        name: for_children[-1](strand.rank, place)
        for name, place in wanted.items()
        if place != A_FILE
    }


def destination(strand: Strand, place: int) -> int:
    """Where the rank's output to descriptor 1 or 2 goes: to the process's own 1 or 2, or to a
    file that the rank has put there."""
    if place not in originals:
        return place
    with _descriptor(strand, place) as own:
        return place if own is None else _meaning(own, place)


@contextmanager
def _descriptor(strand: Strand, place: int) -> Iterator[int | None]:
    """The descriptor that the rank has at this place, if it was ever changed; for a thread that
    does not hold the baton, it may be a copy."""
    if strand.state is RUNNING:
        yield place
        return
    with visiting(strand) as is_in_place:
        yield place if is_in_place else strand.local.saved.get(KEPT, {}).get(place)


def _meaning(descriptor: int, place: int) -> int:
    for each in (place, *STANDARD):
        with suppress(OSError):  # one may be closed
            if os.path.sameopenfile(descriptor, originals.get(each, each)):
                return each
    return A_FILE


def write_to_file(strand: Strand, place: int, data: bytes) -> None:
    """Write all of it to the file that the rank has put there."""
    if strand.state is RUNNING:
        _write_all(place, data)
        return
    with _descriptor(strand, place) as own:
        copy = os.dup(place if own is None else own)  # writing may take long
    try:
        _write_all(copy, data)
    finally:
        os.close(copy)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[_write(descriptor, rest) :]
