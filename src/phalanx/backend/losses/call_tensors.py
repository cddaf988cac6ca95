"""The tensors of a call, which may lie in lists of lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor


def flat(given: Any) -> Iterator[Tensor]:
    for each in given:
        if isinstance(each, Tensor):
            yield each
        else:
            yield from flat(each)


def copied(given: Any) -> Any:
    """The same lists with copies of the tensors."""
    if isinstance(given, Tensor):
        return given.detach().clone()
    return [copied(each) for each in given]
