"""The assertions between ranks: what passes, what is found, and the whole text of each error.

To write the golden files anew after a change that is meant:

    PHALANX_UPDATE_GOLDEN=1 pytest tests/testing/test_assertions.py

and read the difference before you keep it.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import phalanx
from phalanx.testing import (
    assert_different_on_all_ranks,
    assert_gradients_in_sync,
    assert_replicas_in_sync,
    assert_same_on_all_ranks,
    assert_shards_cover,
    assert_shards_disjoint,
    parallel_assert,
)

GOLDEN = Path(__file__).parent / "golden"
ENGINES = ["threads", pytest.param("processes", marks=pytest.mark.slow)]
Pair = namedtuple("Pair", "left right")


@dataclass
class Config:
    width: int
    scale: Any


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x))


def rank() -> int:
    return dist.get_rank()


def errors_of(program: Callable[[], Any], *, ranks: int = 4, engine: str = "threads") -> dict:
    with pytest.raises(phalanx.RankFailedError) as caught:
        phalanx.run(program, ranks=ranks, engine=engine)
    return caught.value.failures


def text_of(program: Callable[[], Any], *, ranks: int = 4, engine: str = "threads") -> str:
    """The one text that all ranks raise as an AssertionError."""
    failures = errors_of(program, ranks=ranks, engine=engine)
    assert sorted(failures) == list(range(ranks))
    assert all(isinstance(error, AssertionError) for error in failures.values())
    (text,) = {str(error) for error in failures.values()}
    return text


# -- programs that fail, each with a golden text ------------------------------------------


def a_number() -> None:
    assert_same_on_all_ranks(0.5 if rank() != 2 else 0.75, name="loss")


def three_numbers() -> None:
    assert_same_on_all_ranks(min(rank(), 2), name="step")


def elements_of_a_tensor() -> None:
    tensor = torch.zeros(32, 32)
    if rank() == 2:
        tensor[0, 5], tensor[3, 7], tensor[4, 4] = 0.25, 1.5, 1e-9
    assert_same_on_all_ranks(tensor, name="weights")


def a_nan() -> None:
    tensor = torch.zeros(3, dtype=torch.bfloat16)
    tensor[1] = {1: float("nan"), 2: 0.5}.get(rank(), 0.0)
    assert_same_on_all_ranks(tensor)


def the_shape() -> None:
    assert_same_on_all_ranks(torch.zeros(8 if rank() else 4), name="batch")


def a_structure() -> None:
    value: dict[str, Any] = {"layers": [1, 2], "lr": 0.1, "nested": {"deep": Config(3, "x")}}
    if rank() == 1:
        value["extra"] = "only here"
        value["layers"].append(3)
    if rank() == 3:
        value["nested"]["deep"].scale = "y"
    assert_same_on_all_ranks(value, name="config")


def a_sharded_tensor() -> None:
    mesh = init_device_mesh("cpu", (4,))
    sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
    assert_same_on_all_ranks(sharded, name="weight")


def replicas() -> None:
    model = Net()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.25)
        if rank() == 3:
            model.first.weight[1, 2] += 0.5
            model.norm.running_mean += 1
    assert_replicas_in_sync(model)


def many_entries() -> None:
    model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(6)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float(rank() == 0))
    assert_replicas_in_sync(model)


def optimizer_state() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 if rank() else 0.2)
    with torch.no_grad():
        model.weight.fill_(1.0)
    model.weight.grad = torch.full((1, 2), 1.0)
    optimizer.step()
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer.state[model.weight]["exp_avg"][0, 1] += rank() // 3
    assert_replicas_in_sync(model, optimizer=optimizer)


def missing_gradient() -> None:
    model = Net()
    model.first.weight.grad = torch.ones(4, 4)
    if rank() == 1:
        model.unused.bias.grad = torch.ones(4)
    assert_gradients_in_sync(model)


def same_seeds() -> None:
    assert_different_on_all_ranks(1234 if rank() in (0, 2) else rank(), name="seed")


def overlapping_shards() -> None:
    assert_shards_disjoint(range(rank() * 3, rank() * 3 + 4))


def twice_on_one_rank() -> None:
    assert_shards_disjoint([f"file{rank()}", f"file{rank()}"] if rank() == 1 else [rank()])


def incomplete_shards() -> None:
    assert_shards_cover(torch.arange(rank() * 3, rank() * 3 + 2), 12)


def foreign_items() -> None:
    assert_shards_cover(range(rank() * 3, rank() * 3 + 4), 12)


def one_false_condition() -> None:
    parallel_assert(rank() != 2, "x is too large")


def conditions_that_raise() -> None:
    parallel_assert(lambda: 1 / (rank() % 2), participating=rank() != 3)


FAILING = [
    a_number,
    three_numbers,
    elements_of_a_tensor,
    a_nan,
    the_shape,
    a_structure,
    a_sharded_tensor,
    replicas,
    many_entries,
    optimizer_state,
    missing_gradient,
    same_seeds,
    overlapping_shards,
    twice_on_one_rank,
    incomplete_shards,
    foreign_items,
    one_false_condition,
    conditions_that_raise,
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("program", FAILING, ids=lambda program: program.__name__)
def test_golden_texts(program: Callable[[], None], engine: str) -> None:
    text = text_of(program, engine=engine)
    golden = GOLDEN / f"{program.__name__}.txt"
    if os.environ.get("PHALANX_UPDATE_GOLDEN"):
        golden.write_text(text + "\n", encoding="ascii")
    assert text + "\n" == golden.read_text(encoding="ascii")


def test_texts_are_plain() -> None:
    for program in FAILING:
        path = GOLDEN / f"{program.__name__}.txt"
        lines = path.read_text(encoding="ascii").splitlines()
        assert lines[0]
        assert all(len(line) <= 88 for line in lines[1:]), path
        assert all(line == line.rstrip() for line in lines), path


def test_the_error_is_data_too() -> None:
    error = errors_of(elements_of_a_tensor)[0]
    (difference,) = error.differences
    assert difference.path == "weights"
    assert [side.ranks for side in difference.sides] == [(0, 1, 3), (2,)]
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.differences) == (str(error), error.differences)


# -- what passes --------------------------------------------------------------------------

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def dtypes_and_shapes() -> None:
    for dtype in DTYPES:
        for shape in [(), (0,), (3,), (2, 0, 3), (2, 3)]:
            tensor = torch.ones(shape).to(dtype)
            assert_same_on_all_ranks(tensor)
            if rank() == 1 and tensor.numel():
                tensor.view(-1)[-1] = 0
            if tensor.numel():
                with pytest.raises(AssertionError, match=r"rank 1 from ranks 0, 2 in 1 of"):
                    assert_same_on_all_ranks(tensor)


def test_every_dtype_and_shape() -> None:
    phalanx.run(dtypes_and_shapes, ranks=3)


def equal_values() -> None:
    nan = torch.tensor([float("nan"), 0.0 if rank() else -0.0, float("inf")])
    assert_same_on_all_ranks(nan)
    assert_same_on_all_ranks(float("nan"))
    assert_same_on_all_ranks(torch.arange(6).view(2, 3).t())  # not contiguous
    assert_same_on_all_ranks(torch.ones(3, requires_grad=True) * 2)
    assert_same_on_all_ranks(torch.ones(2, dtype=torch.complex64).conj())
    assert_same_on_all_ranks(torch.eye(3).to_sparse())
    assert_same_on_all_ranks(torch.eye(3).to_sparse_csr())
    assert_same_on_all_ranks(torch.zeros(3, device="meta"))
    assert_same_on_all_ranks([None, "text", b"bytes", {3, 1, 2}, Pair(1, 2), Config(1, 2.0)])
    assert_same_on_all_ranks({"b": 1, "a": 2} if rank() else {"a": 2, "b": 1})
    assert_same_on_all_ranks(torch.float32)
    assert_same_on_all_ranks(10**30)
    assert_same_on_all_ranks([])
    torch.manual_seed(0)
    assert_same_on_all_ranks(nn.Linear(2, 2))
    mesh = init_device_mesh("cpu", (3,))
    assert_same_on_all_ranks(distribute_tensor(torch.ones(3), mesh, [Replicate()]))
    assert_same_on_all_ranks(1, group=mesh)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")  # torch's
def test_what_is_the_same() -> None:
    phalanx.run(equal_values, ranks=3)


def differing_values() -> None:
    odd = rank() == 1
    for one, other in [
        (1, 1.0),
        (1, True),
        ([1], (1,)),
        ("a", "b"),
        (None, 0),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(1, 2), torch.zeros(2, 1)),
        (torch.eye(3).to_sparse(), torch.ones(3, 3).to_sparse()),
        (torch.tensor([1, 2**62]), torch.tensor([1, -(2**62)])),
        ({1, 2}, {1, 3}),
        (float("nan"), 0.0),
        (1 + 2j, 1 - 2j),
    ]:
        with pytest.raises(AssertionError):
            assert_same_on_all_ranks(one if odd else other)


def test_what_is_not_the_same() -> None:
    phalanx.run(differing_values, ranks=3)


def tolerances() -> None:
    near = 1.0 + rank() * 1e-6
    assert_same_on_all_ranks(near, rtol=1e-5)
    assert_same_on_all_ranks(torch.tensor([near, float("nan")]), atol=1e-5)
    for value in (near, torch.tensor([near], dtype=torch.float64)):
        with pytest.raises(AssertionError):
            assert_same_on_all_ranks(value, atol=1e-7)


def test_tolerances() -> None:
    phalanx.run(tolerances, ranks=3)


def in_a_subgroup() -> str:
    group = dist.new_group([1, 3])
    assert_same_on_all_ranks(torch.tensor(rank() % 2), group=group)
    try:
        assert_same_on_all_ranks(rank(), group=group, name="rank")
    except AssertionError as error:
        return str(error).splitlines()[0]
    return "returned"


def test_a_subgroup_is_named_by_global_ranks() -> None:
    told = "rank differs: rank 3 has 3, rank 1 has 1"
    assert phalanx.run(in_a_subgroup, ranks=4) == ["returned", told, "returned", told]


def nothing_changes() -> None:
    """Comparing must leave the tensors alone, also where ranks differ."""
    tensor = torch.full((4,), float(rank()))
    with pytest.raises(AssertionError):
        assert_same_on_all_ranks(tensor)
    assert tensor.tolist() == [float(rank())] * 4
    dist.barrier()  # nobody is behind


def test_the_values_stay_and_the_run_goes_on() -> None:
    phalanx.run(nothing_changes, ranks=4)


def good_training() -> None:
    torch.manual_seed(rank())
    model = Net()
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.data, src=0)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    assert_gradients_in_sync(model)
    optimizer.step()
    assert_replicas_in_sync(model, gradients=True, optimizer=optimizer)
    model.norm.running_var += rank()
    assert_replicas_in_sync(model, buffers=False)


def test_replicas_in_sync() -> None:
    phalanx.run(good_training, ranks=3)


def good_shards() -> None:
    sampler = torch.utils.data.DistributedSampler(range(10), 3, rank(), shuffle=False)
    assert_shards_cover(sampler, 10)  # pads to 12
    with pytest.raises(AssertionError, match="2 of 10 items are there more than once"):
        assert_shards_disjoint(sampler)
    assert_shards_disjoint(torch.arange(rank(), 10, 3))
    assert_shards_cover([f"file{rank()}"], [f"file{n}" for n in range(3)])
    assert_shards_disjoint([])
    assert_different_on_all_ranks(torch.full((2,), rank()))
    assert_different_on_all_ranks({"rank": rank()})
    parallel_assert(True)
    parallel_assert(rank() < 2, participating=rank() < 2)


def test_shards_and_the_rest() -> None:
    phalanx.run(good_shards, ranks=3)


# -- wrong use ----------------------------------------------------------------------------


def different_assertions() -> None:
    check = assert_same_on_all_ranks if rank() else assert_different_on_all_ranks
    check(1)


def what_does_not_pickle() -> None:
    assert_same_on_all_ranks(1 if rank() else (lambda: 1))


@pytest.mark.parametrize(
    ("program", "told"),
    [
        (different_assertions, "ranks called different assertions: ranks 1-3 assert_same_on_a"),
        (what_does_not_pickle, "failed on rank 0: TypeError: a function cannot be compared"),
    ],
)
def test_wrong_use_is_told_to_all(program: Callable[[], None], told: str) -> None:
    failures = errors_of(program)
    assert len(failures) == 4
    for error in failures.values():
        assert isinstance(error, phalanx.UsageError)
        assert told in str(error)


def test_without_a_group() -> None:
    with pytest.raises(phalanx.UsageError, match="there is no process group here"):
        assert_same_on_all_ranks(1)


def test_negative_tolerance() -> None:
    def program() -> None:
        with pytest.raises(phalanx.UsageError, match="tolerances are numbers from 0 on"):
            assert_same_on_all_ranks(1, rtol=-1)

    phalanx.run(program, ranks=2)


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    """Nothing of our engines is needed."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "from phalanx.testing import assert_same_on_all_ranks\n"
        "dist.init_process_group('gloo')\n"
        "try:\n"
        "    assert_same_on_all_ranks(torch.tensor(dist.get_rank()), name='rank')\n"
        "except AssertionError as error:\n"
        "    line = str(error).splitlines()[0]\n"
        "    sys.stdout.write(line + chr(10))  # at once: two ranks write to one pipe\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(script)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()
        == ["rank differs: rank 1 from rank 0 in 1 of 1 element, by up to 1"] * 2
    )


