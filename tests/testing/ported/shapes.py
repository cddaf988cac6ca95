"""What the classes promise beyond passing and failing. Run by `test_unittest_classes.py`."""

import os
import sys
import unittest
from typing import ClassVar

import torch
import torch.distributed as dist

from phalanx.testing import (
    TEST_SKIPS,
    DistributedTestBase,
    DynamoDistributedMultiProcTestCase,
    DynamoDistributedSingleProcTestCase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    MultiThreadedTestCase,
    _dynamo_dist_per_rank_init,
    spawn_threads_and_init_comms,
)

left_behind: list[str] = []


class BaseOnThreads(MultiThreadedTestCase):
    """A base class of a project's own."""

    world_size = 3

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.of_class = "made once"

    def setUp(self):
        super().setUp()
        os.environ["OF_SET_UP"] = "seen"
        self._spawn_threads()

    def tearDown(self):
        assert self.rank == self.MAIN_THREAD_RANK
        os.environ.pop("OF_SET_UP")
        super().tearDown()


class OnThreads(BaseOnThreads):
    def test_1_state_of_rank(self):
        self.assertEqual(self.of_class, "made once")
        self.assertEqual(os.environ["OF_SET_UP"], "seen")
        for name in ("RANK", "LOCAL_RANK", "TORCHELASTIC_RUN_ID"):
            self.assertNotIn(name, os.environ)
        os.environ["OF_RANK"] = str(self.rank)
        dist.barrier()
        self.assertEqual(os.environ["OF_RANK"], str(self.rank))

    def test_2_random_numbers(self):
        drawn = [torch.zeros(1) for _ in range(3)]
        dist.all_gather(drawn, torch.rand(1))
        self.assertEqual(len({each.item() for each in drawn}), 3)

    def test_3_cleanups_run_in_order(self):
        self.addCleanup(lambda: self.assertEqual(self.steps, ["test", "second"]))
        self.addCleanup(lambda: self.steps.append("second"))
        self.steps = ["test"]

    def test_4_groups_may_be_destroyed_by_the_test(self):
        dist.destroy_process_group()

    def test_5_point_to_point(self):
        """torch's threaded group cannot."""
        tensor = torch.tensor([self.rank])
        if self.rank == 0:
            dist.send(tensor, 1)
        elif self.rank == 1:
            dist.recv(tensor, 0)
            self.assertEqual(tensor, [0])


class FreshGroups(BaseOnThreads):
    """A group is handed on to the next test where that cannot tell."""

    groups: ClassVar[dict[int, object]] = {}

    def perThreadSetUp(self):  # noqa: N802
        self.assertEqual(dist.group.WORLD._get_sequence_number_for_group(), 0)
        self.assertEqual(dist.get_world_size(), 3)
        self.assertFalse(dist.distributed_c10d._get_default_store().check(["left"]))
        self.assertEqual(dist.get_pg_count(), 1)

    def test_1_collective(self):
        dist.all_reduce(torch.ones(1))
        self.groups[self.rank] = dist.group.WORLD

    def test_2_is_handed_on(self):
        self.assertIs(dist.group.WORLD, self.groups[self.rank])
        dist.barrier()
        dist.distributed_c10d._get_default_store().set("left", "here")

    def test_3_another_after_a_key(self):
        self.assertIsNot(dist.group.WORLD, self.groups[self.rank])
        dist.new_group([0, 2])

    def test_4_another_after_more_groups(self):
        self.assertEqual(dist.new_group([0, 1, 2]).group_name, "1")

    def test_5_skips(self):
        dist.barrier()
        self.groups[self.rank] = dist.group.WORLD
        raise unittest.SkipTest("after a call")

    def test_6_another_after_a_cleanup(self):
        self.addCleanup(lambda: self.assertFalse(dist.is_initialized()))
        self.groups[self.rank] = dist.group.WORLD

    def test_7_has_another(self):
        self.assertIsNot(dist.group.WORLD, self.groups[self.rank])
        self.assertTrue(dist.is_initialized())


class WithoutGroupAfter(BaseOnThreads):
    """What runs in a rank before and after the test finds no group, as ever."""

    def __init__(self, *args, **kwargs):
        self.before = dist.is_initialized()
        super().__init__(*args, **kwargs)

    def perThreadTearDown(self):  # noqa: N802
        assert not dist.is_initialized()
        super().perThreadTearDown()

    def test_1(self):
        self.assertFalse(self.before)
        dist.barrier()

    def test_2(self):
        self.assertFalse(self.before)
        dist.barrier()


class Late(MultiThreadedTestCase):
    """What a rank or `setUp` decides late counts as well."""

    def setUp(self):
        super().setUp()
        self._spawn_threads()
        self.number = 2

    @property
    def world_size(self):
        return self.number if self.rank == self.MAIN_THREAD_RANK else dist.get_world_size()

    def test_1(self):
        def check():
            assert not dist.is_initialized()

        self.perThreadTearDown = check

    def test_2(self):
        self.assertEqual(dist.get_world_size(), 2)


