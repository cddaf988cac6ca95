"""The verdict about an error of one rank's own call: which call, what was given, the hint.

The engines ask when a rank has failed, while the frames of the call exist. The error is one of
ours (`InvalidCallError`) or one of torch's, raised by the function of `torch.distributed` that
the program's line called. Costs nothing until a rank fails.

| the error | the verdict |
|---|---|
| an `InvalidCallError` | invalid-call, error |
| raised by torch's own frames that the program's line called directly | invalid-call, error |
| raised deeper: in code of the program, in other parts of torch | no verdict |
| no error: a call on a group without this rank, for which torch only warns | a warning |
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import FrameType, FunctionType, SimpleNamespace, TracebackType
from typing import Any

import torch.distributed as dist
from torch import Tensor

from phalanx.backend.endpoint import Endpoint
from phalanx.backend.evidence.call_description import group_of, specs_of
from phalanx.backend.rank_errors import InvalidCallError
from phalanx.backend.session import context_here
from phalanx.backend.torch_private import private
from phalanx.callsite import is_library_file, mark_of, raised_at, resolve
from phalanx.checks.group_lifecycle import INVALID
from phalanx.journal.events import Noted
from phalanx.journal.writer import NoteWriter, note_once
from phalanx.model import CallBlock, Finding, Group, Op, Site, rank_list

_DOORS = (
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
)
"""Where torch checks what a program gives to a collective."""
_BETWEEN = ("torch/distributed/c10d_logger.py", "/typing_extensions.py")
_MISTAKES = (ValueError, TypeError, RuntimeError, IndexError, AttributeError, AssertionError)
_INPUTS = ("tensor", "input", "input_tensor", "input_list", "input_tensor_list", "scatter_list")
_OUTPUTS = ("output", "output_tensor", "output_tensor_list", "tensor_list", "gather_list")
_GROUP_REPR = re.compile(r"<\w+ group '[^']*', rank \d+/\d+>|<torch\.distributed\.[^>]*>")
_SHOWN_CALLERS = 3

DESTROYED: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()
"""In a rank that is a process: torch's own groups that it has destroyed."""

_Door = tuple[str, Mapping[str, Any]]
"""A function of torch's, by its name, and what it was given."""


def note_invalid_call(error: BaseException) -> None:
    """Attach a verdict to an error of torch's, if it is about one rank's own call. Our errors
    compute theirs when asked."""
    if getattr(error, "verdict", None) is None:
        finding = find_invalid_call(error)
        if finding is not None:
            error.verdict = finding  # type: ignore[attr-defined]


def find_invalid_call(error: BaseException) -> Finding | None:
    own = isinstance(error, InvalidCallError)
    door = _find_door(error.__traceback__, directly=not own)
    if not own and (door is None or not _is_torchs_mistake(error)):
        return None
    return _finding(error, door, _rank_here())


def _rank_here() -> int:
    """In a process of its own a rank knows itself by its environment."""
    context = context_here()
    return context.rank if context is not None else int(os.environ.get("RANK", "0"))


def _is_torchs_mistake(error: BaseException) -> bool:
    """Whether torch itself raised it. A broken connection, an error of the backend, is no wrong
    argument."""
    return isinstance(error, _MISTAKES) and not isinstance(error, dist.DistError)


def _find_door(trace: TracebackType | None, *, directly: bool) -> _Door | None:
    """The function of torch's that was called. With `directly`: by the program, and the error
    came up right there."""
    door: _Door | None = None
    inside = True
    while trace is not None:
        frame = trace.tb_frame
        file = frame.f_code.co_filename
        if file.endswith(_DOORS):
            door = door or (frame.f_code.co_name, frame.f_locals)
            inside = True
        elif not is_library_file(file):
            door, inside = None, True
        elif file.endswith(_BETWEEN):
            door = door or _wrapped(frame)
        else:
            inside = inside and not directly
        trace = trace.tb_next
    return door if inside else None


