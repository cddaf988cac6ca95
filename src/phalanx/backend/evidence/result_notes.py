"""Note for the check `lost-result` calls whose result may not come to where it is used.

The engines ask `places` at each call: None says that the source shows nothing to look at there,
so the usual call costs one look into a dict. Elsewhere `note` looks at the first few calls of
each line. Deciding is done in `checks/results/`.

| the call                                   | noted                                          |
|--------------------------------------------|------------------------------------------------|
| writes into a copy made in the call        | the tensor that it was made of, found in the   |
|                                            | program's frame without running any code of    |
|                                            | the program's, if the copy has memory of its   |
|                                            | own                                            |
| is a `reduce`, and not by its root         | the functions around it                        |
| gets a tensor of autograd's graph and      | the same; and later, by a hook of the graph    |
| gives others out                           | that changes nothing, whether a gradient came  |
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.evidence.frame_reader import read_frames, value_of, variables_of
from phalanx.backend.torch_private import private
from phalanx.backend.torch_private.private_memory import owns_memory_alone, share_memory
from phalanx.checks.results.cut_graph import CUTTING
from phalanx.checks.results.dropped_copy import Step, Temporary, call_at, temporary_at
from phalanx.checks.results.noted_results import (
    KIND,
    Cut,
    Lost,
    OffRoot,
    Places,
    Reached,
)
from phalanx.journal.events import Noted
from phalanx.journal.writer import NoteWriter, note_once
from phalanx.matching.slots import Call

MOST_PLACES = 4096
MOST_LOOKS = 16
"""At one line by one rank: a later call may copy where the first did not."""
LEVELS = 3
MOST_ATTRIBUTES = 256
_BETWEEN = tuple(
    os.sep + name for name in ("distributed_c10d.py", "c10d_logger.py", "typing_extensions.py")
)
"""Files between the program and the group, of a call that the program makes itself."""

_AROUND = tuple(
    os.sep + os.path.join(*parts)
    for parts in (
        ("torch", "nn", "modules", "module.py"),
        ("torch", "nn", "modules", "container.py"),
        ("torch", "nn", "parallel", "distributed.py"),
        ("torch", "utils", "_contextlib.py"),
        ("contextlib.py",),
    )
)
"""Files whose functions return what the program's functions return that they call."""
MOST_AROUND = 8
"""Functions around a call that are noted."""
MOST_GRAPHS = 4
"""Calls of one line by one rank whose graph is looked at."""
HOPS, MOST_NODES = 12, 128
"""How far back in the graph a gradient is waited for."""
_PLAIN = (Tensor, Parameter)


class PlaceLook(NamedTuple):
    """What there is to look at in calls at one place."""

    temporary: Temporary | None
    cuts: bool
    off_root: bool


places: dict[tuple[int, int], PlaceLook | None] = {}
"""By code and instruction; the code is kept, so that its number stays its own."""
_codes: list[CodeType] = []


def note(writer: NoteWriter, call: Call) -> None:
    """Look at a call at a place that is not known to be dull."""
    if call.mark is None:
        return
    code, offset = call.mark
    place = id(code), offset
    if place not in places:
        if len(places) >= MOST_PLACES:
            places.clear()
            _codes.clear()
        places[place] = _look_for(call)
        _codes.append(code)
    look = places[place]
    if look is None:
        return
    if look.cuts and call.name in CUTTING and torch.is_grad_enabled():
        _note_cut(writer, call, place)
    if look.off_root and call.name == "reduce" and call.member != call.root:
        _note_off_root(writer, call, place)
    if look.temporary is None or not _has_result(call):
        return
    if not _may_look(writer, ("copy", place), MOST_LOOKS):
        return
    tensor = _written(call)
    if tensor is not None:
        _look(writer, call, look.temporary, tensor)


def _look_for(call: Call) -> PlaceLook | None:
    assert call.mark is not None
    cuts, off_root = call.name in CUTTING, call.name == "reduce"
    if (cuts or off_root) and call_at(call.mark, call.name) is None:
        cuts = off_root = False
    temporary = temporary_at(call.mark, call.name)
    return PlaceLook(temporary, cuts, off_root) if temporary or cuts or off_root else None


def _may_look(writer: NoteWriter, what: Any, most: int) -> bool:
    taken = writer.looks.get((KIND, what), 0)
    writer.looks[KIND, what] = taken + 1
    return taken < most


def _has_result(call: Call) -> bool:
    if call.name == "broadcast":
        return call.member != call.root
    return call.name != "reduce" or call.member == call.root


def _written(call: Call) -> Tensor | None:
    given = call.inputs if call.name in ("all_reduce", "broadcast", "reduce") else call.outputs
    one = len(given) == 1 and isinstance(given[0], Tensor)
    return given[0] if one else None


def _look(writer: NoteWriter, call: Call, temporary: Temporary, tensor: Tensor) -> None:
    frame = _calling_frame(sys._getframe(2))
    if frame is None or not owns_memory_alone(tensor):
        return
    found = _source_of(temporary, frame)
    if found is None or share_memory(found[0], tensor):
        return
    source, text, in_object = found
    if not in_object:
        attribute = _attribute_with(frame, source)
        text, in_object = attribute or text, attribute is not None
    holders = [(_place(frame), temporary.root)]
    for place, names, *_ in read_frames(frame, source, most=LEVELS + 1):
        holders += [(place, name.split("[")[0]) for name in names]
    op = describe_call(call)
    lost = Lost(op, temporary.text, text, in_object, tuple(holders), call.asynchronous)
    event = Noted(writer.now(), writer.rank, 0, call.mark, KIND, lost, call.mailbox.record)
    note_once(writer, (KIND, call.mark, call.name), event)
    writer.looks[KIND, ("copy", (id(frame.f_code), frame.f_lasti))] = MOST_LOOKS


