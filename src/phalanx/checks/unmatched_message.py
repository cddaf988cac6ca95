"""What ranks began and nobody ever answered, once a run has ended. Pure, over waits.

The engines give one `Wait` per op that is still open, as a snapshot would for a rank blocked
in it. These are warnings: the run itself succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.model import Op, OpBlock, Unmet, Wait


def find_leftovers(waits: Iterable[Wait]) -> tuple[Unmet, ...]:
    """One finding for each collective, and one for each line that messages came from."""
    alike: dict[object, list[Wait]] = {}
    for wait in waits:
        alike.setdefault(_key(wait.op), []).append(wait)
    found = [_unmet(group) for group in alike.values()]
    return tuple(sorted(found, key=lambda each: (each.kind, each.ranks, str(each.blocks))))


def _key(op: Op) -> object:
    if op.number is not None:
        return op.group, op.number
    return op.group, op.name, op.tag, op.site, op.inputs, op.outputs


def _unmet(waits: Sequence[Wait]) -> Unmet:
    waits = sorted(waits, key=lambda wait: wait.op.rank)
    blocks: dict[object, list[Op]] = {}
    for wait in waits:
        op = wait.op
        blocks.setdefault((op.name, op.peer, op.site, op.inputs, op.outputs), []).append(op)
    return Unmet(
        kind="unmatched-message" if waits[0].op.number is None else "unwaited-work",
        severity="warning",
        ranks=tuple(sorted({wait.op.rank for wait in waits})),
        blocks=tuple(
            OpBlock(tuple(sorted({op.rank for op in ops})), ops[0]) for ops in blocks.values()
        ),
        needs=tuple(sorted({rank for wait in waits for rank in wait.needs})),
        near=tuple(dict.fromkeys(text for wait in waits for text in wait.near)),
    )
