"""What a network can be asked, and the sizes that operations are measured by.

Implementations are frozen values: they travel with the options of a run and print themselves
as the text that makes them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from phalanx.errors import UsageError


class Network(Protocol):
    """How long operations take. Seconds and bytes; ranks are those of the world."""

    def collective(self, operation: str, size: int, ranks: Sequence[int]) -> float:
        """Seconds from when the last of `ranks` has come. `size` counts as `nccl-tests` does:
        the whole of what is gathered, scattered, exchanged or reduced by one rank."""
        ...

    def message(self, size: int, source: int, target: int) -> MessageCost:
        """A message between two ranks."""
        ...

    def check_ranks(self, ranks: int) -> None:
        """Raise `UsageError` if so many ranks have no place in it."""
        ...


class MessageCost:
    """What a message takes: `seconds` in which nothing else goes through its `ports`, and the
    `latency` after which the last byte is there."""

    __slots__ = ("latency", "ports", "seconds")

    def __init__(self, seconds: float, latency: float, ports: tuple[Hashable, ...]) -> None:
        self.seconds = seconds
        self.latency = latency
        self.ports = ports


REDUCES = frozenset({"all_reduce", "all_reduce_coalesced"})
GATHERS = frozenset(
    {
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
    }
)
SCATTERS = frozenset(
    {"reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_tensor_coalesced"}
)
ROOTED = frozenset({"broadcast", "reduce"})
FANS = frozenset({"gather", "scatter"})
EXCHANGES = frozenset({"all_to_all", "all_to_all_single"})


def check_positive(what: str, name: str, given: object, example: str) -> None:
    """Refuse what is no number above 0."""
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 < given < float("inf"):  # type: ignore[operator]
        raise UsageError(
            f"{what}: {name}={given!r}: give a number above 0, e.g. {name}={example}"
        )


def number_text(value: float) -> str:
    """As short as it can be read back.

    >>> number_text(235e9), number_text(3.4e-6), number_text(8)
    ('235e9', '3.4e-6', '8')
    """
    if isinstance(value, int) and value < 10_000:
        return str(value)
    text = repr(float(value))
    for power in (9, 6, 3, -3, -6, -9):
        scaled = f"{value / 10.0**power:.12g}"
        candidate = f"{scaled}e{power}"
        if "e" not in scaled and float(candidate) == value and len(candidate) < len(text):
            text = candidate
    return text
