"""Run a test on ranks that are processes. Used by `items.py`.

The processes are kept for the tests that follow with as many ranks, with a fresh group for
each; after a failure the next test gets new ones.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from phalanx.engines.processes.fork_server import fork_server
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from phalanx.engines.remote.failure_evidence import tidied
from phalanx.engines.serialization.serialization import pack
from phalanx.errors import PhalanxError, PhalanxWarning, RankFailedError, StallError, UsageError
from phalanx.testing.collection.marker import Ranks
from phalanx.testing.pytest.fixtures import is_per_rank
from phalanx.testing.pytest.in_rank import (
    OWN_MAKERS,
    get_ready,
    leave_wide,
    run_pending_callback,
)
from phalanx.testing.pytest.item_recording import ItemRecording
from phalanx.testing.pytest.item_run import RanksRun
from phalanx.testing.pytest.rank_record import Record
from phalanx.testing.pytest.travel import ItemTask, PartFailed, read_note, unpack_record
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.captured_output import Collected, Sieve, show_live

MOST_KEPT = 2
"""How many sizes of worlds are kept warm: each rank is a process with torch in it."""

WIDE_LIMIT = 60.0
"""Seconds for `teardown_class` and `teardown_module` in ranks."""

_engines: dict[tuple[Any, ...], _KeptEngine] = {}


class _KeptEngine:
    """An engine, and what its ranks know."""

    def __init__(self, engine: ProcessesEngine) -> None:
        self.engine = engine
        self.file: str | None = None
        """The one that its present processes have collected."""
        self.wide: set[str] = set()
        """What they have set up for classes and modules."""

    def changes(self) -> dict[str, str | None]:
        """In the environment, since the ranks were started. Those that are started now begin
        with that of now, to which this adds nothing."""
        now, before = dict(os.environ), self.engine.base_environ
        if before is None:
            return {}
        changed: dict[str, str | None] = {
            name: value for name, value in now.items() if before.get(name) != value
        }
        changed.update((name, None) for name in before if name not in now)
        return changed


def begin() -> None:
    """Let the parent of the ranks' processes load torch while other tests run. Where the system
    starts no process, the tests that need it say so, and the others run."""
    with suppress(UsageError):
        fork_server()


def close_engines() -> None:
    while _engines:
        _engines.popitem()[1].engine.close()


def run_on_processes(
    item: Any,
    way: Ranks,
    *,
    shared: Mapping[tuple[str, int], Any],
    extra: Mapping[str, Any],
    replay: str,
    recording: ItemRecording,
) -> RanksRun:
    """Run the test once on all ranks. Returns the ranks' records and the error of the run."""
    kept = _kept_engine(way)
    engine = kept.engine
    out, err = Collected(way.size), Collected(way.size)
    output = _Output(item.config, {"out": out, "err": err})
    on_tick = partial(_tick, out, err) if show_live(item.config, (out, err)) else None
    engine.settings = replace(engine.settings, on_tick=on_tick, on_journal=recording.follow)
    known, silent = len(engine.findings), len(engine.silenced)
    values: list[Any] = []
    error: BaseException | None = None
    if engine.replace_dead():
        kept.file = None
        kept.wide.clear()
    task = _task(item, way, shared, extra, kept.changes())
    kept.wide.update(private.wide_setups(item))
    try:
        if task.file != kept.file:
            ready = replace(task, shared={}, extra={})
            engine.call(
                get_ready,
                (ready,),
                limit=way.limit,
                replay=replay,
                bare=not way.init,
                lingers=True,
                faults=(),
            )
            kept.file = task.file
        values = engine.call(
            run_pending_callback,
            (task,),
            fresh=True,
            limit=way.limit,
            on_output=output.write,
            replay=replay,
            bare=not way.init,
            lingers=True,
        )
    except UsageError as problem:
        error = _name_value(task.shared, item.callspec.params) or problem
        kept.file = None
    except BaseException as problem:
        error = problem
        kept.file = None
    if way.faults:  # the ranks are gone
        kept.file = None
        kept.wide.clear()
    output.close()
    private.go_to_end_of_log_file(item.config)
    records = _records(way, values, error)
    if isinstance(error, StallError):
        for rank, note in getattr(error, "noted", {}).items():
            records[rank] = read_note(note) or records[rank]
    for record in records:
        record.out, record.err = out.text(record.rank), err.text(record.rank)
        if error is not None:
            record.err = tidied(record.err)
        _warn_again(record)
    return RanksRun(records, error, engine.findings[known:], engine.silenced[silent:])


