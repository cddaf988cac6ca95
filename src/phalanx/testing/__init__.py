"""The door for tests: assertions between ranks, and torch's test classes on our engines.

The pytest plugin (`plugin.py`) lives here too and is found by its entry point. Names are loaded
when they are asked for: pytest loads this package in every project that has it installed, torch
takes a second to import, and the classes for dynamo several. So there are two lists: type
checkers read the imports, a run reads `_MODULES`. A test holds them equal.
"""

# isort: skip_file

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.testing.agreement.value_differences import (
        RanksDisagreeError as RanksDisagreeError,
    )
    from phalanx.testing.assertions import (
        assert_different_on_all_ranks as assert_different_on_all_ranks,
        assert_gradients_in_sync as assert_gradients_in_sync,
        assert_replicas_in_sync as assert_replicas_in_sync,
        assert_same_on_all_ranks as assert_same_on_all_ranks,
        assert_shards_cover as assert_shards_cover,
        assert_shards_disjoint as assert_shards_disjoint,
        parallel_assert as parallel_assert,
    )
    from phalanx.testing.pytest.fixture_scopes import (
        once_per_rank as once_per_rank,
        once_per_test as once_per_test,
    )
    from phalanx.testing.rank_pool import Pool as Pool
    from phalanx.testing.torch_compat.cases import (
        DEFAULT_WORLD_SIZE as DEFAULT_WORLD_SIZE,
        TIMEOUT_DEFAULT as TIMEOUT_DEFAULT,
        TIMEOUT_OVERRIDE as TIMEOUT_OVERRIDE,
        TestCase as TestCase,
        get_timeout as get_timeout,
        logger as logger,
        run_subtests as run_subtests,
    )
    from phalanx.testing.torch_compat.continuous import (
        MultiProcContinuousTest as MultiProcContinuousTest,
    )
    from phalanx.testing.torch_compat.debug_launcher import debug_launcher as debug_launcher
    from phalanx.testing.torch_compat.deepspeed_compat import (
        DistributedFixture as DistributedFixture,
        DistributedTest as DistributedTest,
    )
    from phalanx.testing.torch_compat.dynamo import (
        DynamoDistributedMultiProcTestCase as DynamoDistributedMultiProcTestCase,
        DynamoDistributedSingleProcTestCase as DynamoDistributedSingleProcTestCase,
        _dynamo_dist_per_rank_init as _dynamo_dist_per_rank_init,
    )
    from phalanx.testing.torch_compat.multi_process import (
        DistributedTestBase as DistributedTestBase,
        MultiProcessTestCase as MultiProcessTestCase,
    )
    from phalanx.testing.torch_compat.multi_threaded import (
        MultiThreadedTestCase as MultiThreadedTestCase,
        spawn_threads_and_init_comms as spawn_threads_and_init_comms,
    )
    from phalanx.testing.torch_compat.outcomes import (
        RankAssertionError as RankAssertionError,
        RankTestError as RankTestError,
    )
    from phalanx.testing.torch_compat.requirements import (
        ACCELERATOR_DIST_BACKENDS as ACCELERATOR_DIST_BACKENDS,
        DDP_RANK_DEVICES as DDP_RANK_DEVICES,
        HAS_ACCELERATOR as HAS_ACCELERATOR,
        PLATFORM_SUPPORTS_SYMM_MEM as PLATFORM_SUPPORTS_SYMM_MEM,
        DistTestCases as DistTestCases,
        evaluate_platform_supports_symm_mem as evaluate_platform_supports_symm_mem,
        has_efa as has_efa,
        requires_accelerator_dist_backend as requires_accelerator_dist_backend,
        requires_ddp_rank as requires_ddp_rank,
        requires_gloo as requires_gloo,
        requires_mpi as requires_mpi,
        requires_multicast_support as requires_multicast_support,
        requires_nccl as requires_nccl,
        requires_nccl_shrink as requires_nccl_shrink,
        requires_nccl_version as requires_nccl_version,
        requires_ucc as requires_ucc,
        skip_if_rocm_arch_multiprocess as skip_if_rocm_arch_multiprocess,
        skip_if_rocm_multiprocess as skip_if_rocm_multiprocess,
        skip_if_rocm_ver_lessthan_multiprocess as skip_if_rocm_ver_lessthan_multiprocess,
        skip_if_win32 as skip_if_win32,
        sm_is_or_higher_than as sm_is_or_higher_than,
        tp_transports as tp_transports,
    )
    from phalanx.testing.torch_compat.samples import (
        SaveForwardInputsModel as SaveForwardInputsModel,
        SaveForwardInputsModule as SaveForwardInputsModule,
        simple_sparse_reduce_tests as simple_sparse_reduce_tests,
    )
    from phalanx.testing.torch_compat.skips import (
        TEST_SKIPS as TEST_SKIPS,
        TestSkip as TestSkip,
        at_least_x_gpu as at_least_x_gpu,
        get_required_world_size as get_required_world_size,
        import_transformers_or_skip as import_transformers_or_skip,
        nccl_skip_if_lt_x_gpu as nccl_skip_if_lt_x_gpu,
        require_n_gpus_for_nccl_backend as require_n_gpus_for_nccl_backend,
        requires_world_size as requires_world_size,
        skip_if_lt_x_gpu as skip_if_lt_x_gpu,
        skip_if_no_gpu as skip_if_no_gpu,
        skip_if_odd_worldsize as skip_if_odd_worldsize,
        skip_if_small_worldsize as skip_if_small_worldsize,
    )
    from phalanx.testing.torch_compat.torch_test_helpers import (
        captured_output as captured_output,
        cleanup_temp_dir as cleanup_temp_dir,
        create_device as create_device,
        create_tcp_store as create_tcp_store,
        init_multigpu_helper as init_multigpu_helper,
        initialize_temp_directories as initialize_temp_directories,
        verify_ddp_error_logged as verify_ddp_error_logged,
        with_dist_debug_levels as with_dist_debug_levels,
        with_nccl_blocking_wait as with_nccl_blocking_wait,
    )

