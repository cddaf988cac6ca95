"""Crossed order: what is found in real programs, and what must stay silent."""

from __future__ import annotations

import re
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import phalanx
from tests.support import assert_silent


def findings(program, ranks: int = 3, **options):
    with phalanx.World(ranks=ranks, **options) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return [each for each in world.findings if each.kind == "crossed-order"]


def turned(things, *, on: int = 1):
    things = list(things)
    return things[::-1] if dist.get_rank() == on else things


def named() -> dict[str, Tensor]:
    return {"w": torch.ones(1), "b": torch.zeros(1)}


# -- programs with the bug ---------------------------------------------------------------


def a_dict_of_another_order() -> None:
    for _, grad in turned(named().items()):
        dist.all_reduce(grad)


def its_values() -> None:
    grads = dict(turned(named().items()))
    for grad in grads.values():
        dist.all_reduce(grad)


def its_values_counted() -> None:
    grads = dict(turned(named().items()))
    for _, grad in enumerate(grads.values()):
        dist.all_reduce(grad)


def its_keys() -> None:
    grads = named()
    for key in turned(grads):
        dist.all_reduce(grads[key])


def fresh_tensors_by_name() -> None:
    metrics = {"loss": 1.0 + dist.get_rank(), "accuracy": 2.0, "count": 3.0}
    for _name, value in turned(metrics.items()):
        total = torch.tensor([value])
        dist.all_reduce(total)


def fresh_tensors_by_key() -> None:
    metrics = {"loss": 1.0 + dist.get_rank(), "accuracy": 2.0}
    for key in turned(metrics):
        mean = torch.tensor([metrics.get(key)]) / dist.get_world_size()
        dist.all_reduce(mean)


def gradients_by_name() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.add_module("more", nn.Linear(2, 2, bias=False))
    for _, parameter in model.named_parameters():
        parameter.grad = torch.ones(2, 2)
    for _name, parameter in turned(list(model.named_parameters())):
        dist.all_reduce(parameter.grad)


def a_comprehension() -> None:
    grads = named()
    [dist.all_reduce(grads[key]) for key in turned(grads)]


def numbers_of_buffers() -> None:
    buffers = [torch.ones(1), torch.zeros(1)]
    for index in turned(range(2)):
        dist.all_reduce(buffers[index])


def two_lines_swapped() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    if dist.get_rank() == 1:
        dist.all_reduce(two)
        dist.all_reduce(one)
    else:
        dist.all_reduce(one)
        dist.all_reduce(two)


class State:
    def __init__(self) -> None:
        self.loss, self.count = torch.ones(1), torch.zeros(1)


def attributes_swapped() -> None:
    state = State()
    if dist.get_rank() == 1:
        dist.all_reduce(state.count)
        dist.all_reduce(state.loss)
    else:
        dist.all_reduce(state.loss)
        dist.all_reduce(state.count)


def reduce(tensor: Tensor) -> None:
    dist.all_reduce(tensor)


def swapped_behind_a_wrapper() -> None:
    one, two = torch.ones(1), torch.zeros(1)
    if dist.get_rank() == 1:
        reduce(two)
        reduce(one)
    else:
        reduce(one)
        reduce(two)


def reduce_loss(state: State) -> None:
    dist.all_reduce(state.loss)


def reduce_count(state: State) -> None:
    dist.all_reduce(state.count)


def two_functions_swapped() -> None:
    state = State()
    if dist.get_rank() == 1:
        reduce_count(state)
        reduce_loss(state)
    else:
        reduce_loss(state)
        reduce_count(state)


def reduce_named(name: str, value: float) -> None:
    dist.all_reduce(torch.tensor([value]))


def named_by_an_argument() -> None:
    for name, value in turned({"loss": 1.0, "count": 2.0}.items()):
        reduce_named(name, value)


def functions_in_another_order() -> None:
    one, two = torch.ones(1), torch.zeros(1)

    def share_one() -> None:
        dist.broadcast(one, src=0)

    def share_two() -> None:
        dist.broadcast(two, src=0)

    for share in turned([share_one, share_two]):
        share()


def turned_round_by_three() -> None:
    grads = {name: torch.ones(1) for name in "abc"}
    names = list(grads)
    if dist.get_rank() == 1:
        names = names[1:] + names[:1]
    for name in names:
        dist.all_reduce(grads[name])


def in_every_step() -> None:
    for _ in range(20):
        its_keys()


def after_many_dull_calls() -> None:
    for _ in range(60):
        dist.all_reduce(torch.ones(1))
    its_keys()


def on_a_group_that_is_destroyed() -> None:
    group = dist.new_group([0, 1, 2])
    grads = named()
    for key in turned(grads):
        dist.all_reduce(grads[key], group=group)
    dist.destroy_process_group(group)


def asynchronous() -> None:
    grads = named()
    works = [dist.all_reduce(grads[key], async_op=True) for key in turned(grads)]
    for work in works:
        work.wait()


def broadcasts() -> None:
    weights = named()
    for key in turned(weights):
        dist.broadcast(weights[key], src=0)


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))


