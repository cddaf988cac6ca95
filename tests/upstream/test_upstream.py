"""torch's own backend suite ends on our ranks as it does on real Gloo processes: a selection in
`make test`, the whole at 3, 4 and 8 ranks among the slow tests. The page agrees with the stored
results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "upstream.md"

QUICK = [
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_all_gather_coalesced_with_empty",
    "test_all_reduce_sum_async",
    "test_barrier_timeout_global",
    "test_ddp_logging_data_cpu",
    "test_destroy_full_group",
    "test_gather_checks",
    "test_get_rank",
    "test_isend_torch_profiler",
    "test_monitored_barrier_gloo_subgroup",
    "test_reduce_full_group_product",
    "test_scatter_object_list",
    "test_send_recv_any_source_autograd_profiler",
    "test_sparse_all_reduce_sum",
]
QUICK_GPU = ["test_ddp_control_flow_different_across_ranks", "test_ddp_uneven_input_exception"]


def run(*options: str, seconds: float) -> str:
    command = [sys.executable, str(HERE / "run.py"), *options]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    return done.stdout


def select(names: list[str]) -> list[str]:
    return [part for name in names for part in ("--select", name)]


def test_a_selection_passes() -> None:
    assert f"3 ranks: {len(QUICK)} passed" in run("--ranks", "3", *select(QUICK), seconds=55)


@pytest.mark.slow
def test_a_selection_of_those_for_gpus_passes() -> None:
    told = run("--ranks", "4", "--gpu-tests", *select(QUICK_GPU), seconds=55)
    assert f"4 ranks: {len(QUICK_GPU)} passed" in told


def test_the_page_shows_the_stored_results(tmp_path: Path) -> None:
    run("--docs", str(tmp_path / "page.md"), seconds=55)
    assert (tmp_path / "page.md").read_text() == PAGE.read_text(), (
        "write it anew: python tests/upstream/run.py --docs docs/upstream.md"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_every_test_ends_as_on_gloo(ranks: int) -> None:
    run("--ranks", str(ranks), seconds=880)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_those_for_gpus_end_as_on_gloo(ranks: int) -> None:
    run("--ranks", str(ranks), "--gpu-tests", seconds=1780)
