"""Our classes together with torch's own tools for making tests. Run by
`test_unittest_ported.py`."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize

from phalanx.testing import MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase


@instantiate_parametrized_tests
class OnThreads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    @parametrize("size", [1, 2])
    def test_sum(self, size):
        tensor = torch.ones(size)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((size,), 2.0))


@instantiate_parametrized_tests
class OnProcesses(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @parametrize("size", [1, 2])
    def test_size(self, size):
        self.assertIn(size, (1, 2))


@instantiate_parametrized_tests
class Continuous(MultiProcContinuousTest):
    world_size = 2

    @parametrize("size", [1, 2])
    def test_size(self, size):
        dist.barrier()
        self.assertEqual(size, 1)


class ForDevices(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        tensor = torch.ones(1, device=device, dtype=dtype)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((1,), 2, device=device, dtype=dtype))


class ContinuousForDevices(MultiProcContinuousTest):
    world_size = 2

    def test_device(self, device):
        self.assertEqual(device, "cpu")


instantiate_device_type_tests(ForDevices, globals(), only_for=("cpu",))
instantiate_device_type_tests(ContinuousForDevices, globals(), only_for=("cpu",))
