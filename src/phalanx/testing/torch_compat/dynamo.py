"""Test classes for `torch.compile` of distributed programs, under torch's names.

They use one process with a group of one rank, or several processes. Compiled code and counters
are reset between tests. There are no fixed ports, where torch's classes use 12355 and 6789.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.testing.torch_compat.cases import TestCase
from phalanx.testing.torch_compat.multi_process import DistributedTestBase, leave_group

if TYPE_CHECKING:
    _DynamoTestCase = TestCase
else:

    class _PlainDynamoTestCase(TestCase):
        """Used where torch's own cannot be imported because expecttest is missing."""

        def setUp(self) -> None:
            super().setUp()
            private.reset_dynamo(counters=True)

        def tearDown(self) -> None:
            super().tearDown()
            private.reset_dynamo(counters=True)

    _DynamoTestCase = private.dynamo_test_case() or _PlainDynamoTestCase

__unittest = True


class DynamoDistributedSingleProcTestCase(_DynamoTestCase):
    """The tests of the class share a group of one rank, this process. `device` is the
    accelerator if there is one, else the CPU."""

    rank: ClassVar[int] = 0
    device: ClassVar[str]
    device_ids: ClassVar[list[int] | None]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        found = torch.accelerator.current_accelerator()
        kind = "cpu" if found is None else found.type
        cls.device = f"{kind}:{cls.rank}"
        cls.device_ids = None
        dist.init_process_group(
            dist.get_default_backend_for_device(kind),
            rank=cls.rank,
            world_size=1,
            store=dist.HashStore(),  # type: ignore[attr-defined]
        )

    @classmethod
    def tearDownClass(cls) -> None:
        leave_group()
        super().tearDownClass()


class DynamoDistributedMultiProcTestCase(DistributedTestBase):
    """Tests of compiled programs on several processes, as many as there are accelerators."""

    @property
    def world_size(self) -> int:
        return torch.accelerator.device_count()

    @classmethod
    def _run(
        cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any
    ) -> None:
        private.quiet_trace_log()
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)


@contextmanager
def _dynamo_dist_per_rank_init(
    rank: int,
    world_size: int,
    backend: str | None = None,
    init_pg: bool = True,
    fake_pg: bool = False,
) -> Iterator[None]:
    """In a rank: its device, its group, and a compiler that remembers nothing, for the time
    of the block. `fake_pg` makes a group in which nothing is sent."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and not fake_pg:
        torch.accelerator.set_device_index(rank)
    if init_pg:
        _join_group(rank, world_size, backend, accelerator, fake=fake_pg)
    private.reset_dynamo(counters=True)
    try:
        yield
    finally:
        private.reset_dynamo(counters=True)
        if init_pg:
            leave_group()


def _join_group(
    rank: int, world_size: int, backend: str | None, accelerator: Any, *, fake: bool
) -> None:
    if fake:
        store = private.fake_store()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=store)
        return
    kind = "cpu" if accelerator is None else accelerator.type
    name = backend or dist.get_default_backend_for_device(kind)
    # By MASTER_ADDR and MASTER_PORT, which each run of ranks has of its own.
    dist.init_process_group(name, rank=rank, world_size=world_size)
