"""Check the test classes on a machine with a GPU: `python tests/device/check_testing.py`
with `src` on PYTHONPATH; needs nothing but torch. Not collected by pytest.

With the argument `torch` torch's own base classes are used, for which a stand-in of the package
expecttest is made; the preloaded parent of the ranks may load them too, and must not open the
driver.
"""

from __future__ import annotations

import sys
import types
import unittest


def stand_in_for_expecttest() -> None:
    module = types.ModuleType("expecttest")
    module.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    module.ACCEPT = False  # type: ignore[attr-defined]
    sys.modules["expecttest"] = module


if "torch" in sys.argv[1:]:
    stand_in_for_expecttest()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from phalanx.testing import (  # noqa: E402
    HAS_ACCELERATOR,
    PLATFORM_SUPPORTS_SYMM_MEM,
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    at_least_x_gpu,
    requires_accelerator_dist_backend,
    requires_multicast_support,
    requires_nccl,
    requires_nccl_version,
    skip_if_lt_x_gpu,
    sm_is_or_higher_than,
)

GPUS = torch.cuda.device_count()


def total(rank: int) -> float:
    tensor = torch.full((3,), float(rank), device=f"cuda:{rank % torch.cuda.device_count()}")
    dist.all_reduce(tensor)
    return tensor[0].item()


class Threads(MultiThreadedTestCase):
    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    @skip_if_lt_x_gpu(1)
    def test_all_reduce_on_the_gpu(self) -> None:
        self.assertEqual(total(self.rank), 6.0)

    @skip_if_lt_x_gpu(GPUS + 1)
    def test_is_skipped(self) -> None:
        self.fail("never called")


class Gloo(MultiProcessTestCase):
    world_size = 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    @skip_if_lt_x_gpu(1)
    def test_all_reduce_on_the_gpu(self) -> None:
        store = dist.FileStore(self.file_name, 2)
        dist.init_process_group("gloo", rank=self.rank, world_size=2, store=store)
        self.assertEqual(total(self.rank), 1.0)

    def test_fails_on_the_gpu(self) -> None:
        self.assertEqual(torch.ones(1, device="cuda"), torch.zeros(1, device="cuda"))


@requires_nccl()
@requires_accelerator_dist_backend()
@requires_nccl_version((2, 10), "old")
class Nccl(DistributedTestBase):
    world_size = GPUS

    def test_group(self) -> None:
        group = self.create_pg("cuda")
        self.assertEqual(dist.get_backend(group), "nccl")
        self.assertEqual(torch.ones(1).device.type, "cuda")
        self.assertEqual(total(self.rank), float(sum(range(GPUS))))
        self.assertEqual(self.rank_to_device("cuda")[0], [0])


class Continuous(MultiProcContinuousTest):
    @classmethod
    def backend_str(cls) -> str:
        return "nccl"

    def test_1_size(self) -> None:
        self.assertEqual(self.world_size, GPUS)
        self.assertEqual(self.device_type(), "cuda")

    def test_2_all_reduce(self) -> None:
        self.assertEqual(total(self.rank), float(sum(range(GPUS))))


class Machine(unittest.TestCase):
    def test_what_is_there(self) -> None:
        self.assertTrue(HAS_ACCELERATOR and at_least_x_gpu(GPUS))
        self.assertTrue(bool(PLATFORM_SUPPORTS_SYMM_MEM))
        self.assertTrue(sm_is_or_higher_than(torch.device("cuda", 0), 7, 0))
        requires_multicast_support()


def main() -> int:
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {GPUS} GPU")
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    result = unittest.TextTestRunner(verbosity=2).run(suite)
    failed = [case.id().rpartition(".")[2] for case, _ in result.failures]
    as_planned = failed == ["test_fails_on_the_gpu"] and not result.errors
    return 0 if as_planned and len(result.skipped) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
