"""What a user's frame says about a call: names of its tensor, values of the loops around it.

Used by the observer of crossed order for a few calls of each group, because to read a frame
takes about a microsecond. The loops come from the bytecode of the function at hand: to parse
its whole file would cost every run as many milliseconds as it has files. What is kept holds
words and numbers, and no objects of the program.
"""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Iterator, Mapping
from itertools import islice
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter

from phalanx import callsite

MOST_NAMES = 64
MOST_ITEMS = 64
"""How many names of a frame, and items of a container, are looked through."""

MOST_MODULES = 8
MOST_PLACES = 4096
_OPTIMIZED = 1  # inspect.CO_OPTIMIZED: the frame's names are slots, and no dict
_FOR_ITER = dis.opmap["FOR_ITER"]
_SNAPSHOTS = sys.version_info < (3, 13)
_HELD_BY_US = 3
"""References to a frame's snapshot that are not the program's: of the frame, ours, a call's."""

Values = tuple[tuple[str, int | str], ...]
Reading = tuple[callsite.Mark, tuple[str, ...], Values, bool, tuple[str, ...]]
"""A frame's place, names of the tensor there, and what `_loop_values` returns: the fields of
`checks.order.crossed_order.Level`."""


class FramePlan:
    """What to look at in frames that are at one place; found out once."""

    __slots__ = (
        "arguments",
        "globals",
        "is_ours",
        "is_program",
        "is_small",
        "is_snapshot",
        "loops",
        "names",
        "place",
    )

    def __init__(self, code: CodeType, offset: int) -> None:
        self.place = (code, offset)
        self.is_program = not callsite.is_library(code.co_filename)
        self.is_ours = callsite.is_own_file(code.co_filename)
        if not self.is_program:
            return
        self.loops = loops_around(code, offset)
        local = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
        is_function = bool(code.co_flags & _OPTIMIZED)
        self.names = (local if is_function else code.co_names)[:MOST_NAMES]
        count = code.co_argcount + code.co_kwonlyargcount
        self.arguments = code.co_varnames[:count] if is_function else ()
        self.globals = code.co_names[:MOST_NAMES] if is_function else ()
        self.is_small = is_function and len(local) <= MOST_NAMES
        """Whether all that the frame has is to be looked at."""
        self.is_snapshot = _SNAPSHOTS and is_function
        """Whether a frame keeps what it was asked for, as a dict of its own."""


_plans: dict[tuple[int, int], FramePlan] = {}


def read_frames(frame: FrameType | None, tensor: Any, *, most: int) -> tuple[Reading, ...]:
    """The innermost user frames, innermost first."""
    found: list[Reading] = []
    while frame is not None and len(found) < most:
        plan = _plans.get((id(frame.f_code), frame.f_lasti)) or _new_plan(frame)
        if plan.is_program:
            found.append(_read(plan, frame, tensor))
        elif plan.is_ours and found:
            break  # below are those who run the program
        frame = frame.f_back
    return tuple(found)


def _new_plan(frame: FrameType) -> FramePlan:
    if len(_plans) >= MOST_PLACES:
        _plans.clear()
    code, offset = frame.f_code, frame.f_lasti
    plan = _plans[id(code), offset] = FramePlan(code, offset)
    return plan


def _read(plan: FramePlan, frame: FrameType, tensor: Any) -> Reading:
    known: Any = frame.f_locals
    # Of a class body it is whatever the metaclass has prepared.
    if type(known) is not dict and not isinstance(known, Mapping):
        known = {}
    names: list[str] = []
    words = not plan.is_small
    is_ours = plan.is_snapshot and sys.getrefcount(known) <= _HELD_BY_US
    is_whole = plan.is_small and (is_ours or not _SNAPSHOTS)
    for name, value in known.items() if is_whole else _some_of(plan, known):
        kind = type(value)
        if value is tensor:
            names.append(name)
        elif kind is str:
            words = True
        elif kind in _CONTAINERS and len(value) <= MOST_ITEMS:
            _look_into(name, value, tensor, names)
    if not names and plan.globals:
        _look_outside(plan, frame, tensor, names)
    more = _loop_values(plan, known, tensor) if plan.loops or words else _NOTHING
    if is_ours:
        known.clear()  # or the frame would keep alive what the program drops
    return plan.place, tuple(names), *more


