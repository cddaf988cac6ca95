"""The decorators that skip inside a rank, and those that decide before any rank starts."""

from __future__ import annotations

import subprocess
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.testing import (
    ACCELERATOR_DIST_BACKENDS,
    DDP_RANK_DEVICES,
    DEFAULT_WORLD_SIZE,
    HAS_ACCELERATOR,
    PLATFORM_SUPPORTS_SYMM_MEM,
    TEST_SKIPS,
    TIMEOUT_DEFAULT,
    TIMEOUT_OVERRIDE,
    DistTestCases,
    MultiProcessTestCase,
    TestSkip,
    at_least_x_gpu,
    evaluate_platform_supports_symm_mem,
    get_required_world_size,
    get_timeout,
    has_efa,
    import_transformers_or_skip,
    nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend,
    requires_accelerator_dist_backend,
    requires_ddp_rank,
    requires_gloo,
    requires_mpi,
    requires_multicast_support,
    requires_nccl,
    requires_nccl_shrink,
    requires_nccl_version,
    requires_ucc,
    requires_world_size,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    skip_if_odd_worldsize,
    skip_if_rocm_arch_multiprocess,
    skip_if_rocm_multiprocess,
    skip_if_rocm_ver_lessthan_multiprocess,
    skip_if_small_worldsize,
    skip_if_win32,
    sm_is_or_higher_than,
    tp_transports,
)
from phalanx.testing.torch_compat import requirements


def leaves(decorator: Callable[[Any], Any]) -> str | None:
    """By which of the skips a decorated function leaves; None if it runs."""
    try:
        assert decorator(lambda: "ran")() == "ran"
    except SystemExit as end:
        return next(name for name, skip in TEST_SKIPS.items() if skip.exit_code == end.code)
    return None


def skips(decorator: Callable[[Any], Any]) -> str | None:
    """The reason for which unittest would not run a decorated test."""

    def test() -> None:
        pass

    decorated = decorator(test)
    is_skipped = getattr(decorated, "__unittest_skip__", False)
    return decorated.__unittest_skip_why__ if is_skipped else None


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Say how many GPUs there are."""

    def say(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    say(0)
    return say


def test_the_codes_are_distinct() -> None:
    codes = [skip.exit_code for skip in TEST_SKIPS.values()]
    assert len(set(codes)) == len(codes) == 18
    assert TEST_SKIPS["generic"].exit_code == 86
    assert all(isinstance(skip, TestSkip) and skip.message for skip in TEST_SKIPS.values())


def test_number_of_gpus(gpus: Callable[[int], None]) -> None:
    assert at_least_x_gpu(0) and not at_least_x_gpu(1)
    assert leaves(skip_if_lt_x_gpu(2)) == "multi-gpu-2"
    assert leaves(skip_if_lt_x_gpu(2, allow_cpu=True)) is None
    gpus(1)
    assert leaves(skip_if_lt_x_gpu(2, allow_cpu=True)) == "multi-gpu-2"
    assert leaves(skip_if_lt_x_gpu(9)) == "generic"
    gpus(2)
    assert at_least_x_gpu(2)
    assert leaves(skip_if_lt_x_gpu(2)) is None


def test_number_of_gpus_for_nccl(gpus: Callable[[int], None]) -> None:
    for decorator in (
        nccl_skip_if_lt_x_gpu("nccl", 2),
        require_n_gpus_for_nccl_backend(2, "nccl"),
    ):
        gpus(1)
        assert leaves(decorator) == "multi-gpu-2"
        gpus(2)
        assert leaves(decorator) is None
    gpus(0)
    assert leaves(nccl_skip_if_lt_x_gpu("gloo", 2)) is None
    assert leaves(require_n_gpus_for_nccl_backend(2, "gloo")) is None


def test_a_class_may_say_how_it_skips(gpus: Callable[[int], None]) -> None:
    class Case:
        told: list[str] = []  # noqa: RUF012

        def _handle_test_skip(self, message: str) -> None:
            self.told.append(message)

        @skip_if_lt_x_gpu(3)
        def test(self) -> None:
            raise AssertionError("never called")

    Case().test()
    assert Case.told == [TEST_SKIPS["multi-gpu-3"].message]


def test_a_gpu_for_each_rank(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert leaves(skip_if_no_gpu) == "no_cuda"
    gpus(1)
    assert leaves(skip_if_no_gpu) == "multi-gpu-2"
    gpus(2)
    assert leaves(skip_if_no_gpu) is None


@pytest.mark.parametrize(
    ("size", "backend", "small", "odd"),
    [
        ("2", "gloo", "small_worldsize", None),
        ("9", "gloo", None, "odd_worldsize"),
        ("8", "gloo", None, None),
        ("3", "mpi", None, None),
    ],
)
def test_number_of_ranks(
    size: str, backend: str, small: str | None, odd: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setenv("BACKEND", backend)
    assert leaves(skip_if_small_worldsize) == small
    assert leaves(skip_if_odd_worldsize) == odd


def test_a_missing_world_size_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ValueError, match=r"WORLD_SIZE is ''; set it in setUp"):
        leaves(skip_if_odd_worldsize)


def test_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    monkeypatch.setitem(sys.modules, "transformers", None)
    assert leaves(import_transformers_or_skip()) == "importerror"
    fake = types.SimpleNamespace(AutoModelForMaskedLM=1, BertConfig=1)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    assert leaves(import_transformers_or_skip()) is None


def test_an_import_error_of_the_test_itself_is_no_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's decorator takes it for one."""
    import sys
    import types

    fake = types.SimpleNamespace(AutoModelForMaskedLM=1, BertConfig=1)
    monkeypatch.setitem(sys.modules, "transformers", fake)

    @import_transformers_or_skip()
    def test() -> None:
        raise ImportError("a bug in the test")

    with pytest.raises(ImportError, match="a bug"):
        test()


