"""A suite as projects write them for torch's own test classes: all shapes of classes, the
decorators and the helpers. `test_unittest_ported.py` runs it as it is, and with the one import
changed, and compares how each test ends."""

import contextlib
import os
import sys
import unittest

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_distributed import (
    TEST_SKIPS,
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    captured_output,
    create_tcp_store,
    get_timeout,
    requires_gloo,
    requires_mpi,
    requires_nccl,
    run_subtests,
    simple_sparse_reduce_tests,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    skip_if_odd_worldsize,
    skip_if_small_worldsize,
    skip_if_win32,
    spawn_threads_and_init_comms,
    with_dist_debug_levels,
)


class OnThreads(MultiThreadedTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def perThreadSetUp(self):  # noqa: N802
        super().perThreadSetUp()
        self.made_by = dist.get_rank()

    def perThreadTearDown(self):  # noqa: N802
        self.assertFalse(dist.is_initialized())
        super().perThreadTearDown()

    def test_rank_and_size(self):
        self.assertEqual(dist.get_rank(), self.rank)
        self.assertEqual(dist.get_world_size(), self.world_size)
        self.assertEqual(self.made_by, self.rank)

    def test_all_reduce(self):
        tensor = torch.full((2, 3), float(self.rank))
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((2, 3), 6.0))

    def test_broadcast_from_each(self):
        for source in range(self.world_size):
            tensor = torch.tensor([self.rank])
            dist.broadcast(tensor, src=source)
            self.assertEqual(tensor, [source])

    def test_all_gather(self):
        outputs = [torch.zeros(1) for _ in range(self.world_size)]
        dist.all_gather(outputs, torch.ones(1) * self.rank)
        self.assertEqual(torch.cat(outputs), torch.arange(4.0))

    def test_reduce_scatter(self):
        output = torch.zeros(1)
        dist.reduce_scatter(output, [torch.tensor([float(i)]) for i in range(4)])
        self.assertEqual(output.item(), 4.0 * self.rank)

    def test_scatter_and_gather(self):
        pieces = [torch.tensor([10.0 * i]) for i in range(4)] if self.rank == 0 else None
        piece = torch.zeros(1)
        dist.scatter(piece, pieces)
        gathered = [torch.zeros(1) for _ in range(4)] if self.rank == 0 else None
        dist.gather(piece + 1, gathered)
        if self.rank == 0:
            self.assertEqual([each.item() for each in gathered], [1.0, 11.0, 21.0, 31.0])

    def test_all_to_all_single(self):
        output = torch.empty(4)
        dist.all_to_all_single(output, torch.arange(4.0) + 10 * self.rank)
        self.assertEqual(output, torch.arange(4.0) * 10 + self.rank)

    def test_subgroups(self):
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor = torch.tensor([float(self.rank)])
        dist.all_reduce(tensor, group=groups[self.rank // 2])
        self.assertEqual(tensor.item(), 1.0 if self.rank < 2 else 5.0)

    def test_objects(self):
        told = [{"from": 0}] if self.rank == 0 else [None]
        dist.broadcast_object_list(told)
        self.assertEqual(told, [{"from": 0}])

    def test_on_one_rank(self):
        drawn = torch.rand(3)
        of_first = drawn.clone()
        dist.broadcast(of_first, src=0)
        self.assertEqualOnRank(drawn, of_first)
        self.assertNotEqualOnRank(drawn, of_first, rank=1)

    def test_subtests(self):
        seen = []
        config = {"size": [1, 2], "dtype": [torch.float32, torch.int64]}
        run_subtests(self, config, lambda size, dtype: seen.append((size, dtype)))
        self.assertEqual(len(seen), 4)

    def test_skipped_by_all(self):
        self.skipTest("not today")

    @unittest.skip("not at all")
    def test_skipped_by_decorator(self):
        self.fail("never called")

    @skip_if_lt_x_gpu(2)
    def test_for_gpus(self):
        self.assertGreaterEqual(torch.cuda.device_count(), 2)

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.assertEqual(self.rank, 17)

    def test_fails_on_all(self):
        self.assertEqual(torch.ones(2), torch.zeros(2))

    def test_fails_on_one(self):
        if self.rank == 2:
            raise ValueError("only here")
        dist.barrier()


class OnThreadsByMethod(unittest.TestCase):
    @spawn_threads_and_init_comms
    def test_default_size(self):
        self.assertEqual(dist.get_world_size(), 4)

    @spawn_threads_and_init_comms(world_size=3)
    def test_other_size(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 3.0)

    def test_an_error_is_a_runtime_error(self):
        @spawn_threads_and_init_comms(world_size=2)
        def body(self):
            if dist.get_rank() == 1:
                raise KeyError("of rank 1")
            dist.barrier()

        with self.assertRaisesRegex(RuntimeError, "of rank 1"):
            body(self)

    def test_a_skip_is_a_skip(self):
        @spawn_threads_and_init_comms(world_size=2)
        def body(self):
            raise unittest.SkipTest("inside")

        with self.assertRaises(unittest.SkipTest):
            body(self)


class OnProcesses(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        os.environ["WORLD_SIZE"] = str(self.world_size)
        os.environ["BACKEND"] = "gloo"
        os.environ["OF_SET_UP"] = "seen"
        self.special_return_code_checks = {self.test_exit_code_5.__wrapped__: 5}
        self.skip_return_code_checks = [self.test_any_exit_code.__wrapped__]
        self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        with contextlib.suppress(OSError):
            os.remove(self.file_name)

    def _join_group(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    @requires_gloo()
    @skip_if_win32()
    def test_all_reduce(self):
        self._join_group()
        tensor = torch.ones(3) * (self.rank + 1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((3,), 3.0))
        self.assertEqual(self.is_master, dist.get_rank() == 0)

    def test_ddp(self):
        self._join_group()
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(2, 1))
        model(torch.ones(1, 2) * (self.rank + 1)).sum().backward()
        self.assertEqual(model.module.weight.grad, torch.full((1, 2), 1.5))

    def test_environment(self):
        self.assertEqual(os.environ["OF_SET_UP"], "seen")
        self.assertNotIn("LOCAL_RANK", os.environ)

    @with_dist_debug_levels(levels=["OFF", "DETAIL"])
    def _with_levels(self, seen):
        seen.append(os.environ["TORCH_DISTRIBUTED_DEBUG"])

    def test_debug_levels(self):
        self._join_group()
        seen = []
        self._with_levels(seen)
        self.assertEqual(seen, ["OFF", "DETAIL"])

    def test_sparse_sums(self):
        self._join_group()
        for inputs, outputs in simple_sparse_reduce_tests(self.rank, self.world_size):
            dist.all_reduce(inputs[0])
            self.assertEqual(inputs[0].to_dense(), outputs[0].to_dense())

    @skip_if_small_worldsize
    def test_for_many_ranks(self):
        self.fail("never called")

    @skip_if_odd_worldsize
    def test_for_even_numbers(self):
        self.assertEqual(self.world_size % 2, 0)

    @skip_if_no_gpu
    def test_for_gpus(self):
        self.assertTrue(torch.cuda.is_available())

    @requires_nccl()
    def test_for_nccl(self):
        self.assertTrue(dist.is_nccl_available())

    @requires_mpi()
    def test_for_mpi(self):
        self.assertTrue(dist.is_mpi_available())

    def test_skipped_in_the_rank(self):
        raise unittest.SkipTest("decided here")

    def test_skipped_by_code(self):
        sys.exit(TEST_SKIPS["nccl"].exit_code)

    @skip_if_odd_worldsize
    def test_exit_code_5(self):
        sys.exit(5)

    @skip_if_odd_worldsize
    def test_any_exit_code(self):
        sys.exit(7 + self.rank)

    def test_fails_on_all(self):
        self.assertEqual(self.rank, -5)

    @unittest.expectedFailure
    def test_expected_failure(self):
        raise OSError("as expected")


class WithOwnRun(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @property
    def destroy_pg_upon_exit(self):
        return False

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        dist.init_process_group(
            "gloo", init_method=f"file://{file_name}", rank=rank, world_size=2
        )
        dist.barrier()
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(0)

    def test_point_to_point(self):
        tensor = torch.full((2,), float(self.rank))
        if self.rank == 0:
            dist.send(tensor, dst=1)
        else:
            dist.recv(tensor, src=0)
        self.assertEqual(tensor, torch.zeros(2))

    def test_fails(self):
        raise RuntimeError("in a rank with its own _run")


class ForDevices(DistributedTestBase):
    @property
    def world_size(self):
        return 2

    def test_group_for_the_cpu(self):
        group = self.create_pg("cpu")
        self.assertEqual(group.size(), 2)
        self.assertEqual(dist.get_backend(), "gloo")
        self.assertEqual(self.backend("cuda:0"), "nccl")

    def test_devices_of_ranks(self):
        self.assertEqual(self.rank_to_device("cpu"), {0: [0], 1: [0]})


class KeepsItsGroup(MultiProcContinuousTest):
    world_size = 2
    seen = []  # noqa: RUF012

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_1_all_reduce(self):
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2.0)
        self.seen.append(id(self.pg))

    def test_2_the_group_is_still_there(self):
        self.assertEqual(self.seen, [id(self.pg)])
        self.assertEqual(dist.get_rank(self.pg), self.rank)

    def test_3_device_type(self):
        self.assertIn(self.device_type(), ("cpu", "cuda", "xpu"))

    def test_4_skipped(self):
        self.skipTest("not this one")

    def test_5_skipped_by_code(self):
        sys.exit(TEST_SKIPS["no_cuda"].exit_code)

    def test_6_after_skips(self):
        dist.barrier()


class WithoutRanks(unittest.TestCase):
    def test_time_limits(self):
        self.assertEqual(get_timeout("a.b.test_x"), 300)
        self.assertEqual(get_timeout("a.b.test_ddp_uneven_inputs"), 400)

    def test_store(self):
        store = create_tcp_store()
        store.set("key", "value")
        self.assertEqual(store.get("key"), b"value")

    def test_captured_output(self):
        with captured_output() as (out, err):
            print("to be read")
            print("as well", file=sys.stderr)
        self.assertEqual((out.getvalue(), err.getvalue()), ("to be read\n", "as well\n"))


if __name__ == "__main__":
    unittest.main()
