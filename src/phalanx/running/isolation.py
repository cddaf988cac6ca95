"""What a rank has of its own although ranks share a process.

Two ways: state that Python code reads (`os.environ`, `__main__`) is looked up by the calling
thread; state inside torch and the interpreter (the random generator, `sys.argv`, what C code
sees of the environment) is swapped when another rank gets the baton. Used by the engine and by
`patches.py`.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from phalanx.backend.session import RankContext
from phalanx.core.baton import Strand, Switcher, here
from phalanx.running import attributes
from phalanx.running.attributes import places


class RankSwitcher(Switcher):
    """Swaps, when a rank gets the baton after another one: torch's CPU generator always,
    `sys.argv` for ranks that have their own (scripts do), and what is in use of the rest."""

    def __init__(self) -> None:
        self._owner: RankContext | None = None
        self._generator = torch.default_generator
        self._outer_random = self._generator.get_state()
        self._outer_argv = sys.argv
        self._outer_attributes = attributes.current()
        self._outer_warnings = _get_warnings()
        self._outer_filters = list(warnings.filters)
        self._outer_settings = _get_settings()

    def leave(self, strand: Strand) -> None:
        if self._owner is strand.local:
            self._save(self._owner)
            self._owner = None

    def enter(self, strand: Strand) -> None:
        context: RankContext = strand.local
        if self._owner is context:
            return
        self._owner = context
        saved = context.saved
        self._generator.set_state(saved.get("random", self._outer_random))
        if "argv" in saved:
            sys.argv = saved["argv"]
        if "warnings" in saved or self._warnings_changed():
            _set_warnings(saved.get("warnings", self._outer_warnings))
        if places:
            attributes.load(context)
        if _seen_by_c:
            _show_to_c(context.environ)

    def _save(self, context: RankContext) -> None:
        saved = context.saved
        saved["random"] = self._generator.get_state()
        if "warnings" in saved or self._warnings_changed():
            self._save_warnings(saved)
        if places:
            attributes.save(context)

    def _warnings_changed(self) -> bool:
        """Replaced (`catch_warnings`), or changed in place: new filters come first or last."""
        filters, show, _ = self._outer_warnings
        now, were = warnings.filters, self._outer_filters
        return bool(
            now is not filters
            or warnings.showwarning is not show
            or len(now) != len(were)
            or (were and (now[0] is not were[0] or now[-1] is not were[-1]))
        )

    def _save_warnings(self, saved: dict[str, Any]) -> None:
        filters, *rest = _get_warnings()
        if filters is self._outer_warnings[0]:
            filters, common = list(filters), filters
            common[:] = self._outer_filters
            _warnings_module._filters_mutated()
        saved["warnings"] = (filters, *rest)

    def restore(self) -> None:
        """After the run: as the launcher had it."""
        if self._owner is not None:
            self._save(self._owner)
            self._owner = None
        self._generator.set_state(self._outer_random)
        sys.argv = self._outer_argv
        _set_warnings(self._outer_warnings)
        _set_settings(self._outer_settings)
        attributes.restore(self._outer_attributes)
        if _seen_by_c:
            _show_to_c(os.environ)  # the caller is no rank: this is the process's own
            _seen_by_c.clear()


def _get_warnings() -> tuple[Any, ...]:
    """What `warnings.catch_warnings` replaces and puts back."""
    return warnings.filters, warnings.showwarning, _warnings_module._showwarnmsg_impl


def _set_warnings(state: tuple[Any, ...]) -> None:
    if warnings.filters is state[0] and warnings.showwarning is state[1]:
        return
    _warnings_module.filters, _warnings_module.showwarning, show_message = state
    _warnings_module._showwarnmsg_impl = show_message
    _warnings_module._filters_mutated()  # forget what was decided by other filters


_warnings_module: Any = warnings


def _get_settings() -> tuple[Any, ...]:
    """What ranks share with the process, and must not leave changed behind."""
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.get_float32_matmul_precision(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
        _folder(),
    )


def _set_settings(before: tuple[Any, ...]) -> None:
    now = _get_settings()
    if now == before:
        return
    dtype, deterministic, warn_only, precision, anomaly, check_nan, folder = before
    if now[:5] != before[:5] or now[5] != check_nan:
        torch.set_default_dtype(dtype)
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.set_float32_matmul_precision(precision)
        torch.autograd.set_detect_anomaly(anomaly, check_nan)
    if now[-1] != folder and folder is not None:
        os.chdir(folder)


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # somebody removed it
        return None


def own_script_state(context: RankContext, argv: list[str], main: ModuleType) -> None:
    """Give a rank its own `sys.argv` and `__main__`, from now on."""
    context.saved["argv"], context.saved["main"] = argv, main
    sys.argv = argv


class RankMain(ModuleType):
    """`sys.modules["__main__"]` while a script runs: whichever thread asks, even one that does
    not hold the baton, finds the names of its own rank. Pickling looks classes up here."""

    def __init__(self, outside: ModuleType) -> None:
        ModuleType.__setattr__(self, "_outside", outside)

    def __getattribute__(self, name: str) -> Any:
        return getattr(_main_here(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_main_here(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_main_here(self), name)

    def __dir__(self) -> list[str]:
        return dir(_main_here(self))


def _main_here(proxy: RankMain) -> ModuleType:
    strand = here.strand
    own = None if strand is None else strand.local.saved.get("main")
    outside: ModuleType = object.__getattribute__(proxy, "__dict__")["_outside"]
    return outside if own is None else own


class RankEnviron(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environ` during runs: a rank reads and writes its own copy."""

    def __getitem__(self, key: str) -> str:
        own = _own_environ()
        return super().__getitem__(key) if own is None else own[key]

    def __setitem__(self, key: str, value: str) -> None:
        own = _own_environ()
        if own is None:
            super().__setitem__(key, value)
        elif not isinstance(key, str) or not isinstance(value, str):
            wrong = value if isinstance(key, str) else key
            raise TypeError(f"str expected, not {type(wrong).__name__}")
        else:
            own[key] = value
            _show_to_c({key: value}, (key,))

    def __delitem__(self, key: str) -> None:
        own = _own_environ()
        if own is None:
            super().__delitem__(key)
        else:
            del own[key]
            _show_to_c({}, (key,))

    def __iter__(self) -> Iterator[str]:
        own = _own_environ()
        return super().__iter__() if own is None else iter(list(own))

    def __len__(self) -> int:
        own = _own_environ()
        return super().__len__() if own is None else len(own)

    def __repr__(self) -> str:
        own = _own_environ()
        return super().__repr__() if own is None else f"environ({own!r})"