def test_a_world_size_for_one_test(gpus: Callable[[int], None]) -> None:
    gpus(3)

    class Case(MultiProcessTestCase):
        @requires_world_size(3)
        def test_three(self) -> None:
            pass

        def test_any(self) -> None:
            pass

    assert get_required_world_size(Case("test_three"), 5) == 3
    assert get_required_world_size(Case("test_any"), 5) == 5
    assert skips(requires_world_size(3)) is None
    assert skips(requires_world_size(4)) == "requires 4 GPUs, of which there are 3"


@pytest.mark.parametrize(
    ("name", "decorator", "question"),
    [
        ("Gloo", requires_gloo, "is_gloo_available"),
        ("NCCL", requires_nccl, "is_nccl_available"),
        ("UCC", requires_ucc, "is_ucc_available"),
        ("MPI", requires_mpi, "is_mpi_available"),
    ],
)
def test_backends(
    name: str, decorator: Any, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, question, lambda: False)
    assert skips(decorator()) == f"torch was built without {name}"
    monkeypatch.setattr(dist, question, lambda: True)
    assert skips(decorator()) is None


def test_a_class_can_be_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_mpi_available", lambda: False)

    @requires_mpi()
    class Case(unittest.TestCase):
        pass

    assert Case.__unittest_skip__  # type: ignore[attr-defined]


def test_versions_of_nccl(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert skips(requires_nccl_version((99,), "no CUDA, so nothing is asked")) is None
    gpus(1)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 26, 1))
    assert skips(requires_nccl_version((2, 26), "why")) is None
    assert (
        skips(requires_nccl_version((2, 27), "why")) == "requires NCCL 2.27, found 2.26.1: why"
    )
    assert "2.27" in str(skips(requires_nccl_shrink()))
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert skips(requires_nccl_version((2, 26), "why")) == "torch was built without NCCL"


def test_backends_of_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    monkeypatch.setattr(dist, "is_xccl_available", lambda: True)
    assert ACCELERATOR_DIST_BACKENDS == ["nccl", "xccl", "hccl"]
    assert skips(requires_accelerator_dist_backend()) is None
    reason = "none of these backends is available: nccl, other"
    assert skips(requires_accelerator_dist_backend(["nccl", "other"])) == reason


def test_multicast(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert skips(requires_multicast_support()) is not None
    gpus(1)
    monkeypatch.setattr(private, "has_multicast_support", lambda: True)
    assert skips(requires_multicast_support()) is None


def test_rocm(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not evaluate_platform_supports_symm_mem()
    for decorator in (
        skip_if_rocm_multiprocess,
        skip_if_rocm_arch_multiprocess(("gfx90a",)),
        skip_if_rocm_ver_lessthan_multiprocess((99,)),
    ):
        assert skips(decorator) is None
    gpus(1)
    assert evaluate_platform_supports_symm_mem()
    monkeypatch.setattr(torch.version, "hip", "6.2.41133-dd7f95766")
    monkeypatch.setattr(requirements, "_rocm_arch", lambda: "gfx90a")
    assert not evaluate_platform_supports_symm_mem()
    assert skips(skip_if_rocm_multiprocess) == "not for ROCm"
    assert skips(skip_if_rocm_arch_multiprocess(("gfx90a",))) == "not for ROCm on gfx90a"
    assert skips(skip_if_rocm_arch_multiprocess(("gfx942",))) is None
    assert skips(skip_if_rocm_ver_lessthan_multiprocess((6, 3))) is not None
    assert skips(skip_if_rocm_ver_lessthan_multiprocess((6, 2))) is None
    assert skips(skip_if_rocm_ver_lessthan_multiprocess()) is not None


def test_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert skips(skip_if_win32()) is None
    monkeypatch.setattr("sys.platform", "win32")
    assert skips(skip_if_win32()) == "not supported on Windows"


def test_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    cuda = torch.device("cuda", 0)
    assert sm_is_or_higher_than(torch.device("cpu"), 99, 0)
    assert sm_is_or_higher_than(cuda, 8, 0) and not sm_is_or_higher_than(cuda, 8, 9)
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert not sm_is_or_higher_than(cuda, 1, 0)


@pytest.mark.parametrize(("code", "transports"), [(0, ["shm", "uv"]), (1, None)])
def test_efa(code: int, transports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.CompletedProcess([], code)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: done)
    has_efa.cache_clear()
    assert has_efa() is (code == 0)
    assert tp_transports() == transports
    has_efa.cache_clear()


def test_what_is_known_of_backends_and_devices() -> None:
    assert "nccl" in DistTestCases.skip_collective["sendrecv anysource"]
    assert "gloo" in DistTestCases.backend_feature["ddp"]
    assert DDP_RANK_DEVICES == ["cuda", "xpu"]
    assert requires_ddp_rank("cuda") and not requires_ddp_rank("cpu")
    assert (torch.cuda.device_count() > 0) <= HAS_ACCELERATOR
    assert bool(PLATFORM_SUPPORTS_SYMM_MEM) == evaluate_platform_supports_symm_mem()
    assert DEFAULT_WORLD_SIZE == 4


def test_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    assert get_timeout("a.B.test_c") == TIMEOUT_DEFAULT
    monkeypatch.setitem(TIMEOUT_OVERRIDE, "test_c", 7)
    assert get_timeout("a.B.test_c") == 7
