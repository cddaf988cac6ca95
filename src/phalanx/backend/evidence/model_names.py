"""Names that a reader knows: of DDP's parameters, FSDP's modules, a pipeline's stages.

Asked when a verdict is reported or a rank has failed: the other ranks stand still, so their
frames and models can be looked at. Costs nothing before, but a note of each DDP model. What is
said was seen: who has no gradient for what, and where a rank's frames are.

| seen | said |
|---|---|
| a parameter of DDP has no gradient on ranks that are not in `backward` and have others; | |
| on other ranks it has one | which parameters, which ranks |
| torch's error about parameters that did not receive a gradient, by number | their names; |
| | and whether that were all ranks |
| an `all_reduce` in `backward`, of the size of parameters side by side | their names |
| frames of FSDP2 that gather or scatter a module's parameters | the module |
| frames of a pipeline's schedule | the stage and the microbatch |
"""

from __future__ import annotations

import math
import os
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from types import FrameType, MappingProxyType
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from phalanx.backend.session import Session, context_here
from phalanx.backend.torch_private import private_names
from phalanx.checks.order.paired_names import with_paired_names
from phalanx.core.strand import here
from phalanx.errors import text_of
from phalanx.model import Deadlock, Mismatch, Names, Op, Stall, Verdict, rank_list
from phalanx.system import current_frames

DDP, WRAPPED, THREAD = "ddp models", "ddp counts", "thread"
"""The keys under which a rank's models, their number by ranks and its thread are kept in its
saved state."""
HELD = "ddp models that are held"
"""In a run that is explored: the models themselves, until the rank has ended."""

_BACKWARD = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
_WITHOUT = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MOST_NAMES = 6
_LACKING = "parameters without a gradient"

NOBODY: Mapping[int, BaseException] = MappingProxyType({})


@dataclass(frozen=True)
class Facts:
    """What one rank knows of its models, as values that pickle: for which parameters of the
    first model it has a gradient and for which not; what its calls in `backward` may hold;
    where its frames are."""

    having: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    buckets: tuple[tuple[str, str], ...] = ()
    places: tuple[tuple[str, str], ...] = ()


def model_patches(
    wrapped: Callable[[Any], None], context_of: Callable[[], Any] = context_here
) -> list[tuple[Any, str, Any]]:
    """Note the models that each rank wraps. `context_of` returns the rank, which has a dict
    `saved`; `wrapped` is called with each of them."""
    original: Callable[..., None] = DistributedDataParallel.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        context = context_of()
        if context is not None:
            _keep(context.saved, self)
            wrapped(self)

    return [(DistributedDataParallel, "__init__", init)]


def _keep(saved: dict[str, Any], model: Any) -> None:
    """DDP's constructor makes collectives, so all ranks of a group wrap their models in one
    order: the number of a model among those of the same ranks is the same everywhere."""
    ranks = tuple(dist.get_process_group_ranks(model.process_group))
    counts = saved.setdefault(WRAPPED, {})
    number = counts[ranks] = counts.get(ranks, -1) + 1
    saved.setdefault(DDP, []).append((weakref.ref(model), ranks, number))
    if here.strand is not None and here.strand.baton.choices is not None:
        saved.setdefault(HELD, []).append(model)


def models_of(saved: Mapping[str, Any]) -> Iterator[tuple[Any, tuple[int, ...], int]]:
    """The models that the rank has wrapped and that are still there, with the ranks of their
    group and their number among those of the same ranks."""
    for ref, ranks, number in saved.get(DDP, ()):
        model = ref()
        if model is not None:
            yield model, ranks, number


def with_names(session: Session, verdict: Verdict) -> Verdict:
    """The verdict with notes about what ranks passed, and the parts of their models."""
    if not isinstance(verdict, (Mismatch, Deadlock, Stall)):
        return verdict
    verdict = with_paired_names(session.journal.reader(), verdict)
    if _has_any(session):
        with suppress(Exception):  # whatever a program's module does when it is looked at
            names = _find(session, list(_ops_of(verdict)))
            verdict = replace(verdict, names=(*verdict.names, *names))
    return verdict


