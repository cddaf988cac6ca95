"""The names that `phalanx.testing` offers: frozen, complete against torch's own module, and
cheap to import."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import phalanx.testing

TORCHS = Path(torch.__file__).parent / "testing" / "_internal" / "common_distributed.py"

LEFT_OUT = {
    "TORCHCOMM_HAS_GLOO": "torchcomms is a package of its own, in no release of torch",
    "TORCHCOMM_HAS_NCCL": "the same",
    "TORCHCOMM_HAS_NCCLX": "the same",
    "TORCHCOMM_HAS_RCCL": "the same",
    "TORCHCOMM_HAS_RCCLX": "the same",
    "TORCHCOMM_HAS_XCCL": "the same",
    "setup_torchcomms_pg": "the same",
    "C10dTorchCommsTestBase": "the same",
    "retrieve_result_from_completion_queue": "the inside of torch's class; ours has no queues",
    "_maybe_handle_skip_if_lt_x_gpu": "the inside of a decorator",
    "logger": "each module's own",
    "tmp_dir": "the inside of initialize_temp_directories; the variable TEMP_DIR names it",
}

EXPORTS = [
    "ACCELERATOR_DIST_BACKENDS",
    "DDP_RANK_DEVICES",
    "DEFAULT_WORLD_SIZE",
    "DistTestCases",
    "DistributedTestBase",
    "DynamoDistributedMultiProcTestCase",
    "DynamoDistributedSingleProcTestCase",
    "HAS_ACCELERATOR",
    "MultiProcContinuousTest",
    "MultiProcessTestCase",
    "MultiThreadedTestCase",
    "PLATFORM_SUPPORTS_SYMM_MEM",
    "RankAssertionError",
    "RankTestError",
    "SaveForwardInputsModel",
    "SaveForwardInputsModule",
    "TEST_SKIPS",
    "TIMEOUT_DEFAULT",
    "TIMEOUT_OVERRIDE",
    "TestCase",
    "TestSkip",
    "_dynamo_dist_per_rank_init",
    "at_least_x_gpu",
    "captured_output",
    "cleanup_temp_dir",
    "create_device",
    "create_tcp_store",
    "evaluate_platform_supports_symm_mem",
    "get_required_world_size",
    "get_timeout",
    "logger",
    "has_efa",
    "import_transformers_or_skip",
    "init_multigpu_helper",
    "initialize_temp_directories",
    "nccl_skip_if_lt_x_gpu",
    "require_n_gpus_for_nccl_backend",
    "requires_accelerator_dist_backend",
    "requires_ddp_rank",
    "requires_gloo",
    "requires_mpi",
    "requires_multicast_support",
    "requires_nccl",
    "requires_nccl_shrink",
    "requires_nccl_version",
    "requires_ucc",
    "requires_world_size",
    "run_subtests",
    "simple_sparse_reduce_tests",
    "skip_if_lt_x_gpu",
    "skip_if_no_gpu",
    "skip_if_odd_worldsize",
    "skip_if_rocm_arch_multiprocess",
    "skip_if_rocm_multiprocess",
    "skip_if_rocm_ver_lessthan_multiprocess",
    "skip_if_small_worldsize",
    "skip_if_win32",
    "sm_is_or_higher_than",
    "spawn_threads_and_init_comms",
    "tp_transports",
    "verify_ddp_error_logged",
    "with_dist_debug_levels",
    "with_nccl_blocking_wait",
]
"""Those that suites made for torch's classes use. The pytest plugin and the assertions have
tests of their own."""


def definitions() -> dict[str, ast.AST]:
    """What torch's module defines at its top level."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(TORCHS.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((each.id, node) for each in targets if isinstance(each, ast.Name))
    return found


def test_all_of_torchs_names_are_there() -> None:
    missing = set(definitions()) - set(phalanx.testing.__all__)
    assert missing <= set(LEFT_OUT), missing - set(LEFT_OUT)


OTHERS = [
    "DistributedFixture",
    "DistributedTest",
    "RanksDisagreeError",
    "Pool",
    "assert_different_on_all_ranks",
    "assert_gradients_in_sync",
    "assert_replicas_in_sync",
    "assert_same_on_all_ranks",
    "assert_shards_cover",
    "assert_shards_disjoint",
    "debug_launcher",
    "once_per_rank",
    "once_per_test",
    "parallel_assert",
]
"""Those for new tests, and for suites of other shapes."""


def test_exported_names() -> None:
    assert sorted(phalanx.testing.__all__) == sorted([*EXPORTS, *OTHERS])


@pytest.mark.parametrize("name", EXPORTS)
def test_each_name_can_be_had(name: str) -> None:
    assert getattr(phalanx.testing, name) is not None
    assert name in dir(phalanx.testing)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'phalanx\.testing' has no attribute 'nothing'"):
        phalanx.testing.nothing  # noqa: B018


def torchs_functions() -> list[str]:
    return [
        name
        for name, node in definitions().items()
        if isinstance(node, ast.FunctionDef) and name not in LEFT_OUT
    ]


@pytest.mark.parametrize("name", torchs_functions())
def test_functions_take_what_torchs_take(name: str) -> None:
    node = definitions()[name]
    assert isinstance(node, ast.FunctionDef)
    args = node.args
    theirs = [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
    ours = inspect.signature(getattr(phalanx.testing, name)).parameters
    assert [
        n for n, p in ours.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ] == theirs


def torchs_methods() -> list[tuple[str, str]]:
    return [
        (name, each.name)
        for name, node in definitions().items()
        if isinstance(node, ast.ClassDef) and name not in LEFT_OUT
        for each in node.body
        if isinstance(each, ast.FunctionDef)
    ]


INSIDE = {
    "_event_listener": "ranks tell where they are by themselves",
    "_get_timedout_process_traceback": "the report of a stall has the stacks",
    "_join_threads": "threads are started and joined in one step",
    "_worker_loop": "calls go through the engine",
    "_worker_run_main_wait": "join_or_run does this in all our classes",
}


@pytest.mark.parametrize(("kind", "method"), torchs_methods())
def test_classes_have_torchs_methods(kind: str, method: str) -> None:
    if method not in INSIDE and (kind, method) not in {
        ("MultiThreadedTestCase", "_check_return_codes"),
        ("MultiProcContinuousTest", "_spawn_processes"),
    }:
        assert hasattr(getattr(phalanx.testing, kind), method)


def test_importing_the_package_is_cheap() -> None:
    program = (
        "import sys, phalanx.testing; "
        "print([m for m in ('torch', 'pytest', 'unittest') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=50
    )
    assert done.stdout == "[]\n", done.stderr


def test_type_checkers_see_what_a_run_sees() -> None:
    imported = {
        str(node.module).removeprefix("phalanx.testing."): {name.name for name in node.names}
        for node in ast.walk(ast.parse(Path(phalanx.testing.__file__).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("phalanx.")
    }
    given = {module: set(names) for module, names in phalanx.testing._MODULES.items()}
    assert imported == given


def test_the_modules_exist() -> None:
    for module in phalanx.testing._MODULES:
        importlib.import_module(f"phalanx.testing.{module}")