class RankEnvironBytes(os._Environ):  # type: ignore[type-arg]
    """The class of `os.environb` during runs: the same variables, in bytes."""

    def __getitem__(self, key: bytes) -> bytes:
        own = _own_environ()
        return super().__getitem__(key) if own is None else os.fsencode(own[os.fsdecode(key)])

    def __setitem__(self, key: bytes, value: bytes) -> None:
        if _own_environ() is None:
            super().__setitem__(key, value)
        else:
            os.environ[os.fsdecode(key)] = os.fsdecode(value)

    def __delitem__(self, key: bytes) -> None:
        if _own_environ() is None:
            super().__delitem__(key)
        else:
            del os.environ[os.fsdecode(key)]

    def __iter__(self) -> Iterator[bytes]:
        own = _own_environ()
        return super().__iter__() if own is None else iter([os.fsencode(key) for key in own])

    def __len__(self) -> int:
        own = _own_environ()
        return super().__len__() if own is None else len(own)


_seen_by_c: dict[str, str | None] = {}
"""Variables that a rank has changed, as C code finds them now (`getenv`); None: it does not."""

_putenv, _unsetenv = os.putenv, os.unsetenv


def _show_to_c(environ: Mapping[str, str], keys: Iterable[str] | None = None) -> None:
    """Let C code see these variables as they are in `environ`; all that any rank changed."""
    for key in tuple(_seen_by_c if keys is None else keys):
        value = environ.get(key)
        if key not in _seen_by_c or _seen_by_c[key] != value:
            _seen_by_c[key] = value
            if value is None:
                _unsetenv(key)
            else:
                _putenv(key, value)


def environ_here() -> dict[str, str]:
    """A copy of the caller's environment. What the class inherits decodes every variable on
    its own way through the mapping, which takes long for so common a thing."""
    own = _own_environ()
    if own is not None:
        return dict(own)
    found = {}
    for key, value in os.environ._data.items():  # type: ignore[attr-defined]
        known = _decoded.get(key)
        if known is None or known[0] is not value:
            known = _decoded[key] = value, os.fsdecode(key), os.fsdecode(value)
        found[known[1]] = known[2]
    return found


_decoded: dict[Any, tuple[Any, str, str]] = {}
"""The process's variables that somebody has asked for: the value, and both in text."""


def _own_environ() -> dict[str, str] | None:
    strand = here.strand
    return None if strand is None else strand.local.environ


def _become_a_process() -> None:
    """In a forked child, e.g. a DataLoader's worker: it is no rank any more, but starts with
    the environment of the rank that forked it. The other threads are not there."""
    own, strand = _own_environ(), here.strand
    here.strand = None
    if strand is not None and "main" in strand.local.saved:
        sys.modules["__main__"] = strand.local.saved["main"]
    if own is not None:
        os.environ.clear()
        os.environ.update(own)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_become_a_process)
