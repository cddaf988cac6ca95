"""Test classes of other projects, on our engines.

`DistributedTest` and `DistributedFixture` are classes as in DeepSpeed's tests and the many
projects that copied them. They only translate: the pytest plugin runs the tests. (accelerate's
`debug_launcher` needs no pytest and is in `debug_launcher.py`; mpi-pytest's `parallel_assert`
is in `assertions.py`.)
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "phalanx.testing: DistributedTest and DistributedFixture are pytest's classes and "
        "fixtures, and pytest is not installed here: pip install pytest",
        name=error.name,
    ) from None

from phalanx.errors import PhalanxError, RankFailedError, UsageError
from phalanx.testing.pytest.fixture_scopes import once_per_rank, once_per_test

DIST_ENVIRON = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "MASTER_ADDR", "MASTER_PORT")


class DistributedTest:
    """A pytest class whose tests run on ranks, as many as `world_size` says.

    Derive from it and name the class `Test...`. Fixtures, parametrisation and marks work as in
    any pytest class; `@pytest.mark.world_size(N)` on a test overrides the class. `engine`
    is an addition: "threads", "processes", or None for the default of the run.

    `reuse_dist_env` and `non_daemonic_procs` are accepted and change nothing: processes are
    always kept, each test has a fresh group, and ranks may start processes.
    """

    world_size: ClassVar[int | Iterable[int]] = 2
    backend: ClassVar[str | None] = None
    engine: ClassVar[str | None] = None
    init_distributed: ClassVar[bool] = True
    set_dist_env: ClassVar[bool] = True
    requires_cuda_env: ClassVar[bool] = False
    exec_timeout: ClassVar[float | None] = None
    reuse_dist_env: ClassVar[bool] = False
    non_daemonic_procs: ClassVar[bool] = False
    pytestmark: ClassVar[list[Any]]

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        own = cls.__dict__.get("pytestmark", [])
        cls.pytestmark = [*(own if isinstance(own, list) else [own]), _ranks_mark(cls)]

    @pytest.fixture(scope="class")
    @classmethod
    def class_tmpdir(cls, tmpdir_factory: Any) -> Any:
        """A folder that all tests of the class share, on all ranks."""
        return tmpdir_factory.mktemp(cls.__name__)

    @once_per_rank
    @pytest.fixture(autouse=True)
    def _surroundings(self) -> Iterator[None]:
        """What the class says about the environment, in the rank, before anything else."""
        kept = _arrange(self)
        yield
        os.environ.update(kept)


def _ranks_mark(cls: type[DistributedTest]) -> Any:
    sizes = cls.world_size
    numbers = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return pytest.mark.ranks(
        *numbers, engine=cls.engine, backend=cls.backend, timeout=cls.exec_timeout
    )


def _arrange(test: DistributedTest) -> dict[str, str]:
    """Skip, or leave out what the class does not want; the variables to put back."""
    import torch
    import torch.distributed as dist

    if test.requires_cuda_env and not torch.accelerator.is_available():
        pytest.skip("needs an accelerator (requires_cuda_env), and there is none here")
    os.environ["LOCAL_SIZE"] = os.environ["WORLD_SIZE"]
    if not test.init_distributed:
        dist.destroy_process_group()
    kept: dict[str, str] = {}
    if not test.set_dist_env:
        for name in DIST_ENVIRON:
            if (value := os.environ.pop(name, None)) is not None:
                kept[name] = value
    return kept


class _FixtureMaker(type):
    """Makes a `class name(DistributedFixture)` statement define a pytest fixture `name`.

    pytest looks for fixtures among the objects of a module, so the statement binds the fixture
    to the name; the class is inside it.
    """

    def __new__(
        mcs, name: str, bases: tuple[type, ...], space: dict[str, Any], **more: Any
    ) -> Any:
        cls = super().__new__(mcs, name, bases, space, **more)
        return cls if "run" not in space else _fixture_of(cls)


class DistributedFixture(metaclass=_FixtureMaker):
    """A pytest fixture that runs on ranks of its own before the test does, e.g. to write a
    checkpoint with another number of ranks.

    Derive, give `run(self, ...)` the fixtures it needs as arguments, and name the class as the
    fixture is to be called. It has no value: let it write files into `class_tmpdir`.
    """

    world_size: ClassVar[int] = 2
    backend: ClassVar[str | None] = None
    engine: ClassVar[str | None] = None
    init_distributed: ClassVar[bool] = True
    set_dist_env: ClassVar[bool] = True
    requires_cuda_env: ClassVar[bool] = False
    exec_timeout: ClassVar[float | None] = None
    reuse_dist_env: ClassVar[bool] = False
    non_daemonic_procs: ClassVar[bool] = False


def _fixture_of(cls: Any) -> Any:
    if isinstance(cls.world_size, bool) or not isinstance(cls.world_size, int):
        raise UsageError(
            f"{cls.__name__}.world_size = {cls.world_size!r}: a DistributedFixture runs on one "
            "number of ranks; give a whole number from 1"
        )
    names = [name for name in inspect.signature(cls.run).parameters if name != "self"]

    def launch(**values: Any) -> None:
        __tracebackhide__ = True
        request = values.pop("request")
        _launch_fixture(cls, {name: values[name] for name in names}, request)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in dict.fromkeys(["request", *names])]
    launch.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    launch.__name__ = launch.__qualname__ = cls.__name__
    launch.__doc__ = cls.__doc__
    launch.__module__ = cls.__module__
    return pytest.fixture(once_per_test(launch))


def _launch_fixture(cls: Any, values: Mapping[str, Any], request: Any) -> None:
    __tracebackhide__ = True
    import phalanx

    engine = cls.engine or _engine_of(request)
    try:
        phalanx.run(
            _run_fixture,
            cls(),
            dict(values),
            ranks=cls.world_size,
            engine=engine,
            backend=cls.backend,
            timeout=cls.exec_timeout,
        )
    except RankFailedError as error:
        _skip_if_all_did(error, cls.world_size)
        raise


def _run_fixture(fixture: Any, values: Mapping[str, Any]) -> None:
    __tracebackhide__ = True
    _arrange(fixture)
    try:
        fixture.run(**values)
    except pytest.skip.Exception as skipped:
        raise FixtureSkipped(str(skipped)) from None


class FixtureSkipped(PhalanxError):
    """A rank of a `DistributedFixture` called `pytest.skip`."""


def _skip_if_all_did(error: RankFailedError, ranks: int) -> None:
    skips = [str(each) for each in error.failures.values() if isinstance(each, FixtureSkipped)]
    if len(skips) == len(error.failures):
        pytest.skip(skips[0])


def _engine_of(request: Any) -> str:
    """That of the test that asks for the fixture, which the command line may have chosen."""
    callspec = getattr(request.node, "callspec", None)
    way = None if callspec is None else callspec.params.get("_phalanx_ranks")
    engine: str = getattr(way, "engine", "threads")
    return engine