def _wrapped(frame: FrameType) -> _Door | None:
    """What torch's logger of errors was about to call, or has called: it raises errors of its
    own in front of the function's."""
    inner = frame.f_locals
    func = inner.get("func")
    if not callable(func) or "args" not in inner or "kwargs" not in inner:
        return None
    try:
        bound = inspect.signature(func).bind(*inner["args"], **inner["kwargs"])
    except (TypeError, ValueError):  # the call does not even fit
        return getattr(func, "__name__", "?"), inner["kwargs"]
    bound.apply_defaults()
    return getattr(func, "__name__", "?"), bound.arguments


def _finding(error: BaseException, door: _Door | None, rank: int) -> Finding:
    name, given = door if door is not None else (str(error).partition(":")[0], {})
    group = _group_of(given.get("group"))
    text = _text(error, name, given, group)
    op = replace(_op(rank, name, given, group), site=raised_at(error.__traceback__))
    callers = _user_sites(error.__traceback__)[:-1][-_SHOWN_CALLERS:]
    facts = [("from", ", ".join(f"{site} in {site.function}" for site in reversed(callers)))]
    return Finding(
        "invalid-call",
        "error",
        (rank,),
        headline=f"rank {rank} called {name} wrongly: {text}",
        blocks=(CallBlock((rank,), op, notes=(text,)),),
        facts=tuple(facts) if callers else (),
        hint=_hint(given, group),
    )


def _user_sites(trace: TracebackType | None) -> list[Site]:
    sites = []
    while trace is not None:
        code = trace.tb_frame.f_code
        site = None if is_library_file(code.co_filename) else resolve((code, trace.tb_lasti))
        sites += [site] if site is not None else []
        trace = trace.tb_next
    return sites


def _group_of(given: Any) -> Group:
    """The group as reports name it; that of the world where none was given."""
    context = context_here()
    if given is None and context is not None:
        given = context.torch_state.default_pg
    met = given._mailbox if isinstance(given, Endpoint) else None
    if met is not None:
        return group_of(met)
    if context is None:
        return _real_group(given if given is not None else dist.group.WORLD)
    return Group("world", tuple(range(context.session.size if context is not None else 0)))


def _real_group(given: Any) -> Group:
    """In a rank that is a process."""
    if isinstance(given, dist.ProcessGroup) and given in DESTROYED:
        return DESTROYED[given]
    if not isinstance(given, dist.ProcessGroup) or not dist.is_initialized():
        return Group("world", ())
    ranks = tuple(dist.get_process_group_ranks(given))
    world = given.group_name == "0" and len(ranks) == dist.get_world_size()
    return Group("world" if world else f"group {given.group_name}", ranks)


def _text(error: BaseException, name: str, given: Mapping[str, Any], group: Group) -> str:
    """What is wrong, in one line and alike on all ranks."""
    of_group = given.get("group")
    gone = of_group._closed if isinstance(of_group, Endpoint) else _is_destroyed(of_group)
    if gone:
        return f'group "{group.name}" has been destroyed'
    context = context_here()
    gone = context is not None and context.initialised and not context.torch_state.pg_names
    gone = gone and name != "init_process_group"
    if of_group is None and gone and not isinstance(error, InvalidCallError):
        return "the default group has been destroyed"
    lines = str(error).strip().splitlines() or [type(error).__name__]
    text = " ".join(line.strip() for line in lines[:2])
    text = _GROUP_REPR.sub(f'"{group.name}" ({rank_list(group.ranks)})', text)
    head, colon, rest = text.partition(": ")
    return rest if colon and head.replace("_", "").isalnum() and len(head) < 40 else text


def _is_destroyed(group: Any) -> bool:
    return isinstance(group, dist.ProcessGroup) and group in DESTROYED


