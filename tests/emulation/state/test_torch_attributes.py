"""What torch keeps per process, and what an import inside a rank would bind for all."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_hook

import phalanx
from phalanx.emulation.state import torch_attributes


def in_a_fresh_interpreter(program: str) -> str:
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.programs
def test_a_default_group_bound_at_import_is_every_worlds_own() -> None:
    """torch evaluates `group=group.WORLD` when the first rank imports the module."""
    program = """
        import torch, phalanx

        def body():
            import torch.distributed.nn.functional as functional
            return functional.all_reduce(torch.ones(1)).item()

        print(phalanx.run(body, ranks=2), phalanx.run(body, ranks=3))
    """
    assert in_a_fresh_interpreter(program) == "[2.0, 2.0] [3.0, 3.0, 3.0]\n"


@pytest.mark.programs
def test_a_rank_that_imports_and_changes_in_one_go_changes_its_own() -> None:
    program = """
        import torch, torch.distributed as dist, phalanx

        def body():
            from torch.distributed.fsdp._debug_utils import SimpleProfiler
            with SimpleProfiler.profile("x"):
                dist.barrier()  # all ranks are inside at once
            times = dict(SimpleProfiler.results)
            dist.barrier()
            SimpleProfiler.reset()
            return list(times)

        print(phalanx.run(body, ranks=3))
        from torch.distributed.fsdp._debug_utils import SimpleProfiler
        print(dict(SimpleProfiler.results), SimpleProfiler.profiling)
    """
    assert in_a_fresh_interpreter(program) == "[['x'], ['x'], ['x']]\n{} set()\n"


def test_a_dict_of_torchs_is_every_ranks_own_and_the_callers_in_the_end() -> None:
    from torch.distributed.fsdp._debug_utils import SimpleProfiler

    callers: Any = SimpleProfiler.results

    def change() -> list[dict[str, float]]:
        held: Any = SimpleProfiler.results
        dist.barrier()
        held["x"] += 1.0
        dist.barrier()
        return [dict(held), dict(SimpleProfiler.results)]

    def replace() -> bool:
        if dist.get_rank() == 0:
            SimpleProfiler.results = None
        dist.barrier()
        return SimpleProfiler.results is None

    for _ in range(2):
        assert phalanx.run(change, ranks=2) == [[{"x": 1.0}] * 2] * 2
        assert phalanx.run(replace, ranks=2) == [True, False]
        assert SimpleProfiler.results is callers and callers == {}


def test_what_the_caller_has_put_there_is_not_the_ranks() -> None:
    from torch.distributed.fsdp._debug_utils import SimpleProfiler

    def body() -> list[str]:
        with SimpleProfiler.profile("all"):
            dist.barrier()
        return list(SimpleProfiler.results)

    with phalanx.World(ranks=2) as world:
        with SimpleProfiler.profile("all"):
            assert world.run(body) == [["all"], ["all"]]
            assert SimpleProfiler.profiling == {"all"} and not SimpleProfiler.results
        assert list(SimpleProfiler.results) == ["all"]
        SimpleProfiler.reset()


def test_the_finder_is_there_during_runs_only() -> None:
    def finders() -> list[Any]:
        return [f for f in sys.meta_path if isinstance(f, torch_attributes.AttributeFinder)]

    assert [len(found) for found in phalanx.run(finders, ranks=2)] == [1, 1]
    assert finders() == []


def test_c_code_sees_the_variables_of_the_rank_that_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    monkeypatch.setenv("PHALANX_KEPT", "before")

    def body() -> list[bytes | None]:
        rank = str(dist.get_rank())
        os.environ["PHALANX_NEW"] = rank
        os.environ["PHALANX_KEPT"] = rank
        dist.barrier()
        seen = [getenv(b"PHALANX_NEW"), getenv(b"PHALANX_KEPT")]
        if rank == "1":
            del os.environ["PHALANX_NEW"]
        dist.barrier()
        return [*seen, getenv(b"PHALANX_NEW")]

    assert phalanx.run(body, ranks=2) == [[b"0", b"0", b"0"], [b"1", b"1", None]]
    assert (getenv(b"PHALANX_NEW"), getenv(b"PHALANX_KEPT")) == (None, b"before")


def test_seeding_often_is_no_polling() -> None:
    """torch reads source lines while it seeds, under a lock; giving way there would let the
    next rank block on the lock and come back without its generator."""

    def body() -> list[float]:
        drawn = []
        for step in range(120):
            torch.manual_seed(step)
            drawn.append(torch.rand(1).item())
            dist.barrier()
        return drawn

    first, *others = phalanx.run(body, ranks=4)
    assert all(other == first for other in others)
    torch.manual_seed(7)
    assert first[7] == torch.rand(1).item()


def warn() -> None:
    warnings.warn("shown once per place", UserWarning, stacklevel=1)


def test_hand_overs_show_no_warning_again() -> None:
    """Although the ranks have filters of their own."""

    def program() -> None:
        text = f"of rank {dist.get_rank()}"
        warnings.filterwarnings("ignore", message=text)
        for _ in range(5):
            warn()
            dist.barrier()

    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        phalanx.run(program, ranks=3)
    assert len(shown) == 3  # a rank that adds a filter begins anew, as a process does


def test_a_rank_for_which_warnings_are_errors_has_those_that_others_were_shown() -> None:
    def program() -> list[bool]:
        if dist.get_rank() == 1:
            warnings.simplefilter("error")
        raised = []
        for _ in range(3):
            try:
                warn()
                raised.append(False)
            except UserWarning:
                raised.append(True)
            dist.barrier()
        return raised

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("default")
        assert phalanx.run(program, ranks=3) == [[False] * 3, [True] * 3, [False] * 3]


def test_a_rank_that_silences_warnings_silences_its_own() -> None:
    before = warnings.filters

    def body() -> str:
        rank = dist.get_rank()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore" if rank else "error")
            dist.barrier()
            try:
                warnings.warn("heard?", stacklevel=1)
            except UserWarning:
                return "raised"
            dist.barrier()
        return "silent"

    def two() -> str:
        if dist.get_rank() == 0:
            warnings.simplefilter("ignore")
        dist.barrier()
        return str(warnings.filters[0][0])

    with pytest.raises(phalanx.DeadlockError, match="rank 0"):
        phalanx.run(body, ranks=3)  # rank 0 raises, hence returns
    assert phalanx.run(two, ranks=2)[0] == "ignore"
    assert warnings.filters is before


def test_hooks_for_all_modules_fire_for_the_ranks_own() -> None:
    def body() -> list[int]:
        rank = dist.get_rank()
        seen: list[int] = []
        handle = None
        if rank == 1:
            handle = register_module_forward_hook(lambda *_: seen.append(rank))
        dist.barrier()
        torch.nn.Linear(2, 2)(torch.ones(2))
        dist.barrier()
        if handle is not None:
            handle.remove()
        torch.nn.Linear(2, 2)(torch.ones(2))
        return seen

    assert phalanx.run(body, ranks=3) == [[], [1], []]
    assert phalanx.run(body, ranks=2) == [[], [1]]


def test_filters_changed_in_place_are_the_ranks_own_too() -> None:
    show, before = warnings.showwarning, list(warnings.filters)

    def body() -> str:
        if dist.get_rank() == 0:
            warnings.simplefilter("error")
            warnings.showwarning = print
        dist.barrier()
        try:
            warnings.warn("heard?", DeprecationWarning, stacklevel=1)
        except DeprecationWarning:
            return "raised"
        return "not raised"

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert phalanx.run(body, ranks=2) == ["raised", "not raised"]
    assert warnings.showwarning is show
    assert warnings.filters == before


def test_a_nested_run_gives_the_hooks_back() -> None:
    def body() -> int:
        seen: list[int] = []
        register_module_forward_hook(lambda *_: seen.append(1))
        layer = torch.nn.Linear(2, 2)
        layer(torch.ones(2))
        phalanx.run(dist.barrier, ranks=2)
        layer(torch.ones(2))
        return len(seen)

    assert phalanx.run(body, ranks=2) == [2, 2]


def test_a_hook_that_the_program_registers_between_runs_stays() -> None:
    seen: list[int] = []
    with phalanx.World(ranks=2) as world:
        world.run(lambda: register_module_forward_hook(lambda *_: None))
        handle = register_module_forward_hook(lambda *_: seen.append(1))
        world.run(dist.barrier)
        torch.nn.Linear(2, 2)(torch.ones(2))
    torch.nn.Linear(2, 2)(torch.ones(2))
    handle.remove()
    torch.nn.Linear(2, 2)(torch.ones(2))
    assert seen == [1, 1]


def test_a_hook_from_before_the_run_is_every_ranks() -> None:
    seen: list[int] = []

    def body() -> int:
        own = register_module_forward_hook(lambda *_: seen.append(2))
        torch.nn.Identity()(torch.ones(1))
        own.remove()
        return len(seen)

    handle = register_module_forward_hook(lambda *_: seen.append(1))
    phalanx.run(body, ranks=2)
    handle.remove()
    torch.nn.Identity()(torch.ones(1))
    assert seen == [1, 2, 1, 2]


def test_variables_in_bytes_are_the_ranks_own() -> None:
    def body() -> tuple[str, bool]:
        os.environb[b"PHALANX_BYTES"] = str(dist.get_rank()).encode()
        dist.barrier()
        return os.environ["PHALANX_BYTES"], b"PHALANX_BYTES" in os.environb

    assert phalanx.run(body, ranks=2) == [("0", True), ("1", True)]
    assert "PHALANX_BYTES" not in os.environ


def test_what_a_rank_holds_on_to_stays_its_own_when_another_one_changes_its_copy() -> None:
    from torch.distributed.tensor import DTensor

    def body() -> tuple[list[str], list[str]]:
        mine: Any = DTensor._op_dispatcher._custom_op_handlers
        dist.barrier()
        mine[f"op of rank {dist.get_rank()}"] = None
        dist.barrier()
        now: Any = DTensor._op_dispatcher._custom_op_handlers
        return [[key for key in each if isinstance(key, str)] for each in (mine, now)]

    wanted = [[[f"op of rank {rank}"]] * 2 for rank in range(3)]
    assert phalanx.run(body, ranks=3) == wanted
