"""Stand-ins for fixtures of pytest that do not work on ranks as they are.

A function of the request makes a stand-in, which finds what it needs in the rank's `Place`.
Used by `part.py`, `on_threads.py` and `in_rank.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import RankStopped
from phalanx.testing.pytest.fixtures import FOR_JUNIT, Maker, RankRequest
from phalanx.testing.pytest.rank_record import Phase, Record, Subtest
from phalanx.testing.pytest.world_fixture import RankWorld
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.captured_output import RankCapture, RankLogs, Streams

Fail = Callable[[BaseException], Any]


class Place:
    """What stand-ins in a rank need: its world, its record, and how to turn an error into a
    `Failure` while its frames are there. `shared` is there if ranks share a process."""

    def __init__(
        self, world: RankWorld, record: Record, represent: Fail, shared: SharedPlace | None
    ) -> None:
        self.world = world
        self.record = record
        self.represent = represent
        self.shared = shared
        self._phase: Phase = "setup"
        self._logged: dict[str, Any] = {}
        self._handler: Any = None
        if shared is not None and shared.logs.handlers:
            self.take_logs(shared.logs.handlers[world.rank][0])

    def take_logs(self, handler: Any) -> None:
        """The handler that keeps the rank's records for `caplog`."""
        self._handler = handler
        self._logged[self._phase] = handler.records

    def turn_to(self, phase: Phase) -> None:
        """`caplog` keeps the records of each phase apart."""
        handler = self._handler
        if handler is not None:
            if handler.records:
                handler.reset()
            else:
                self._logged[self._phase] = []
            self._logged[phase] = handler.records
        self._phase = phase

    def settle(self, node: Any) -> None:
        """Prepare the rank's view of the item for `caplog`."""
        if self._handler is not None:
            private.provide_log_handler(node, self._handler, self._logged)


@dataclass
class SharedPlace:
    """What the ranks of a test have in common that share a process."""

    streams: Streams
    logs: RankLogs
    patches: SharedPatches


def _place(request: RankRequest) -> Place:
    place: Place = request.owner.place
    return place


def _shared(request: RankRequest) -> SharedPlace:
    shared = _place(request).shared
    assert shared is not None
    return shared


def _capture(request: RankRequest, *, binary: bool = False, tee: bool = False) -> RankCapture:
    capman = request.config.pluginmanager.get_plugin("capturemanager")
    disabled = nullcontext if capman is None else capman.global_and_fixture_disabled
    made = RankCapture(
        _place(request).world.rank,
        _shared(request).streams,
        disabled,
        binary=binary,
        tee=tee,
    )
    request.addfinalizer(made.close)
    return made


def _caplog(request: RankRequest) -> Any:
    logs = _shared(request).logs
    if not logs.handlers:
        raise private.lookup_error("caplog", request)
    made = private.RankLogCapture(request.node, logs.levels)
    request.addfinalizer(made.finish)
    return made


def _monkeypatch(request: RankRequest) -> pytest.MonkeyPatch:
    made = RankMonkeyPatch(_shared(request).patches)
    request.addfinalizer(made.undo)
    return made


def _subtests(request: RankRequest) -> RankSubtests:
    place = _place(request)
    return RankSubtests(place.record, place.represent)


def _record_property(request: RankRequest) -> Callable[[str, Any], None]:
    properties = _place(request).record.properties
    return lambda name, value: properties.append((name, value))


def _for_junit(request: RankRequest) -> Callable[[str, Any], None]:
    """Of `record_xml_attribute` and `record_testsuite_property`: pytest's own do it later."""
    recorded, fixture = _place(request).record.for_junit, str(request.fixturename)
    return lambda name, value: recorded.append((fixture, name, value))


def _rank_folder(request: RankRequest) -> Path:
    folder: Path = request.getfixturevalue("tmp_path") / f"rank{_place(request).world.rank}"
    folder.mkdir()
    return folder


def _refuse_capfd(request: RankRequest) -> Any:
    pytest.fail(
        f"{request.fixturename} cannot tell ranks apart that share a process and with it the "
        "file descriptors; use capsys, or @pytest.mark.ranks(..., engine='processes')",
        pytrace=False,
    )


PLAIN_MAKERS: dict[str, Callable[[Place], Any]] = {
    "rank": lambda place: place.world.rank,
    "world_size": lambda place: place.world.size,
    "device": lambda place: place.world.device,
    "world": lambda place: place.world,
}
"""Values that the rank's place has: there is nothing to make, nor to tear down."""


def _with_request(make: Callable[[Place], Any]) -> Maker:
    return lambda request: make(_place(request))