_MODULES = {
    "rank_pool": ("Pool",),
    "agreement.value_differences": ("RanksDisagreeError",),
    "assertions": (
        "assert_different_on_all_ranks",
        "assert_gradients_in_sync",
        "assert_replicas_in_sync",
        "assert_same_on_all_ranks",
        "assert_shards_cover",
        "assert_shards_disjoint",
        "parallel_assert",
    ),
    "torch_compat.cases": (
        "DEFAULT_WORLD_SIZE",
        "TIMEOUT_DEFAULT",
        "TIMEOUT_OVERRIDE",
        "TestCase",
        "get_timeout",
        "logger",
        "run_subtests",
    ),
    "torch_compat.continuous": ("MultiProcContinuousTest",),
    "pytest.fixture_scopes": ("once_per_rank", "once_per_test"),
    "torch_compat.dynamo": (
        "DynamoDistributedMultiProcTestCase",
        "DynamoDistributedSingleProcTestCase",
        "_dynamo_dist_per_rank_init",
    ),
    "torch_compat.outcomes": ("RankAssertionError", "RankTestError"),
    "torch_compat.debug_launcher": ("debug_launcher",),
    "torch_compat.multi_process": ("DistributedTestBase", "MultiProcessTestCase"),
    "torch_compat.requirements": (
        "ACCELERATOR_DIST_BACKENDS",
        "DDP_RANK_DEVICES",
        "DistTestCases",
        "HAS_ACCELERATOR",
        "PLATFORM_SUPPORTS_SYMM_MEM",
        "evaluate_platform_supports_symm_mem",
        "has_efa",
        "requires_accelerator_dist_backend",
        "requires_ddp_rank",
        "requires_gloo",
        "requires_mpi",
        "requires_multicast_support",
        "requires_nccl",
        "requires_nccl_shrink",
        "requires_nccl_version",
        "requires_ucc",
        "skip_if_rocm_arch_multiprocess",
        "skip_if_rocm_multiprocess",
        "skip_if_rocm_ver_lessthan_multiprocess",
        "skip_if_win32",
        "sm_is_or_higher_than",
        "tp_transports",
    ),
    "torch_compat.samples": (
        "SaveForwardInputsModel",
        "SaveForwardInputsModule",
        "simple_sparse_reduce_tests",
    ),
    "torch_compat.deepspeed_compat": ("DistributedFixture", "DistributedTest"),
    "torch_compat.skips": (
        "TEST_SKIPS",
        "TestSkip",
        "at_least_x_gpu",
        "get_required_world_size",
        "import_transformers_or_skip",
        "nccl_skip_if_lt_x_gpu",
        "require_n_gpus_for_nccl_backend",
        "requires_world_size",
        "skip_if_lt_x_gpu",
        "skip_if_no_gpu",
        "skip_if_odd_worldsize",
        "skip_if_small_worldsize",
    ),
    "torch_compat.torch_test_helpers": (
        "captured_output",
        "cleanup_temp_dir",
        "create_device",
        "create_tcp_store",
        "init_multigpu_helper",
        "initialize_temp_directories",
        "verify_ddp_error_logged",
        "with_dist_debug_levels",
        "with_nccl_blocking_wait",
    ),
    "torch_compat.multi_threaded": ("MultiThreadedTestCase", "spawn_threads_and_init_comms"),
}
"""The names that each module of this package gives to users."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'phalanx.testing' has no attribute {name!r}")
    value = getattr(import_module(f"phalanx.testing.{module}"), name)
    globals()[name] = value
    return value
