"""Wrong calls that every rank makes alike, and the error that each must give.

They are refused before anything is sent. Calls in which ranks differ are in
`disagreement_cases.py`. The classes of the errors were measured on Gloo of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_context import Context
from phalanx.conformance.case_model import Case

VALUE, TYPE, RUNTIME = ("ValueError",), ("TypeError",), ("RuntimeError",)
UNSUPPORTED = ("NotImplementedError", "RuntimeError")
OUTSIDE = 99

Wrong = tuple[str, str, tuple[str, ...], Callable[[Any], Any]]

d: Any = dist  # the calls below are wrong on purpose; a type checker need not tell


def t(me: Context, count: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.ones(count, dtype=dtype, device=me.device)


def each(me: Context, count: int, size: int = 1, dtype: torch.dtype = torch.float32) -> Any:
    return [t(me, size, dtype) for _ in range(count)]


def other(me: Context) -> int:
    return (me.rank + 1) % me.size


def sparse(me: Context) -> Tensor:
    return torch.eye(2, device=me.device).to_sparse()


INT = torch.int32
COMPLEX = torch.complex64

LISTS: tuple[Wrong, ...] = (
    (
        "all_gather",
        "list too short",
        RUNTIME,
        lambda me: d.all_gather(each(me, me.size - 1), t(me)),
    ),
    (
        "all_gather",
        "list too long",
        RUNTIME,
        lambda me: d.all_gather(each(me, me.size + 1), t(me)),
    ),
    ("all_gather", "no list", TYPE, lambda me: d.all_gather(t(me, me.size), t(me))),
    ("all_gather", "empty list", RUNTIME, lambda me: d.all_gather([], t(me))),
    (
        "all_gather",
        "dtypes differ",
        VALUE,
        lambda me: d.all_gather(each(me, me.size, 1, INT), t(me)),
    ),
    (
        "all_gather",
        "sizes differ",
        RUNTIME,
        lambda me: d.all_gather(each(me, me.size, 2), t(me)),
    ),
    (
        "all_gather",
        "sparse",
        UNSUPPORTED,
        lambda me: d.all_gather([sparse(me) for _ in range(me.size)], sparse(me)),
    ),
    (
        "all_gather_into_tensor",
        "output too large",
        RUNTIME,
        lambda me: d.all_gather_into_tensor(t(me, me.size + 1), t(me)),
    ),
    (
        "all_gather_into_tensor",
        "output too small",
        RUNTIME,
        lambda me: d.all_gather_into_tensor(t(me, me.size), t(me, 2)),
    ),
    (
        "all_gather_into_tensor",
        "dtypes differ",
        RUNTIME,
        lambda me: d.all_gather_into_tensor(t(me, me.size, INT), t(me)),
    ),
    (
        "all_gather_into_tensor",
        "a list",
        TYPE,
        lambda me: d.all_gather_into_tensor([t(me, me.size)], t(me)),
    ),
    ("gather", "no list at the root", VALUE, lambda me: d.gather(t(me), None, dst=me.rank)),
    (
        "gather",
        "a list elsewhere",
        VALUE,
        lambda me: d.gather(t(me), each(me, me.size), dst=other(me)),
    ),
    (
        "gather",
        "list too short",
        RUNTIME,
        lambda me: d.gather(t(me), each(me, me.size - 1), dst=me.rank),
    ),
    (
        "gather",
        "dtypes differ",
        VALUE,
        lambda me: d.gather(t(me), each(me, me.size, 1, INT), dst=me.rank),
    ),
    (
        "gather",
        "sizes differ",
        RUNTIME,
        lambda me: d.gather(t(me), each(me, me.size, 2), dst=me.rank),
    ),
    ("scatter", "no list at the root", VALUE, lambda me: d.scatter(t(me), None, src=me.rank)),
    (
        "scatter",
        "a list elsewhere",
        VALUE,
        lambda me: d.scatter(t(me), each(me, me.size), src=other(me)),
    ),
    (
        "scatter",
        "list too short",
        RUNTIME,
        lambda me: d.scatter(t(me), each(me, me.size - 1), src=me.rank),
    ),
    (
        "scatter",
        "dtypes differ",
        VALUE,
        lambda me: d.scatter(t(me), each(me, me.size, 1, INT), src=me.rank),
    ),
    (
        "scatter",
        "sizes differ",
        RUNTIME,
        lambda me: d.scatter(t(me), each(me, me.size, 2), src=me.rank),
    ),
    (
        "reduce_scatter",
        "list too short",
        RUNTIME,
        lambda me: d.reduce_scatter(t(me), each(me, me.size - 1)),
    ),
    ("reduce_scatter", "empty list", RUNTIME, lambda me: d.reduce_scatter(t(me), [])),
    (
        "reduce_scatter",
        "dtypes differ",
        VALUE,
        lambda me: d.reduce_scatter(t(me), each(me, me.size, 1, INT)),
    ),
    (
        "reduce_scatter",
        "sizes differ",
        RUNTIME,
        lambda me: d.reduce_scatter(t(me), each(me, me.size, 2)),
    ),
    (
        "reduce_scatter_tensor",
        "sizes do not fit",
        RUNTIME,
        lambda me: d.reduce_scatter_tensor(t(me, 2), t(me, me.size)),
    ),
    (
        "reduce_scatter_tensor",
        "dtypes differ",
        RUNTIME,
        lambda me: d.reduce_scatter_tensor(t(me, 1, INT), t(me, me.size)),
    ),
    (
        "all_to_all",
        "lists too short",
        RUNTIME,
        lambda me: d.all_to_all(each(me, me.size - 1), each(me, me.size - 1)),
    ),
    (
        "all_to_all",
        "one list too short",
        RUNTIME,
        lambda me: d.all_to_all(each(me, me.size), each(me, me.size - 1)),
    ),
    (
        "all_to_all",
        "dtypes differ",
        VALUE,
        lambda me: d.all_to_all(each(me, me.size, 1, INT), each(me, me.size)),
    ),
    (
        "all_to_all_single",
        "does not divide",
        RUNTIME,
        lambda me: d.all_to_all_single(t(me, me.size + 1), t(me, me.size + 1)),
    ),
    (
        "all_to_all_single",
        "too few splits",
        RUNTIME,
        lambda me: d.all_to_all_single(t(me, me.size), t(me, me.size), [me.size], [me.size]),
    ),
    (
        "all_to_all_single",
        "splits too large",
        RUNTIME,
        lambda me: d.all_to_all_single(
            t(me, me.size), t(me, me.size), [2] * me.size, [2] * me.size
        ),
    ),
    (
        "all_to_all_single",
        "negative split",
        RUNTIME,
        lambda me: d.all_to_all_single(
            t(me, me.size),
            t(me, me.size),
            [-1] + [1] * (me.size - 1),
            [-1] + [1] * (me.size - 1),
        ),
    ),
    (
        "all_to_all_single",
        "dtypes differ",
        VALUE,
        lambda me: d.all_to_all_single(t(me, me.size, INT), t(me, me.size)),
    ),
    ("all_reduce_coalesced", "empty list", UNSUPPORTED, lambda me: d.all_reduce_coalesced([])),
    (
        "all_reduce_coalesced",
        "dtypes differ",
        VALUE,
        lambda me: d.all_reduce_coalesced([t(me), t(me, 1, INT)]),
    ),
    (
        "all_gather_coalesced",
        "too few lists",
        RUNTIME,
        lambda me: d.all_gather_coalesced([[t(me)] for _ in range(me.size - 1)], [t(me)]),
    ),
)
ROOTS: tuple[Wrong, ...] = (
    ("broadcast", "root out of range", RUNTIME, lambda me: d.broadcast(t(me), src=OUTSIDE)),
    ("broadcast", "root negative", RUNTIME, lambda me: d.broadcast(t(me), src=-1)),
    ("broadcast", "root missing", VALUE, lambda me: d.broadcast(t(me))),
    ("broadcast", "root twice", VALUE, lambda me: d.broadcast(t(me), src=0, group_src=0)),
    (
        "broadcast",
        "group root out of range",
        RUNTIME,
        lambda me: d.broadcast(t(me), group_src=OUTSIDE),
    ),
    ("reduce", "root out of range", RUNTIME, lambda me: d.reduce(t(me), dst=OUTSIDE)),
    ("reduce", "root missing", VALUE, lambda me: d.reduce(t(me))),
    ("reduce", "root twice", VALUE, lambda me: d.reduce(t(me), dst=0, group_dst=0)),
    (
        "reduce",
        "group root out of range",
        RUNTIME,
        lambda me: d.reduce(t(me), group_dst=OUTSIDE),
    ),
    ("gather", "root out of range", RUNTIME, lambda me: d.gather(t(me), None, dst=OUTSIDE)),
    ("scatter", "root out of range", RUNTIME, lambda me: d.scatter(t(me), None, src=OUTSIDE)),
    (
        "broadcast_object_list",
        "root out of range",
        RUNTIME,
        lambda me: d.broadcast_object_list([None], src=OUTSIDE),
    ),
    (
        "gather_object",
        "root out of range",
        RUNTIME,
        lambda me: d.gather_object(1, None, dst=OUTSIDE),
    ),
    (
        "gather_object",
        "no list at the root",
        VALUE,
        lambda me: d.gather_object(1, None, dst=me.rank),
    ),
)
OPERATIONS: tuple[Wrong, ...] = (
    (
        "all_reduce",
        "max of complex",
        VALUE,
        lambda me: d.all_reduce(t(me, 1, COMPLEX), d.ReduceOp.MAX),
    ),
    (
        "all_reduce",
        "min of complex",
        VALUE,
        lambda me: d.all_reduce(t(me, 1, COMPLEX), d.ReduceOp.MIN),
    ),
    (
        "all_reduce",
        "product of complex",
        VALUE,
        lambda me: d.all_reduce(t(me, 1, COMPLEX), d.ReduceOp.PRODUCT),
    ),
    (
        "all_reduce",
        "band of complex",
        VALUE,
        lambda me: d.all_reduce(t(me, 1, COMPLEX), d.ReduceOp.BAND),
    ),
    ("all_reduce", "band of floats", RUNTIME, lambda me: d.all_reduce(t(me), d.ReduceOp.BAND)),
    ("all_reduce", "bor of floats", RUNTIME, lambda me: d.all_reduce(t(me), d.ReduceOp.BOR)),
    ("all_reduce", "bxor of floats", RUNTIME, lambda me: d.all_reduce(t(me), d.ReduceOp.BXOR)),
    ("reduce", "band of floats", RUNTIME, lambda me: d.reduce(t(me), 0, d.ReduceOp.BAND)),
    (
        "reduce",
        "max of complex",
        RUNTIME,
        lambda me: d.reduce(t(me, 1, COMPLEX), 0, d.ReduceOp.MAX),
    ),
    ("all_reduce", "sparse max", RUNTIME, lambda me: d.all_reduce(sparse(me), d.ReduceOp.MAX)),
    (
        "all_reduce",
        "sparse csr",
        UNSUPPORTED,
        lambda me: d.all_reduce(torch.eye(2, device=me.device).to_sparse_csr()),
    ),
    ("broadcast", "sparse", UNSUPPORTED, lambda me: d.broadcast(sparse(me), 0)),
    ("reduce", "sparse", UNSUPPORTED, lambda me: d.reduce(sparse(me), 0)),
)
TYPES: tuple[Wrong, ...] = (
    ("all_reduce", "a list", TYPE, lambda me: d.all_reduce([t(me)])),
    ("all_reduce", "nothing", TYPE, lambda me: d.all_reduce(None)),
    ("all_reduce", "reduce op as text", TYPE, lambda me: d.all_reduce(t(me), op="sum")),
    ("all_reduce", "group as a number", VALUE, lambda me: d.all_reduce(t(me), group=3)),
    ("broadcast", "a list", TYPE, lambda me: d.broadcast([1], src=0)),
    ("barrier", "group as a number", VALUE, lambda me: d.barrier(group=3)),
    ("monitored_barrier", "group as a number", VALUE, lambda me: d.monitored_barrier(group=3)),
    ("send", "a list", TYPE, lambda me: d.send([t(me)], other(me))),
    ("broadcast_object_list", "no list", TYPE, lambda me: d.broadcast_object_list(5, src=0)),
    ("new_group", "rank out of range", VALUE, lambda me: d.new_group([0, OUTSIDE])),
    ("new_group", "rank negative", VALUE, lambda me: d.new_group([-1, 0])),
    ("new_group", "too many ranks", VALUE, lambda me: d.new_group(list(range(me.size + 1)))),
    ("new_group", "timeout as a number", TYPE, lambda me: d.new_group([0], timeout=5)),
    (
        "new_subgroups",
        "does not divide",
        VALUE,
        lambda me: (
            d.new_subgroups(group_size=me.size - 1)
            if me.size > 2
            else d.new_subgroups(group_size=3)
        ),
    ),
    ("new_subgroups", "too large", VALUE, lambda me: d.new_subgroups(group_size=me.size + 1)),
    ("new_subgroups", "of none", VALUE, lambda me: d.new_subgroups(group_size=0)),
    (
        "new_subgroups_by_enumeration",
        "overlapping",
        VALUE,
        lambda me: d.new_subgroups_by_enumeration([[0, 1], [1]]),
    ),
    (
        "split_group",
        "without a device",
        RUNTIME,
        lambda me: d.split_group(split_ranks=[list(range(me.size))]),
    ),
    ("destroy_process_group", "nonsense", VALUE, lambda me: d.destroy_process_group("x")),
    ("init_process_group", "twice", VALUE, lambda me: d.init_process_group("gloo")),
    (
        "get_group_rank",
        "not a member",
        VALUE,
        lambda me: d.get_group_rank(me.group("single"), 0),
    ),
    (
        "get_global_rank",
        "out of range",
        VALUE,
        lambda me: d.get_global_rank(me.group("single"), 5),
    ),
    (
        "get_backend",
        "nonsense",
        ("ValueError", "TypeError", "AssertionError"),
        lambda me: d.get_backend("x"),
    ),
    (
        "init_device_mesh",
        "too large",
        RUNTIME,
        lambda me: d.init_device_mesh(me.device, (me.size + 1,)),
    ),
    (
        "init_device_mesh",
        "one name twice",
        RUNTIME,
        lambda me: d.init_device_mesh(me.device, (me.size, 1), mesh_dim_names=("a", "a")),
    ),
    (
        "init_device_mesh",
        "no such dimension",
        ("KeyError",),
        lambda me: d.init_device_mesh(me.device, (me.size,), mesh_dim_names=("a",))["b"],
    ),
)
MESSAGES: tuple[Wrong, ...] = (
    ("send", "to oneself", VALUE, lambda me: d.send(t(me), me.rank)),
    ("isend", "no receiver", VALUE, lambda me: d.isend(t(me))),
    (
        "isend",
        "receiver twice",
        VALUE,
        lambda me: d.isend(t(me), dst=other(me), group_dst=other(me)),
    ),
    ("P2POp", "another operation", VALUE, lambda me: d.P2POp(d.all_reduce, t(me), other(me))),
    (
        "batch_isend_irecv",
        "nothing",
        ("IndexError", "ValueError"),
        lambda me: d.batch_isend_irecv([]),
    ),
    ("batch_isend_irecv", "not an operation", VALUE, lambda me: d.batch_isend_irecv([1])),
)
TOGETHER = (*LISTS, *ROOTS, *OPERATIONS, *TYPES, *MESSAGES)


_TOGETHER = {(operation, words): call for operation, words, _, call in TOGETHER}


def cases(ranks: int) -> Iterator[Case]:
    if ranks < 2:
        return
    for operation, words, raises, _ in TOGETHER:
        yield Case(
            family="mistakes",
            operation=operation,
            variant=("mistake", words.replace(" ", "-")),
            ranks=ranks,
            program="mistake",
            given={"operation": operation, "words": words},
            raises=raises,
        )


def mistake(me: Context, operation: str, words: str) -> None:
    _TOGETHER[operation, words](me)


PROGRAMS = {"mistake": mistake}