def _op(rank: int, name: str, given: Mapping[str, Any], group: Group) -> Op:
    """The call as far as its arguments tell."""
    to_one = "send" in name or "recv" in name
    place = next(
        (given[key] for key in ("dst", "src") if isinstance(given.get(key), int)), None
    )
    reduce_op = given.get("op")
    written = ("tensor",) if name == "scatter" else ()  # elsewhere it is an input
    return Op(
        rank=rank,
        name=name,
        group=group,
        root=None if to_one else place,
        peer=place if to_one else None,
        tag=given.get("tag") if to_one else None,
        reduce_op=str(reduce_op).rpartition(".")[2] if _is_reduce_op(reduce_op) else None,
        inputs=_specs(given, [each for each in _INPUTS if each not in written]),
        outputs=_specs(given, [*written, *_OUTPUTS]),
        input_splits=_splits(given.get("input_split_sizes")),
        output_splits=_splits(given.get("output_split_sizes")),
    )


def _is_reduce_op(given: Any) -> bool:
    return isinstance(given, (dist.ReduceOp, dist.ReduceOp.RedOpType))


def _specs(given: Mapping[str, Any], names: Iterable[str]) -> Any:
    tensors: list[Any] = []
    for name in names:
        value = given.get(name)
        listed = value if isinstance(value, (list, tuple)) else [value]
        tensors += [each for each in listed if isinstance(each, Tensor)]
    return specs_of(tensors)


def _splits(given: Any) -> tuple[int, ...]:
    listed = isinstance(given, (list, tuple)) and all(isinstance(each, int) for each in given)
    return tuple(given) if listed else ()


def _hint(given: Mapping[str, Any], group: Group) -> str | None:
    """Ranks of the world and ranks of a group are easily mixed up."""
    for name in ("src", "dst"):
        rank, of_group = given.get(name), given.get(f"group_{name}")
        if isinstance(rank, int) and rank not in group.ranks and 0 <= rank < len(group.ranks):
            there = group.ranks[rank]
            return (
                f"{name} is a rank of the world, and rank {rank} is not in the group; rank "
                f"{rank} of the group is rank {there} of the world: write group_{name}={rank} "
                f"or {name}={there}"
            )
        if rank is None and isinstance(of_group, int) and of_group in group.ranks:
            place = group.ranks.index(of_group)
            if place != of_group and not 0 <= of_group < len(group.ranks):
                return (
                    f"group_{name} is a rank of the group, which has {len(group.ranks)}; rank "
                    f"{of_group} of the world is its rank {place}: write {name}={of_group} or "
                    f"group_{name}={place}"
                )
    return None


# -- calls on a group that the rank is not in --------------------------------------------------


def outsider_patches(
    writer_of: Callable[[], NoteWriter | None] = context_here,
) -> list[tuple[Any, str, Any]]:
    """Note in the journal where torch warns of such a call. `writer_of` returns the rank that
    calls."""
    original = inspect.unwrap(getattr(private.c10d_module, private.WARN_OUTSIDER_NAME))
    deeper = {**original.__globals__, "warnings": SimpleNamespace(warn=_warn_deeper)}
    warn: Callable[[str], None] = FunctionType(original.__code__, deeper)

    def warn_not_in_group(op_name: str) -> None:
        writer = writer_of()
        if writer is not None:
            _note_outsider(writer, sys._getframe(1))
        warn(op_name)

    warn_not_in_group.__wrapped__ = original  # type: ignore[attr-defined]
    return [(private.c10d_module, private.WARN_OUTSIDER_NAME, warn_not_in_group)]


def _warn_deeper(text: str, stacklevel: int = 1, **more: Any) -> None:
    """torch's warning names the line that it would name without us: two frames further up."""
    warnings.warn(text, stacklevel=stacklevel + 2, **more)


def _note_outsider(writer: NoteWriter, frame: FrameType) -> None:
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_filename.endswith((*_DOORS, *_BETWEEN)):
        caller = caller.f_back
    if caller is None or is_library_file(caller.f_code.co_filename):
        return  # torch's own code, which knows what it does
    mark, name = mark_of(caller), frame.f_code.co_name
    op = replace(
        _op(writer.rank, name, frame.f_locals, Group("world", ())),
        site=resolve(mark),
        root=None,
        peer=None,
        tag=None,
    )
    event = Noted(writer.now(), writer.rank, 0, mark, INVALID, op)
    note_once(writer, (INVALID, mark, name), event)
