"""What is sent from pytest's process to a rank's process and back, for one test.

Used by `on_processes.py` on one side and `in_rank.py` on the other. Errors are sent as pickles
where possible, otherwise by name and bases, so that `xfail(raises=...)` sees their type.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from phalanx.testing.collection.marker import Ranks
from phalanx.testing.pytest.rank_record import Failure, Record
from phalanx.testing.pytest_compat import pytest_private as private


@dataclass(frozen=True)
class ItemTask:
    """A rank's part of a test, as it is sent to the rank's process."""

    nodeid: str
    file: str
    args: tuple[str, ...]
    way: Ranks
    shared: Mapping[tuple[str, int], Any]
    extra: Mapping[str, Any]
    folder: str | None
    environ: Mapping[str, str | None] = field(default_factory=dict)
    """What has changed in the environment since the ranks began; None: it is gone."""
    worker: Any = None
    started_in: str = ""
    """Where pytest was started: its options and ids are relative to that."""
    working_in: str = field(default_factory=lambda: _current_folder())
    """Where it is now; a shared fixture may have gone elsewhere."""


def _current_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return ""


class PartFailed(Exception):
    """Carries a rank's record out of a call that failed. Its text is that of the error."""

    def __init__(self, text: str, record: Record) -> None:
        super().__init__(text, record)
        self.record = record

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Packed:
    """An error that travels."""

    data: bytes | None
    kind: str
    text: str
    bases: tuple[tuple[str, str], ...]


def pack_record(record: Record) -> Record:
    record.properties = [
        (name, value if is_picklable(value) else repr(value))
        for name, value in record.properties
    ]
    for failure in _failures(record):
        failure.error = pack_error(failure.error)  # type: ignore[assignment]
        if not is_picklable(failure.shown):
            failure.shown = str(failure.shown)
    return record


def note_of(record: Record) -> bytes | None:
    """The record so far, in case the rank does not reach its end."""
    failures = [replace(failure) for failure in record.failures]
    with suppress(Exception):
        packed = pack_record(
            replace(
                record, failures=failures, subtests=[], properties=[], for_junit=[], sections=[]
            )
        )
        return pickle.dumps(packed)
    return None


def read_note(data: bytes) -> Record | None:
    found: Any = None
    with suppress(Exception):
        found = pickle.loads(data)
    return unpack_record(found) if isinstance(found, Record) else None


def is_picklable(value: Any) -> bool:
    try:
        pickle.dumps(value)
    except Exception:
        return False
    return True


def unpack_record(record: Record) -> Record:
    for failure in _failures(record):
        if isinstance(failure.error, Packed):
            failure.error = unpack_error(failure.error)
    return record


def _failures(record: Record) -> list[Failure]:
    inner = [each.failure for each in record.subtests if each.failure is not None]
    return [*record.failures, *inner]


def pack_error(error: BaseException | None) -> Packed | None:
    if error is None:
        return None
    data, classes = None, type(error).__mro__
    if private.is_lookup_error(error):
        classes = classes[1:]
    else:
        with suppress(Exception):
            data = pickle.dumps(error, pickle.HIGHEST_PROTOCOL)
    bases = tuple((each.__module__, each.__qualname__) for each in classes)
    return Packed(data, type(error).__name__, private.message_of(error), bases)


def unpack_error(packed: Packed) -> BaseException:
    if packed.data is not None:
        with suppress(Exception):
            error = pickle.loads(packed.data)
            if isinstance(error, BaseException):
                return error
    return _stand_in(packed)


def _stand_in(packed: Packed) -> BaseException:
    """An error of the same name and text, derived from the closest class that is here."""
    text = packed.text
    base = next(filter(None, map(_find_class, packed.bases)), RuntimeError)
    made = type(packed.kind, (base,), {"__str__": lambda self: text})
    error: BaseException = base.__new__(made)
    error.args = (text,)
    return error


def _find_class(place: tuple[str, str]) -> type[BaseException] | None:
    found: Any = None
    with suppress(Exception):
        found = importlib.import_module(place[0])
        for part in place[1].split("."):
            found = getattr(found, part)
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    return found if is_error else None