class Twin:
    """Keys of a dict that look alike."""

    def __repr__(self) -> str:
        return "twin"


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_keys_that_look_alike_are_told_apart(odd: int) -> None:
    def program() -> None:
        values = {Twin(): [torch.ones(2), 5] for _ in range(3)}
        assert_same_on_all_ranks(values)
        if rank() == 1:
            list(values.values())[odd][1] = 6
        assert_same_on_all_ranks(values)

    text = text_of(program, ranks=3)
    number = ["", " (2)", " (3)"][odd]
    assert text.startswith(f"value[twin][1]{number} differs: rank 1 has 6, ranks 0, 2 have 5")


def test_long_values_are_told_apart_where_they_differ() -> None:
    def program() -> None:
        assert_same_on_all_ranks("/checkpoints/" + "x" * 60 + f"/step-{rank()}", name="path")

    text = text_of(program, ranks=3)
    assert text.startswith("path differs: rank 1 has ... ")
    for number in range(3):
        assert f"xxx/step-{number}'" in text.splitlines()[0]


def test_long_shards_are_told_apart() -> None:
    def program() -> None:
        assert_shards_disjoint([*range(100), 1000 + rank()])

    text = text_of(program, ranks=3)
    assert [line[:8] for line in text.splitlines() if "101 items" in line] == [
        "  rank 0",
        "  rank 1",
        "  rank 2",
    ]