def value_of(frame: FrameType, name: str) -> Any:
    """What a variable of the frame, or else of its module, is; None if there is none."""
    (found,) = _values_of(frame, (name,))
    return frame.f_globals.get(name) if found is None else found


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The frame's own variables and what they are, as far as they are looked through."""
    code = frame.f_code
    local = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    names = (local if code.co_flags & _OPTIMIZED else code.co_names)[:MOST_NAMES]
    return list(zip(names, _values_of(frame, names), strict=True))


def _values_of(frame: FrameType, names: tuple[str, ...]) -> list[Any]:
    known: Any = frame.f_locals
    try:
        found = [known.get(name) for name in names]
    except AttributeError:  # whatever the metaclass of a class body has prepared
        found = [None] * len(names)
    is_snapshot = _SNAPSHOTS and frame.f_code.co_flags & _OPTIMIZED
    if is_snapshot and sys.getrefcount(known) <= _HELD_BY_US:
        known.clear()  # or the frame would keep alive what the program drops
    return found


def _some_of(plan: FramePlan, known: Any) -> list[tuple[str, Any]]:
    return [(name, known.get(name)) for name in plan.names]


def _look_outside(plan: FramePlan, frame: FrameType, tensor: Any, found: list[str]) -> None:
    known = frame.f_globals
    for name in plan.globals:
        value = known.get(name)
        if value is tensor:
            found.append(name)
        elif type(value) in _CONTAINERS and len(value) <= MOST_ITEMS:  # type: ignore[arg-type]
            _look_into(name, value, tensor, found)


_NOTHING: tuple[Values, bool, tuple[str, ...]] = ((), False, ())
_CONTAINERS = frozenset({dict, list, tuple})


def _look_into(name: str, container: Any, tensor: Any, found: list[str]) -> None:
    is_dict = type(container) is dict
    if id(tensor) not in map(id, list(container.values()) if is_dict else container):
        return
    for key, value in list(container.items()) if is_dict else enumerate(container):
        if value is tensor and type(key) in _SIMPLE:
            found.append(f"{name}[{key!r}]")


_SIMPLE = frozenset({int, str})


def _loop_values(
    plan: FramePlan, known: Any, tensor: Any
) -> tuple[Values, bool, tuple[str, ...]]:
    """Of a loop over words the words alone count: a counter beside them, as of `enumerate`, is
    where they stand and not what they are. So with a loop over the tensors themselves. Words
    that the function was called with count too.

    Words are *tied* to the tensor if they name the function to call, or come with it: bound
    by the same loop, or given to the function together with the parameter whose gradient it
    is. Any others may be about a rank's own data, such as names of files. A loop over the
    parameters of a module that the frame knows is one over their names."""
    values: list[tuple[str, int | str]] = [
        (name, value) for name in plan.arguments if type(value := known.get(name)) is str
    ]
    tied: list[str] = []
    if values and any(_has_gradient(known.get(name), tensor) for name in plan.arguments):
        tied += [name for name, _ in values]
    swept = False
    for targets in plan.loops:
        own = [(name, known.get(name)) for name in targets]
        words = [(name, _word(value)) for name, value in own if type(value) in _WORDS]
        if words:
            values += words
            if any(value is tensor or _has_gradient(value, tensor) for _, value in own):
                tied += [name for name, _ in words]
            else:
                tied += [name for name, value in own if type(value) in _FUNCTIONS]
        elif named := _parameter_names(own, known, tensor):
            values += named
            tied += [name for name, _ in named]
        elif any(value is tensor for _, value in own):
            swept = True
        else:
            values += [(name, value) for name, value in own if type(value) is int]
    return tuple(values), swept, tuple(tied)


def _has_gradient(value: Any, tensor: Any) -> bool:
    # A parameter asks in Python what is one; most of what comes here is no tensor at all.
    return isinstance(value, Tensor) and isinstance(value, Parameter) and value.grad is tensor


