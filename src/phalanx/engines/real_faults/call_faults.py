"""What strikes at calls of real process groups: the watcher of a rank asks before each call.

Counts calls as the journal does: those that the referee is told of, whatever the group. A call
that is corrupted goes to the backend with other data, or its result is changed when the program
knows that it is over: by `Work.wait` and the like, or by the tensor that a functional
collective waits for. Where C++ waits for it, it is waited for here, at the call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.distributed as dist

from phalanx.backend.torch_private import private
from phalanx.engines.real_faults.corrupted_calls import CorruptedCall
from phalanx.engines.real_faults.rank_faults import RankFaults
from phalanx.engines.remote.c10d_arguments import Arguments, Parts, find_doubt, place_of
from phalanx.engines.remote.c10d_callers import IN_BACKWARD, NATIVE, OTHER, caller_of
from phalanx.engines.remote.watched_groups import WatchedGroup

Patch = tuple[Any, str, Any]


class CallFaults:
    """Of one rank. Everything is allowed from any thread."""

    def __init__(self, faults: RankFaults) -> None:
        self._faults = faults
        self._begun: dict[Any, CorruptedCall] = {}
        """Calls whose results will be changed, by their `Work`, which lives until then."""
        self._wait: Any = None

    def at_store(self) -> None:
        self._faults.at_store()

    def before_call(
        self,
        group: Any,
        known: WatchedGroup,
        parts: Parts,
        given: Arguments,
        proceed: Callable[..., Any],
    ) -> Callable[[], Any]:
        """Called four frames below the operator's caller. What carries the call out now. May
        raise, and may not return."""
        doubt = find_doubt(group, known.admission, parts, given)
        if doubt is not None and doubt.certain:
            return proceed  # it is refused, and nobody hears of it
        corrupt = self._faults.at_call()
        if not corrupt:
            return proceed
        for fault in corrupt:
            self._faults.tell_struck(fault)
        try:
            caller = caller_of(sys._getframe(4))
        except ValueError:  # as in `Watcher._call`
            caller = IN_BACKWARD if private.is_in_backward() else OTHER
        call = CorruptedCall(corrupt, parts, known.member)

        def carry_out() -> Any:
            result = proceed(**call.flip_contribution(given))
            if call.has_result:
                self._begin(call, private.work_in(result), at_once=caller in _WAITING_IN_CPP)
            return result

        return carry_out

    def _begin(self, call: CorruptedCall, work: Any, *, at_once: bool) -> None:
        if work is None:
            call.flip_result()
            return
        self._begun[work] = call
        if at_once:
            self._wait(work)
            self._end(work)

    def _end(self, work: Any) -> None:
        """The program knows that it is over."""
        call = self._begun.pop(work, None)
        if call is not None:
            call.flip_result()

    # -- the ways to know that a call is over -------------------------------------------------

    def around_waits(
        self, wait_tensor: Any, patches: Iterable[Patch]
    ) -> tuple[Any, Iterator[Patch]]:
        """The watcher's kernel for `wait_tensor`, and its replacements for the methods of
        `Work`, which now change results that are corrupted."""
        self._wait = dist.Work.wait

        def wait(given: Arguments, proceed: Callable[[], Any]) -> Any:
            result = wait_tensor(given, proceed)
            for work in self._writing_to(given["tensor"]) if self._begun else ():
                self._end(work)
            return result

        return wait, (self._around(*patch) for patch in patches)

    def _writing_to(self, tensor: Any) -> list[Any]:
        place = place_of(tensor)
        return [
            work
            for work, call in self._begun.items()
            if any(place_of(each) == place for each in call.outputs)
        ]

    def _around(self, owner: Any, name: str, method: Any) -> Patch:
        if owner is not dist.Work or name == "get_future":
            return owner, name, method

        def ask(work: Any, *args: Any, **kwargs: Any) -> Any:
            answer = method(work, *args, **kwargs)
            if answer is not False and self._begun:
                self._end(work)
            return answer

        return owner, name, ask


_WAITING_IN_CPP = (IN_BACKWARD, NATIVE)
