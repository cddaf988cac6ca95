"""A suite on classes that torch itself derives from its own: they take ours when the two lines
come first. Run by `test_unittest_ported.py`."""

import sys

import phalanx.testing

sys.modules["torch.testing._internal.common_distributed"] = phalanx.testing

import torch  # noqa: E402
from torch.distributed.tensor import Shard, distribute_tensor  # noqa: E402
from torch.testing._internal.distributed._tensor.common_dtensor import (  # noqa: E402
    DTensorOpTestBase,
    DTensorTestBase,
    with_comms,
)


class OnProcesses(DTensorTestBase):
    @property
    def world_size(self):
        return 2

    @with_comms
    def test_shards(self):
        mesh = self.build_device_mesh()
        sharded = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        self.assertEqual(sharded.to_local(), torch.arange(4.0).chunk(2)[self.rank])

    @with_comms
    def test_fails(self):
        self.assertEqual(self.rank, 0)


class OnThreads(DTensorOpTestBase):
    def test_shards(self):
        mesh = self.build_device_mesh()
        sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
        self.assertEqual(sharded.full_tensor(), torch.arange(8.0))
        self.assertIsInstance(self, phalanx.testing.MultiThreadedTestCase)
