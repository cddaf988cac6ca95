"""How often fixtures are made, where, and in which order they go. All of these pass."""

import json
import logging
import os
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import phalanx.testing

pytestmark = pytest.mark.ranks(3)

made = []
"""In pytest's process and, with threads, the ranks' as well."""


@pytest.fixture
def model(rank):
    """Function scope: each rank has its own."""
    return torch.full((2,), float(rank))


@pytest.fixture(scope="module")
def shared_list():
    made.append("shared_list")
    return ["made", "once"]


@pytest.fixture
@phalanx.testing.once_per_test
def once(tmp_path):
    """Below or above `@pytest.fixture`."""
    file = tmp_path / "count"
    file.write_text(str(len(file.read_text()) + 1) if file.exists() else "1")
    return os.getpid()


@phalanx.testing.once_per_rank
@pytest.fixture(scope="session")
def each(rank):
    return rank * 10


@pytest.fixture
def ordered(rank, world):
    order = [f"make {rank}"]
    yield order
    assert order == [f"make {rank}", "body", "inner gone"]
    world.barrier()  # the group is still there


@pytest.fixture
def inner(ordered):
    yield
    ordered.append("inner gone")


@pytest.fixture(params=["red", "blue"])
def colour(request):
    return request.param


@pytest.fixture
def overridden(rank):
    return ["outer", rank]


@pytest.fixture(autouse=True)
def noted(request):
    request.node.noted = request.fixturename


def test_each_rank_has_its_own(model, rank, world):
    assert model.sum() == 2 * rank
    assert len(set(world.gather(id(model)))) == world.size or world.engine == "processes"


def test_wider_scope_is_shared(shared_list, world):
    assert shared_list == ["made", "once"]
    if world.engine == "threads":
        assert len(set(world.gather(id(shared_list)))) == 1
        assert made.count("shared_list") == 1


def test_declared(once, each, rank, world, tmp_path):
    assert each == 10 * rank
    assert len(set(world.gather(once))) == 1
    assert (once == os.getpid()) is (world.engine == "threads")
    assert (tmp_path / "count").read_text() == "1"


def test_order(inner, ordered):
    ordered.append("body")


def test_parameters(colour, rank):
    assert colour in ("red", "blue")


@pytest.mark.parametrize("number", [1, 2])
def test_plain_parameters(number, world):
    assert world.gather(number) == [number] * world.size


def test_standard_ones(rank, world_size, device, world, request, tmp_path, rank_tmp_path):
    assert (rank, world_size) == (dist.get_rank(), dist.get_world_size())
    assert device == torch.device("cpu")
    assert (world.rank, world.size, world.seed) == (rank, world_size, 0)
    assert rank_tmp_path.parent == tmp_path
    (rank_tmp_path / "mine").write_text(str(rank))
    world.barrier()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank0", "rank1", "rank2"]
    assert request.node.name.startswith("test_standard_ones[ranks=3")
    assert request.node.noted == "noted"
    assert request.getfixturevalue("model").sum() == 2 * rank


def test_finalizers(request, world):
    request.addfinalizer(world.barrier)


def test_monkeypatch(monkeypatch, rank, world):
    monkeypatch.setenv("WHOSE", str(rank))
    world.barrier()
    assert os.environ["WHOSE"] == str(rank)
    monkeypatch.setattr(sys, "patched_by", rank, raising=False)
    world.barrier()
    assert sys.patched_by in range(world.size)
    with monkeypatch.context() as inner:
        inner.setenv("WHOSE", "nobody")
    assert os.environ["WHOSE"] == str(rank)
    if rank == 0:
        monkeypatch.undo()  # not the last to have patched it
        assert "WHOSE" not in os.environ


def test_monkeypatch_is_undone(world):
    assert not hasattr(sys, "patched_by")
    assert "WHOSE" not in os.environ


def test_capsys(capsys, rank, world):
    print(f"out {rank}")
    print(f"err {rank}", file=sys.stderr)
    world.barrier()
    assert capsys.readouterr() == (f"out {rank}\n", f"err {rank}\n")
    assert capsys.readouterr().out == ""


def test_caplog(caplog, rank, world):
    caplog.set_level(logging.INFO, logger="mine")
    logging.getLogger("mine").info("rank %d", rank)
    world.barrier()
    assert caplog.messages == [f"rank {rank}"]
    assert caplog.text.endswith(f"rank {rank}\n")