# -- what is followed through the program's functions -----------------------------------------


def _note_off_root(writer: NoteWriter, call: Call, place: tuple[int, int]) -> None:
    if _may_look(writer, ("off root", place), MOST_LOOKS):
        around = _places_around(_calling_frame(sys._getframe(2)))
        if around:
            what = OffRoot(describe_call(call), around)
            event = Noted(writer.now(), writer.rank, 0, call.mark, KIND, what)
            note_once(writer, (KIND, "off root", around), event)


def _note_cut(writer: NoteWriter, call: Call, place: tuple[int, int]) -> None:
    """The input may be a part of autograd's graph, of which the output is none."""
    given = [each for each in call.inputs if type(each) in _PLAIN]
    if private.function_modes() or not any(each.requires_grad for each in given):
        return
    nodes = [each.grad_fn for each in given if each.grad_fn is not None]
    if not nodes or not _may_look(writer, ("cut", place), MOST_GRAPHS):
        return
    around = _places_around(_calling_frame(sys._getframe(2)))
    if not around:
        return
    key = KIND, "reached", around

    def reached(gradients: Any) -> None:
        if key not in writer.noted:
            what = Reached(around)
            note_once(writer, key, Noted(writer.now(), writer.rank, 0, None, KIND, what))

    for node in _nodes_behind(nodes):
        with suppress(RuntimeError):
            node.register_prehook(reached)
    event = Noted(
        writer.now(), writer.rank, 0, call.mark, KIND, Cut(describe_call(call), around)
    )
    note_once(writer, (KIND, "cut", around), event)


def _nodes_behind(nodes: list[Any]) -> Iterator[Any]:
    """These and what they were computed of, but for leaves: those of a copy or a view are the
    tensor's own, and parameters get gradients from everywhere."""
    seen: set[Any] = set()
    for _ in range(HOPS):
        fresh = [each for each in nodes if each not in seen and not hasattr(each, "variable")]
        for node in fresh[: MOST_NODES - len(seen)]:
            seen.add(node)
            yield node
        nodes = [each for node in fresh for each, _ in node.next_functions if each is not None]


def _places_around(frame: FrameType | None) -> Places:
    """The program's functions from a call outwards, as long as one returns what the next one
    gets."""
    found: list[callsite.Mark] = []
    while frame is not None and len(found) < MOST_AROUND:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            found.append(_place(frame))
        elif found and not file.endswith(_AROUND):
            break
        frame = frame.f_back
    return tuple(found)


# -- the tensor that a copy was made of -------------------------------------------------------


def _place(frame: FrameType) -> callsite.Mark:
    return frame.f_code, frame.f_lasti


def _calling_frame(frame: FrameType | None) -> FrameType | None:
    """The program's frame, if that calls torch's function itself."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            return frame
        if not callsite.is_own_file(file) and not file.endswith(_BETWEEN):
            return None
        frame = frame.f_back
    return None


def _attribute_with(frame: FrameType | None, tensor: Tensor) -> str | None:
    """The attribute of an object in the innermost user frames that is this tensor: a loop over
    `(self.total, self.count)`, or a helper, has it under a name of its own."""
    levels = 0
    while frame is not None and levels <= LEVELS:
        file = frame.f_code.co_filename
        if not callsite.is_library(file):
            levels += 1
            for name, value in variables_of(frame):
                if not isinstance(value, (type, ModuleType, FunctionType, Tensor)):
                    for attribute, each in _attributes(value):
                        if each is tensor:
                            return f"{name}.{attribute}"
        elif callsite.is_own_file(file) and levels:
            return None  # below are those who run the program
        frame = frame.f_back
    return None


def _attributes(value: Any) -> list[tuple[str, Any]]:
    own = getattr(value, "__dict__", None)
    if type(own) is not dict or len(own) > MOST_ATTRIBUTES:
        return []
    tables = ("_parameters", "_buffers") if isinstance(value, Module) else ()
    inner = [own.get(table) for table in tables]
    found = list(own.items())
    for table in inner:
        found += table.items() if isinstance(table, dict) else ()
    return found


def _source_of(temporary: Temporary, frame: FrameType) -> tuple[Tensor, str, bool] | None:
    """The tensor that the copy was made of, its text, and whether an object holds it."""
    value, text = value_of(frame, temporary.root), temporary.root
    in_object = False
    for step in temporary.steps:
        is_gradient = step[:2] == ("attribute", "grad")
        if isinstance(value, Tensor) and not is_gradient:
            break
        in_object = in_object or step[0] == "attribute"
        value, text = _next(value, step, frame), step[2]
    return (value, text, in_object) if isinstance(value, Tensor) else None


def _next(value: Any, step: Step, frame: FrameType) -> Any:
    """What lies there; None if only code of the program's could tell."""
    how, name, _ = step
    if how == "attribute":
        if isinstance(value, Tensor):
            return value.grad if value.is_leaf else None
        own = getattr(value, "__dict__", {})
        if name in own or not isinstance(value, Module):
            return own.get(name)
        tables = (own.get(table, {}) for table in ("_parameters", "_buffers", "_modules"))
        return next((table[name] for table in tables if name in table), None)
    if how == "any":
        items = value.values() if type(value) is dict else value
        return next(iter(items), None) if type(value) in (dict, list, tuple) else None
    key = value_of(frame, name) if how == "name" else name
    if type(value) is dict and isinstance(key, (str, int)):
        return value.get(key)
    if type(value) in (list, tuple) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    return None