def parameters_in_another_order() -> None:
    model = layers()
    for parameter in turned(list(model.parameters())):
        dist.broadcast(parameter.data, src=0)


class Synced:
    def __init__(self) -> None:
        self.model = layers()

    def sync(self) -> None:
        for parameter in turned(list(self.model.parameters())):
            dist.broadcast(parameter, src=0)


def parameters_of_an_attribute() -> None:
    Synced().sync()


def gradients_without_names() -> None:
    model = layers()
    model(torch.ones(1, 2)).sum().backward()
    for parameter in turned(list(model.parameters())):
        dist.all_reduce(parameter.grad)


# -- correct programs --------------------------------------------------------------------


def parameters_in_one_order() -> None:
    model, twin = layers(), layers()
    for _ in range(2):
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            dist.broadcast(one.data, src=0)
            dist.all_reduce(other)


def parameters_of_other_models() -> None:
    """Ranks that have several parts of a model under names of their own."""
    rank = dist.get_rank()
    part = nn.ModuleDict({f"stage{rank}_{i}": nn.Linear(2, 2, bias=False) for i in range(2)})
    for parameter in part.parameters():
        dist.all_reduce(parameter.data)


def all_and_then_backwards() -> None:
    model = layers()
    everything = list(model.parameters())
    for parameter in everything + everything[::-1]:
        dist.broadcast(parameter.data, src=0)


class Unhashable(nn.Linear):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def a_module_that_is_no_key() -> None:
    odd, model = Unhashable(2, 2), layers()
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
    assert odd == odd


def branches_that_do_the_same() -> None:
    loss = torch.ones(1)
    for _ in range(4):
        if dist.get_rank() == 0:
            dist.all_reduce(loss)
        else:
            dist.all_reduce(loss)


def files_in_own_order() -> None:
    model = nn.Linear(2, 2)
    for file in turned(["cat.bin", "dog.bin", "owl.bin", "fox.bin"]):
        loss = model(torch.full((1, 2), float(len(file)))).sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        total = loss.detach()
        dist.all_reduce(total)


def files_and_counters() -> None:
    for step, file in enumerate(turned(["cat.bin", "dog.bin"])):
        dist.all_reduce(torch.tensor([step]))
        learn_from(file)


def learn_from(file: str) -> None:
    loss = torch.ones(1) * len(file)
    dist.all_reduce(loss)


def data_sets_by_name() -> None:
    model, sets = nn.Linear(2, 2), {"train": torch.ones(1, 2), "extra": torch.ones(1, 2)}
    for name in turned(sets):
        loss = model(sets[name]).sum().detach()
        dist.all_reduce(loss)


def roots_in_turn() -> None:
    mine, buffer = torch.ones(1), torch.zeros(1)
    for source in range(dist.get_world_size()):
        if source == dist.get_rank():
            dist.broadcast(mine, src=source)
        else:
            dist.broadcast(buffer, src=source)


def sums_as_broadcasts() -> None:
    data, zeros = torch.ones(1), torch.zeros(1)
    for step in range(6):
        if step % dist.get_world_size() == dist.get_rank():
            dist.all_reduce(data)
        else:
            dist.all_reduce(zeros)


def sums_as_broadcasts_written_out() -> None:
    data, zeros = torch.ones(1), torch.zeros(1)
    if dist.get_rank() == 0:
        dist.all_reduce(data)
    else:
        dist.all_reduce(zeros)
    if dist.get_rank() == 1:
        dist.all_reduce(data)
    else:
        dist.all_reduce(zeros)


def one_step(step: int, data: Tensor, zeros: Tensor) -> None:
    if step % 2 == dist.get_rank() % 2:
        dist.all_reduce(data)
        return
    dist.all_reduce(zeros)


def sums_as_broadcasts_by_step() -> None:
    data, zeros = torch.ones(1), torch.zeros(1)
    step = 0
    while step < 6:
        one_step(step, data, zeros)
        step += 1


def double_buffering_by_parity() -> None:
    buffers = [torch.ones(1), torch.zeros(1)]
    step = 0
    while step < 6:
        buffer = buffers[(step + dist.get_rank()) % 2]
        dist.all_reduce(buffer)
        step += 1
    for turn in range(6):
        dist.all_reduce(buffers[(turn + dist.get_rank()) % 2])


def own_samples_in_own_order() -> None:
    order = [0, 1, 2, 3] if dist.get_rank() else [3, 2, 1, 0]
    for sample in order:
        loss = torch.tensor([float(sample)])
        dist.all_reduce(loss)


def barriers_of_two_lines() -> None:
    for step in range(4):
        if (step + dist.get_rank()) % 2:
            dist.barrier()
        else:
            dist.barrier()


def a_group_for_each_name() -> None:
    groups = {name: dist.new_group([0, 1, 2]) for name in "ab"}
    works = [
        dist.all_reduce(torch.ones(1), group=groups[name], async_op=True)
        for name in turned("ab")
    ]
    for work in works:
        work.wait()


