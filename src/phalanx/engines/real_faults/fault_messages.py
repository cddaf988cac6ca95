"""What a rank and the program say to each other about a plan of faults, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.faults import Fault
from phalanx.model import Site


@dataclass(frozen=True)
class Struck:
    """From a rank: it has come to the point of this fault, which happens now."""

    rank: int
    fault: Fault
    site: Site | None = None
    """The program's line."""


@dataclass(frozen=True)
class StrikeNow:
    """To a rank: the moment of this fault has come; it happens in the main thread."""

    fault: Fault


@dataclass(frozen=True)
class BeginCut:
    """To a rank: nothing arrives from these processes any more."""

    number: int
    pids: tuple[int, ...]


@dataclass(frozen=True)
class EndCut:
    """To a rank: the cut of this number is over."""

    number: int


@dataclass(frozen=True)
class LoseStores:
    """To a rank: if it serves a store, the store loses its server, until `FindStores`."""

    number: int


@dataclass(frozen=True)
class FindStores:
    """To a rank: stores are served again where it lost them, with nothing in them."""


@dataclass(frozen=True)
class Disconnect:
    """To a rank whose program is over: end its connections, as the end of its process would."""


@dataclass(frozen=True)
class CarriedOut:
    """From a rank: what was asked for under this number has been done, unless `trouble` says
    why that is impossible here."""

    rank: int
    number: int
    trouble: str = ""


@dataclass(frozen=True)
class GoOn:
    """To a rank that has come to the point of a fault which the program carries out: it has."""
