"""Note for the check `lost-result` calls that write into a copy which nobody keeps.

The engines ask `places` at each call: None says that the source shows no temporary there, so
the usual call costs one look into a dict. Elsewhere `note` looks at the first few calls of each
line: it finds the tensor that the copy was made of in the program's frame, without running any
code of the program's, and asks torch whether the copy has memory of its own. Deciding is done
in `checks/lost_result.py`.
"""

from __future__ import annotations

import os
import sys
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

from torch import Tensor
from torch.nn import Module

from phalanx import callsite
from phalanx.backend.evidence.call_description import describe_call
from phalanx.backend.evidence.frame_reader import read_frames, value_of, variables_of
from phalanx.backend.torch_private.private_memory import owns_memory_alone, share_memory
from phalanx.checks.lost_result import KIND, Lost, Step, Temporary, temporary_at
from phalanx.journal.events import Noted
from phalanx.journal.writer import NoteWriter, note_once
from phalanx.matching.slots import Call
from phalanx.system import monotonic

MOST_PLACES = 4096
MOST_LOOKS = 16
"""At one line by one rank: a later call may copy where the first did not."""
LEVELS = 3
MOST_ATTRIBUTES = 256
_BETWEEN = tuple(
    os.sep + name for name in ("distributed_c10d.py", "c10d_logger.py", "typing_extensions.py")
)
"""Files between the program and the group, of a call that the program makes itself."""

places: dict[tuple[int, int], Temporary | None] = {}
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
        places[place] = temporary_at(call.mark, call.name)
        _codes.append(code)
    temporary = places[place]
    if temporary is None or not _has_result(call):
        return
    looks = (KIND, place)
    taken = writer.looks.get(looks, 0)
    if taken >= MOST_LOOKS:
        return
    writer.looks[looks] = taken + 1
    tensor = _written(call)
    if tensor is not None:
        _look(writer, call, temporary, tensor)


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
    event = Noted(monotonic(), writer.rank, 0, call.mark, KIND, lost, call.mailbox.record)
    note_once(writer, (KIND, call.mark, call.name), event)
    writer.looks[KIND, (id(frame.f_code), frame.f_lasti)] = MOST_LOOKS


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
