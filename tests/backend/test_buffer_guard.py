"""Buffers in flight: every way to touch one too early is an error at its line, and what is
legal stays silent."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

import phalanx
from phalanx.backend.session import context_here
from phalanx.backend.torch_private import private
from phalanx.backend.work import tensor_memory
from phalanx.model import Finding
from tests.support import assert_silent

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
SIZE = 4

Touch = Callable[[Tensor], Any]


def found_in(program: Callable[[], Any], **options: Any) -> Finding:
    with pytest.raises(phalanx.InFlightBufferError) as caught:
        phalanx.run(program, **{"ranks": 2, **options})
    verdict = caught.value.verdict
    assert isinstance(verdict, Finding) and verdict.kind == "in-flight-buffer"
    return verdict


def reducing(touch: Touch) -> Callable[[], Any]:
    """Touch the tensor of an `all_reduce` in flight."""

    def program() -> None:
        tensor = torch.arange(float(SIZE))
        work = dist.all_reduce(tensor, async_op=True)
        touch(tensor)
        work.wait()

    return program


def sending(touch: Touch) -> Callable[[], Any]:
    """Touch the tensor of an `isend` in flight."""

    def program() -> None:
        tensor, room = torch.arange(float(SIZE)), torch.empty(SIZE)
        if dist.get_rank() == 0:
            work = dist.isend(tensor, 1)
            touch(tensor)
            work.wait()
        else:
            dist.recv(room, 0)

    return program


READS: dict[str, Touch] = {
    "item": lambda t: t[0].item(),
    "tolist": lambda t: t.tolist(),
    "repr": repr,
    "sum": torch.sum,
    "comparison": lambda t: t == 0,
    "bool": lambda t: bool(t[0]),
    "iteration": lambda t: [float(x) for x in t],
    "index by tensor": lambda t: t[torch.tensor([0, 1])],
    "clone": lambda t: t.clone(),
    "view": lambda t: t.view(2, 2)[1].sum(),
    "detach": lambda t: t.detach() * 2,
    "data": lambda t: t.data + 1,
    "in a list": lambda t: torch.cat([torch.ones(1), t]),
    "by keyword": lambda t: torch.add(input=torch.ones(SIZE), other=t),
    "copied from": lambda t: torch.empty(SIZE).copy_(t),
    "other dtype": lambda t: t.to(torch.float64),
    "functional": lambda t: torch.nn.functional.relu(t),
    "foreach": lambda t: torch._foreach_norm([t]),
}
WRITES: dict[str, Touch] = {
    "add_": lambda t: t.add_(1),
    "iadd": lambda t: t.__iadd__(1),
    "setitem": lambda t: t.__setitem__(0, 5.0),
    "slice": lambda t: t[1:3].zero_(),
    "view": lambda t: t.view(2, 2)[0].fill_(7),
    "out": lambda t: torch.add(torch.ones(SIZE), 1, out=t),
    "data": lambda t: t.data.mul_(2),
    "detach": lambda t: t.detach().mul_(2),
    "copy_": lambda t: t.copy_(torch.ones(SIZE)),
    "no_grad": lambda t: torch.no_grad()(t.zero_)(),
    "resize_": lambda t: t.resize_(1024),
    "set_": lambda t: t.set_(torch.ones(SIZE)),
    "new data": lambda t: setattr(t, "data", torch.ones(SIZE)),
    "foreach": lambda t: torch._foreach_zero_([t]),
    "chunk": lambda t: t.chunk(2)[1].fill_(0),
    "from_numpy": lambda t: torch.from_numpy(t.detach().numpy()).fill_(3),
}
LOOKS: dict[str, Touch] = {
    "shape": lambda t: (t.shape, t.size(), t.numel(), t.dim(), len(t), t.stride()),
    "kind": lambda t: (t.dtype, t.device, t.layout, t.requires_grad, t.is_contiguous()),
    "memory": lambda t: (t.data_ptr(), t.untyped_storage(), t.storage_offset(), t.nbytes),
    "view": lambda t: (t.view(2, 2), t[1:], t[0], t.reshape(2, 2), t.unsqueeze(0).mT),
    "parts": lambda t: (t.chunk(2), t.split(2), t.unbind(), t.narrow(0, 0, 2)),
    "alias": lambda t: (t.detach(), t.data, t.view_as(t), t.expand(2, SIZE)),
    "alike": lambda t: (torch.empty_like(t), torch.zeros_like(t), t.new_empty(3)),
    "contiguous": lambda t: t.contiguous(),
    "same dtype": lambda t: t.to(torch.float32),
    "identity": lambda t: (id(t), hash(t), t is t, isinstance(t, Tensor), {t: 1}),
    "grad": lambda t: (t.grad, t.is_leaf, t.grad_fn, torch.is_floating_point(t)),
    "others": lambda t: torch.ones(SIZE).add_(1).sum().item(),
}


@pytest.mark.parametrize("touch", READS.values(), ids=READS)
def test_reading_a_result_too_early(touch: Touch) -> None:
    verdict = found_in(reducing(touch))
    assert verdict.ranks == (0,)
    assert "read the result of all_reduce" in verdict.headline
    assert verdict.blocks[0].op.name == "all_reduce"
    where = verdict.blocks[1].op.site
    assert where is not None and where.file.endswith("test_buffer_guard.py")


@pytest.mark.parametrize("touch", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("flying", [reducing, sending])
def test_writing_to_a_tensor_in_flight(touch: Touch, flying: Any) -> None:
    verdict = found_in(flying(touch))
    assert verdict.ranks == (0,)
    assert "before it had waited for it" in verdict.headline


@pytest.mark.parametrize("touch", LOOKS.values(), ids=LOOKS)
@pytest.mark.parametrize("flying", [reducing, sending])
def test_looking_at_a_tensor_in_flight_is_legal(touch: Touch, flying: Any) -> None:
    assert_silent(flying(touch))


@pytest.mark.parametrize("touch", READS.values(), ids=READS)
def test_reading_what_is_only_sent_is_legal(touch: Touch) -> None:
    assert_silent(sending(touch))


def test_the_line_of_the_touch_and_of_the_call_are_named() -> None:
    def program() -> None:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        tensor.add_(1)
        work.wait()

    flying, touching = found_in(program).blocks
    assert flying.op.site is not None and touching.op.site is not None
    assert flying.op.site.source == "work = dist.all_reduce(tensor, async_op=True)"
    assert touching.op.site.source == "tensor.add_(1)"
    assert touching.op.name == "add_"


# -- two operations at once ------------------------------------------------------------------


def test_one_tensor_in_two_operations() -> None:
    def program() -> None:
        tensor = torch.ones(2)
        works = [dist.all_reduce(tensor, async_op=True)]
        works += [dist.broadcast(tensor, 0, async_op=True)]
        for work in works:
            work.wait()

    verdict = found_in(program)
    assert [block.op.name for block in verdict.blocks] == ["all_reduce", "broadcast"]
    assert verdict.headline.startswith("rank 0 used one tensor in all_reduce")


@pytest.mark.parametrize("later", [True, False], ids=["asynchronous", "synchronous"])
def test_a_view_in_a_second_operation(later: bool) -> None:
    def program() -> None:
        tensor = torch.ones(4)
        work = dist.all_reduce(tensor[:3], async_op=True)
        dist.all_reduce(tensor[2:], async_op=later)
        work.wait()

    found_in(program)


def test_a_synchronous_receive_into_a_tensor_in_flight() -> None:
    def program() -> None:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 0:
            dist.recv(tensor, 1)
        else:
            dist.send(torch.ones(2), 0)
        work.wait()

    assert found_in(program).ranks == (0,)


def test_parts_of_one_tensor_side_by_side() -> None:
    def program() -> list[float]:
        tensor = torch.ones(4, 2)
        works = [dist.all_reduce(row, async_op=True) for row in tensor[:3]]
        tensor[3].add_(5)
        seen = tensor[3].tolist()
        for work in reversed(works):
            work.wait()
        return [*seen, *tensor.flatten().tolist()]

    assert phalanx.run(program, ranks=2)[0] == [6.0, 6.0, *[2.0] * 6, 6.0, 6.0]


@pytest.mark.usefixtures("no_rules")
@pytest.mark.parametrize("column", [0, 1], ids=["its own", "the other"])
def test_columns_of_one_matrix_do_not_overlap(column: int) -> None:
    def program() -> list[float]:
        matrix = torch.ones(3, 2)
        work = dist.all_reduce(matrix[:, 0], async_op=True)
        matrix[:, column].mul_(3)
        work.wait()
        return matrix[:, 1].tolist()

    if column:
        assert phalanx.run(program, ranks=2) == [[3.0, 3.0, 3.0]] * 2
    else:
        found_in(program)


def test_reading_twice_at_once_is_legal() -> None:
    """Two sends of one tensor, and an `all_gather` of it."""

    def program() -> float:
        tensor, room = torch.ones(2), torch.empty(2 * 2)
        peer = 1 - dist.get_rank()
        works = [dist.isend(tensor, peer), dist.isend(tensor, peer)]
        works += [dist.all_gather_into_tensor(room, tensor, async_op=True)]
        received = [torch.empty(2), torch.empty(2)]
        works += [dist.irecv(each, peer) for each in received]
        seen = tensor.sum().item()
        for work in works:
            work.wait()
        return seen

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


def test_an_all_gather_in_place_is_legal() -> None:
    def program() -> list[float]:
        whole = torch.zeros(2)
        own = whole[dist.get_rank() : dist.get_rank() + 1].fill_(dist.get_rank() + 1)
        dist.all_gather_into_tensor(whole, own, async_op=True).wait()
        return whole.tolist()

    assert phalanx.run(program, ranks=2) == [[1.0, 2.0]] * 2


# -- what no mode sees -------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 1 << 16], ids=["small", "large"])
@pytest.mark.parametrize("first", [0, 1], ids=["before data moves", "after"])
def test_a_write_through_memory_is_seen_at_the_wait(size: int, first: int) -> None:
    def program() -> None:
        tensor = torch.ones(size)
        raw = tensor.numpy()
        aside = dist.new_group([0, 1])
        if dist.get_rank() != first:
            dist.barrier(group=aside)
        work = dist.all_reduce(tensor, async_op=True)
        if dist.get_rank() == 0:
            raw += 1
        if dist.get_rank() == first:
            dist.barrier(group=aside)
        work.wait()

    verdict = found_in(program)
    assert verdict.ranks == (0,)
    assert "changed the tensor of all_reduce" in verdict.headline
    assert dict(verdict.facts)["seen"].startswith("the memory was written to between")


def test_gradients_that_accumulate_while_they_are_reduced() -> None:
    """Autograd writes in C++; the version counter tells."""

    def program() -> None:
        weight = torch.ones(2, requires_grad=True)
        (weight * 0).sum().backward()
        assert weight.grad is not None
        work = dist.all_reduce(weight.grad, async_op=True)
        (weight * 0).sum().backward()
        work.wait()

    assert "changed the tensor" in found_in(program).headline


def test_memory_freed_in_flight() -> None:
    def program() -> None:
        tensor = torch.ones(2)
        work = dist.all_gather_into_tensor(torch.empty(4), tensor, async_op=True)
        tensor.untyped_storage().resize_(0)
        work.wait()

    assert "resized or freed" in found_in(program).headline


def test_a_version_that_another_part_of_the_storage_moved_is_no_proof() -> None:
    def program() -> None:
        whole = torch.ones(4)
        part = whole[:2]
        raw = whole.numpy()
        work = dist.all_reduce(part, async_op=True)
        whole[2:].add_(1)
        raw[3] = 9
        work.wait()

    assert_silent(program)


@pytest.mark.parametrize("size", [4, tensor_memory.WHOLE])
def test_a_write_to_no_element_is_none(size: int) -> None:
    """It moves the version all the same."""

    def program() -> None:
        whole = torch.ones(size)
        work = dist.all_reduce(whole, async_op=True)
        whole[size:].zero_()
        work.wait()

    assert_silent(program)


def test_a_tensor_that_the_program_lets_go_is_kept() -> None:
    def program() -> None:
        work = dist.all_reduce(torch.ones(2), async_op=True)
        junk = [torch.zeros(2).add_(1) for _ in range(100)]
        work.wait()
        del junk

    assert_silent(program)


# -- what counts as waiting -------------------------------------------------------------------


def poll(work: Any) -> None:
    while not work.is_completed():
        pass


def wait_in_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work.wait)
    thread.start()
    thread.join()


WAITS: dict[str, Callable[[Any], Any]] = {
    "wait": lambda work: work.wait(),
    "twice": lambda work: (work.wait(), work.wait()),
    "synchronize": lambda work: work.synchronize(),
    "poll": poll,
    "future": lambda work: work.get_future().wait(),
    "value": lambda work: torch.futures.wait_all([work.get_future()]),
    "then": lambda work: work.get_future().then(lambda done: done.value()[0].add_(0)).wait(),
    "thread": wait_in_a_thread,
}


@pytest.mark.parametrize("completion", ["earliest", "latest"])
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_after_waiting_the_tensor_is_free(wait: Callable[[Any], Any], completion: str) -> None:
    def program() -> float:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        wait(work)
        tensor.add_(1)
        dist.all_reduce(tensor)
        return tensor[0].item()

    assert run_completing(program, completion) == [6.0, 6.0]


def run_completing(program: Callable[[], Any], completion: str, **changes: Any) -> list[Any]:
    """As the doors do it, with the moment of completion."""
    from phalanx.engines.run_settings import Settings
    from phalanx.engines.threads.threads_engine import ThreadsEngine

    engine = ThreadsEngine(Settings(**{"ranks": 2, "completion": completion, **changes}))
    try:
        return engine.run(lambda context: program())
    finally:
        engine.close()


def test_a_barrier_completes_nothing_else() -> None:
    def program() -> float:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        dist.barrier()
        seen = tensor[0].item()
        work.wait()
        return seen

    found_in(program)


def test_a_batch_is_free_when_it_is_waited_for() -> None:
    def program() -> float:
        peer = 1 - dist.get_rank()
        sent, room = torch.ones(2), torch.zeros(2)
        batch = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, room, peer)]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        sent.zero_()
        return room.sum().item()

    assert phalanx.run(program, ranks=2) == [2.0, 2.0]


def test_a_batch_read_too_early() -> None:
    def program() -> None:
        peer = 1 - dist.get_rank()
        sent, room = torch.ones(2), torch.zeros(2)
        batch = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, room, peer)]
        works = dist.batch_isend_irecv(batch)
        room.sum()
        for work in works:
            work.wait()

    assert "read the result of recv" in found_in(program).headline


def test_a_coalescing_manager_read_too_early() -> None:
    def program() -> None:
        tensors = [torch.ones(2), torch.ones(3)]
        with private.coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        tensors[1].sum()
        manager.wait()

    found_in(program)


# -- the mode ---------------------------------------------------------------------------------


class Counting(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_the_program_nest_as_they_are_written() -> None:
    def program() -> list[Any]:
        tensor = torch.ones(2)
        counting = Counting()
        with torch.device("meta"):
            work = dist.all_reduce(tensor, async_op=True)
            made = torch.ones(2).device.type
            with counting:
                torch.ones(1)
        with counting:
            other = dist.all_reduce(torch.ones(2), async_op=True)
            work.wait()
        with torch.device("meta"):
            again = torch.ones(2).device.type
            other.wait()
        return [made, again, torch.ones(1).device.type, counting.calls > 0]

    expected = ["meta", "meta", "cpu", True]
    assert phalanx.run(program, ranks=2) == [expected] * 2


def test_no_mode_is_left_behind() -> None:
    def program() -> list[int]:
        before = private.function_modes()
        work = dist.all_reduce(torch.ones(2), async_op=True)
        during = private.function_modes()
        work.wait()
        return [before, during, private.function_modes()]

    assert phalanx.run(program, ranks=2) == [[0, 1, 0]] * 2
    assert private.function_modes() == 0


def test_a_hook_of_backward_leaves_the_guard_as_it_was() -> None:
    """Autograd puts the stack of modes back, whatever a hook does to it."""

    def program() -> None:
        layer = torch.nn.Linear(2, 2, bias=False)
        works: list[Any] = []
        layer.weight.register_hook(
            lambda grad: works.append(dist.all_reduce(torch.ones(2), async_op=True))
        )
        layer(torch.ones(1, 2)).sum().backward()
        works[0].wait()
        reducing(lambda tensor: tensor.sum())()

    assert "read" in found_in(program).headline


def overlapping(after: Callable[[torch.nn.Module, list[Any]], object]) -> Callable[[], None]:
    """Gradients are reduced as they come, and `after` follows on backward."""

    def program() -> None:
        layer = torch.nn.Linear(2, 2)
        works: list[Any] = []
        for parameter in layer.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
            )
        for _ in range(2):
            layer(torch.ones(1, 2)).sum().backward()
            after(layer, works)
            for work in works:
                work.wait()
            works.clear()
            layer.zero_grad()
        assert private.function_modes() == 0

    return program


def step(layer: torch.nn.Module, works: list[Any]) -> None:
    torch.optim.SGD(layer.parameters(), lr=0.1).step()


def read_gradients(layer: torch.nn.Module, works: list[Any]) -> None:
    for parameter in layer.parameters():
        assert parameter.grad is not None
        parameter.grad.norm()


def read_after_one_wait(layer: torch.nn.Module, works: list[Any]) -> None:
    works[0].wait()
    read_gradients(layer, works)


@pytest.mark.parametrize("after", [step, read_gradients, read_after_one_wait])
def test_what_hooks_of_backward_begin_is_in_flight_afterwards(after) -> None:
    assert "read the result of all_reduce" in found_in(overlapping(after)).headline


def wait_and_step(layer: torch.nn.Module, works: list[Any]) -> None:
    for work in works:
        work.wait()
    read_gradients(layer, works)
    step(layer, works)


def look_only(layer: torch.nn.Module, works: list[Any]) -> None:
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.shape == parameter.shape
    layer(torch.ones(1, 2))


def another_backward(layer: torch.nn.Module, works: list[Any]) -> None:
    weight = torch.ones(2, requires_grad=True)
    weight.sum().backward()
    torch.autograd.grad(weight.mul(2).sum(), weight)


@pytest.mark.parametrize("after", [wait_and_step, look_only, another_backward])
def test_gradients_that_are_reduced_as_they_come_may_be_waited_for(after) -> None:
    assert_silent(overlapping(after), strict=True)


class _ReadsInFlight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        return given * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        grad = grad.clone()
        work = dist.all_reduce(grad, async_op=True)
        twice = grad * 2
        work.wait()
        return twice


def test_a_backward_of_the_program_is_watched_too() -> None:
    def program() -> None:
        _ReadsInFlight.apply(torch.ones(2, requires_grad=True)).sum().backward()

    assert "read the result of all_reduce" in found_in(program).headline


def test_works_that_are_dropped_do_not_pile_up() -> None:
    def program() -> int:
        for number in range(1000):
            dist.all_reduce(torch.ones(2), async_op=True)
            if number % 50 == 0:
                dist.barrier()
        context = context_here()
        assert context is not None
        return len(context.in_flight.lows)

    with pytest.warns(phalanx.PhalanxWarning, match="1000 times"):
        assert max(phalanx.run(program, ranks=2)) < 500


def test_nothing_is_watched_where_the_check_is_off() -> None:
    def program() -> float:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        modes = private.function_modes()
        tensor.sum()
        work.wait()
        return modes

    assert phalanx.run(program, ranks=2, checks="all,-in-flight-buffer") == [0, 0]


def test_what_torch_begins_itself_is_not_watched() -> None:
    def program() -> int:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
        most = 0

        def look(grad: Tensor) -> None:
            nonlocal most
            most = max(most, private.function_modes())

        model.module.weight.register_hook(look)
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
        return most

    assert phalanx.run(program, ranks=2) == [0, 0]


def test_a_hook_of_ddp_that_begins_an_operation_of_its_own() -> None:
    def program() -> float:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))

        def hook(state: Any, bucket: Any) -> Any:
            future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
            return future.then(lambda done: done.value()[0].div_(2))

        hook.__annotations__.clear()  # torch compares them with its own classes
        model.register_comm_hook(None, hook)
        for _ in range(2):
            model.zero_grad()
            model(torch.full((1, 2), 1.0 + dist.get_rank())).sum().backward()
        assert model.module.weight.grad is not None
        return model.module.weight.grad[0, 0].item()

    assert phalanx.run(program, ranks=2) == [1.5, 1.5]


@pytest.mark.slow
def test_compiled_functions_run_while_something_is_in_flight() -> None:
    def program() -> tuple[float, int]:
        frames = 0

        def backend(graph: Any, inputs: Any) -> Any:
            nonlocal frames
            frames += 1
            return graph

        compiled = torch.compile(lambda x: (x * 2).sin().sum(), backend=backend, fullgraph=True)
        tensor = torch.ones(2)
        first = compiled(torch.zeros(3)).item()
        work = dist.all_reduce(tensor, async_op=True)
        second = compiled(torch.zeros(3)).item()
        assert private.function_modes() == 1
        work.wait()
        return first + second, frames

    assert phalanx.run(program, ranks=2) == [(0.0, 1)] * 2
    assert "torch._dynamo" in sys.modules


@pytest.mark.slow
def test_a_module_is_compiled_while_something_is_in_flight() -> None:
    def program() -> list[float]:
        layer = torch.nn.Linear(2, 2)
        compiled = torch.compile(layer, backend="eager")
        tensor = torch.ones(1)
        for _ in range(2):
            work = dist.all_reduce(tensor, async_op=True)
            compiled(torch.ones(1, 2)).sum().backward()
            work.wait()
        return tensor.tolist()

    assert phalanx.run(program, ranks=2) == [[4.0]] * 2


# -- any program ------------------------------------------------------------------------------

OPERATIONS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "exchange")


def begin(name: str, size: int) -> tuple[list[Any], list[Tensor], list[Tensor]]:
    """Works, tensors that are only read, tensors that are written."""
    world, rank = dist.get_world_size(), dist.get_rank()
    if name == "all_reduce":
        tensor = torch.ones(size)
        return [dist.all_reduce(tensor, async_op=True)], [], [tensor]
    if name == "broadcast":
        tensor = torch.ones(size)
        work = dist.broadcast(tensor, 0, async_op=True)
        return [work], [tensor] if rank == 0 else [], [tensor] if rank else []
    if name == "all_gather":
        tensor, room = torch.ones(size), [torch.empty(size) for _ in range(world)]
        return [dist.all_gather(room, tensor, async_op=True)], [tensor], room
    if name == "reduce_scatter":
        tensor, part = torch.ones(size * world), torch.empty(size)
        return [dist.reduce_scatter_tensor(part, tensor, async_op=True)], [tensor], [part]
    tensor, space = torch.ones(size), torch.empty(size)
    works = [dist.isend(tensor, (rank + 1) % world), dist.irecv(space, (rank - 1) % world)]
    return works, [tensor], [space]


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 5)), min_size=1, max_size=6
)


@settings(max_examples=25, deadline=None)
@given(PROGRAMS, st.integers(0, 3), st.sampled_from(("earliest", "latest", "seeded")))
def test_programs_that_wait_are_silent(
    steps: list[tuple[str, int]], seed: int, completion: str
) -> None:
    def program() -> float:
        total = 0.0
        pending = []
        for name, size in steps:
            begun = begin(name, size)
            total += sum(float(tensor.sum()) for tensor in begun[1])
            pending.append(begun)
        for works, read, written in reversed(pending):
            for work in works:
                work.wait()
            for tensor in (*read, *written):
                total += float(tensor.add_(0).sum())
        return total

    expected = run_completing(program, "earliest", strict=True)
    assert run_completing(program, completion, seed=seed, strict=True) == expected


@settings(max_examples=25, deadline=None)
@given(PROGRAMS, st.data())
def test_one_touch_too_early_is_found(
    steps: list[tuple[str, int]], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(steps) - 1))
    faulty = data.draw(st.integers(0, 1))
    writes = data.draw(st.booleans())

    def program() -> None:
        pending = [begin(name, size) for name, size in steps]
        if dist.get_rank() == faulty:
            _, read, written = pending[which]
            if writes:
                (*read, *written)[-1].add_(1)
            else:
                for tensor in written:
                    tensor.sum()
        for works, _, _ in pending:
            for work in works:
                work.wait()

    if not writes and steps[which][0] == "broadcast" and faulty == 0:
        phalanx.run(program, ranks=2)
    else:
        assert found_in(program).ranks == (faulty,)