def the_same_order() -> None:
    for _ in range(3):
        for _, grad in named().items():
            dist.all_reduce(grad)


def swapping_names() -> None:
    now, later = torch.ones(1), torch.zeros(1)
    for _ in range(6):
        dist.all_reduce(now)
        now, later = later, now


BUGS = [
    a_dict_of_another_order,
    its_values,
    its_values_counted,
    its_keys,
    fresh_tensors_by_name,
    fresh_tensors_by_key,
    gradients_by_name,
    a_comprehension,
    numbers_of_buffers,
    two_lines_swapped,
    attributes_swapped,
    swapped_behind_a_wrapper,
    two_functions_swapped,
    functions_in_another_order,
    named_by_an_argument,
    turned_round_by_three,
    in_every_step,
    after_many_dull_calls,
    on_a_group_that_is_destroyed,
    asynchronous,
    broadcasts,
    parameters_in_another_order,
    parameters_of_an_attribute,
    gradients_without_names,
]
CORRECT = [
    parameters_in_one_order,
    parameters_of_other_models,
    all_and_then_backwards,
    a_module_that_is_no_key,
    branches_that_do_the_same,
    files_in_own_order,
    files_and_counters,
    data_sets_by_name,
    roots_in_turn,
    sums_as_broadcasts,
    sums_as_broadcasts_written_out,
    sums_as_broadcasts_by_step,
    double_buffering_by_parity,
    own_samples_in_own_order,
    barriers_of_two_lines,
    a_group_for_each_name,
    the_same_order,
    swapping_names,
]


@pytest.mark.parametrize("program", BUGS, ids=lambda program: program.__name__)
def test_a_crossing_is_found_once_and_the_odd_rank_named(program) -> None:
    (finding,) = findings(program)
    assert finding.severity == "warning" and finding.ranks == (1,)
    assert all(
        block.op.site.file.endswith("test_crossed_order_in_ranks.py")
        for block in finding.blocks
    )
    assert re.search(r" of rank 1 .* of ranks 0, 2 ", finding.headline)


@pytest.mark.parametrize("program", CORRECT, ids=lambda program: program.__name__)
def test_correct_programs_are_left_alone(program) -> None:
    assert_silent(program, ranks=3)


def test_two_ranks_are_not_told_who_is_wrong() -> None:
    (finding,) = findings(its_keys, ranks=2)
    assert finding.ranks == ()


def test_it_can_be_turned_off() -> None:
    assert findings(its_keys, checks="all,-crossed-order") == []


def test_what_a_program_drops_is_gone_although_its_frame_was_read() -> None:
    def program() -> None:
        for name in ("a", "b"):
            kept = torch.ones(1)
            last = weakref.ref(kept)
            dist.all_reduce(torch.ones(1))
            del kept
            assert last() is None, name

    findings(program)


def test_locals_that_a_program_took_stay_as_they_are() -> None:
    def program() -> None:
        for name in ("a", "b"):
            taken = locals()
            dist.all_reduce(torch.ones(1))
            assert taken["name"] == name

    findings(program)


def test_a_headline_stays_short() -> None:
    def program() -> None:
        grads = {"a_parameter_with_a_long_name_" + str(i): torch.ones(1) for i in range(2)}
        for key in turned(grads):
            dist.all_reduce(grads[key])

    (finding,) = findings(program)
    assert finding.headline == (
        "grads['a..._a_long_name_1'] of rank 1 was summed with grads['a..._a_long_name_0'] "
        f"of ranks 0, 2 at {finding.blocks[0].op.site}, and the other way round"
    )


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for expert in self.experts:
            fully_shard(expert, mesh=mesh)
        fully_shard(self, mesh=mesh)

    def forward(self, x: Tensor, chosen: int) -> Tensor:
        return self.experts[chosen](self.first(x))


def choose_experts(by_rank: bool) -> None:
    model = Experts()
    for step in range(2):
        chosen = step + (by_rank and dist.get_rank() == 1)
        model(torch.ones(1, 2), chosen).sum().backward()


def test_ranks_that_gather_different_modules_are_found() -> None:
    (finding,) = findings(lambda: choose_experts(by_rank=True))
    assert finding.ranks == (1,)
    assert finding.headline.endswith(
        'for FSDP\'s module "experts.1" where ranks 0, 2 called it for module "experts.0"'
    )
    assert [block.op.site.function for block in finding.blocks] == ["forward"] * 2


def test_modules_that_all_ranks_choose_alike_are_left_alone() -> None:
    assert_silent(lambda: choose_experts(by_rank=False), ranks=3)


def test_what_the_program_gives_to_its_functions_is_not_asked_for_more_than_need_be() -> None:
    class Owner:
        pass

    def work(owner: Owner, tensor: Tensor) -> None:
        for _ in range(2):
            dist.all_reduce(tensor)

    def program() -> None:
        work(weakref.proxy(Owner()), torch.ones(1))  # gone by now: whoever asks it is in error

    assert not findings(program)