class ByDecorator(unittest.TestCase):
    groups: ClassVar[dict[int, object]] = {}

    @spawn_threads_and_init_comms(world_size=2)
    def test_1(self):
        dist.barrier()
        self.groups[dist.get_rank()] = dist.group.WORLD

    @spawn_threads_and_init_comms(world_size=2)
    def test_2(self):
        self.assertIs(dist.group.WORLD, self.groups[dist.get_rank()])
        self.assertEqual(dist.group.WORLD._get_sequence_number_for_group(), 0)


class OnProcesses(MultiProcessTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        os.environ["SEEN_BY_RANKS"] = "yes"
        self._spawn_processes()
        os.environ["SEEN_BY_RANKS"] = "too late"
        self.files = [self.file_name]

    def tearDown(self):
        super().tearDown()
        del os.environ["SEEN_BY_RANKS"]

    def test_1_environment(self):
        self.assertEqual(os.environ["SEEN_BY_RANKS"], "yes")
        self.assertNotIn("RANK", os.environ)
        self.assertNotIn("WORLD_SIZE", os.environ)
        left_behind.append("of test 1")
        os.environ["LEFT_BEHIND"] = "of test 1"
        torch.set_default_dtype(torch.float64)

    def test_2_nothing_is_left_of_the_test_before(self):
        self.assertEqual(left_behind, [])
        self.assertNotIn("LEFT_BEHIND", os.environ)
        self.assertIs(torch.get_default_dtype(), torch.float32)

    def test_3_file(self):
        self.assertTrue(os.path.exists(self.file_name))
        self.assertFalse(hasattr(self, "files"))

    def test_4_group_by_environment(self):
        dist.init_process_group("gloo", rank=self.rank, world_size=self.world_size)
        dist.barrier()

    def test_5_random_numbers(self):
        self.assertEqual(torch.initial_seed(), 1234)


class ByEnvironment(DistributedTestBase):
    world_size = 2

    def test_group_for_each_number(self):
        self.assertEqual(os.environ["WORLD_SIZE"], "2")
        self.create_pg("cpu", world_size=2)
        self.assertEqual(self.backend("cpu"), "gloo")
        self.assertEqual(self.backend("hpu"), "hccl")
        self.assertEqual(self.backend("xpu:1"), "xccl")


class Continuous(MultiProcContinuousTest):
    pids = []  # noqa: RUF012

    @property
    def world_size(self):
        return 2

    @property
    def device_type(self):
        return "cpu"

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_1_first(self):
        self.pids.append((os.getpid(), id(self.pg)))
        os.environ["OF_TEST_1"] = "still there"

    def test_2_same_processes_and_group(self):
        self.assertEqual(self.pids, [(os.getpid(), id(self.pg))])
        self.assertEqual(os.environ["OF_TEST_1"], "still there")

    def test_3_fails(self):
        self.assertEqual(self.rank, 17)

    def test_4_new_processes_and_group(self):
        self.assertEqual(self.pids, [])
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        self.assertEqual(tensor.item(), 2.0)


class SkipsAtStart(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def _init_pg(cls, rank, world_size, rdvz_file):
        sys.exit(TEST_SKIPS["no_cuda"].exit_code)

    def test_1(self):
        self.fail("never called")

    def test_2(self):
        self.fail("never called")


class WithoutBackend(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "mpi"

    @unittest.skipIf(dist.is_mpi_available(), "this machine has it")
    def test(self):
        self.fail("never called")


class NoRanks(MultiProcessTestCase):
    world_size = 0

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test(self):
        self.fail("never called")


class NoThreads(MultiThreadedTestCase):
    world_size = 0

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test(self):
        self.fail("never called")


class NoDevices(MultiProcContinuousTest):
    @property
    def world_size(self):
        return min(4, 0)

    def test(self):
        self.fail("never called")


class Compiled(DynamoDistributedSingleProcTestCase):
    def test_group_of_one(self):
        self.assertEqual(dist.get_world_size(), 1)
        self.assertEqual(dist.get_rank(), self.rank)
        self.assertTrue(self.device.endswith(":0"))

    def test_compiled(self):
        doubled = torch.compile(lambda x: x * 2, backend="eager")
        self.assertEqual(doubled(torch.ones(1)), [2.0])


class CompiledOnProcesses(DynamoDistributedMultiProcTestCase):
    world_size = 2

    def test_on_each_rank(self):
        with _dynamo_dist_per_rank_init(self.rank, self.world_size, backend="gloo"):
            total = torch.ones(1)
            dist.all_reduce(total)
            tripled = torch.compile(lambda x: x * 3, backend="eager")
            self.assertEqual(tripled(total), [6.0])
        self.assertFalse(dist.is_initialized())

    def test_without_a_group(self):
        with _dynamo_dist_per_rank_init(self.rank, self.world_size, init_pg=False):
            self.assertFalse(dist.is_initialized())

    def test_with_a_fake_group(self):
        with _dynamo_dist_per_rank_init(self.rank, 64, fake_pg=True):
            self.assertEqual(dist.get_world_size(), 64)
            self.assertEqual(dist.get_backend(), "fake")


class Parametrized(BaseOnThreads):
    pass


for number in (1, 2):

    def check(self, number=number):
        tensor = torch.full((number,), 1.0)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, [3.0] * number)

    setattr(Parametrized, f"test_number_{number}", check)


class LeavesWorkAlone(BaseOnThreads):
    def test(self):
        if self.rank == 0:
            dist.isend(torch.ones(1), dst=1)
