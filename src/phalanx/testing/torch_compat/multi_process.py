"""`MultiProcessTestCase` and `DistributedTestBase`: every test runs on processes of its own.

The processes are forked from the preloaded parent of the processes engine, so torch is not
imported again for each test, and nothing that one test leaves behind reaches the next. Names
and hooks are torch's; the exit code of every rank counts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.processes.call_on_ranks import EXITED
from phalanx.engines.processes.processes_engine import ProcessesEngine, ProcessSettings
from phalanx.errors import RankDied, RankFailedError, UsageError
from phalanx.model import Verdict, rank_list
from phalanx.system import monotonic
from phalanx.testing.torch_compat.cases import (
    DEFAULT_WORLD_SIZE,
    MAIN_RANK,
    RanksTestCase,
    check_spawned,
    get_timeout,
    leave_out_torchrun,
    ranks_of,
    replay_of,
    run_cleanups,
    test_name_of,
)
from phalanx.testing.torch_compat.equality import seed_everything
from phalanx.testing.torch_compat.outcomes import Ended, end_of, run_all, settle, warn_of
from phalanx.testing.torch_compat.torch_test_helpers import new_file, remove_file

__unittest = True

ERROR_CODE = 10
"""The exit code by which a rank says, in torch's harness, that its test raised."""


@dataclass(frozen=True)
class EndedProcess:
    """A rank that has ended: its exit code, negative for a signal, and its process id, if it
    has sent it."""

    rank: int
    exitcode: int | None
    pid: int | None = None

    @property
    def name(self) -> str:
        return f"process {self.rank}"

    def terminate(self) -> None:
        """It has ended already; suites call this in tearDown."""

    def kill(self) -> None:
        """The same."""

    def close(self) -> None:
        """The same."""

    def join(self, timeout: float | None = None) -> None:
        """The same."""

    def is_alive(self) -> bool:
        return False


