"""A call as the reader knows it: `recv(src=1, tag=0)  float32[256]  cpu`.

Used by the modules that render verdicts. Must never look at more than the op it is given.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.model import Group, Op, Site, TensorSpec, Verdict, rank_list

_SOURCE_ROOTED = frozenset(
    {"broadcast", "scatter", "broadcast_object_list", "scatter_object_list"}
)
_RECEIVES = frozenset({"recv", "irecv"})
_INIT = "init_process_group"
_MAKING = frozenset({"new_group", _INIT})
_SENDS = frozenset({"send", "isend"})
_SHOWN_ITEMS = 6
_SHOWN_CALLERS = 4


def caller_texts(verdict: Verdict, ranks: Sequence[int], site: Site | None) -> list[str]:
    """Lines that say from where these ranks came to the line of their call, with the source."""
    here = [
        each for each in verdict.callers if each.call == site and set(each.ranks) & set(ranks)
    ]
    lines: list[str] = []
    for each in here[:_SHOWN_CALLERS]:
        who = rank_list(sorted(set(each.ranks) & set(ranks)))
        whose = f"{who}: " if len(here) > 1 else ""
        lines.append(f"{whose}called from {each.site} in {each.site.function}")
        lines += [f">  {each.site.source}"] if each.site.source else []
    return lines


def is_receive(op: Op) -> bool:
    return op.name in _RECEIVES


def is_send(op: Op) -> bool:
    return op.name in _SENDS


def call_text(op: Op) -> str:
    """The call with the arguments that decide who meets whom.

    >>> call_text(Op(0, "recv", Group("world", (0, 1)), peer=1, tag=0))
    'recv(src=1, tag=0)'
    """
    if op.key is not None:
        return f'{short_name(op)}("{op.key}")'
    if op.name == "new_group":
        return f"new_group({_numbers_text(op.group.ranks)}, {op.group.name})"
    if op.name == _INIT and op.group.name != "world":  # where ranks wait, it has the address
        return f"{_INIT}({op.group.name})"
    return f"{op.name}({', '.join(_arguments(op))})"


def short_name(op: Op) -> str:
    """The name alone; for a call of a store, with the store."""
    return f"store.{op.name}" if op.key is not None and "." not in op.name else op.name


def call_pieces(op: Op, *, where: bool = False) -> tuple[str, ...]:
    """The call, its tensors and their device; with `where` also its group and number."""
    pieces = [call_text(op)]
    tensors = tensors_text(op)
    if tensors:
        pieces += [tensors, devices_text(op)]
    if where and op.number is not None:
        pieces.append(f"group {group_text(op.group)}, call #{op.number}")
    elif where and op.key is None and op.group.name != "world" and op.name not in _MAKING:
        pieces.append(f"group {group_text(op.group)}")
    return tuple(pieces)


def group_text(group: Group) -> str:
    members = rank_list(group.ranks) if group.ranks else "members unknown"
    return f'"{group.name}" ({members})'


def tensors_text(op: Op) -> str:
    """The input tensors, and the output tensors where they differ."""
    given, got = _specs_text(op.inputs), _specs_text(op.outputs)
    if given and got and op.inputs != op.outputs:
        return f"{given} -> {got}"
    return given or got


def devices_text(op: Op) -> str:
    return ", ".join(sorted({spec.device for spec in (*op.inputs, *op.outputs)}))


def _arguments(op: Op) -> list[str]:
    arguments = []
    if is_receive(op):
        arguments.append(f"src={'any' if op.peer is None else op.peer}")
    elif is_send(op):
        arguments.append(f"dst={op.peer}")
    if op.root is not None:
        arguments.append(f"{'src' if op.name in _SOURCE_ROOTED else 'dst'}={op.root}")
    if op.reduce_op is not None:
        arguments.append(f"op={op.reduce_op}")
    if op.tag is not None:
        arguments.append(f"tag={op.tag}")
    if op.input_splits:
        arguments.append(f"input_splits={_numbers_text(op.input_splits)}")
    if op.output_splits:
        arguments.append(f"output_splits={_numbers_text(op.output_splits)}")
    return arguments


def _numbers_text(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN_ITEMS]))
    rest = f", ... ({len(numbers)} in all)" if len(numbers) > _SHOWN_ITEMS else ""
    return f"[{shown}{rest}]"


def _specs_text(specs: tuple[TensorSpec, ...]) -> str:
    if len(specs) > 1 and all(spec == specs[0] for spec in specs):
        return f"{len(specs)} x {specs[0]}"
    shown = ", ".join(map(str, specs[:_SHOWN_ITEMS]))
    rest = f", ... ({len(specs)} tensors)" if len(specs) > _SHOWN_ITEMS else ""
    return f"{shown}{rest}"
