"""`MultiProcContinuousTest`: the tests of a class share their processes and their group.

After a test that fails, the next test gets new processes with a new group, and the class goes
on. Names and hooks are torch's, whose class skips all tests after a failure.
"""

from __future__ import annotations

import inspect
import os
import unittest
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from phalanx.errors import PhalanxError
from phalanx.testing.torch_compat.cases import (
    MAIN_RANK,
    RanksTestCase,
    get_timeout,
    leave_out_torchrun,
    ranks_of,
    replay_of,
    run_cleanups,
)
from phalanx.testing.torch_compat.equality import seed_everything
from phalanx.testing.torch_compat.outcomes import Ended, end_of, run_all, settle, warn_of
from phalanx.testing.torch_compat.torch_test_helpers import new_file, remove_file

__unittest = True

UNSET = -2


class MultiProcContinuousTest(RanksTestCase):
    """The tests of the class run on `world_size` processes that stay, in one group. Override
    `backend_str`, `opts`, `device_type`, `timeout` or `_init_pg` to make another group;
    `world_size` may be a number or a property, and is by default the number of devices."""

    MAIN_PROCESS_RANK = MAIN_RANK
    world_size: int = UNSET
    rank: int = UNSET
    rdvz_file: str | None = None
    timeout: timedelta = timedelta(seconds=120)
    poison_pill: bool = False
    """Never set: a failure does not spoil the tests that follow."""

    pg: ClassVar[Any]
    _engine: ClassVar[ProcessesEngine | None] = None
    _environ: ClassVar[dict[str, str]]

    @classmethod
    def backend_str(cls) -> str | None:
        """The backend of the group; None: by the device of the tensors."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """The kind of device that the tests are for."""
        found = torch.accelerator.current_accelerator()
        return "cpu" if found is None else found.type

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        """Options for the group."""
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        """In a rank: make the group of the class."""
        os.environ["LOCAL_RANK"] = str(rank)  # init_device_mesh goes by it
        dist.init_process_group(
            cls.backend_str(),
            world_size=world_size,
            rank=rank,
            store=dist.FileStore(rdvz_file, world_size),  # type: ignore[attr-defined]
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        cls.pg = private.default_group()

    def setUp(self) -> None:
        super().setUp()
        self._ensure_processes_spawned()
        self.rank = self.MAIN_PROCESS_RANK

    @classmethod
    def _ensure_processes_spawned(cls) -> None:
        """Once for the class, at its first test: check what it requires, and start its
        processes."""
        if cls.__dict__.get("_engine") is not None:
            return
        kind = cls._device_kind()
        cls.world_size = cls._get_world_size(kind)
        _check_backend(cls.backend_str() if callable(cls.backend_str) else cls.backend_str)
        cls._environ = dict(os.environ)
        settings = ProcessSettings(ranks=cls.world_size, init=False, environ=cls._environ)
        cls._engine = ProcessesEngine(settings)
        cls.addClassCleanup(cls._end_processes)
        cls._renew_file()

    @classmethod
    def _end_processes(cls) -> None:
        engine, cls._engine = cls._engine, None
        if engine is not None:
            engine.close()
        cls._remove_file()

    @classmethod
    def _renew_file(cls) -> None:
        """New processes meet in a new file: the old one holds what the others wrote."""
        cls._remove_file()
        cls.rdvz_file = new_file()

    @classmethod
    def _remove_file(cls) -> None:
        if cls.rdvz_file is not None:
            remove_file(cls.rdvz_file)
        cls.rdvz_file = None

    @classmethod
    def _device_kind(cls) -> str:
        """`device_type` is a class method here; suites make it a property or a string too."""
        given = inspect.getattr_static(cls, "device_type")
        if isinstance(given, property):
            assert given.fget is not None
            return str(given.fget(cls))
        found = cls.device_type
        return str(found() if callable(found) else found)

    @classmethod
    def _get_world_size(cls, device_type: str) -> int:
        given = inspect.getattr_static(cls, "world_size")
        if isinstance(given, property):
            assert given.fget is not None
            size = int(given.fget(object.__new__(cls)))
        else:
            size = int(cls.world_size)
        if size == UNSET:
            size = int(torch.get_device_module(device_type).device_count())
            if size == 0:
                raise unittest.SkipTest(f"there is no device of the kind {device_type}")
        return ranks_of(size)

    def _join(self, fn: Callable[..., Any]) -> None:
        __tracebackhide__ = True
        engine = type(self)._engine
        assert engine is not None
        known = len(engine.findings)
        settle(lambda: self._run_ranks(engine), fn)
        warn_of(engine.findings[known:], fn)

    def _run_ranks(self, engine: ProcessesEngine) -> Sequence[Ended]:
        cls = type(self)
        if engine.replace_dead():
            cls._renew_file()
        what = cls, self.id(), cls.world_size, cls.rdvz_file, cls._environ
        limit, replay = get_timeout(self.id()), replay_of(self)
        try:
            return engine.call(live_as_rank, what, limit=limit, replay=replay, lingers=True)
        except PhalanxError:
            cls._renew_file()
            raise

    @classmethod
    def _run_test_given_id(cls, test_id: str, **kwargs: Any) -> None:
        """In a rank: run a test on an instance of its own."""
        name = test_id.rpartition(".")[2]
        self = cls(name)
        self.rank = cls.rank
        self.world_size = cls.world_size
        seed_everything()
        test = getattr(self, name)
        run_all(lambda: test(**kwargs), lambda: run_cleanups(self))


def _check_backend(name: str | None) -> None:
    checks = {
        "nccl": dist.is_nccl_available,
        "gloo": dist.is_gloo_available,
        "mpi": dist.is_mpi_available,
        "xccl": dist.is_xccl_available,
    }
    if name in checks and not checks[name]():
        raise unittest.SkipTest(f"the backend {name} is not available")


# -- in a rank ------------------------------------------------------------------------------

_prepared: set[type] = set()
_group_of: dict[type, str] = {}
"""For each class the file that this process has met the others in."""


def live_as_rank(
    cls: type[MultiProcContinuousTest],
    test_id: str,
    world_size: int,
    rdvz_file: str,
    environ: dict[str, str],
) -> Ended:
    """The function that a rank's process calls for each test."""
    if cls not in _prepared:
        _prepared.add(cls)
        cls.rank, cls.world_size = int(os.environ["RANK"]), world_size
        leave_out_torchrun(os.environ, environ)

    def live() -> None:
        if _group_of.get(cls) != rdvz_file:
            cls._init_pg(cls.rank, world_size, rdvz_file)
            _group_of[cls] = rdvz_file
        cls._run_test_given_id(test_id)

    return end_of(live)
