"""Registrations with torch that every rank's copy of a module makes: done once.

An operator (`torch.library`) or a backend exists once per process, by its name. When the second
rank's copy of a module registers it, torch refuses, or the last one wins. Here the first rank
registers a function that calls the function of the calling rank, and the others add theirs. In
force while ranks have modules of their own; used by `isolating.py`.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
import torch.library
import torch.multiprocessing

from phalanx.backend.torch_private import private_registries as private
from phalanx.callsite import Mark
from phalanx.emulation.modules.isolation_rule import IsolationRule
from phalanx.emulation.modules.module_tables import Owner, owner_here, real_class
from phalanx.emulation.modules.module_view import is_apart

Table = dict[Owner, Any]
SHARE = "phalanx_share"


class Registered:
    """The registrations of the ranks of one world."""

    def __init__(self) -> None:
        self.libraries: dict[Any, Any] = {}
        """The first library made at a line, by the line and its arguments."""
        self.counts: dict[Any, int] = {}
        """How many libraries each rank has made there: a line may be in a loop."""
        self.backends: dict[str, Table] = {}
        self.start_method: dict[Owner, str | None] = {}

    def next_key(self, owner: Owner, *what: Any) -> Any:
        count = self.counts[owner, what] = self.counts.get((owner, what), -1) + 1
        return (*what, count)


class Share:
    """What the libraries made at one line by all ranks have in common."""

    def __init__(self, place: Mark) -> None:
        self.place = place
        self.owners: set[Owner] = set()
        self.results: dict[str, Any] = {}
        """Schemas that were defined, and torch's answer."""
        self.definers: set[tuple[Owner, str]] = set()
        self.functions: dict[Any, Table] = {}


def _registered() -> tuple[Owner, Registered, Mark] | None:
    """For a registration by a rank's own module, or on its behalf: the rank, the world's
    registrations, and the place. None for what torch registers when a rank is the first to
    import a part of it."""
    owner = owner_here()
    place = None if owner.rule is None else _place()
    if owner.rule is None or place is None:
        return None
    if owner.rule.registered is None:
        owner.rule.registered = Registered()
    return owner, owner.rule.registered, place


def _place() -> Mark | None:
    frame: FrameType | None = sys._getframe(3)
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if is_apart(name):
            return frame.f_code, frame.f_lasti
        is_between = name.startswith(_BETWEEN)
        top = name.partition(".")[0]
        if frame.f_code.co_name == "<module>" or (top in ("torch", OWN) and not is_between):
            return None
        frame = frame.f_back
    return None


OWN = __name__.partition(".")[0]
_BETWEEN = ("torch.library", private.BEHIND_LIBRARY, "torch.multiprocessing")
"""Modules whose frames may lie between a module's line and this call."""


def registration_patches() -> list[tuple[Any, str, Any]]:
    """(owner, attribute, replacement) for everything replaced."""
    library: Any = torch.library.Library
    module, name = private.safe_globals_place()
    register = dist.Backend.__dict__["register_backend"]
    set_method = multiprocessing.set_start_method
    found: list[tuple[Any, str, Any]] = [
        (library, "__init__", _making(library.__init__)),
        (library, "define", _defining(library.define)),
        (library, "impl", _implementing(library.impl)),
        (library, private.FAKE_NAME, _faking(getattr(library, private.FAKE_NAME))),
        (library, private.DESTROY_NAME, _destroying(getattr(library, private.DESTROY_NAME))),
        (dist.Backend, "register_backend", classmethod(_registering(register.__func__))),
        (module, name, _safe(getattr(module, name))),
    ]
    setting = _setting(set_method)
    for place in (multiprocessing, torch.multiprocessing):
        if getattr(place, "set_start_method", None) == set_method:
            found.append((place, "set_start_method", setting))
    return found


def forget(rule: IsolationRule | None) -> None:
    """Remove the registrations of a world that is closed."""
    if rule is None or rule.registered is None:
        return
    registered, rule.registered = rule.registered, None
    for library in registered.libraries.values():
        getattr(library, private.DESTROY_NAME)()
    if registered.start_method:
        first = next(iter(registered.start_method.values()))
        multiprocessing.set_start_method(first, force=True)