def end_wide(nextitem: Any, replay: Callable[[], str]) -> str:
    """At the end of a test: `teardown_class` and `teardown_module` in ranks that have called
    what belongs to it, unless the next test is of the same class or module. What failed."""
    if not _engines:
        return ""
    wanted = set(private.wide_setups(nextitem))
    failed = [_leave_wide(kept, wanted, replay) for kept in list(_engines.values())]
    return "\n\n".join(filter(None, failed))


def _leave_wide(kept: _KeptEngine, wanted: set[str], replay: Callable[[], str]) -> str:
    """After a failure the ranks are gone, and nothing is to be done."""
    leaving = kept.wide - wanted
    kept.wide &= wanted
    if leaving and kept.file is not None:
        try:
            kept.engine.call(
                leave_wide,
                (wanted,),
                limit=WIDE_LIMIT,
                replay=replay(),
                bare=True,
                lingers=True,
            )
        except PhalanxError as error:
            kept.file = None
            return str(error)
    return ""


class _Output:
    """What comes out of the pipes of all ranks. `capsys.disabled()` shows it at once, unless
    `-s` shows all of it, with the ranks before each line."""

    def __init__(self, config: Any, streams: Mapping[str, Collected]) -> None:
        self._capture = config.pluginmanager.get_plugin("capturemanager")
        self._streams = streams
        self._sieves: dict[tuple[int, str], Sieve] = {}

    def write(self, rank: int, stream: str, text: str) -> None:
        sieve = self._sieves.get((rank, stream))
        if sieve is None:
            keep = partial(self._streams[stream].write, rank)
            is_shown = self._streams[stream].shown is not None or self._capture is None
            show = keep if is_shown else partial(self._show, stream)
            sieve = self._sieves[rank, stream] = Sieve(keep, show)
        sieve.write(text)

    def _show(self, stream: str, text: str) -> None:
        with self._capture.global_and_fixture_disabled():
            sink = sys.stdout if stream == "out" else sys.stderr
            sink.write(text)
            sink.flush()

    def close(self) -> None:
        for sieve in self._sieves.values():
            sieve.close()
        for collected in self._streams.values():
            collected.close()


def _tick(*streams: Collected) -> None:
    for each in streams:
        each.tick()


def _kept_engine(way: Ranks) -> _KeptEngine:
    checks = (way.effective_checks, way.strict, way.profile)
    key = (way.size, way.backend, way.device, way.gpus, *checks, way.faults)
    kept = _engines.pop(key, None)
    while kept is None and len(_engines) >= MOST_KEPT:
        oldest = _engines.pop(next(iter(_engines)))
        if failed := _leave_wide(oldest, set(), str):
            warnings.warn(PhalanxWarning(failed), stacklevel=2)
        oldest.engine.close()
    if kept is None:
        kept = _KeptEngine(
            ProcessesEngine(
                ProcessSettings(
                    ranks=way.size,
                    backend=way.backend,
                    device=way.device,
                    gpus=way.gpus,
                    checks=way.effective_checks,
                    profile=way.profile,
                    strict=way.strict,
                    faults=way.faults,
                )
            )
        )
    _engines[key] = kept  # the last one used last
    return kept