class MultiProcessTestCase(RanksTestCase):
    """Each test runs on `world_size` new processes. `setUp` and `tearDown` run in the main
    process, and `setUp` calls `self._spawn_processes()`; the test makes its own group, e.g.
    with a `FileStore(self.file_name, self.world_size)`.

    A test whose ranks end with other exit codes than 0 says so in `setUp`:
    `self.special_return_code_checks[self.test_x.__wrapped__] = -6`, or, for any code at all,
    `self.skip_return_code_checks.append(self.test_x.__wrapped__)`.
    """

    MAIN_PROCESS_RANK = MAIN_RANK
    TEST_ERROR_EXIT_CODE = ERROR_CODE

    def _should_stop_test_suite(self) -> bool:
        """torch's runner asks: the next test has new processes, whatever this one did."""
        return False

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether the group that a test leaves behind is destroyed before its rank ends."""
        return True

    @property
    def world_size(self) -> int:
        return DEFAULT_WORLD_SIZE

    @property
    def is_master(self) -> bool:
        return self.rank == 0

    def setUp(self) -> None:
        super().setUp()
        self.special_return_code_checks: dict[Any, int] = {}
        self.skip_return_code_checks: list[Any] = []
        self.processes: list[EndedProcess] = []
        self.pid_to_pipe: dict[int, Any] = {}
        self.rank = self.MAIN_PROCESS_RANK
        self._environ: dict[str, str] | None = None
        self.file_name = new_file()
        self.addCleanup(remove_file, self.file_name)

    def tearDown(self) -> None:
        super().tearDown()
        self.processes = []

    def _current_test_name(self) -> str:
        return test_name_of(self)

    def _spawn_processes(self) -> None:
        """Have this test run on ranks, with the environment of now."""
        self._start_processes()

    def _start_processes(self, proc: Any = None) -> None:
        """torch starts them here, as `proc`; ours are forked when the test is called."""
        if proc is not None and not isinstance(proc, type):
            name = getattr(proc, "__qualname__", type(proc).__qualname__)
            raise UsageError(
                f"_start_processes({name}): the ranks of phalanx.testing are forked from a "
                "process that has torch loaded, not started by a function of the suite. Pass "
                "what they need by the environment or a file, in setUp, or keep torch's "
                "MultiProcessTestCase for this class"
            )
        self._environ = dict(os.environ)

    def _join(self, fn: Callable[..., Any]) -> None:
        __tracebackhide__ = True
        self._join_processes(fn)

    def _join_processes(self, fn: Callable[..., Any]) -> None:
        """Run the test on all ranks and judge how they ended."""
        __tracebackhide__ = True
        check_spawned(self._environ is not None, "_spawn_processes")
        began = monotonic()
        findings: list[Verdict] = []
        self._deaths: RankFailedError | None = None
        self._ends = settle(lambda: self._run_ranks(fn, findings), fn)
        self.processes = [
            EndedProcess(rank, end.code, end.pid) for rank, end in enumerate(self._ends)
        ]
        try:
            self._check_return_codes(fn, monotonic() - began)
        except self.failureException:
            if self._deaths is None or not self._judges_codes():
                raise
            settle(self._raise_deaths, fn)  # it says more
        warn_of(findings, fn)

    def _raise_deaths(self) -> Sequence[Ended]:
        assert self._deaths is not None
        raise self._deaths

    def _run_ranks(self, fn: Callable[..., Any], findings: list[Verdict]) -> Sequence[Ended]:
        assert self._environ is not None
        expects_code = self._expects_code(fn)
        settings = ProcessSettings(
            ranks=ranks_of(self.world_size),
            init=False,
            environ=self._environ,
            replay=replay_of(self),
            on_findings=findings.extend,
            # Checks would stop ranks that wait for one that dies.
            checks="none" if expects_code else "all",
        )
        engine = ProcessesEngine(settings)
        what = type(self), self._current_test_name(), self.file_name, self._environ
        try:
            ended = engine.call(
                live_as_rank,
                (*what, expects_code, getattr(self, "fake_pg", False)),
                limit=get_timeout(self.id()),
                patient=expects_code,
                may_exit=True,
            )
            return [Ended() if end == EXITED else end for end in ended]
        except RankFailedError as error:
            if not expects_code:
                raise
            ends = _expected_ends(error, settings.ranks)
            self._deaths = error
            return ends
        finally:
            engine.close()

    def _expects_code(self, fn: Callable[..., Any]) -> bool:
        """Whether other codes than 0 are no failure by themselves."""
        announced = (*self.special_return_code_checks, *self.skip_return_code_checks)
        return self._judges_codes() or fn in announced

    def _judges_codes(self) -> bool:
        """Whether the suite has its own rule for exit codes."""
        return type(self)._check_return_codes is not MultiProcessTestCase._check_return_codes

    def _check_return_codes(self, fn: Callable[..., Any], elapsed_time: float) -> None:
        """Every rank's exit code must be the one expected: 0, or what the test has announced.
        Of those announced, rank 0 must have it, and the others may."""
        __tracebackhide__ = True
        if fn in self.skip_return_code_checks:
            return
        expected = self.special_return_code_checks.get(fn, 0)
        wrong: dict[int | None, list[int]] = {}
        for process in self.processes:
            allowed = {expected} if process.rank == 0 else {0, expected}
            if process.exitcode not in allowed:
                wrong.setdefault(process.exitcode, []).append(process.rank)
        if wrong:
            told = "; ".join(
                f"{rank_list(who)} ended with {code}" for code, who in wrong.items()
            )
            raise self.failureException(
                f"{told}, but exit code {expected} was expected (rank 0 must end with it)"
            )

    @classmethod
    def _run(
        cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any
    ) -> None:
        """A rank's part, on an instance of its own. Suites override it to make the group."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Run the test in this rank, then clean up."""
        seed_everything()
        run_all(
            getattr(self, test_name),
            lambda: run_cleanups(self),
            lambda: self._leave_group() if self.destroy_pg_upon_exit else None,
        )

    def _leave_group(self) -> None:
        """Not Gloo's: it has nothing that outlives the process, which ends when all ranks are
        done, and a rank that is still connecting would see its peer go."""
        if dist.is_initialized() and dist.get_backend() != dist.Backend.GLOO:
            dist.destroy_process_group()


