"""A suite in the shape of DeepSpeed's: classes, fixtures, attributes."""

# ruff: noqa: N801, RUF012

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phalanx.testing import DistributedFixture, DistributedTest


class TestInit(DistributedTest):
    world_size = 3

    def test(self):
        assert dist.is_initialized()
        assert dist.get_world_size() == 3 == int(os.environ["WORLD_SIZE"])
        assert int(os.environ["LOCAL_RANK"]) == dist.get_rank() < 3
        assert int(os.environ["LOCAL_SIZE"]) == 3


@pytest.fixture(params=["hello"])
def greeting(request):
    return request.param


@pytest.mark.parametrize(("number", "color"), [(7, "purple")])
class TestArguments(DistributedTest):
    world_size = 2

    @pytest.fixture(params=[50, 60])
    def own(self, request):
        return request.param

    @pytest.mark.parametrize("shape", ["cube"])
    def test(self, number, color, shape, greeting, own, word="default"):
        assert (number, color, shape, greeting, word) == (
            7,
            "purple",
            "cube",
            "hello",
            "default",
        )
        assert own in (50, 60)


class checkpoint(DistributedFixture):
    """Written by two ranks, read by one and by four."""

    world_size = 2

    def run(self, class_tmpdir, greeting):
        assert dist.get_world_size() == 2
        Path(class_tmpdir, f"rank{dist.get_rank()}").write_text(greeting)


class broken_checkpoint(DistributedFixture):
    def run(self):
        assert dist.get_rank() == 0, "no disk"


class unwanted_checkpoint(DistributedFixture):
    def run(self):
        pytest.skip("no need")


class TestCheckpoint(DistributedTest):
    world_size = [1, 4]

    def test_load(self, checkpoint, class_tmpdir, greeting):
        for rank in range(2):
            assert Path(class_tmpdir, f"rank{rank}").read_text() == "hello"

    @pytest.mark.world_size(2)
    def test_own_size(self):
        assert dist.get_world_size() == 2

    @pytest.mark.world_size(2)
    def test_broken(self, broken_checkpoint):
        raise RuntimeError("never gets here")

    @pytest.mark.world_size(2)
    def test_unwanted(self, unwanted_checkpoint):
        raise RuntimeError("never gets here")


class TestWithoutGroup(DistributedTest):
    init_distributed = False

    def test(self):
        assert not dist.is_initialized()
        dist.init_process_group("gloo")
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2


class TestWithoutEnvironment(DistributedTest):
    init_distributed = False
    set_dist_env = False

    def test(self):
        assert not {"RANK", "WORLD_SIZE", "MASTER_PORT"} & set(os.environ)


class TestNeedsGpu(DistributedTest):
    requires_cuda_env = not torch.accelerator.is_available()

    def test(self):
        raise RuntimeError("never gets here")


class TestBase(DistributedTest):
    reuse_dist_env = True
    non_daemonic_procs = True

    def test(self):
        assert dist.get_world_size() == type(self).world_size


class TestDerived(TestBase):
    world_size = 3


class TestEnds(DistributedTest):
    backend = "gloo"
    exec_timeout = 30

    def test_fails(self):
        assert dist.get_rank() == 0

    def test_skips(self):
        pytest.skip("not today")

    def test_backend(self):
        assert dist.get_backend() == "gloo"


class TestHangs(DistributedTest):
    exec_timeout = 1

    def test(self):
        while True:
            pass