def test_caplog_of_a_logger_that_passes_nothing_on(caplog, rank, world):
    quiet = logging.getLogger("quiet")
    quiet.propagate = False  # pytest attaches to it from the next phase on
    world.barrier()
    quiet.warning("rank %d", rank)


def test_caplog_of_that_logger_later(caplog, rank, world):
    logging.getLogger("quiet").warning("rank %d", rank)
    world.barrier()
    old = tuple(map(int, pytest.__version__.split(".")[:2])) < (9, 2)
    assert caplog.messages == ([] if old else [f"rank {rank}"])


def test_caplog_levels_are_put_back():
    assert logging.getLogger("mine").level == logging.NOTSET


def test_recwarn(recwarn, rank, world):
    warnings.warn(f"from {rank}", UserWarning, stacklevel=1)
    world.barrier()
    assert [str(each.message) for each in recwarn] == [f"from {rank}"]


def test_other_objects(tmp_path_factory, pytestconfig, rank, world):
    folder = tmp_path_factory.mktemp("many")
    assert len(set(world.gather(str(folder)))) == world.size
    assert pytestconfig.rootpath.is_dir()


class TestInAClass:
    @classmethod
    def setup_class(cls):
        cls.width = 7

    def setup_method(self, method):
        self.mine = dist.get_rank()
        assert method.__name__.startswith("test_")

    def teardown_method(self):
        assert self.mine == dist.get_rank()

    @pytest.fixture
    def overridden(self, overridden):
        return [*overridden, self.mine]

    def test_instance(self, rank, world):
        assert self.mine == rank
        assert self.width == 7
        world.barrier()
        assert self.mine == rank

    def test_override(self, overridden, rank):
        assert overridden == ["outer", rank, rank]


def setup_module():
    made.append("module")


def setup_function(function):
    function.seen = True


def test_setup_function():
    assert "module" in made
    assert test_setup_function.seen


@pytest.mark.ranks(2, per_rank="shared_list", shared="model")
@pytest.mark.usefixtures("rank_tmp_path")
def test_chosen_by_the_marker(shared_list, world):
    assert world.size == 2
    assert len(set(world.gather(id(shared_list)))) == 2 or world.engine == "processes"


@pytest.fixture(scope="module")
def twofold():
    return {"scope": "module"}


class TestOverriding:
    @pytest.fixture
    def twofold(self, twofold, rank):
        return {**twofold, "rank": rank}

    def test_a_shared_one(self, twofold, rank):
        assert twofold == {"scope": "module", "rank": rank}

    @pytest.mark.parametrize("indirect", ["a", "b"], indirect=True)
    def test_indirect(self, indirect, rank):
        assert indirect in (("a", rank), ("b", rank))

    @pytest.fixture
    def indirect(self, request, rank):
        assert request.instance is self
        assert (request.cls, request.function.__name__) == (TestOverriding, "test_indirect")
        return request.param, rank


def test_a_rank_starts_nothing_by_itself(world):
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if world.engine == "processes" and children.exists():
        assert children.read_text() == ""


TABLE = {}


@mock.patch("json.dumps")
def test_mock_as_decorator(dumps, rank):
    json.dumps(rank)
    dist.barrier()
    assert dumps.called


def test_mocks_left_in_the_order_they_were_entered(rank, world_size):
    table = mock.patch.dict(TABLE, {"of": rank})
    environ = mock.patch.dict(os.environ, {"OF_RANK": str(rank)})
    with mock.patch("json.loads", return_value=rank), table, environ:
        for _ in range(rank + 1):
            dist.barrier()
        assert os.environ["OF_RANK"] == str(rank)
    for _ in range(world_size - rank - 1):
        dist.barrier()
    assert "OF_RANK" not in os.environ


def test_nothing_is_left_of_mocks():
    assert (json.dumps(1), json.loads("1")) == ("1", 1)
    assert TABLE == {}


@pytest.fixture
def steps():
    done = []
    yield done
    assert done == ["of the test"]


@pytest.fixture
def node(request):
    return request.node


def test_a_finalizer_that_comes_late_is_before_those_of_fixtures(steps, node):
    node.addfinalizer(lambda: steps.append("of the test"))