COMMON_MAKERS: dict[str, Maker] = {
    **{name: _with_request(make) for name, make in PLAIN_MAKERS.items()},
    "rank_tmp_path": _rank_folder,
    "record_property": _record_property,
    **dict.fromkeys(FOR_JUNIT, _for_junit),
    "subtests": _subtests,
}
"""For every rank."""

THREAD_MAKERS: dict[str, Maker] = {
    **COMMON_MAKERS,
    "capsys": _capture,
    "capteesys": partial(_capture, tee=True),
    "capsysbinary": partial(_capture, binary=True),
    "capfd": _refuse_capfd,
    "capfdbinary": _refuse_capfd,
    "caplog": _caplog,
    "monkeypatch": _monkeypatch,
}
"""For ranks that share a process, which pytest's own fixtures would mix up."""


class SharedPatches:
    """The patches of objects that all ranks share, in order. Ranks undo their patches in any
    order. A rank whose patch of an object is not the last one leaves the value there, and
    passes the value it found to the next patch."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[int, str, Any], list[list[Any]]] = {}

    def note(self, kind: str, owner: Any, name: Any, found: Any) -> list[Any]:
        entry = [found, owner]  # the owner too, so that its id stays its own
        self._stacks.setdefault((id(owner), kind, name), []).append(entry)
        return entry

    def withdraw(self, kind: str, owner: Any, name: Any, entry: list[Any]) -> tuple[bool, Any]:
        """Undo a patch. Returns whether it is in force, and the value before it."""
        stack = self._stacks[id(owner), kind, name]
        place = next(index for index, each in enumerate(stack) if each is entry)
        del stack[place]
        if place == len(stack):
            return True, entry[0]
        stack[place][0] = entry[0]
        return False, None

    def undo_rest(self) -> None:
        """After the run: undo what a rank that could not be stopped has left."""
        for (_, kind, name), stack in self._stacks.items():
            if stack:
                found, owner = stack[0]
                private.put_back(kind, owner, name, found)
        self._stacks.clear()


class RankMonkeyPatch(pytest.MonkeyPatch):  # type: ignore[misc]
    """`monkeypatch` of a rank that is a thread. `os.environ` is the rank's own; attributes of
    modules and classes, `sys.path` and the current folder are everybody's."""

    def __init__(self, patches: SharedPatches) -> None:
        super().__init__()
        self._patches = patches
        self._entries: list[tuple[str, Any, Any, list[Any]]] = []

    def setattr(self, *args: Any, **kwargs: Any) -> None:
        with self._noted():
            super().setattr(*args, **kwargs)

    def delattr(self, *args: Any, **kwargs: Any) -> None:
        with self._noted():
            super().delattr(*args, **kwargs)

    def setitem(self, *args: Any, **kwargs: Any) -> None:
        with self._noted():
            super().setitem(*args, **kwargs)

    def delitem(self, *args: Any, **kwargs: Any) -> None:
        with self._noted():
            super().delitem(*args, **kwargs)

    @contextmanager
    def context(self) -> Iterator[pytest.MonkeyPatch]:  # type: ignore[override]
        made = RankMonkeyPatch(self._patches)
        try:
            yield made
        finally:
            made.undo()

    @contextmanager
    def _noted(self) -> Iterator[None]:
        """Record what is being patched, which pytest's class finds out."""
        before = [len(each) for _, each in private.patches_of(self)]
        yield
        for (kind, made), count in zip(private.patches_of(self), before, strict=True):
            for owner, name, found in made[count:]:
                if not private.is_own_environment(owner):
                    entry = self._patches.note(kind, owner, name, found)
                    self._entries.append((kind, owner, name, entry))

    def undo(self) -> None:
        in_force = []
        for kind, owner, name, entry in reversed(self._entries):
            is_last, found = self._patches.withdraw(kind, owner, name, entry)
            if is_last:
                in_force.append((kind, owner, name, found))
        self._entries.clear()
        private.keep_only(self, in_force)
        super().undo()


class RankSubtests:
    """`subtests` of a rank. Each block is reported to pytest after the run, together with those
    of the other ranks."""

    def __init__(self, record: Record, represent: Fail) -> None:
        self._record = record
        self._represent = represent

    @contextmanager
    def test(self, msg: str | None = None, **kwargs: Any) -> Iterator[None]:
        __tracebackhide__ = True
        made = Subtest(msg, {name: repr(value) for name, value in kwargs.items()}, "passed")
        try:
            yield
        except (private.Exit, KeyboardInterrupt, RankStopped, SystemExit):
            raise
        except private.XFailed as expected:
            made.end, made.reason = "stopped", str(expected.msg)
        except pytest.skip.Exception as skipped:
            made.end, made.reason = "skipped", str(skipped.msg)
        except BaseException as error:
            made.end, made.failure = "failed", self._represent(error)
        self._record.subtests.append(made)
