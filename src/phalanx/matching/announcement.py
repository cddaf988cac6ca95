"""What a rank in another process announces of a call, as frozen values that travel.

The watcher in a rank (`engines/remote/watcher.py`) makes these and the referee
(`engines/referee/remote_referee.py`) reads them. A form is what repeats when a line of the
program is executed again: it travels once and is named by a number from then on. Must never
hold tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from phalanx.matching.agreement_rules import signed_facts
from phalanx.model import Handling, Site, StackLine, TensorSpec


@dataclass(frozen=True)
class GroupForm:
    """One rank's end of a group. `key` is the same for all members and for no other group;
    `ranks` are the members as the program numbers them; `member` is the place in it. `eager`:
    the program bound a device to it. `default` says that it is the world's, `description` what
    the program calls it."""

    key: str
    name: str
    ranks: tuple[int, ...]
    member: int
    backend: str = ""
    eager: bool = False
    default: bool = False
    description: str = ""


@dataclass(frozen=True)
class Form:
    """A call without the moment it was made. `group` is the number of a group form, `root`
    and `peer` are places in that group; `peer` is None for a receive from any source. A
    message may be part of a batch, and the first of it. A `new_group` has `made` members and a
    backend, and `holds` those members until all have come. `handling` is the error that the
    rank was handling at that call, `stack` the lines through which it came there."""

    name: str
    group: int
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    reduce_op: str | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    site: Site | None = None
    batched: bool = False
    begins_batch: bool = False
    made: tuple[tuple[int, ...], str] | None = None
    holds: bool = False
    handling: Handling | None = None
    stack: tuple[StackLine, ...] = ()

    @property
    def is_message(self) -> bool:
        return self.tag is not None


def signature_of(form: Form) -> Hashable | None:
    """Equal on all ranks if the calls surely agree; None where only a full comparison of all
    of them can tell (uneven sizes)."""
    facts = signed_facts(form.name)
    head = (form.name, form.root if facts.root else None, form.reduce_op)
    shapes: tuple[Hashable, ...] = ()
    if facts.even:
        if form.input_splits or form.output_splits:
            return None
        if len({spec.shape for spec in (*form.inputs, *form.outputs)}) > 1:
            return None
        shapes = (len(form.inputs), len(form.outputs))  # the backend has not refused it yet
    if facts.tensors:
        shapes += tuple(
            (spec.dtype, spec.shape, spec.device.partition(":")[0])
            for spec in getattr(form, facts.tensors)
        )
    if facts.layout:
        shapes += tuple(spec.strides for spec in getattr(form, facts.layout))
    return (*head, shapes)


def message_signature_of(form: Form) -> Hashable | None:
    """Equal for a send and a receive that surely fit; None where that is not so simple."""
    specs = form.inputs or form.outputs
    if len(specs) != 1:
        return None
    return "message", form.tag, specs[0].dtype, prod(specs[0].shape)
