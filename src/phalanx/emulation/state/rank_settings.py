"""Settings of torch for a whole process: each rank has its own.

The functions that change a setting are wrapped during runs. The first rank that calls one makes
it a setting that is swapped with the baton; settings that no rank changes cost nothing. Used by
`switcher.py` (hand-overs) and `run_patches.py` (the wrapping).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, wraps
from typing import Any, NamedTuple

import torch

from phalanx.backend.session import RankContext
from phalanx.backend.torch_private import private_settings
from phalanx.core.strand import here
from phalanx.emulation.state import folder
from phalanx.emulation.state.borrowed_state import in_turn

Patch = tuple[Any, str, Any]
KEPT = "settings"
INTEROP = "interop threads"
"""Whether a rank has set their number."""


class RankSetting(NamedTuple):
    """A setting of the process. `writers` are the functions that change it."""

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    writers: tuple[tuple[Any, str], ...]


in_use: list[RankSetting] = []
"""The settings that a rank has changed since the first world was opened."""
_originals: list[Any] = []
"""Their values at that time."""


def current() -> list[Any]:
    """The values when a run begins."""
    return [setting.read() for setting in in_use]


def save(context: RankContext, outer: list[Any]) -> None:
    """Keep the values that differ; the rest follows the caller, also in a later run."""
    own = {}
    for number, (setting, before) in enumerate(zip(in_use, _everybodys(outer), strict=False)):
        value = setting.read()
        if value != before:
            own[number] = value
    context.saved[KEPT] = own


def load(context: RankContext, outer: list[Any]) -> None:
    own = context.saved.get(KEPT, {})
    for number, (setting, before) in enumerate(zip(in_use, _everybodys(outer), strict=False)):
        setting.write(own.get(number, before))


def _everybodys(outer: list[Any]) -> list[Any]:
    """The values of a rank that has changed nothing; `outer` was in use when the run began."""
    return [*outer, *_originals[len(outer) :]]


def restore(outer: list[Any]) -> None:
    """Put the caller's values back after a run."""
    for setting, value in zip(in_use, _everybodys(outer), strict=False):
        setting.write(value)


def forget() -> None:
    """Put the original values back after the last world."""
    in_use.clear()
    _originals.clear()
    _threads.forget()


def setting_patches() -> list[Patch]:
    """Patches for all functions by which programs change settings."""
    found: list[Patch] = []
    wrapped: dict[Any, Any] = {}
    for setting in _all_settings():
        for owner, name in setting.writers:
            original = getattr(owner, name)
            wrapped[original] = _noting(original, setting)
            found.append((owner, name, wrapped[original]))
    found.append((private_settings.flag_class, "__set__", _flag_setter(wrapped)))
    return found


@cache
def _all_settings() -> tuple[RankSetting, ...]:
    made = [RankSetting(*each) for each in private_settings.torch_settings()]
    if not folder.can_be_own():
        made.append(RankSetting(*folder.as_setting()))
    return tuple(made)


def _noting(original: Any, setting: RankSetting) -> Any:
    """Before a rank first changes the setting, note the common value."""

    @wraps(original)
    def change(*args: Any, **kwargs: Any) -> Any:
        if here.strand is None:
            return original(*args, **kwargs)
        with in_turn(here.strand):
            if setting not in in_use:  # in this order: others may look meanwhile
                _originals.append(copy(setting.read()))
                in_use.append(setting)
            return original(*args, **kwargs)

    return change


def _flag_setter(wrapped: dict[Any, Any]) -> Any:
    original = private_settings.flag_class.__set__

    def set_flag(flag: Any, owner: Any, value: Any) -> None:
        setter = getattr(flag, private_settings.FLAG_SETTER)
        if here.strand is None or setter not in wrapped:
            original(flag, owner, value)
            return
        stand_in = copy(flag)
        setattr(stand_in, private_settings.FLAG_SETTER, wrapped[setter])
        original(stand_in, owner, value)

    return set_flag


class _Threads:
    """How many threads an operation may use. torch keeps it per thread, and for new threads the
    number that was set last. So it is written in the thread of the rank that gets the baton;
    but it may be read by the monitor, when it takes the baton from a rank."""

    def __init__(self) -> None:
        self._set = torch.set_num_threads
        self._last: int | None = None

    def read(self) -> int:
        return torch.get_num_threads() if self._last is None else self._last

    def write(self, count: int) -> None:
        self._set(count)
        self._last = count

    def forget(self) -> None:
        self._last = None


_threads = _Threads()


def thread_patches() -> list[Patch]:
    """Numbers of threads. A rank's operations may use all cores, because one rank computes at
    a time; what a rank sets holds for that rank. The number of threads between operators can be
    set once per process, so each rank may set it once, and torch obeys the first."""
    setting = RankSetting(_threads.read, _threads.write, ())
    set_interop = torch.set_num_interop_threads

    @wraps(set_interop)
    def set_own(count: int) -> None:
        strand = here.strand
        if strand is None:
            set_interop(count)
            return
        saved = strand.local.saved
        if INTEROP in saved:
            raise RuntimeError(
                "set_num_interop_threads was called before in this rank; torch takes the "
                "number once per process, so call it once"
            )
        try:
            set_interop(count)
        except RuntimeError:
            if not isinstance(count, int) or count <= 0:
                raise
        saved[INTEROP] = True

    return [
        (torch, "set_num_threads", _noting(_threads.write, setting)),
        (torch, "set_num_interop_threads", set_own),
    ]