def _task(
    item: Any,
    way: Ranks,
    shared: Mapping[tuple[str, int], Any],
    extra: Mapping[str, Any],
    environ: Mapping[str, str | None],
) -> ItemTask:
    needed = _needed(item, way)
    sent = {key: value for key, value in shared.items() if key[0] in needed}
    return ItemTask(
        nodeid=item.nodeid,
        file=str(item.path),
        args=_arguments(item.config),
        way=way,
        shared=sent,
        extra=extra,
        folder=private.base_folder(item.config),
        environ=environ,
        worker=getattr(item.config, "workerinput", None),
        started_in=str(item.config.invocation_params.dir),
    )


def _arguments(config: Any) -> tuple[str, ...]:
    """The command line again; what a rank prints goes to this process at once. The root folder
    is said: pytest finds it from all arguments that are folders, and one of `--ranks-record`
    may be there by now."""
    given = map(str, config.invocation_params.args)
    plugins = config.pluginmanager
    more = ["--capture=no"] if plugins.has_plugin("capturemanager") else []
    more += ["--rootdir", str(config.rootpath)]
    if config.inipath is not None:
        more += ["-c", str(config.inipath)]
    if plugins.has_plugin("_cov"):  # or a rank that starts late erases what others have saved
        more.append("--cov-append")
    return (*given, *more)


def _needed(item: Any, way: Ranks) -> set[str]:
    """The shared fixtures that the test, or a fixture made in ranks, asks for."""
    needed = set(private.argument_names(item))
    for name in item.fixturenames:
        for definition in private.fixture_definitions(item, name):
            if is_per_rank(definition, way):
                needed.update(definition.argnames)
    return needed - set(OWN_MAKERS)


def _name_value(
    shared: Mapping[tuple[str, int], Any], parameters: Mapping[str, Any]
) -> UsageError | None:
    """The fixture or parameter that cannot be sent, if that is the reason of a refusal."""
    for (name, _), value in shared.items():
        try:
            pack(value)
        except Exception as error:
            if name in parameters:
                return UsageError(
                    f"the parameter {name!r} cannot be sent to ranks that are processes: "
                    f"{str(error) or type(error).__name__}. Give what it is made from and "
                    "make it in the test, or run the test on threads"
                )
            return UsageError(
                f"the fixture {name!r} is made once, in pytest's process, and its value cannot "
                f"be sent to ranks that are processes: {str(error) or type(error).__name__}. "
                "Put @phalanx.testing.once_per_rank on the fixture, so that each rank makes "
                "its own, or run the test on threads"
            )
    return None


def _records(way: Ranks, values: list[Any], error: BaseException | None) -> list[Record]:
    """The records that came back, as a value or in a failure; empty ones for other ranks."""
    records = [
        Record(rank, "stopped" if error is not None else "unfinished")
        for rank in range(way.size)
    ]
    returned = getattr(error, "returned", {})
    for rank, value in {**dict(enumerate(values)), **returned}.items():
        if isinstance(value, Record):
            records[rank] = unpack_record(value)
    if isinstance(error, RankFailedError):
        for rank, failure in error.failures.items():
            if isinstance(failure, PartFailed):
                records[rank] = unpack_record(failure.record)
                _put_in_place(error, rank, failure, records[rank])
    return records


def _put_in_place(
    error: RankFailedError, rank: int, failure: PartFailed, record: Record
) -> None:
    """The rank's own error where its record was the error."""
    own = record.failures[0].error if record.failures else None
    if own is None:
        return
    if error.__cause__ is failure:
        error.__cause__ = own
    error.failures[rank] = own


def _warn_again(record: Record) -> None:
    """Warnings of a rank reach pytest's summary as those of a test in this process do."""
    for text, category, file, line in record.warnings:
        if isinstance(category, type) and issubclass(category, Warning):
            with warnings.catch_warnings():
                warnings.simplefilter("always")  # the rank has applied the filters
                warnings.warn_explicit(text, category, file, line)
