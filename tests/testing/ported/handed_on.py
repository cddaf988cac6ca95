"""A test leaves something behind, and the next one must not find it: the default group of
`MultiThreadedTestCase`, its store, and the threads of the ranks are kept where they are as new.
Run by `test_unittest_classes.py`."""

import atexit
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import ClassVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx.testing import MultiThreadedTestCase


class Base(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()


class AtExit(Base):
    def test_1(self):
        if self.rank == 0:
            atexit.register(dist.destroy_process_group)
        dist.barrier()

    def test_2(self):
        dist.barrier()
        if self.rank == 0:
            ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.05), self.end()))

    def end(self):
        dist.destroy_process_group()

    def test_3(self):
        group = dist.group.WORLD
        ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.05), setattr(group, "mark", 1)))

    def test_4(self):
        self.assertFalse(hasattr(dist.group.WORLD, "mark"))


class InTheStore(Base):
    def test_1(self):
        c10d._get_default_store().set_timeout(timedelta(milliseconds=1))

    def test_2(self):
        self.assertGreater(c10d._get_default_store().timeout, timedelta(minutes=1))
        dist.barrier()
        if self.rank == 0:
            c10d._get_default_store().queue_push("queue", "x")

    def test_3(self):
        self.assertEqual(c10d._get_default_store().queue_len("queue"), 0)

    def test_4(self):
        dist.destroy_process_group()
        store = dist.PrefixStore("again", self.global_store)
        dist.init_process_group("gloo", rank=self.rank, world_size=2, store=store)
        c10d._get_default_store().set("left", "1")

    def test_5(self):
        self.assertFalse(c10d._get_default_store().check(["left"]))


class GlobalStore(Base):
    """It is the one that the group meets in, whichever test this is."""

    def tearDown(self):
        super().tearDown()
        self.assertGreater(self.global_store.num_keys(), 0)

    def test_1(self):
        dist.barrier()

    def test_2(self):
        c10d._get_default_store().set("key", "value")


class InTables(Base):
    def test_1(self):
        c10d._world.pg_group_ranks[dist.group.WORLD][7] = 7

    def test_2(self):
        self.assertEqual(len(c10d._world.pg_group_ranks[dist.group.WORLD]), 2)
        c10d._world.pg_names[dist.group.WORLD] = "other"

    def test_3(self):
        self.assertNotEqual(c10d._world.pg_names[dist.group.WORLD], "other")
        c10d._world.tags_to_pg.setdefault("", []).append(None)

    def test_4(self):
        self.assertNotIn(None, c10d._world.tags_to_pg[""])


class InThreads(Base):
    def test_1(self):
        torch.autograd.graph.saved_tensors_hooks(lambda t: 1 / 0, lambda t: t).__enter__()

    def test_2(self):
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        torch._C.DisableTorchFunction().__enter__()

    def test_3(self):
        self.assertTrue(torch._C._is_torch_function_enabled())
        threading.current_thread().mine = 1

    def test_4(self):
        self.assertFalse(hasattr(threading.current_thread(), "mine"))
        threading.current_thread().name = "mine"

    def test_5(self):
        self.assertNotEqual(threading.current_thread().name, "mine")


class Threaded(Base):
    """The name of torch's own group for threads."""

    def test_1(self):
        dist.destroy_process_group()
        store = dist.PrefixStore("again", self.global_store)
        dist.init_process_group("threaded", rank=self.rank, world_size=2, store=store)
        dist.barrier()

    def test_2(self):
        dist.barrier(dist.new_group([0, 1], backend="threaded"))


class Cleanups(Base):
    done: ClassVar[list[str]] = []

    def perThreadSetUp(self):  # noqa: N802
        self.addCleanup(self.done.append, self._testMethodName)
        if self._testMethodName == "test_1":
            self.skipTest("nothing to test")

    def test_1(self):
        self.fail("was skipped")

    def test_2(self):
        self.assertIn("test_1", self.done)


class Coroutine(Base):
    async def test(self):
        pass
