"""A rank's own environment, for Python code and for C code.

`os.environ` stays the same object; during runs its class is replaced by one that looks up the
calling rank. Used by `run_patches.py`, `switcher.py` and the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from phalanx.core.strand import RUNNING, here
from phalanx.emulation.state.borrowed_state import visiting


class RankEnviron(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environ` during runs: a rank reads and writes its own copy."""

    def __getitem__(self, key: str) -> str:
        own = own_environ()
        return super().__getitem__(key) if own is None else own[key]

    def __setitem__(self, key: str, value: str) -> None:
        own = own_environ()
        if own is None:
            super().__setitem__(key, value)
        elif not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            raise TypeError(f"str expected, not {type(wrong).__name__}")
        else:
            _show(key, value)  # first: it refuses names that cannot be
            own[key] = value

    def __delitem__(self, key: str) -> None:
        own = own_environ()
        if own is None:
            super().__delitem__(key)
        else:
            del own[key]
            _show(key, None)

    def __iter__(self) -> Iterator[str]:
        own = own_environ()
        return super().__iter__() if own is None else iter(list(own))

    def __len__(self) -> int:
        own = own_environ()
        return super().__len__() if own is None else len(own)

    def __repr__(self) -> str:
        own = own_environ()
        return super().__repr__() if own is None else f"environ({own!r})"


class RankEnvironBytes(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environb` during runs: the same variables, in bytes."""

    def __getitem__(self, key: bytes) -> bytes:
        own = own_environ()
        return super().__getitem__(key) if own is None else os.fsencode(own[os.fsdecode(key)])

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if own_environ() is None:
            super().__setitem__(key, value)
        else:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)

    def __delitem__(self, key: bytes) -> None:
        if own_environ() is None:
            super().__delitem__(key)
        else:
            del os.environ[os.fsdecode(key)]

    def __iter__(self) -> Iterator[bytes]:
        own = own_environ()
        return super().__iter__() if own is None else iter([os.fsencode(key) for key in own])

    def __len__(self) -> int:
        own = own_environ()
        return super().__len__() if own is None else len(own)


seen_by_c: dict[str, str | None] = {}
"""Variables that a rank has changed, with the values that C code sees now (`getenv`); None
means unset."""

_putenv, _unsetenv = os.putenv, os.unsetenv


def show_to_c(environ: Mapping[str, str], keys: Iterable[str] | None = None) -> None:
    """Give all variables that any rank has changed the values of `environ`, for C code."""
    for key in tuple(seen_by_c if keys is None else keys):
        value = environ.get(key)
        if key not in seen_by_c or seen_by_c[key] != value:
            if value is None:
                _unsetenv(key)
            else:
                _putenv(key, value)
            seen_by_c[key] = value


def _show(key: str, value: str | None) -> None:
    """Show the calling rank's changes to C code, unless another rank runs."""
    strand = here.strand
    assert strand is not None
    changed = {} if value is None else {key: value}
    if strand.state is RUNNING:
        show_to_c(changed, (key,))
        return
    with visiting(strand) as is_in_place:
        show_to_c(changed, (key,))
        owner = cast(Any, strand.baton.switcher).owner
        if not is_in_place:
            show_to_c({} if owner is None else owner.environ, (key,))


def environ_patches() -> list[tuple[Any, str, Any]]:
    found: list[tuple[Any, str, Any]] = [(os.environ, "__class__", RankEnviron)]
    if hasattr(os, "environb"):
        found.append((os.environb, "__class__", RankEnvironBytes))
    return found


def environ_here() -> dict[str, str]:
    """A copy of the caller's environment. The inherited method decodes each variable
    separately, which takes long for so frequent a call."""
    own = own_environ()
    return environ_of_process() if own is None else dict(own)


def environ_of_process() -> dict[str, str]:
    """A copy of the process's own environment, whichever thread calls."""
    raw = os.environ._data  # type: ignore[attr-defined]
    if raw != _last[0]:
        decode = os.fsdecode
        _last[:] = dict(raw), {decode(key): decode(value) for key, value in raw.items()}
    return dict(_last[1])


_last: list[dict[Any, Any]] = [{}, {}]
"""The process's variables at the last call, and the same as text."""


def own_environ() -> dict[str, str] | None:
    strand = here.strand
    return None if strand is None else strand.local.environ