def _parameter_names(
    own: list[tuple[str, Any]], known: Any, tensor: Any
) -> list[tuple[str, int | str]]:
    """What modules of the frame call the parameters that a loop binds, if one of these, its
    data or its gradient is the tensor."""
    found = [(name, value) for name, value in own if type(value) is Parameter]
    if not any(_is_of(value, tensor) for _, value in found):
        return []
    modules = list(islice(_modules_in(known), MOST_MODULES))
    words = [(name, _name_in(modules, value)) for name, value in found]
    return [(name, word) for name, word in words if word is not None]


def _is_of(parameter: Any, tensor: Any) -> bool:
    if parameter is tensor or parameter.grad is tensor:
        return True
    is_view = type(tensor) is Tensor and tensor.shape == parameter.shape
    return is_view and tensor.is_cpu and tensor.data_ptr() == parameter.data_ptr()


def _modules_in(known: Any) -> Iterator[Module]:
    """Of the frame, or of the object whose method it runs."""
    owner = getattr(known.get("self"), "__dict__", None)
    own = list(owner.values()) if type(owner) is dict else []
    for value in (*list(known.values())[:MOST_NAMES], *own[:MOST_NAMES]):
        if isinstance(value, Module) and type(value).__hash__ is Module.__hash__:
            yield value


def _name_in(modules: list[Module], parameter: Parameter) -> str | None:
    for module in modules:
        names = _names.get(module)
        if names is None or id(parameter) not in names:
            names = _names[module] = {
                id(each): (weakref.ref(each), name) for name, each in module.named_parameters()
            }
        ref, name = names.get(id(parameter), (None, None))
        if ref is not None and ref() is parameter:
            return name
    return None


_names: weakref.WeakKeyDictionary[Module, dict[int, tuple[Any, str]]] = (
    weakref.WeakKeyDictionary()
)
"""Of modules whose parameters a loop went through: their names, by the parameter."""


def part_of_model(frame: FrameType | None, tensor: Any, *, most: int) -> str | None:
    """What a module of the innermost user frames calls this parameter or buffer, behind the
    name of the module's class."""
    while frame is not None and most > 0:
        if callsite.is_library(frame.f_code.co_filename):
            break
        for module in islice(_modules_in(dict(variables_of(frame))), MOST_MODULES):
            parts = _parts.get(module)
            if parts is None:
                named = (*module.named_parameters(), *module.named_buffers())
                parts = {id(each): (weakref.ref(each), name) for name, each in named}
                _parts[module] = parts
            ref, name = parts.get(id(tensor), (None, ""))
            if ref is not None and ref() is tensor:
                return f"{type(module).__name__}.{name}"
        frame, most = frame.f_back, most - 1
    return None


_parts: weakref.WeakKeyDictionary[Module, dict[int, tuple[Any, str]]] = (
    weakref.WeakKeyDictionary()
)
"""Of modules that messages were looked for in: names of their tensors at that time."""

_FUNCTIONS = frozenset({FunctionType, MethodType})
_WORDS = _FUNCTIONS | {str}


def _word(value: Any) -> str:
    """A function is named by its name."""
    return value if isinstance(value, str) else str(value.__name__)


def loops_around(code: CodeType, offset: int) -> tuple[tuple[str, ...], ...]:
    """The targets of the `for` loops that an instruction is in, outermost first."""
    if _FOR_ITER not in code.co_code[::2]:
        return ()
    steps = list(dis.get_instructions(code))
    found = []
    for index, step in enumerate(steps):
        if step.opcode == _FOR_ITER and step.offset < offset < step.argval:
            found.append(_targets(steps[index + 1 : index + 33]))
    return tuple(found)


def _targets(steps: list[dis.Instruction]) -> tuple[str, ...]:
    """What the loop binds, as far as these are plain names."""
    names: list[str] = []
    wanted = 1
    for step in steps:
        if step.opname == "CACHE":
            continue
        if step.opname == "UNPACK_SEQUENCE":
            wanted += int(step.arg or 0) - 1
        elif step.opname.startswith("STORE_"):
            stored = step.argval if isinstance(step.argval, tuple) else (step.argval,)
            stored = stored[:1] if step.opname.endswith("_LOAD_FAST") else stored
            names += [name for name in stored if isinstance(name, str)]
            wanted -= len(stored)
        else:
            break
        if wanted <= 0:
            break
    return tuple(names)