class DistributedTestBase(MultiProcessTestCase):
    """A `MultiProcessTestCase` that starts its ranks by itself and makes groups for a kind of
    device: `self.create_pg("cpu")`."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(_put_back, "WORLD_SIZE", os.environ.get("WORLD_SIZE"))
        os.environ["WORLD_SIZE"] = str(self.world_size)
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        leave_group()
        remove_file(self.file_name)

    def backend(self, device: str) -> str:
        """The backend for a kind of device, e.g. "cuda" or "cuda:0"."""
        for kind, name in (("cuda", "nccl"), ("hpu", "hccl"), ("xpu", "xccl")):
            if kind in device:
                return name
        return "gloo"

    def create_pg(self, device: str, world_size: int | None = None) -> Any:
        """Initialise the default group for this kind of device and return it."""
        ranks = self.world_size if world_size is None else world_size
        name = self.backend(device)
        dist.init_process_group(
            name,
            world_size=ranks,
            rank=self.rank,
            store=dist.FileStore(self.file_name, ranks),  # type: ignore[attr-defined]
        )
        if name in ("nccl", "xccl"):
            self._use_accelerator(name)
        return private.default_group()

    def _use_accelerator(self, backend: str) -> None:
        accelerator = torch.accelerator.current_accelerator()
        if accelerator is None:
            raise RuntimeError(f"the backend {backend} needs an accelerator, and there is none")
        own = torch.device(accelerator.type, self.rank)
        torch.set_default_device(own)
        torch.accelerator.set_device_index(own)

    def rank_to_device(self, device: str) -> dict[int, list[int]]:
        """For each rank the number of the device that it uses; ranks share if they must."""
        count = torch.get_device_module(device).device_count()
        return {rank: [rank % count] for rank in range(self.world_size)}


# -- in a rank ------------------------------------------------------------------------------


class RankPipe:
    """What a suite's own `_run` passes on to `run_test`. torch's ranks send a traceback through
    it before they leave with `ERROR_CODE`."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed = True


def live_as_rank(
    cls: type[MultiProcessTestCase],
    test_name: str,
    file_name: str,
    environ: dict[str, str],
    keeps_code: bool,
    fake_pg: bool,
) -> Ended:
    """The function that a rank's process calls."""
    rank, pipe = int(os.environ["RANK"]), RankPipe()
    leave_out_torchrun(os.environ, environ)
    end = end_of(
        lambda: cls._run(rank, test_name, file_name, pipe, fake_pg=fake_pg),
        keeps_code=keeps_code,
    )
    if end.code == ERROR_CODE and pipe.sent:
        raise RuntimeError(str(pipe.sent[-1]))
    return replace(end, pid=os.getpid())


def leave_group() -> None:
    """Destroy the groups that are left. Tests may have done so themselves."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _expected_ends(error: RankFailedError, ranks: int) -> Sequence[Ended]:
    """How ranks ended of which the test expects that they die; other failures stay such."""
    if not all(isinstance(each, RankDied) for each in error.failures.values()):
        raise error
    returned = getattr(error, "returned", {})
    ends = {rank: Ended() if end == EXITED else end for rank, end in returned.items()}
    for rank, death in error.failures.items():
        assert isinstance(death, RankDied)
        ends[rank] = Ended(death.code)
    if len(ends) < ranks:  # the others were over the limit
        raise error
    return [ends[rank] for rank in range(ranks)]


def _put_back(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
