"""What a rank notes of its replicas for the check `replica-drift`: checksums of parameters and
gradients around a sample of the steps of its optimizers.

torch calls the hooks of `register` around each `optimizer.step()`; `ReplicaWatch` is one rank's
memory. Parameters are those of models that the rank has wrapped with DDP, and DTensors that a
mesh dimension replicates. What is sampled depends on the number of collectives that the rank
has called on the group of the replicas, so all ranks choose the same moments without a word:
the first dozen of steps, then fewer and fewer, four for each doubling, two of large models.
Deciding is done in `checks/replicas/`. Must never change what the program does: an error in
here ends the looking, and nothing else.

| left out                                       | because                                   |
|------------------------------------------------|-------------------------------------------|
| buffers                                        | DDP broadcasts them at the next forward,  |
|                                                | also those that the model has assigned    |
|                                                | anew; until then they differ by design    |
| parameters that no optimizer steps             | nobody trains them                        |
| those that DDP is told to ignore, e.g. experts | they are a rank's own                     |
| models with a communication hook that is not   | local SGD and others drift by design      |
| known to average                               |                                           |
| shards (FSDP1, ZeRO's inner optimizer,         | no other rank has the same                |
| `Shard`)                                       |                                           |
| tensors without plain memory; steps that are   | nothing can be read there                 |
| being compiled or captured                     |                                           |
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from math import prod
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from phalanx import callsite
from phalanx.backend.evidence.model_names import DDP, models_of
from phalanx.backend.evidence.sampler_look import Found, facts_of, find_samplers
from phalanx.backend.session import context_here
from phalanx.backend.torch_private import private, private_modes, private_names
from phalanx.backend.work.tensor_checksums import checksums, settled
from phalanx.checks.replicas.replica_samples import (
    KIND,
    Replica,
    Sample,
    SamplerFacts,
    Settings,
)
from phalanx.journal.events import Noted, Place
from phalanx.system import monotonic

MOST_RECORDS = 64
"""Optimizers and models that are remembered in a run."""
MOST_TURNS = 4
"""Steps that are sampled between two collectives."""
ALL = 16
"""Collectives up to which every step is sampled."""
_PER_DOUBLING, _PER_DOUBLING_LARGE = 2, 1
"""Then so many (as a power of two) while their number doubles; fewer of large models."""
_LARGE = 1 << 18
"""Elements of a large model."""

_PLAIN = (Tensor, torch.nn.Parameter)
_WRAPPER = os.path.join("torch", "optim", "optimizer.py")
"""Where torch calls the hooks, in a function that has the optimizer as `self`."""


def is_sampled(calls: int, last: int, per_doubling: int = _PER_DOUBLING) -> bool:
    """Whether to look at the first step after `calls` collectives, where the step before came
    after `last` of them.

    >>> [is_sampled(calls, calls - 1) for calls in (1, 15, 100, 112)]
    [True, True, False, True]
    """
    if calls < ALL:
        return calls != last
    shift = calls.bit_length() - per_doubling - 1
    return calls >> shift != last >> shift


class _Record:
    """Replicas of one model as far as one optimizer steps them, from sample to sample."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        is_large = sum(map(prod, replica.shapes)) >= _LARGE
        self.per_doubling = _PER_DOUBLING_LARGE if is_large else _PER_DOUBLING
        self.samples: list[Sample] = []
        self.steps = 0
        self.calls = -1
        self.turn = 0
        self.samplers: list[Found] | None = None
        self.is_legal = False
        """Whether the replicas may differ by design."""

    def begin(self, calls: int) -> bool:
        """A step begins; whether to look."""
        self.steps += 1
        if calls == self.calls:
            self.turn += 1
            return self.turn < MOST_TURNS and calls < ALL
        wanted = is_sampled(calls, self.calls, self.per_doubling)
        self.calls, self.turn = calls, 0
        return wanted


class _Part:
    """The parameters of an optimizer that belong to one record, by their place in it."""

    def __init__(self, record: _Record, group: Any, places: list[int], model: Any) -> None:
        self.record = record
        self.group = weakref.ref(group)
        self.places = places
        self.model = None if model is None else weakref.ref(model)
        self.looks = False


