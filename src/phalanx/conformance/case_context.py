"""One rank as a case sees it: its number, its groups, and how it reports what is wrong.

The body makes one on each rank and passes it to every program. It keeps the groups of each
shape from case to case, because to make one costs more than most cases.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor

from phalanx.conformance.case_model import Setting
from phalanx.conformance.case_tensors import same, tell_apart

PATIENCE = timedelta(seconds=10)
"""Timeout of the groups that cases share: nothing in there should wait for long."""

SHORT = timedelta(seconds=1.5)
"""Timeout of a group in which a case makes ranks wait for one that does not come."""

GROUPS: dict[str, Callable[[int], list[list[int]]]] = {
    "full": lambda size: [list(range(size))],
    "sub": lambda size: [list(range(1, size))],
    "single": lambda size: [[size - 1]],
    "overlapping": lambda size: [list(range(size - 1)), list(range(1, size))],
    "none": lambda size: [list(range(1, size))],
}
"""The members of each shape of group. In "none" those who are no members call as well."""

FEWEST = {"full": 1, "sub": 3, "single": 1, "overlapping": 3, "none": 2}


class WrongData(Exception):
    """The backend returned wrong data, or wrote outside of the tensor."""


class CaseUnmet(Exception):
    """Something other than the data is wrong."""


class Context:
    """One rank. `device` is where its tensors are, `scratch` a folder that ranks share."""

    def __init__(self, setting: Setting, token: str, rank: int, size: int) -> None:
        self.setting = setting
        self.token = token
        self.rank = rank
        self.size = size
        self.device = setting.device
        self.backend = setting.backend
        self.scratch = Path(setting.scratch)
        self._groups: dict[str, list[Any]] = {}
        self._fresh: list[Any] = []
        self._kept: dict[str, Any] = {}
        self._numbers = itertools.count()
        self.short = SHORT

    def groups(self, shape: str) -> list[Any]:
        """The groups of a shape; None stands for the default group. Called by all ranks."""
        if shape == "full":
            return [None]
        key = "sub" if shape == "none" else shape
        if key not in self._groups:
            members = GROUPS[key](self.size)
            self._groups[key] = [dist.new_group(ranks, timeout=PATIENCE) for ranks in members]
        return self._groups[key]

    def group(self, shape: str) -> Any:
        return self.groups(shape)[0]

    def fresh(
        self, ranks: Sequence[int] | None = None, *, timeout: timedelta = PATIENCE, **more: Any
    ) -> Any:
        """A group for this case only, destroyed at its end. Called by all ranks."""
        group = dist.new_group(None if ranks is None else list(ranks), timeout=timeout, **more)
        self._fresh.append(group)
        return group

    def close_fresh(self) -> None:
        """Destroy what `fresh` made, as far as this rank is a member."""
        fresh, self._fresh = self._fresh, []
        for group in fresh:
            try:
                if group is not dist.GroupMember.NON_GROUP_MEMBER:
                    dist.destroy_process_group(group)
            except (RuntimeError, ValueError, AssertionError):
                pass  # the case destroyed it, or broke it: its report says so

    def keep(self, name: str, make: Callable[[], Any]) -> Any:
        """Something made once on this rank, for all cases that ask for it by this name."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def name(self, words: str) -> str:
        """A name that no other case uses. Called by all ranks, and the same on all."""
        return f"{words}-{self.token}-{next(self._numbers)}"

    def equal(self, found: Any, expected: Any, what: str, *, close: bool = False) -> None:
        """Compare data: if they differ, the case is WRONG."""
        if isinstance(expected, Tensor):
            if not isinstance(found, Tensor) or not same(found, expected, close=close):
                raise WrongData(f"{what}: {tell_apart(found, expected, close=close)}")
        elif isinstance(expected, (list, tuple)) and any(
            isinstance(each, Tensor) for each in expected
        ):
            if len(found) != len(expected):
                raise WrongData(f"{what}: {len(found)} tensors instead of {len(expected)}")
            for one, other in zip(found, expected, strict=True):
                self.equal(one, other, what, close=close)
        elif found != expected:
            raise WrongData(f"{what}: {tell_apart(found, expected)}")

    def check(self, condition: bool, what: str) -> None:
        """Check anything else: if it does not hold, the case fails."""
        if not condition:
            raise CaseUnmet(what)

    def raises(
        self,
        classes: type[BaseException] | tuple[type[BaseException], ...],
        call: Callable[[], Any],
        what: str,
    ) -> BaseException:
        """The error that a call must give; the case goes on afterwards."""
        try:
            call()
        except classes as error:
            return error
        raise CaseUnmet(f"{what}: no error")