def names_for_failure(session: Session, rank: int, error: BaseException) -> Names:
    """The same for a rank that raised `error`."""
    if not _has_any(session):
        return ()
    try:
        return _find(session, (), {rank: error})
    except Exception:
        return ()


def note_lacking(saved: dict[str, Any], error: BaseException) -> None:
    """Of a rank that fails: the parameters that torch's error says had no gradient there."""
    found = _WITHOUT.search(text_of(error))
    if found is None:
        return
    try:
        (model,) = _models(saved)
        names = [name for name, _ in _parameters(model)]
    except Exception:  # several models, or whatever a program's module does
        return
    numbers = [int(number) for number in found[1].split()]
    saved[_LACKING] = tuple(names[number] for number in numbers if number < len(names))


def add_lacking(session: Session, known: Names) -> Names:
    """The same notes, after those of what `note_lacking` noted on all ranks that failed: where
    no rank has a gradient, it is no fault of one. What the notes say is not said again."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for context in session.ranks:
        names = context.saved.pop(_LACKING, ())
        if names:
            alike.setdefault(names, []).append(context.rank)
    said = [text.replace(" has no ", " had no ") for _, text in known]
    texts = [
        ("no rank had a" if len(those) == session.size else f"{rank_list(those)} had no")
        + f" gradient for {_listed(names)} of the DDP model"
        for names, those in alike.items()
    ]
    fresh = [text for text in texts if not any(each.startswith(text) for each in said)]
    return (*(("gradient", text) for text in fresh), *known)


def _has_any(session: Session) -> bool:
    loaded = ("torch.distributed.fsdp", "torch.distributed.pipelining")
    return any(name in sys.modules for name in loaded) or any(
        DDP in context.saved for context in session.ranks
    )


def _find(
    session: Session, ops: Sequence[Op], failed: Mapping[int, BaseException] = NOBODY
) -> Names:
    running = current_frames()
    facts = {}
    for context in session.ranks:
        rank = context.rank
        frames = list(_outwards(running.get(context.saved.get(THREAD, 0))))
        passed = _passed_by(failed[rank]) if rank in failed else frames
        own = [op for op in ops if op.rank == rank]
        facts[rank] = _facts(_models(context.saved), frames, own, passed)
    return names_in(facts)


def facts_of(saved: Mapping[str, Any], error: BaseException) -> Facts | None:
    """The facts of a rank that is a process and has raised this error; None if there are
    none."""
    verdict = getattr(error, "verdict", None)
    try:
        own = [op for op in _ops_of(verdict) if op.rank == int(os.environ.get("RANK", "-1"))]
        frames = _passed_by(error)
        facts = _facts(_models(saved), frames, own, frames)
    except Exception:  # whatever a program's module does when it is looked at
        return None
    return None if facts == Facts() else facts


def names_in(facts: Mapping[int, Facts]) -> Names:
    """Notes for the facts that ranks know, by rank."""
    return (*_without_gradient(facts), *_buckets(facts), *_places(facts))


def _facts(
    models: Sequence[Any],
    frames: Sequence[FrameType],
    ops: Sequence[Op],
    passed: Iterable[FrameType],
) -> Facts:
    """`frames` are the rank's, innermost first, `passed` those of its error, if it failed."""
    in_backward = any(each.f_code.co_filename.endswith(_BACKWARD) for each in frames)
    having: list[str] = []
    lacking: list[str] = []
    for model in models[:1]:
        for name, parameter in _parameters(model):
            (lacking if parameter.grad is None else having).append(name)
    return Facts(
        tuple(having),
        tuple(lacking) if having and not in_backward else (),
        tuple(_buckets_of(models, ops)) if in_backward else (),
        tuple(_place_of(passed)),
    )


def _ops_of(verdict: Verdict | None) -> Iterator[Op]:
    if isinstance(verdict, Mismatch):
        yield from (block.op for block in verdict.blocks)
    elif isinstance(verdict, (Deadlock, Stall)):
        waits = [block.view.wait for block in verdict.blocks]
        yield from (wait.op for wait in waits if wait is not None)


