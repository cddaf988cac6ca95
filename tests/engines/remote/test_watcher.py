"""The watcher in one process, with a line that only notes what it is told."""

from __future__ import annotations

import threading
import time
from itertools import count
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.remote.watcher import Watcher
from phalanx.errors import VerdictError
from phalanx.matching.announcement import Form, GroupForm
from phalanx.model import Verdict


class Notes:
    """A referee that lets everything go on."""

    def __init__(self) -> None:
        self.groups: list[GroupForm] = []
        self.forms: list[Form] = []
        self.announced: list[tuple[str, bool]] = []
        self.over: list[int] = []
        self.told: list[str] = []
        self._call_ids = count()

    def define_group(self, form: GroupForm) -> int:
        self.groups.append(form)
        return len(self.groups) - 1

    def define(self, form: Form) -> int:
        self.forms.append(form)
        return len(self.forms) - 1

    def forget_forms(self) -> None: ...

    def next_call_id(self) -> int:
        return next(self._call_ids)

    def announce(
        self, call_id: int, form: int, *, name: str, blocking: bool, limit: Any
    ) -> bool:
        self.announced.append((name, blocking))
        return True

    def wait(self, call_id: int, *, name: str, limit: Any) -> bool:
        return True

    def note_wait(self, call_id: int) -> None: ...

    def note_over(self, call_id: int, *, failed: bool = False) -> None:
        self.over.append(call_id)

    def tell(self, what: str, mark: Any, *fields: Any) -> None:
        self.told.append(what)

    def received(self, call_id: int, source: int) -> None: ...

    def report(self, verdict: Verdict) -> VerdictError:
        raise AssertionError(verdict)

    def failed(self, error: BaseException) -> None:
        raise AssertionError from error


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def notes(group):
    made = Notes()
    watcher = Watcher(made, 0)
    watcher.start()
    yield made
    watcher.stop()


def test_calls_are_announced_with_what_a_report_names(notes) -> None:
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX)
    work = dist.all_reduce(torch.ones(3), async_op=True)
    assert work is not None
    work.wait()
    dist.barrier()
    assert notes.announced == [("all_reduce", True), ("all_reduce", False), ("barrier", True)]
    assert notes.over == [0, 1, 2]
    first = notes.forms[0]
    assert (first.reduce_op, str(first.inputs[0])) == ("MAX", "float32[3]")
    assert first.site is not None and first.site.file.endswith("test_watcher.py")


def test_a_form_travels_once(notes) -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    assert len(notes.forms) == 1 and len(notes.announced) == 3


def test_a_call_that_the_backend_refuses_is_not_announced(notes) -> None:
    with pytest.raises(RuntimeError):
        dist.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2))
    assert notes.announced == []


class SlowStore:
    """One that answers late, so that all threads have asked before the first is answered."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        time.sleep(0.02)
        return desired.encode()


def test_groups_first_used_by_several_threads_at_once_are_told_apart(
    notes, monkeypatch
) -> None:
    monkeypatch.setattr(private, "store_of", lambda group: SlowStore())
    groups = [dist.new_group([0]) for _ in range(4)]
    start = threading.Barrier(len(groups))

    def use(group: Any) -> None:
        start.wait()
        dist.all_reduce(torch.ones(1), group=group)

    threads = [threading.Thread(target=use, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The last part counts how often a rank came to the same place: no group had another's.
    assert {form.key.rpartition(".")[2] for form in notes.groups} == {"1"}


def test_after_the_end_torch_is_as_it_was() -> None:
    before = dist.Work.wait
    watcher = Watcher(Notes(), 0)
    watcher.start()
    assert dist.Work.wait is not before
    watcher.stop()
    watcher.stop()
    assert dist.Work.wait is before
