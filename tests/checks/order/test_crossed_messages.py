"""Swapped messages: what is found in programs, and what looks alike and is right."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.support import assert_silent


def findings(program: Any, ranks: int = 2, **options: Any) -> list[Any]:
    with phalanx.World(ranks=ranks, **options) as world:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", phalanx.PhalanxWarning)
            world.run(program)
        return [each for each in world.findings if each.kind == "crossed-order"]


def ring() -> tuple[int, int]:
    rank, size = dist.get_rank(), dist.get_world_size()
    return (rank - 1) % size, (rank + 1) % size


def tensors(number: int = 4) -> list[torch.Tensor]:
    return [torch.full((4,), float(each)) for each in range(number)]


def wait_for(*works: Any) -> None:
    for work in works:
        work.wait()


# -- swapped -----------------------------------------------------------------------------


def both_name_the_same_side_first() -> None:
    prev_rank, next_rank = ring()
    act, grad, act_in, grad_in = tensors()
    a = dist.isend(act, next_rank)
    b = dist.isend(grad, prev_rank)
    c = dist.irecv(grad_in, next_rank)
    d = dist.irecv(act_in, prev_rank)
    wait_for(a, b, c, d)


def a_batch() -> None:
    left, right = ring()
    act, grad, act_in, grad_in = tensors()
    ops = [dist.P2POp(dist.isend, grad, left)]
    ops.append(dist.P2POp(dist.irecv, act_in, left))
    ops.append(dist.P2POp(dist.isend, act, right))
    ops.append(dist.P2POp(dist.irecv, grad_in, right))
    wait_for(*dist.batch_isend_irecv(ops))


def neighbours_by_sums() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    first, last, ghost_before, ghost_after = tensors()
    a = dist.isend(last, dst=(rank + 1) % size)
    b = dist.isend(first, dst=(rank - 1 + size) % size)
    c = dist.irecv(ghost_after, src=(rank + 1) % size)
    d = dist.irecv(ghost_before, src=(rank - 1) % size)
    wait_for(a, b, c, d)


def other_names() -> None:
    ids, mask = tensors(2)
    if dist.get_rank() == 0:
        dist.send(ids, dst=1)
        dist.send(mask.contiguous(), dst=1)
    else:
        dist.recv(mask, src=0)
        dist.recv(ids, src=0)


def edges_of_a_block() -> None:
    prv, nxt = ring()
    cells, left_halo, right_halo = torch.arange(4.0), torch.zeros(1), torch.zeros(1)
    works = [
        dist.isend(cells[:1].clone(), prv),
        dist.isend(cells[-1:].clone(), nxt),
        dist.irecv(left_halo, prv),
        dist.irecv(right_halo, nxt),
    ]
    wait_for(*works)


def received_under_longer_names() -> None:
    _, following = ring()
    act, grad, act_in, grad_in = tensors()
    a = dist.isend(act, following)
    b = dist.isend(grad, following)
    c = dist.irecv(grad_in, following)
    d = dist.irecv(act_in, following)
    wait_for(a, b, c, d)


def keys_and_values() -> None:
    _, following = ring()
    k, v, next_k, next_v = tensors()
    works = [dist.isend(k, following)]
    works += [dist.isend(v, following)]
    works += [dist.irecv(next_v, following)]
    works += [dist.irecv(next_k, following)]
    wait_for(*works)


def two_on_one_line() -> None:
    _, following = ring()
    k, v, next_k, next_v = tensors()
    works = [dist.isend(k, following), dist.isend(v, following)]
    works += [dist.irecv(next_v, following), dist.irecv(next_k, following)]
    wait_for(*works)


SWAPPED = [
    both_name_the_same_side_first,
    a_batch,
    neighbours_by_sums,
    edges_of_a_block,
    other_names,
    received_under_longer_names,
    keys_and_values,
]


def state() -> dict[str, torch.Tensor]:
    return {name: torch.zeros(4) for name in ("weight", "mean", "bias")}


def loops_over_a_dict() -> None:
    params = state()
    if dist.get_rank() == 0:
        for _, t in params.items():
            dist.send(t, dst=1)
    else:
        for name in sorted(params):
            dist.recv(params[name], src=0)


def send_one(t: torch.Tensor) -> None:
    dist.send(t, dst=1)


def loops_around_a_helper() -> None:
    params = state()
    if dist.get_rank() == 0:
        for name in params:
            send_one(params[name])
    else:
        for name in sorted(params):
            dist.recv(params[name], src=0)


def tag_of(micro: int, chunk: int) -> int:
    return micro + 1


def a_tag_that_is_equal() -> None:
    parts = tensors(2)
    works = []
    if dist.get_rank() == 0:
        for chunk in range(2):
            works.append(dist.isend(parts[chunk], 1, tag=tag_of(0, chunk)))
    else:
        for chunk in reversed(range(2)):
            works.append(dist.irecv(parts[chunk], 0, tag=tag_of(0, chunk)))
    wait_for(*works)


def norm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.BatchNorm1d(4, affine=False))


def kept_by(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {"var": model[0].running_var, "mean": model[0].running_mean}


def loops_over_buffers_of_a_model() -> None:
    model = norm()
    if dist.get_rank() == 0:
        for tensor in kept_by(model).values():
            dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        for _, tensor in sorted(kept_by(model).items()):
            dist.recv(tensor, 0)


IN_LOOPS = [
    loops_over_a_dict,
    loops_around_a_helper,
    a_tag_that_is_equal,
    loops_over_buffers_of_a_model,
]

# -- right -------------------------------------------------------------------------------


def from_prev_first() -> None:
    prev_rank, next_rank = ring()
    act, grad, act_in, grad_in = tensors()
    a = dist.isend(act, next_rank)
    b = dist.isend(grad, prev_rank)
    c = dist.irecv(act_in, prev_rank)
    d = dist.irecv(grad_in, next_rank)
    wait_for(a, b, c, d)


def a_batch_in_order() -> None:
    left, right = ring()
    act, grad, act_in, grad_in = tensors()
    ops = [
        dist.P2POp(dist.isend, act, right),
        dist.P2POp(dist.irecv, act_in, left),
        dist.P2POp(dist.isend, grad, left),
        dist.P2POp(dist.irecv, grad_in, right),
    ]
    wait_for(*dist.batch_isend_irecv(ops))


def one_tensor_both_ways() -> None:
    prev_rank, next_rank = ring()
    mine, one, other = tensors(3)
    a = dist.isend(mine, next_rank)
    b = dist.isend(mine.clone(), prev_rank)
    c = dist.irecv(one, next_rank)
    d = dist.irecv(other, prev_rank)
    wait_for(a, b, c, d)


def told_apart_by_tags() -> None:
    prev_rank, next_rank = ring()
    act, grad, act_in, grad_in = tensors()
    a = dist.isend(act, next_rank, tag=1)
    b = dist.isend(grad, prev_rank, tag=2)
    c = dist.irecv(grad_in, next_rank, tag=2)
    d = dist.irecv(act_in, prev_rank, tag=1)
    wait_for(a, b, c, d)


def partners_without_a_direction() -> None:
    first, second = 1 - dist.get_rank(), 1 - dist.get_rank()
    act, grad, act_in, grad_in = tensors()
    a = dist.isend(act, first)
    b = dist.isend(grad, second)
    c = dist.irecv(act_in, first)
    d = dist.irecv(grad_in, second)
    wait_for(a, b, c, d)


def edges_and_halos() -> None:
    left, right = tensors(2)
    if dist.get_rank() == 0:
        dist.send(left, dst=1)
        dist.send(right, dst=1)
    else:
        dist.recv(right, src=0)
        dist.recv(left, src=0)


def double_buffers() -> None:
    buf_a, buf_b = tensors(2)
    if dist.get_rank() == 0:
        dist.send(buf_a, dst=1)
        dist.send(buf_b, dst=1)
    else:
        dist.recv(buf_b, src=0)
        dist.recv(buf_a, src=0)


def the_same_order() -> None:
    ids, mask = tensors(2)
    for _ in range(3):
        if dist.get_rank() == 0:
            dist.send(ids, dst=1)
            dist.send(mask, dst=1)
        else:
            dist.recv(ids, src=0)
            dist.recv(mask, src=0)


def other_names_by_branch() -> None:
    ids, mask = tensors(2)
    for step in range(2):
        if dist.get_rank() == 0:
            if step % 2:
                dist.send(mask, dst=1)
            else:
                dist.send(ids, dst=1)
        elif step % 2:
            dist.recv(ids, src=0)
        else:
            dist.recv(mask, src=0)


def two_on_one_line_in_order() -> None:
    _, following = ring()
    k, v, next_k, next_v = tensors()
    works = [dist.isend(k, following), dist.isend(v, following)]
    works += [dist.irecv(next_k, following), dist.irecv(next_v, following)]
    wait_for(*works)


def edges_to_halos_in_order() -> None:
    prv, nxt = ring()
    cells, left_halo, right_halo = torch.arange(4.0), torch.zeros(1), torch.zeros(1)
    works = [dist.isend(cells[:1].clone(), prv), dist.isend(cells[-1:].clone(), nxt)]
    works += [dist.irecv(right_halo, nxt), dist.irecv(left_halo, prv)]
    wait_for(*works)


def top_to_bottom() -> None:
    partner = 1 - dist.get_rank()
    top, bottom, top_in, bottom_in = tensors()
    works = [dist.isend(top, partner), dist.isend(bottom, partner)]
    works += [dist.irecv(bottom_in, partner), dist.irecv(top_in, partner)]
    wait_for(*works)


def the_other_side_of_a_row() -> None:
    partner = 1 - dist.get_rank()
    row_left, row_right, recv_left, recv_right = tensors()
    works = [dist.isend(row_left, partner), dist.isend(row_right, partner)]
    works += [dist.irecv(recv_right, partner), dist.irecv(recv_left, partner)]
    wait_for(*works)


def rotating_buffers() -> None:
    partner = 1 - dist.get_rank()
    u, v, next_u, next_v = tensors()
    works = [dist.isend(u, partner), dist.isend(v, partner)]
    works += [dist.irecv(next_v, partner), dist.irecv(next_u, partner)]
    wait_for(*works)


def mine_and_theirs() -> None:
    partner = 1 - dist.get_rank()
    src_feat, dst_feat, src_feat_in, dst_feat_in = tensors()
    works = [dist.isend(src_feat, partner), dist.isend(dst_feat, partner)]
    works += [dist.irecv(dst_feat_in, partner), dist.irecv(src_feat_in, partner)]
    wait_for(*works)


def names_of_roles() -> None:
    partner = 1 - dist.get_rank()
    send_buf, out, recv_buf, buf_in = tensors()
    works = [dist.isend(send_buf, partner), dist.isend(out, partner)]
    works += [dist.irecv(buf_in, partner), dist.irecv(recv_buf, partner)]
    wait_for(*works)


def loops_in_one_order() -> None:
    params = state()
    for _ in range(2):
        for name in sorted(params):
            if dist.get_rank() == 0:
                dist.send(params[name], dst=1)
            else:
                dist.recv(params[name], src=0)


def loops_over_sides() -> None:
    rank = dist.get_rank()
    for words in (("left", "right"), ("top", "bottom"), ("red", "black"), ("a", "b")):
        rows = dict(zip(words, tensors(2), strict=True))
        for word in words if rank == 0 else reversed(words):
            if rank == 0:
                dist.send(rows[word], dst=1)
            else:
                dist.recv(rows[word], src=0)


def from_edges_to_ghosts() -> None:
    words = ("inflow", "outflow")
    edges, ghosts = (dict(zip(words, tensors(2), strict=True)) for _ in range(2))
    if dist.get_rank() == 0:
        for word in words:
            dist.send(edges[word], dst=1)
    else:
        for word in reversed(words):
            dist.recv(ghosts[word], src=0)


def buffers_that_rotate() -> None:
    names = ("compute", "transfer")
    bufs = dict(zip(names, tensors(2), strict=True))
    for step in range(4):
        if dist.get_rank() == 0:
            dist.send(bufs[names[step % 2]], dst=1)
        else:
            dist.recv(bufs[names[(step + 1) % 2]], src=0)


def kept_as_they_come() -> None:
    grads = tensors(3)
    if dist.get_rank() == 0:
        for m in reversed(range(3)):
            dist.send(grads[m], dst=1)
    else:
        for m in range(3):
            dist.recv(grads[m], src=0)
        grads.reverse()


def a_tag_for_each() -> None:
    parts = tensors(2)
    works = []
    if dist.get_rank() == 0:
        for chunk in range(2):
            works.append(dist.isend(parts[chunk], 1, tag=1 + chunk))
    else:
        for chunk in reversed(range(2)):
            works.append(dist.irecv(parts[chunk], 0, tag=1 + chunk))
    wait_for(*works)


def an_equal_tag_in_order() -> None:
    parts = tensors(2)
    for micro in range(2):
        for chunk in range(2):
            if dist.get_rank() == 0:
                dist.send(parts[chunk], 1, tag=tag_of(micro, chunk))
            else:
                dist.recv(parts[chunk], 0, tag=tag_of(micro, chunk))


def buffers_of_a_model_in_one_order() -> None:
    model = norm()
    if dist.get_rank() == 0:
        for tensor in kept_by(model).values():
            dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        for _, tensor in sorted(kept_by(model).items(), reverse=True):
            dist.recv(tensor, 0)


def layers_that_only_a_number_tells_apart() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(2)))
    model.requires_grad_(False)
    if dist.get_rank() == 0:
        for tensor in model.parameters():
            dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        for tensor in reversed(list(model.parameters())):
            dist.recv(tensor, 0)


def copies_of_the_buffers() -> None:
    model = norm()
    if dist.get_rank() == 0:
        for tensor in kept_by(model).values():
            dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        got = [torch.empty(4), torch.empty(4)]
        for tensor in got:
            dist.recv(tensor, 0)
        model[0].running_var, model[0].running_mean = got


def into_a_model_of_another_kind() -> None:
    model = norm()
    if dist.get_rank() == 0:
        for tensor in kept_by(model).values():
            dist.send(tensor, 1)
    elif dist.get_rank() == 1:
        model = torch.nn.ModuleList(model)
        for _, tensor in sorted(kept_by(model).items()):
            dist.recv(tensor, 0)


def reversed_on_purpose() -> None:
    parts, n = tensors(2), 2
    if dist.get_rank() == 0:
        for i in range(n):
            dist.send(parts[i], 1, tag=i // n)
    else:
        for i in reversed(range(n)):
            dist.recv(parts[i], 0, tag=(n - 1 - i) // n)


def tokens() -> None:
    ready = torch.zeros(1)
    if dist.get_rank() == 0:
        for chunk in range(2):
            dist.send(ready, 1, tag=tag_of(0, chunk))
    else:
        for chunk in reversed(range(2)):
            dist.recv(ready, 0, tag=tag_of(0, chunk))


RIGHT = [
    loops_in_one_order,
    loops_over_sides,
    from_edges_to_ghosts,
    buffers_that_rotate,
    kept_as_they_come,
    a_tag_for_each,
    an_equal_tag_in_order,
    buffers_of_a_model_in_one_order,
    layers_that_only_a_number_tells_apart,
    copies_of_the_buffers,
    into_a_model_of_another_kind,
    reversed_on_purpose,
    tokens,
    two_on_one_line_in_order,
    edges_to_halos_in_order,
    top_to_bottom,
    the_other_side_of_a_row,
    rotating_buffers,
    mine_and_theirs,
    names_of_roles,
    from_prev_first,
    a_batch_in_order,
    one_tensor_both_ways,
    told_apart_by_tags,
    partners_without_a_direction,
    edges_and_halos,
    double_buffers,
    the_same_order,
    other_names_by_branch,
]
engines = pytest.mark.parametrize(
    "engine", ["threads", pytest.param("processes", marks=pytest.mark.programs)]
)


@engines
@pytest.mark.parametrize("program", SWAPPED, ids=lambda program: program.__name__)
def test_swapped_messages_are_found_once(program, engine: str) -> None:
    (finding,) = findings(program, engine=engine)
    assert finding.severity == "warning" and finding.ranks == ()
    assert [block.op.name for block in finding.blocks] == ["send", "recv"] * 2
    assert finding.headline.endswith(", and the other way round")


@engines
@pytest.mark.parametrize("program", IN_LOOPS, ids=lambda program: program.__name__)
def test_loops_that_go_other_ways_are_found(program, engine: str) -> None:
    (finding,) = findings(program, engine=engine)
    assert finding.severity == "warning" and finding.ranks == ()
    assert [block.op.name for block in finding.blocks] == ["send", "recv"] * 2
    assert finding.headline.endswith(", and the other way round")


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_are_left_alone(program) -> None:
    assert_silent(program, seeds=(0, 1, 2))


@pytest.fixture(scope="module")
def processes():
    with phalanx.World(ranks=2, engine="processes", backend="gloo") as world:
        yield world


@pytest.mark.programs
@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
def test_right_programs_are_left_alone_on_processes(program, processes) -> None:
    assert_silent(program, world=processes)


@pytest.mark.parametrize("program", SWAPPED[:4], ids=lambda program: program.__name__)
def test_three_ranks_have_two_neighbours(program) -> None:
    assert_silent(program, ranks=3)


def test_the_headline_names_the_neighbours_and_the_lines() -> None:
    (finding,) = findings(both_name_the_same_side_first)
    send, receive = finding.blocks[0].op.site, finding.blocks[1].op.site
    assert finding.headline == (
        f"act of rank 0, sent to next_rank ({send}), was received from next_rank by rank 1 "
        f"({receive}), and the other way round"
    )


@engines
@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python keeps no columns")
def test_several_calls_on_one_line_are_told_apart(engine: str) -> None:
    (finding,) = findings(two_on_one_line, engine=engine)
    assert finding.headline.startswith("k of rank 0 (")
    assert " was received as next_v by rank 1 (" in finding.headline


def test_it_can_be_turned_off() -> None:
    assert findings(other_names, checks="all,-crossed-order") == []