# -- DDP --------------------------------------------------------------------------------------


def _models(saved: Mapping[str, Any]) -> list[Any]:
    return [model for model, _, _ in models_of(saved)]


def _parameters(model: Any) -> list[tuple[str, Any]]:
    """The parameters in DDP's order."""
    return [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]


def _without_gradient(facts: Mapping[int, Facts]) -> Iterator[tuple[str, str]]:
    having: dict[str, list[int]] = {}
    lacking: dict[str, list[int]] = {}
    for rank, known in facts.items():
        for name in known.having:
            having.setdefault(name, []).append(rank)
        for name in known.lacking:
            lacking.setdefault(name, []).append(rank)
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for name, missing in lacking.items():
        if name in having:
            alike.setdefault((tuple(missing), tuple(having[name])), []).append(name)
    for (ranks, others), names in alike.items():
        told = f"{_who_have(ranks)} no gradient for {_listed(names)} of the DDP model"
        yield "gradient", f"{told}; {_who_have(others)} one"


def _who_have(ranks: Sequence[int]) -> str:
    return f"{rank_list(ranks, width=32)} {'has' if len(ranks) == 1 else 'have'}"


def _buckets_of(models: Sequence[Any], ops: Sequence[Op]) -> Iterator[tuple[str, str]]:
    """The parameters whose gradients an `all_reduce` in `backward` may hold, by size: in the
    order of the model, a bucket holds neighbours."""
    for op in ops:
        if op.name != "all_reduce" or len(op.inputs) != 1:
            continue
        size = math.prod(op.inputs[0].shape)
        runs = [run for model in models for run in _runs(model, size)]
        if len(runs) == 1:
            yield str(op.inputs[0]), _listed(runs[0])


def _buckets(facts: Mapping[int, Facts]) -> Iterator[tuple[str, str]]:
    told = dict(bucket for known in facts.values() for bucket in known.buckets)
    for tensor, names in told.items():
        yield "bucket", f"{tensor} has the size of DDP's gradients of {names}"


def _runs(model: Any, size: int) -> Iterator[list[str]]:
    parameters = _parameters(model)
    for first in range(len(parameters)):
        left = size
        for last in range(first, len(parameters)):
            left -= parameters[last][1].numel()
            if left <= 0:
                break
        if left == 0:
            yield [name for name, _ in parameters[first : last + 1]]


# -- FSDP2 and pipelines ------------------------------------------------------------------


def _places(facts: Mapping[int, Facts]) -> Iterator[tuple[str, str]]:
    alike: dict[tuple[str, str], list[int]] = {}
    for rank, known in sorted(facts.items()):
        for found in known.places:
            alike.setdefault(found, []).append(rank)
    for (label, text), ranks in alike.items():
        yield label, f"{rank_list(ranks, width=32)}: {text}"


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _passed_by(error: BaseException) -> list[FrameType]:
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames[::-1]


def _place_of(frames: Iterable[FrameType]) -> list[tuple[str, str]]:
    """The innermost module and stage."""
    found: dict[str, str] = {}
    for frame in frames:
        file = frame.f_code.co_filename
        if file.endswith(private_names.FSDP_FILE) and "module" not in found:
            names = private_names.fsdp_names(frame)
            if names is not None:
                found["module"] = _fsdp_text(*names)
        elif file.endswith(private_names.PIPELINE_FILE) and "stage" not in found:
            place = private_names.pipeline_place(frame)
            if place is not None:
                found["stage"] = place
    return list(found.items())


def _fsdp_text(module: str | None, names: Sequence[str]) -> str:
    of = "of the whole model" if module == "" else f'of module "{module}"' if module else ""
    return f"FSDP's parameters {of or _listed(names)}" + (
        f" ({_listed(names)})" if of and names else ""
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:_MOST_NAMES])
    return shown + (f", ... ({len(names)} in all)" if len(names) > _MOST_NAMES else "")
