"""Stores, folders, debug levels, models and data for tests, under torch's names."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.testing import (
    SaveForwardInputsModel,
    SaveForwardInputsModule,
    captured_output,
    cleanup_temp_dir,
    create_device,
    create_tcp_store,
    init_multigpu_helper,
    initialize_temp_directories,
    run_subtests,
    simple_sparse_reduce_tests,
    verify_ddp_error_logged,
    with_dist_debug_levels,
    with_nccl_blocking_wait,
)
from tests.testing.suites import run


def test_stores_have_ports_of_their_own() -> None:
    first, second = create_tcp_store(), create_tcp_store()
    first.set("key", "value")
    assert first.get("key") == b"value"
    assert first.port != second.port
    assert not second.check(["key"])


def test_a_device_for_gloo() -> None:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [create_device(), create_device(lazy_init=True)]
    assert len(options._devices) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the interface has another name")
def test_a_device_of_an_interface() -> None:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [create_device(interface="lo")]
    group = dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options)
    group.barrier().wait()
    with pytest.raises(RuntimeError):
        create_device(interface="there-is-none")


def test_captured_output() -> None:
    before = sys.stdout, sys.stderr
    with pytest.raises(KeyError), captured_output() as (out, err):
        print("out")
        print("err", file=sys.stderr)
        raise KeyError
    assert (out.getvalue(), err.getvalue()) == ("out\n", "err\n")
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize(
    ("gpus", "ranks", "expected"),
    [(4, 2, {0: [0], 1: [1]}), (2, 2, {0: [0], 1: [1]}), (2, 3, {0: [], 1: [], 2: []})],
)
def test_gpus_of_ranks(
    gpus: int, ranks: int, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert init_multigpu_helper(ranks, "nccl") == expected


def test_temporary_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEMP_DIR", "")
    monkeypatch.setenv("INIT_METHOD", "")
    initialize_temp_directories()
    folder = Path(os.environ["TEMP_DIR"])
    assert {each.name for each in folder.iterdir()} == {"barrier", "test_dir", "init_dir"}
    assert os.environ["INIT_METHOD"] == f"file://{folder}/init_dir/shared_init_file"
    initialize_temp_directories("env://")
    assert not folder.exists()
    assert os.environ["INIT_METHOD"] == "env://"
    second = Path(os.environ["TEMP_DIR"])
    cleanup_temp_dir()
    cleanup_temp_dir()
    assert not second.exists()


def test_debug_levels() -> None:
    seen: list[tuple[str, Any]] = []

    @with_dist_debug_levels(levels=["INFO", "DETAIL"])
    def test() -> str:
        seen.append((os.environ["TORCH_DISTRIBUTED_DEBUG"], dist.get_debug_level()))
        return "last"

    def program() -> tuple[str, bool, Any]:
        value = test()
        return value, "TORCH_DISTRIBUTED_DEBUG" in os.environ, dist.get_debug_level()

    before = dist.get_debug_level()
    assert phalanx.run(program, ranks=1) == [("last", False, before)]
    assert seen == [("INFO", dist.DebugLevel.INFO), ("DETAIL", dist.DebugLevel.DETAIL)]


def test_blocking_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3")

    @with_nccl_blocking_wait
    def test() -> tuple[str | None, str | None]:
        env = os.environ.get
        return env("TORCH_NCCL_BLOCKING_WAIT"), env("TORCH_NCCL_ASYNC_ERROR_HANDLING")

    assert test() == ("1", None)
    assert "TORCH_NCCL_BLOCKING_WAIT" not in os.environ
    assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "3"


class TwoParts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.used(x)


def test_errors_that_ddp_has_logged() -> None:
    def program() -> None:
        model = DistributedDataParallel(TwoParts())
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(RuntimeError) as caught:
            model(torch.ones(1, 2)).sum().backward()
        text = str(caught.value)
        verify_ddp_error_logged(model, text[:100] + "\nException raised from somewhere")
        with pytest.raises(AssertionError, match="which does not hold 'another error'"):
            verify_ddp_error_logged(model, "another error")

    phalanx.run(program, ranks=2)


def test_subtests_meet_after_each() -> None:
    def program() -> list[Any]:
        import unittest

        seen: list[Any] = []

        def body(base: int, *, size: int, name: str) -> None:
            seen.append((base, size, name))

        run_subtests(unittest.TestCase(), {"size": [1, 2], "name": ["a", "b"]}, body, 7)
        return seen

    every = [(7, 1, "a"), (7, 1, "b"), (7, 2, "a"), (7, 2, "b")]
    assert phalanx.run(program, ranks=2) == [every, every]


def test_a_failing_subtest_fails() -> None:
    def program() -> None:
        import unittest

        def body(*, size: int) -> None:
            assert size == 1

        run_subtests(unittest.TestCase(), {"size": [1, 2]}, body)

    with pytest.raises(phalanx.RankFailedError, match="AssertionError"):
        phalanx.run(program, ranks=2)


@pytest.mark.parametrize("inputs", [1, 2])
def test_sparse_cases_add_up(inputs: int) -> None:
    ranks = 3
    per_rank = [simple_sparse_reduce_tests(rank, ranks, inputs) for rank in range(ranks)]
    shapes = []
    for case in range(6):
        total = sum(t.to_dense() for each in per_rank for t in each[case][0])
        for each in per_rank:
            assert len(each[case][0]) == len(each[case][1]) == inputs
            for expected in each[case][1]:
                assert torch.equal(expected.to_dense(), total)
        first = per_rank[0][case][0][0]
        shapes.append((first.sparse_dim(), first.dense_dim()))
    assert shapes == [(1, 0), (2, 0), (3, 0), (1, 1), (1, 2), (1, 3)]


def test_models_that_save_their_inputs() -> None:
    seen: dict[nn.Module, torch.Tensor] = {}
    model = SaveForwardInputsModel(seen, cast_forward_inputs=False)
    x = torch.rand(2, 100)
    model(x)
    assert list(seen) == [model, model.c1, model.c2]
    assert seen[model] is x and seen[model.c1] is x and seen[model.c2] is not x
    half = SaveForwardInputsModule({}, cast_forward_inputs=True)
    assert half(x.double()).dtype is torch.float32
    with pytest.raises(RuntimeError):
        SaveForwardInputsModule({}, cast_forward_inputs=False)(x.double())


def test_a_file_to_meet_in_goes_with_the_process_after_ctrl_c(tmp_path: Path) -> None:
    text = (
        "import os; from phalanx.testing.torch_compat.torch_test_helpers import new_file\n"
        "name = new_file()\n"
        "if os.fork() == 0: raise SystemExit\n"  # a child leaves it alone
        "os.wait(); assert os.path.exists(name); raise KeyboardInterrupt"
    )
    done = run([sys.executable, "-c", text], TMPDIR=str(tmp_path))
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert not list(tmp_path.glob("tmp*"))