def by_rank(table: Table, first: Any) -> Callable[..., Any]:
    """Calls the calling rank's function; outside of ranks the first one."""

    @functools.wraps(first)
    def call(*args: Any, **kwargs: Any) -> Any:
        return table.get(owner_here(), first)(*args, **kwargs)

    return call


def _making(original: Any) -> Any:
    def make(self: Any, ns: Any, kind: Any, dispatch_key: Any = "") -> None:
        found = _registered()
        if found is None:
            original(self, ns, kind, dispatch_key)
            return
        owner, registered, place = found
        key = registered.next_key(owner, place, ns, kind, dispatch_key)
        first = registered.libraries.get(key)
        if first is None:
            original(self, ns, kind, dispatch_key)
            registered.libraries[key] = first = self
            vars(self)[SHARE] = Share(place)
        else:
            vars(self).update(vars(first))
        vars(first)[SHARE].owners.add(owner)

    return make


def _defining(original: Any) -> Any:
    def define(self: Any, schema: Any, *args: Any, **kwargs: Any) -> Any:
        share: Share | None = vars(self).get(SHARE)
        if share is None:
            return original(self, schema, *args, **kwargs)
        owner = owner_here()
        if schema not in share.results or (owner, schema) in share.definers:
            share.results[schema] = original(self, schema, *args, **kwargs)
        share.definers.add((owner, schema))
        return share.results[schema]

    return define


def _implementing(original: Any) -> Any:
    def impl(self: Any, op_name: Any, fn: Any, dispatch_key: Any = "", **kwargs: Any) -> Any:
        share: Share | None = vars(self).get(SHARE)
        if share is None or not callable(fn) or fn is torch.library.fallthrough_kernel:
            return original(self, op_name, fn, dispatch_key, **kwargs)
        function = _added(share, ("impl", str(op_name), dispatch_key), fn)
        if function is not None:
            original(self, op_name, function, dispatch_key, **kwargs)
        return None

    return impl


def _faking(original: Any) -> Any:
    def register(self: Any, op_name: Any, fn: Any, _stacklevel: int = 1, **kwargs: Any) -> Any:
        share: Share | None = vars(self).get(SHARE)
        function = fn if share is None else _added(share, ("fake", str(op_name)), fn)
        if function is not None:
            original(self, op_name, function, _stacklevel + 1, **kwargs)

    return register


def _added(share: Share, key: Any, fn: Any) -> Any:
    """The function to register; None if another rank has registered one that covers all
    ranks."""
    owner, table = owner_here(), share.functions.get(key)
    if table is None or owner in table:
        table = share.functions[key] = {owner: fn}
        return by_rank(table, fn)
    table[owner] = fn
    return None


def _destroying(original: Any) -> Any:
    def destroy(self: Any) -> None:
        """Does nothing if a rank defines again, at the same line, what another rank has
        defined."""
        share: Share | None = vars(self).get(SHARE)
        found = None if share is None else _registered()
        if share is not None and found is not None:
            owner, _, place = found
            if owner not in share.owners and place == share.place:
                return
        original(self)

    return destroy


def _registering(original: Any) -> Any:
    def register_backend(cls: Any, name: str, func: Any, *args: Any, **kwargs: Any) -> Any:
        found = _registered()
        if found is None:
            return original(cls, name, func, *args, **kwargs)
        owner, registered, _ = found
        table = registered.backends.setdefault(name, {})
        table[owner] = func
        return original(cls, name, by_rank(table, func), *args, **kwargs)

    return register_backend


def _setting(original: Any) -> Any:
    """`set_start_method` refuses a second call. Ranks that agree make it once each."""

    def set_start_method(method: str | None, force: bool = False) -> None:
        found = _registered()
        if found is None:
            original(method, force)
            return
        owner, registered, _ = found
        before = multiprocessing.get_start_method(allow_none=True)
        others = bool(registered.start_method) and owner not in registered.start_method
        registered.start_method.setdefault(owner, before)
        if not (others and before == method):
            original(method, force)

    return set_start_method


def _safe(original: Any) -> Any:
    """`torch.load(weights_only=True)` makes objects of the calling rank's classes."""

    def allowed() -> dict[str, Any]:
        return {name: real_class(each) for name, each in original().items()}

    return allowed
