"""A test's part in a rank that is a process: finds the item there and runs it.

`on_processes.py` calls `run_pending_callback` in every rank. The process keeps a pytest session
between tests, so a file is collected once. Never used in pytest's own process.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import RANK_PROCESS
from phalanx.engines.processes.process_rank import leave_note
from phalanx.engines.remote import link
from phalanx.engines.remote.idle_threads import threads_joined
from phalanx.errors import RankStopped, VerdictError, text_of
from phalanx.testing.pytest.fixtures import FixturePlan, Maker, RankRequest
from phalanx.testing.pytest.isolated import new_packages
from phalanx.testing.pytest.part import RankPart
from phalanx.testing.pytest.rank_record import Record
from phalanx.testing.pytest.travel import (
    ItemTask,
    PartFailed,
    is_picklable,
    note_of,
    pack_record,
)
from phalanx.testing.pytest.world_fixture import RankWorld
from phalanx.testing.pytest_compat import pytest_private as private
from phalanx.testing.pytest_compat.captured_output import KEEP, SHOW
from phalanx.testing.pytest_compat.fixture_standins import COMMON_MAKERS, PLAIN_MAKERS

_present: list[RankProcess] = []
"""The session of pytest in this process, for the file whose tests run now."""


def get_ready(task: ItemTask) -> None:
    """Collect the file of a test, so that all ranks begin the test together."""
    _settle(task).find(task)


def run_pending_callback(task: ItemTask) -> Record:
    """The rank's record; raises it, as `PartFailed`, if the part failed."""
    __tracebackhide__ = True
    return _settle(task).run(task)


def leave_wide(wanted: Collection[str]) -> None:
    """`teardown_class` and `teardown_module`, except for what the next test needs as well."""
    __tracebackhide__ = True
    for present in _present:
        present.leave_wide(wanted)


def _settle(task: ItemTask) -> RankProcess:
    for name, value in task.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.environ["PYTEST_CURRENT_TEST"] = f"{task.nodeid} (call)"
    if _present and not _present[0].is_for(task):
        _present.pop().close()
    if not _present:
        atexit.unregister(_leave)
        atexit.register(_leave)
        with suppress(OSError):  # gone
            os.chdir(task.started_in)
        _present.append(RankProcess(task))
    with suppress(OSError):
        os.chdir(task.working_in)
    return _present[0]


def _leave() -> None:
    """Run `teardown_class` and `teardown_module` before the process ends."""
    while _present:
        _present.pop().close()


