"""Results that go into a copy which nobody keeps; and calls that look alike and are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.model import Finding
from tests.support import assert_silent


def findings(program: Callable[[], Any], **options: Any) -> list[Finding]:
    with pytest.warns(phalanx.PhalanxWarning) as caught:
        phalanx.run(program, **{"ranks": 2, **options})
    found = [each.message.finding for each in caught]  # type: ignore[union-attr]
    assert all(each.kind == "lost-result" for each in found)
    return found  # type: ignore[return-value]


def matrix() -> torch.Tensor:
    return torch.arange(6.0).reshape(2, 3)


def contiguous() -> float:
    x = matrix().t()
    dist.all_reduce(x.contiguous())
    return x.sum().item()


def masked() -> float:
    x = matrix()
    dist.all_reduce(x[x > 1])
    return x.sum().item()


def listed() -> float:
    x = matrix()
    dist.all_reduce(x[[0, 1]])
    return x.sum().item()


def converted() -> float:
    x = torch.ones(2, dtype=torch.float64)
    dist.all_reduce(tensor=x.to(torch.float32))
    return x.sum().item()


def reshaped() -> float:
    x = matrix().t()
    dist.all_reduce(x.reshape(-1))
    return x.sum().item()


def a_view_of_a_copy() -> float:
    x = matrix().t()
    dist.all_reduce(x.contiguous().view(-1))
    return x.sum().item()


def averaged() -> float:
    x = torch.ones(2, requires_grad=True)
    dist.all_reduce(x.detach() / dist.get_world_size())
    return x.sum().item()


def stacked() -> float:
    x, y = torch.ones(1), torch.ones(1)
    dist.all_reduce(torch.stack([x, y]))
    return x.item() + y.item()


def in_a_dict() -> float:
    metrics = {"loss": torch.ones(2, dtype=torch.float64)}
    dist.all_reduce(metrics["loss"].float())
    return sum(each.sum().item() for each in metrics.values())


def in_a_loop() -> None:
    x = matrix().t()
    for _ in range(3):
        x.sum().item()
        dist.all_reduce(x.contiguous())


def later_than_the_first_call() -> None:
    for x in (matrix(), matrix().t()):
        dist.all_reduce(x.contiguous())
        x.sum().item()


def changed_in_place() -> None:
    x = matrix().t()
    dist.all_reduce(x.contiguous())
    x /= 2


def sync(t: torch.Tensor) -> None:
    dist.all_reduce(t.float())


def in_a_function() -> float:
    x = torch.ones(2, dtype=torch.float64)
    sync(x)
    return x.sum().item()


class Meter:
    def __init__(self) -> None:
        self.total = torch.ones(2, dtype=torch.float64)

    def reduce(self) -> None:
        dist.all_reduce(self.total.float())


def in_an_object() -> None:
    Meter().reduce()


def of_a_gradient() -> None:
    model = torch.nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad.double())


def of_a_module() -> None:
    model = torch.nn.Linear(2, 3)
    dist.all_reduce(model.weight.data.t().contiguous())


def asynchronous() -> float:
    x = torch.ones(2, dtype=torch.float64)
    work = dist.all_reduce(x.float(), async_op=True)
    assert work is not None
    work.wait()
    return x.sum().item()


class Mean:
    def __init__(self) -> None:
        self.total, self.count = torch.ones(()), torch.ones(())

    def compute(self) -> float:
        for t in (self.total, self.count):
            dist.all_reduce(t.to(torch.float64))
        return (self.total / self.count).item()

    def sync(self) -> None:
        reduce_in_double(self.total)


def reduce_in_double(t: torch.Tensor) -> None:
    dist.all_reduce(t.double())


def in_a_loop_over_attributes() -> None:
    Mean().compute()


def of_an_attribute_in_a_function() -> None:
    Mean().sync()


def in_a_loop_over_variables() -> float:
    hits, misses = torch.ones(1), torch.ones(1)
    for t in (hits, misses):
        dist.all_reduce(t.double())
    return (hits / misses).item()


def in_a_loop_over_a_list() -> float:
    sums = [torch.ones(1), torch.ones(1)]
    for t in sums:
        dist.all_reduce(t.double())
    return sums[0].item()


def losses() -> dict[str, torch.Tensor]:
    return {"policy": torch.ones(()), "value": torch.ones(())}


def stacked_by_names() -> dict[str, float]:
    found = losses()
    names = sorted(found)
    dist.all_reduce(torch.stack([found[n] for n in names]))
    return {n: found[n].item() for n in names}


def stacked_values() -> dict[str, float]:
    found = losses()
    dist.all_reduce(torch.stack(list(found.values())))
    return {name: each.item() for name, each in found.items()}


def stacked_items() -> dict[str, float]:
    found = losses()
    dist.all_reduce(torch.stack([each.detach() for _, each in found.items()]))
    return {name: each.item() for name, each in found.items()}


def a_list() -> float:
    parts = [torch.ones(1), torch.ones(1)]
    dist.all_reduce(torch.cat(parts))
    return sum(each.item() for each in parts)


def each_of_a_list() -> float:
    parts = [torch.ones(2), torch.ones(2)]
    dist.all_reduce(torch.cat([each.view(-1) for each in parts]) / 2)
    return sum(each.sum().item() for each in parts)


WRONG = [
    in_a_loop_over_attributes,
    of_an_attribute_in_a_function,
    in_a_loop_over_variables,
    in_a_loop_over_a_list,
    stacked_by_names,
    stacked_values,
    stacked_items,
    a_list,
    each_of_a_list,
    contiguous,
    masked,
    listed,
    converted,
    reshaped,
    a_view_of_a_copy,
    averaged,
    stacked,
    in_a_dict,
    in_a_loop,
    later_than_the_first_call,
    changed_in_place,
    in_a_function,
    in_an_object,
    of_a_gradient,
    of_a_module,
    asynchronous,
]


@pytest.mark.parametrize("program", WRONG, ids=lambda program: program.__name__)
def test_a_result_that_nobody_gets(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.ranks == (0, 1) and found.severity == "warning"
    site = found.blocks[0].op.site
    assert site is not None and "dist.all_reduce" in site.source


def broadcast() -> None:
    x = torch.zeros(2, dtype=torch.float64) + dist.get_rank()
    dist.broadcast(x.float(), src=1)
    x.sum().item()


def reduce() -> None:
    x = torch.ones(2, dtype=torch.float64)
    dist.reduce(x.float(), dst=0)
    x.sum().item()


def receive() -> None:
    x = torch.zeros(4)
    if dist.get_rank() == 0:
        dist.recv(x[[0, 2]], src=1)
        x.sum().item()
    else:
        dist.send(torch.ones(2), dst=0)


@pytest.mark.parametrize("program", [broadcast, reduce, receive])
def test_only_ranks_that_get_a_result_lose_it(program: Callable[[], Any]) -> None:
    (found,) = findings(program)
    assert found.ranks == (0,)


# -- what looks alike and is right --------------------------------------------------------


def contiguous_already() -> float:
    x = matrix()
    dist.all_reduce(x.contiguous())
    return x.sum().item()


def views() -> float:
    x = matrix()
    dist.all_reduce(x[0])
    dist.all_reduce(x.view(-1))
    dist.all_reduce(x.detach())
    dist.all_reduce(x.data)
    dist.all_reduce(x.to(torch.float32))
    dist.all_reduce(x.cpu().flatten())
    dist.all_reduce(x[None])
    return x.sum().item()


def named() -> float:
    x = matrix().t()
    y = x.contiguous()
    dist.all_reduce(y)
    x.copy_(y)
    return x.sum().item()


def walrus() -> float:
    x = matrix().t()
    dist.all_reduce(y := x.contiguous())
    return x.sum().item() + y.sum().item()


def barriers() -> None:
    x = torch.ones(2)
    dist.all_reduce(torch.zeros(1))
    dist.all_reduce(torch.zeros_like(x))
    dist.all_reduce(torch.tensor([1.0]).double())
    dist.all_reduce(x.new_zeros(1))
    dist.all_reduce(x * 0)
    x.sum().item()


def clone() -> float:
    x = torch.ones(2)
    dist.all_reduce(x.clone())
    return x.sum().item()


def never_used_again() -> None:
    x = torch.ones(2, dtype=torch.float64)
    dist.all_reduce(x.float())


def only_its_shape() -> Any:
    x = torch.ones(2, dtype=torch.float64)
    dist.all_reduce(x.float())
    return x.shape


def overwritten() -> float:
    x = torch.ones(2, dtype=torch.float64)
    dist.all_reduce(x.float())
    x = torch.zeros(2)
    return x.sum().item()


def filled() -> float:
    x = torch.ones(2, dtype=torch.float64)
    dist.all_reduce(x.float())
    x.zero_()
    return x.sum().item()


def made_in_each_round() -> None:
    for _ in range(3):
        x = torch.ones(2, dtype=torch.float64)
        x += 1
        dist.all_reduce(x.float())


def root_of_a_broadcast() -> None:
    x = torch.ones(2, dtype=torch.float64)
    y = torch.empty(2)
    if dist.get_rank() == 0:
        dist.broadcast(x.float(), src=0)
    else:
        dist.broadcast(y, src=0)
    x.sum().item()


def sent_and_elsewhere_reduced() -> None:
    x = torch.ones(2, dtype=torch.float64)
    if dist.get_rank() == 0:
        y = x.float()
        dist.reduce(y, dst=0)
    else:
        dist.reduce(x.float(), dst=0)
    if dist.get_rank() == 0:
        dist.recv(torch.empty(2), src=1)
    else:
        dist.send(x.float(), dst=0)
    x.sum().item()


def returned(x: torch.Tensor) -> torch.Tensor:
    dist.all_reduce(x)
    return x


def of_a_function_that_returns_it() -> float:
    x = matrix().t()
    return returned(x.contiguous()).sum().item() + x.sum().item()


def from_a_list() -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    for at in range(2):
        dist.all_reduce(tensors[at])


def handed_on() -> Any:
    x = torch.ones(2, dtype=torch.float64)
    return dist.all_reduce(x.float(), async_op=True).wait(), x.sum().item()  # type: ignore[union-attr]


class Cached:
    """Gives the same tensor again, by names that tensors have."""

    def __init__(self) -> None:
        self.tensor = torch.ones(2)

    def to(self, device: str) -> torch.Tensor:
        return self.tensor

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.ones(2)


def of_another_class() -> float:
    cached = Cached()
    dist.all_reduce(cached.to("cpu"))
    dist.all_reduce(cached[0])
    return cached.tensor.sum().item()


def with_gradients() -> float:
    import torch.distributed.nn.functional as functional

    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    functional.all_reduce(x.float()).sum().backward()
    return x.sum().item()


class KeptMean(Mean):
    def compute(self) -> float:
        total, count = (t.to(torch.float64) for t in (self.total, self.count))
        for t in (total, count):
            dist.all_reduce(t)
        return (total / count).item()

    def sync(self) -> None:
        for t in (self.total, self.count):
            dist.all_reduce(t.to(torch.float32))  # the tensor itself
            dist.all_reduce(t.view(-1))


def copies_that_are_kept() -> None:
    KeptMean().compute()
    KeptMean().sync()


def a_stack_that_is_kept() -> dict[str, float]:
    found = losses()
    names = sorted(found)
    stack = torch.stack([found[n] for n in names])
    dist.all_reduce(stack)
    return dict(zip(names, stack.tolist(), strict=True))


def a_list_that_is_cleared() -> int:
    parts = [torch.ones(1), torch.ones(1)]
    dist.all_reduce(torch.cat(parts))
    number = len(parts)
    parts.clear()
    return number + len(parts)


def a_list_that_is_gone() -> None:
    parts = [torch.ones(1), torch.ones(1)]
    for t in parts:
        dist.all_reduce(t.double())


def new_tensors_in_a_list() -> None:
    x = torch.ones(1)
    dist.all_reduce(torch.cat([torch.zeros(1) for _ in range(2)]))
    dist.all_reduce(torch.stack([torch.zeros_like(x), torch.zeros_like(x)]))
    dist.all_reduce(torch.stack([x * 0 for _ in range(2)]))
    x.item()


def an_empty_dict() -> None:
    found: dict[str, torch.Tensor] = {}
    names: list[str] = []
    dist.all_reduce(torch.stack([found[n] for n in names] or [torch.zeros(1)]))
    found.update(losses())


def the_root_of_a_stack() -> float:
    parts = [torch.ones(1), torch.ones(1)]
    if dist.get_rank() == 0:
        dist.broadcast(torch.cat(parts), src=0)
    else:
        other = torch.empty(2)
        dist.broadcast(other, src=0)
    return sum(each.item() for each in parts)


RIGHT = [
    copies_that_are_kept,
    a_stack_that_is_kept,
    a_list_that_is_cleared,
    a_list_that_is_gone,
    new_tensors_in_a_list,
    an_empty_dict,
    the_root_of_a_stack,
    contiguous_already,
    views,
    named,
    walrus,
    barriers,
    clone,
    never_used_again,
    only_its_shape,
    overwritten,
    filled,
    made_in_each_round,
    root_of_a_broadcast,
    sent_and_elsewhere_reduced,
    of_a_function_that_returns_it,
    from_a_list,
    of_another_class,
    handed_on,
    with_gradients,
]


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_what_looks_alike_is_silent(program: Callable[[], Any]) -> None:
    assert_silent(program, kind="lost-result")


def test_without_the_kind_nothing_is_said() -> None:
    assert_silent(contiguous, checks="all,-lost-result")


def test_a_comment_silences_it() -> None:
    def program() -> float:
        x = matrix().t()
        dist.all_reduce(x.contiguous())  # phalanx: ignore[lost-result] a barrier with traffic
        return x.sum().item()

    assert_silent(program)


def test_each_run_of_a_world_is_told() -> None:
    with phalanx.World(ranks=2) as world:
        for _ in range(2):
            with pytest.warns(phalanx.PhalanxWarning, match="lost-result"):
                world.run(contiguous)
