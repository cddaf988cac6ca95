"""What a program did to a tensor of an operation that it has not waited for. Pure.

The guard of buffers in flight tells what happened as a `Touch`; here that becomes a finding.

| the tensor of the operation in flight | read        | written | in another operation        |
|---------------------------------------|-------------|---------|-----------------------------|
| is only read by it (send, a gather's  | legal       | error   | legal if that only reads,   |
| input, the root's of a broadcast)     |             |         | else an error               |
| is written by it (all_reduce, recv,   | error       | error   | error                       |
| outputs)                              |             |         |                             |

Views are no reads, nor is what looks at shapes. "Waited for" is what `Work.wait` does, or
`is_completed` that was seen to be true, or its future's value. Where the `Work` itself was
dropped, using the result is of the kind `unwaited-work`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from phalanx.model import CallBlock, Finding, Group, Op, Site

How = Literal["read", "written", "replaced", "changed", "used"]
"""`changed`: seen only afterwards, by what is in the memory. `replaced`: its memory was
resized, freed or exchanged. `used`: by another operation."""


@dataclass(frozen=True)
class Touch:
    """`flying` is the operation in flight. `by` is what touched its tensor: a function of
    torch at `site`, or an `other` operation; of a change seen afterwards, `site` is where."""

    how: How
    flying: Op
    by: str = ""
    site: Site | None = None
    other: Op | None = None


_DONE_TO = {
    "read": "read the result of",
    "written": "wrote to the tensor of",
    "replaced": "resized or freed the tensor of",
}
MARKS = {"read": "<- reads it", "written": "<- writes to it", "replaced": "<- frees it"}
"""How the line of a touch is marked."""


def find_in_flight(touch: Touch) -> Finding:
    flying, rank = touch.flying, touch.flying.rank
    at = _named(flying)
    if touch.other is not None:
        headline = f"rank {rank} used one tensor in {at} and {_named(touch.other)} at once"
        second = CallBlock((rank,), touch.other, mark="<- same tensor")
    elif touch.how == "changed":
        headline = f"rank {rank} changed the tensor of {at} before it had waited for it"
        second = None
    else:
        headline = f"rank {rank} {_DONE_TO[touch.how]} {at} before it had waited for it"
        op = Op(rank, touch.by, Group("world", ()), site=touch.site)
        second = CallBlock((rank,), op, mark=MARKS[touch.how])
    first = CallBlock((rank,), flying, notes=("in flight: not waited for",))
    return Finding(
        kind="in-flight-buffer",
        severity="error",
        ranks=(rank,),
        headline=headline,
        blocks=(first,) if second is None else (first, second),
        facts=_facts(touch),
        hint=_hint(touch),
    )


def _facts(touch: Touch) -> tuple[tuple[str, str], ...]:
    if touch.how != "changed":
        return ()
    until = f" and {touch.site}" if touch.site is not None else ""
    since = touch.flying.site or "the call"
    return (("seen", f"the memory was written to between {since}{until}"),)


def _hint(touch: Touch) -> str:
    if touch.how == "used":
        return (
            "the two may run at once, in any order: wait for the first, or give the second "
            "a tensor of its own"
        )
    if touch.how == "read":
        return "until it is waited for, the tensor may hold old data, new data or a mixture"
    return (
        "the operation may take the old data, the new, or a mixture: wait for it first, or "
        "write to another tensor"
    )


def _named(op: Op) -> str:
    return f"{op.name}{_place(op.site)}"


def _place(site: Site | None) -> str:
    return f" ({site})" if site is not None else ""
