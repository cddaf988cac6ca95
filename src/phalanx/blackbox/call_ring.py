"""The last calls of this process on process groups, in a ring: what the black box remembers.

All callers in Python come through the methods of `ProcessGroup`, so these are replaced, through
the table of patches. What C++ calls by itself (DDP's reducer, functional collectives) does not
come by here; torch's own Flight Recorder has those. This is on the path of every call: it
stores a list of what is at hand, no text, and keeps no tensor alive. Whether a call is complete
is asked of its `Work`, by a weak reference, when somebody writes the ring down.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from time import time_ns
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from phalanx import callsite
from phalanx.backend.torch_private import private
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import BLACK_BOX
from phalanx.journal.events import described

CALLS = 4096
"""How many calls are kept."""
KEPT_RECEIVES = 32
"""Receives from any source whose `Work`, and so whose tensor, is kept."""

TIME, MARK, NAME, GROUP, NUMBER, INPUTS, OUTPUTS, MORE, WORK = range(9)
"""What an entry of the ring has. `MORE` is the options object, the splits, or (peer, tag).
`WORK` is None while the call has not returned, a weak reference, the receive itself if its
source is asked for later, True if it returned without one."""

Entry = list[Any]
Tensor = torch.Tensor

IN, OUT_IN, SPLITS, SEND, RECV, ANY, NOTHING = range(7)
"""How the arguments of a method lie: inputs; outputs, inputs; these and splits; ..."""

METHODS: dict[str, tuple[str, int]] = {
    "allreduce": ("all_reduce", IN),
    "allreduce_coalesced": ("all_reduce_coalesced", IN),
    "broadcast": ("broadcast", IN),
    "reduce": ("reduce", IN),
    "allgather": ("all_gather", OUT_IN),
    "allgather_coalesced": ("all_gather_coalesced", OUT_IN),
    "_allgather_base": ("all_gather_into_tensor", OUT_IN),
    "all_gather_single": ("all_gather_into_tensor", OUT_IN),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", OUT_IN),
    "all_gather_single_coalesced": ("all_gather_into_tensor_coalesced", OUT_IN),
    "gather": ("gather", OUT_IN),
    "scatter": ("scatter", OUT_IN),
    "reduce_scatter": ("reduce_scatter", OUT_IN),
    "_reduce_scatter_base": ("reduce_scatter_tensor", OUT_IN),
    "reduce_scatter_single": ("reduce_scatter_tensor", OUT_IN),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", OUT_IN),
    "reduce_scatter_single_coalesced": ("reduce_scatter_tensor_coalesced", OUT_IN),
    "alltoall": ("all_to_all", OUT_IN),
    "alltoall_base": ("all_to_all_single", SPLITS),
    "all_to_all_single": ("all_to_all_single", SPLITS),
    "barrier": ("barrier", NOTHING),
    "monitored_barrier": ("monitored_barrier", NOTHING),
    "send": ("send", SEND),
    "recv": ("recv", RECV),
    "recv_anysource": ("recv", ANY),
}
"""The methods of a group, what reports call them, and how their arguments lie."""


class BoxGroup:
    """A process group as the black box knows it. `calls` counts its collectives."""

    def __init__(self, group: Any, turn: int) -> None:
        self.ref = weakref.ref(group)
        self.name = str(group.group_name)
        self.ranks = tuple(dist.get_process_group_ranks(group))
        self.turn = turn
        self.calls = 0
        try:
            self.backend = str(dist.get_backend_config(group))
        except Exception:  # of a group that torch has in no table
            self.backend = str(group.name())
        self.description = described(group.group_desc)

    @property
    def key(self) -> str:
        """Equal on all members, and for no other group: groups of one name are told apart by
        their members, and by how many there were before."""
        return f"{self.name} of {self.ranks} {self.turn}"


class CallRing:
    """The ring, and the hooks that fill it."""

    def __init__(self, length: int = CALLS) -> None:
        self.entries: deque[Entry] = deque(maxlen=length)
        self.total = 0
        self._groups: dict[int, BoxGroup] = {}
        self._turns: dict[tuple[str, tuple[int, ...]], int] = {}
        self._receives: deque[Entry] = deque()
        self._adding = threading.Lock()
        self._take_out: Callable[[], None] | None = None
        self.codes: dict[Any, str] = {}
        """Our functions around calls: in which of their variables the call, or the `Work` that
        is waited for, is found by whoever looks at stacks."""

    def start(self) -> None:
        self._take_out = put_in(BLACK_BOX, self._patches())

    def stop(self) -> None:
        if self._take_out is not None:
            self._take_out()
            self._take_out = None

    def group_of(self, group: Any) -> BoxGroup:
        known = self._groups.get(id(group))
        if known is None or known.ref() is not group:
            with self._adding:
                made = BoxGroup(group, 0)
                same = made.name, made.ranks
                made.turn = self._turns[same] = self._turns.get(same, -1) + 1
                known = self._groups[id(group)] = made
        return known

    def find(self, work: Any) -> Entry | None:
        """The call that this `Work` is of, if it is still there."""
        for entry in reversed(self.entries):
            kept = entry[WORK]
            if kept is work or (type(kept) is weakref.ref and kept() is work):
                return entry
        return None

    # -- hooks ------------------------------------------------------------------------------

    def _patches(self) -> Iterator[tuple[Any, str, Any]]:
        for method, (name, form) in METHODS.items():
            original = vars(dist.ProcessGroup).get(method)
            if original is not None:
                yield dist.ProcessGroup, method, self._recording(original, name, form)
        yield dist.Work, "wait", self._waiting(dist.Work.wait)
        helper = private.NEW_GROUP_NAME
        yield c10d, helper, self._making(getattr(c10d, helper))

    def _recording(self, original: Any, name: str, form: int) -> Any:
        entries, known, add = self.entries, self._groups, self._add
        mark, ref = callsite.mark, weakref.ref
        message, keeps = form in (SEND, RECV, ANY), form == ANY
        ring = self

        def call(self: Any, *args: Any, **options: Any) -> Any:
            group = known.get(id(self))
            if group is None or group.ref() is not self:
                group = ring.group_of(self)
            number = None
            if not message:
                number = group.calls
                group.calls = number + 1
            entry: Entry = [time_ns(), mark(2), name, group, number, (), (), None, None]
            try:  # noqa: SIM105, which would take a microsecond
                add(entry, form, args, options)
            except Exception:  # what cannot be described is recorded without its tensors
                pass
            entries.append(entry)
            ring.total += 1
            try:
                work = original(self, *args, **options)
            except BaseException:
                if name != "monitored_barrier":  # which waits, and says who did not come
                    _take_back(entry)
                raise
            entry[WORK] = True if work is None else ref(work)
            if keeps:
                ring._keep(entry, work)
            return work

        self.codes[call.__code__] = "entry"
        return call

    def _add(self, entry: Entry, form: int, args: Any, options: Any) -> None:
        """The arguments, as they lie."""
        if form == IN:
            entry[INPUTS] = specs(args[0] if args else next(iter(options.values())))
            if len(args) > 1:
                entry[MORE] = args[1]
            else:
                entry[MORE] = options.get("opts", options.get("op", options.get("root")))
        elif form == NOTHING:
            return
        elif form in (SEND, RECV):
            tensors, peer, tag = args if len(args) == 3 else (*args, *options.values())
            entry[INPUTS if form == SEND else OUTPUTS] = specs(tensors)
            entry[MORE] = peer, tag
        elif form == ANY:
            tensors, tag = args if len(args) == 2 else (*args, *options.values())
            entry[OUTPUTS] = specs(tensors)
            entry[MORE] = None, tag
        else:
            entry[OUTPUTS], entry[INPUTS] = specs(args[0]), specs(args[1])
            if form == SPLITS:
                entry[MORE] = args[2], args[3]
            elif len(args) > 2:
                entry[MORE] = args[2]
            else:
                entry[MORE] = options.get("opts")

    def _keep(self, entry: Entry, work: Any) -> None:
        """Only the `Work` of a receive from any source knows its source: the last ones are
        kept, and of the others what they tell by then."""
        entry[WORK] = work
        self._receives.append(entry)
        if len(self._receives) > KEPT_RECEIVES:
            old = self._receives.popleft()
            with suppress(Exception):
                done = old[WORK].is_completed()
                old[MORE] = (*old[MORE], private.source_of(old[WORK]) if done else None)
            old[WORK] = weakref.ref(old[WORK])

    def _waiting(self, original: Any) -> Any:
        def wait(self: Any, *args: Any, **options: Any) -> Any:
            return original(self, *args, **options)

        self.codes[wait.__code__] = "self"
        return wait

    def _making(self, original: Any) -> Any:
        ring = self

        def make(size: Any, rank: Any, *args: Any, **options: Any) -> Any:
            entry = ring._begin_making(args, options)
            if entry is None:
                return original(size, rank, *args, **options)
            made = original(size, rank, *args, **options)
            entry[WORK] = True
            return made

        self.codes[make.__code__] = "entry"
        return make

    def _begin_making(self, args: Any, options: Any) -> Entry | None:
        """A `new_group` of the program's, which all ranks make; not the default group, nor one
        that only its members make."""
        world = dist.group.WORLD
        if world is None or len(args) < 4 or not args[0] or not str(args[3]).isdigit():
            return None
        made = tuple(args[0]), str(args[1])
        group = self.group_of(world)
        entry = [time_ns(), callsite.mark(3), "new_group", group, None, (), (), made, None]
        self.entries.append(entry)
        self.total += 1
        return entry


def _take_back(entry: Entry) -> None:
    """The backend refused the call, so it has no number, and meets nobody."""
    entry[WORK] = False
    group = entry[GROUP]
    if entry[NUMBER] is not None and group.calls == entry[NUMBER] + 1:
        group.calls -= 1


def specs(given: Any) -> Any:
    """Dtype, shape, device and odd strides of a tensor; a list of these for a list."""
    if type(given) is list and len(given) == 1:
        given = given[0]
    if isinstance(given, Tensor):
        strides = None if given.is_contiguous() else given.stride()
        return given.dtype, given.shape, given.device, strides
    return [specs(each) for each in given]