class RankProcess:
    """A session of pytest for one file, and what it has made for classes and modules. Another
    file gets another session, which takes 50 ms: pytest 9.2 loses sight of the fixtures in
    conftest files when a session collects twice."""

    def __init__(self, task: ItemTask) -> None:
        self._key = (task.args, task.file)
        self._pytest = private.RankSession(task.args, task.worker)
        put_in(RANK_PROCESS, [(pytest.CaptureFixture, "disabled", _disabled)])
        self._wide: dict[str, Iterator[None]] = {}
        self._trace = sys.gettrace()  # of pytest-cov

    def is_for(self, task: ItemTask) -> bool:
        return self._key == (task.args, task.file)

    def close(self) -> None:
        self.leave_wide(())
        self._pytest.close()

    def find(self, task: ItemTask) -> Any:
        item = self._pytest.item(task.file, task.nodeid)
        if item is None:
            problems = "\n".join(self._pytest.problems) or self._tell_others(task.nodeid)
            pytest.fail(f"a rank did not find {task.nodeid}:\n{problems}", pytrace=False)
        return item

    def _tell_others(self, nodeid: str) -> str:
        name = nodeid.partition("[")[0]
        alike = [each for each in self._pytest.nodeids if each.partition("[")[0] == name]
        if not alike:
            return "it collects other tests there"
        return (
            f"there it is {alike[0]}: a parameter makes an id that differs from process to "
            "process (an address, a random number); give parametrize ids=[...] of your own"
        )

    def run(self, task: ItemTask) -> Record:
        __tracebackhide__ = True
        item = self.find(task)
        if self._trace is not None:
            sys.settrace(self._trace)
        if task.folder is not None:
            private.share_base_folder(item.config, task.folder)
        way = task.way
        rank = int(os.environ["RANK"])
        world = RankWorld(rank, way.size, way.engine, way.backend, way.seed, way.device)
        plan = FixturePlan(
            item,
            way,
            shared=task.shared,
            makers=PROCESS_MAKERS,
            plain=PLAIN_MAKERS,
            ask=_refuse_late,
        )
        part = RankPart(
            plan,
            world,
            extra=task.extra,
            tell=lambda error: _tell(error, part.record),
        )
        with new_packages(way.isolate):
            self._run(part, item)
        return pack_record(part.record)

    def _run(self, part: RankPart, item: Any) -> None:
        __tracebackhide__ = True
        record = part.record
        try:
            with (
                self._pytest.around(item) as warned,
                private.logs_caught(item.config, part.take_logs) as text,
            ):
                try:
                    self._enter_wide(item, part)
                    with threads_joined():
                        part.run()
                finally:
                    record.log = text()
                    record.marks = list(filter(is_picklable, record.marks))
        except (RankStopped, VerdictError):
            raise
        except BaseException as error:
            if record.end != "failed":
                part.note(error)
            record.warnings = [_sendable(each) for each in self._pytest.warnings]
            raise PartFailed(text_of(error), pack_record(record)) from None
        record.warnings = [_sendable(each) for each in warned]

    def _enter_wide(self, item: Any, part: RankPart) -> None:
        """`setup_module` and `setup_class` work on this process's module and class as well:
        pytest has called them on its own, which a rank does not see."""
        wanted = private.wide_setups(item)
        self.leave_wide(wanted)
        for key, definition in wanted.items():
            if key not in self._wide:
                given = [part.request] if "request" in definition.argnames else []
                made = definition.func(*given)  # in pytest 8.0 it has the class already
                next(made)
                self._wide[key] = made

    def leave_wide(self, wanted: Collection[str]) -> None:
        __tracebackhide__ = True
        with ExitStack() as stack:  # the last one first, and all of them whatever one raises
            for key in [each for each in self._wide if each not in wanted]:
                stack.callback(next, self._wide.pop(key), None)


_original_disabled = pytest.CaptureFixture.disabled
_depth = 0


@contextmanager
def _disabled(self: pytest.CaptureFixture[Any]) -> Iterator[None]:
    """Output inside is shown by pytest's process, which finds it by the marks around it."""
    global _depth
    with _original_disabled(self):
        _depth += 1
        _mark(SHOW if _depth == 1 else "")
        try:
            yield
        finally:
            _depth -= 1
            _mark(KEEP if _depth == 0 else "")


def _mark(mark: str) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a test may have put anything there
            stream.write(mark)
            stream.flush()


def _refuse_late(name: str) -> Any:
    pytest.fail(
        f"the fixture {name!r} is made once, in pytest's process, and a rank that is a process "
        "asks for it by getfixturevalue, too late for it to be sent; name it among the "
        "arguments of the test",
        pytrace=False,
    )


def _tell(error: BaseException, record: Record) -> None:
    """Report the failure before the teardown, which may communicate, or hang."""
    if (note := note_of(record)) is not None:
        leave_note(note)
    current: Callable[[], Any] | None = getattr(link, "current", None)
    here = None if current is None else current()
    if here is not None:
        here.failed(error)


def _sendable(warning: Any) -> tuple[str, Any, str, int]:
    return (str(warning.message), warning.category, warning.filename, warning.lineno)


def _config(request: RankRequest) -> Any:
    return request.config


OWN_MAKERS: dict[str, Maker] = {
    "pytestconfig": _config,
    "cache": lambda request: request.config.cache,
    "tmp_path_factory": lambda request: private.folder_factory(request.config),
}
"""What pytest keeps for a whole session and cannot be sent: a rank has its own."""

PROCESS_MAKERS = {**COMMON_MAKERS, **OWN_MAKERS}