class _Stepped:
    """An optimizer, as far as it steps replicas."""

    def __init__(self, parts: list[_Part], seen: tuple[int, int]) -> None:
        self.parts = parts
        self.seen = seen
        """How many parameters it had, and how many models the rank."""
        self.depth = 0
        """Steps that have begun: that of a subclass calls that of its base."""


class ReplicaWatch:
    """One rank's. `saved` is where the rank's models are kept, `count` gives the number of
    collectives that the rank has called on a group; `now` is the journal's clock."""

    def __init__(
        self,
        rank: int,
        saved: dict[str, Any],
        count: Callable[[Any], int],
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._rank = rank
        self._now = now
        self._saved = saved
        self._count = count
        self.forget()

    def forget(self) -> None:
        self._stepped: weakref.WeakKeyDictionary[Optimizer, _Stepped] = (
            weakref.WeakKeyDictionary()
        )
        self._records: dict[Any, _Record] = {}
        self._meshes: dict[Any, int] = {}
        self._wrapped: weakref.WeakKeyDictionary[Any, tuple[list[str], Any, Place]] = (
            weakref.WeakKeyDictionary()
        )
        """The names of models' parameters, their checksums when DDP had wrapped them, and
        where that was."""
        self._is_broken = False

    def wrapped(self, model: Any) -> None:
        """DDP has made the replicas of a model equal."""
        if private_modes.has_dispatch_modes() or _is_captured():
            return
        named = [each for each in model.module.named_parameters() if _is_readable(each[1])]
        values = checksums([_local(parameter) for _, parameter in named])
        self._wrapped[model] = [name for name, _ in named], values, callsite.mark(3)

    def before(self, optimizer: Optimizer) -> None:
        stepped = self._stepped.get(optimizer)
        parameters = None
        seen = _size(optimizer), len(self._saved.get(DDP, ()))
        if stepped is None or stepped.seen != seen:
            parameters = _parameters(optimizer)
            of_models = self._of_models(optimizer, parameters)
            parts = [*of_models, *self._of_meshes(optimizer, parameters)]
            stepped = self._stepped[optimizer] = _Stepped(parts, seen)
        stepped.depth = stepped.depth + 1 if stepped.depth and _is_nested(optimizer) else 1
        if stepped.depth > 1:
            return
        for part in stepped.parts:
            group = part.group()
            part.looks = group is not None and part.record.begin(self._count(group))
            if part.looks:
                if parameters is None:
                    parameters = _parameters(optimizer)
                self._sample(optimizer, part, parameters, after=False)

    def after(self, optimizer: Optimizer) -> None:
        stepped = self._stepped.get(optimizer)
        if stepped is None:
            return
        stepped.depth -= 1
        for part in stepped.parts:
            if part.looks and not stepped.depth:
                part.looks = False
                self._sample(optimizer, part, _parameters(optimizer), after=True)

    def take(self) -> list[Noted]:
        """What there is to note, once."""
        found = [
            Noted(self._now(), self._rank, 0, None, KIND, tuple(replica))
            for record in self._records.values()
            if record.samples and not record.is_legal
            for replica in [
                record.replica._replace(samples=tuple(map(_settled, record.samples)))
            ]
        ]
        self.forget()
        return found

    def guarded(self, look: Callable[[Any], None], at: Any) -> None:
        """`before` or `after` a step of an optimizer, or `wrapped` of a model, unless an
        earlier look has failed."""
        if not self._is_broken:
            try:
                if private.function_modes():
                    with private.no_function_modes():
                        look(at)
                else:
                    look(at)
            except Exception:  # whatever the program's tensors do when they are looked at
                self._is_broken = True

    # -- what an optimizer steps ------------------------------------------------------------

    def _of_models(self, optimizer: Optimizer, parameters: Sequence[Any]) -> Iterator[_Part]:
        places = {id(parameter): place for place, parameter in enumerate(parameters)}
        for model, ranks, number in models_of(self._saved):
            if len(ranks) < 2:
                continue
            ignored = model.parameters_to_ignore
            named = {
                name: places[id(parameter)]
                for name, parameter in model.module.named_parameters()
                if id(parameter) in places and name not in ignored and _is_readable(parameter)
            }
            if named:
                title = f"DDP({type(model.module).__name__})"
                record = self._record(optimizer, parameters, named, (ranks, number, title))
                if record is not None:
                    self._add_wrapped(record, model)
                    yield _Part(record, model.process_group, list(named.values()), model)

    def _add_wrapped(self, record: _Record, model: Any) -> None:
        if model not in self._wrapped:
            return
        names, values, place = self._wrapped[model]
        known = dict(zip(names, settled(values), strict=True))
        if all(name in known for name in record.replica.names):
            then = tuple(known[name] for name in record.replica.names)
            record.replica = record.replica._replace(wrapped=then, wrapped_at=place)

    def _of_meshes(self, optimizer: Optimizer, parameters: Sequence[Any]) -> Iterator[_Part]:
        """DTensors on the processor, by the dimension that replicates them. Elsewhere what
        ranks compute for themselves may differ in the last bits."""
        dimensions: dict[tuple[Any, int], dict[str, int]] = {}
        meshes: dict[tuple[Any, int], Any] = {}
        names = _names_in(optimizer)
        for place, parameter in enumerate(parameters):
            placements = getattr(parameter, "placements", None)
            if not placements or not _is_readable(parameter):
                continue
            mesh = parameter.device_mesh
            for dim, placement in enumerate(placements):
                if (
                    placement.is_replicate()
                    and mesh.size(dim) > 1
                    and mesh.device_type == "cpu"
                ):
                    key = (id(mesh), dim)
                    meshes[key] = mesh
                    dimensions.setdefault(key, {})[names[place]] = place
        for (which, dim), named in dimensions.items():
            mesh = meshes[which, dim]
            group = mesh.get_group(dim)
            ranks = tuple(dist.get_process_group_ranks(group))
            called = mesh.mesh_dim_names[dim] if mesh.mesh_dim_names else str(dim)
            title = f'mesh dimension "{called}"'
            number = self._meshes[ranks, title] = self._meshes.get((ranks, title), -1) + 1
            record = self._record(optimizer, parameters, named, (ranks, number, title))
            if record is not None:
                yield _Part(record, group, list(named.values()), None)

    def _record(
        self,
        optimizer: Optimizer,
        parameters: Sequence[Any],
        named: dict[str, int],
        model: tuple[tuple[int, ...], int, str],
    ) -> _Record | None:
        """That of the same parameters, if another optimizer stepped them before."""
        key = (model, frozenset(named))
        record = self._records.get(key)
        if record is None and len(self._records) < MOST_RECORDS:
            names = tuple(named)
            first = _local(parameters[named[names[0]]])
            replica = Replica(
                *model,
                machine=_machine(first.device),
                optimizer=type(optimizer).__name__,
                names=names,
                shapes=tuple(tuple(_local(parameters[named[name]]).shape) for name in names),
                order=tuple(sorted(named, key=named.__getitem__)),
                samples=(),
            )
            record = self._records[key] = _Record(replica)
        return record

    # -- one look ---------------------------------------------------------------------------

    def _sample(
        self, optimizer: Optimizer, part: _Part, parameters: Sequence[Any], *, after: bool
    ) -> None:
        record = part.record
        model = None if part.model is None else part.model()
        if part.model is not None and (model is None or not private_names.averages(model)):
            record.is_legal = True
        if record.is_legal or private_modes.has_dispatch_modes() or _is_captured():
            return
        chosen = [parameters[place] for place in part.places]
        values = checksums([_local(each) for each in chosen])
        gradients: tuple[Any, ...] = ()
        settings: Settings = ()
        samplers: tuple[SamplerFacts, ...] = ()
        synced = None
        if not after:
            settings = tuple(_settings(optimizer))
            if model is not None:  # those of DTensors may be parts of a sum
                gradients = checksums([_gradient(each) for each in chosen])
                samplers = self._samplers(record)
                synced = private_names.averages_last(model)
        place = callsite.mark(3)
        record.samples.append(
            Sample(
                record.calls,
                record.turn,
                after,
                record.steps,
                self._now(),
                place,
                values,
                gradients,
                settings,
                samplers,
                synced,
            )
        )

    def _samplers(self, record: _Record) -> tuple[SamplerFacts, ...]:
        """Those of the loop around the step, which are looked for at its first samples."""
        if record.samplers is None or (not record.samplers and len(record.samples) < 4):
            record.samplers = find_samplers(sys._getframe(3))
        return tuple(facts_of(record.samplers))


def register(watch_of: Callable[[], ReplicaWatch | None]) -> Callable[[], None]:
    """Look at the steps of all optimizers. `watch_of` gives the watch of the calling rank, if
    it has one. Returns what undoes it."""

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            watch = watch_of()
            if watch is not None:
                watch.guarded(watch.before, optimizer)

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            watch = watch_of()
            if watch is not None:
                watch.guarded(watch.after, optimizer)

    handles = [
        register_optimizer_step_pre_hook(before),
        register_optimizer_step_post_hook(after),
    ]

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def note_wrapped(model: Any) -> None:
    """For ranks that are threads: DDP has wrapped a model."""
    watch = watch_here()
    if watch is not None:
        watch.guarded(watch.wrapped, model)


def watch_here() -> ReplicaWatch | None:
    """That of the rank that is a thread and calls; None outside of runs, and if nobody wants
    this check."""
    context = context_here()
    if context is None or KIND not in context.session.kinds:
        return None
    if context.replicas is None:
        context.replicas = ReplicaWatch(context.rank, context.saved, _calls_made, context.now)
    watch: ReplicaWatch = context.replicas
    return watch


def _calls_made(group: Any) -> int:
    made: int = group.calls_made()
    return made


def _is_nested(optimizer: Optimizer) -> bool:
    """Whether a step of this optimizer has called another one. If not, one that began and did
    not end has failed."""
    found = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and found < 2:
        if frame.f_code.co_filename.endswith(_WRAPPER):
            found += frame.f_locals.get("self") is optimizer
        frame = frame.f_back
    return found > 1


def _parameters(optimizer: Optimizer) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _size(optimizer: Optimizer) -> int:
    return sum(len(group["params"]) for group in optimizer.param_groups)


def _names_in(optimizer: Optimizer) -> list[str]:
    """What the program called the parameters, or their number."""
    given = [name for group in optimizer.param_groups for name in group.get("param_names", ())]
    size = _size(optimizer)
    return given if len(given) == size else [f"parameter {place}" for place in range(size)]


def _local(tensor: Any) -> Any:
    """What this rank has of it."""
    return tensor if type(tensor) in _PLAIN else tensor.to_local()


def _gradient(parameter: Any) -> Any:
    gradient = parameter.grad
    if gradient is None or not _is_readable(gradient):
        return None
    return _local(gradient)


def _is_readable(tensor: Any) -> bool:
    """Whether it has plain memory, as a tensor or as the local part of a DTensor."""
    if type(tensor) not in _PLAIN:
        if not hasattr(tensor, "placements"):
            return False
        tensor = tensor.to_local()
    return (
        type(tensor) in _PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
        and tensor.numel() > 0
    )


def _settings(optimizer: Optimizer) -> Iterator[tuple[str, str]]:
    """Numbers and words of the optimizer's groups, such as the learning rate."""
    several = len(optimizer.param_groups) > 1
    for number, group in enumerate(optimizer.param_groups):
        of = f" of group {number}" if several else ""
        for name, value in group.items():
            if isinstance(value, (bool, int, float, str)) or (
                isinstance(value, tuple) and all(isinstance(each, float) for each in value)
            ):
                yield f"{name}{of}", f"{value}"


def _settled(sample: Sample) -> Sample:
    return sample._replace(
        parameters=settled(sample.parameters), gradients=settled(sample.gradients)
    )


def _is_captured() -> bool:
    cuda: Any = torch.cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


@functools.cache
def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _machine(device: torch.device) -> str:
    """What decides about the last bit of a result."""
    threads = torch.get_num_threads() if device.type == "cpu" else 0
    return f"{platform.node()} {_device_name(device)} {threads}"
