"""A rank's place among those that torch's launcher started, and the store they share.

Used by `torchrun_rank.py`. Also mends what the launcher leaves open: the interface that Gloo
uses, and the keys that a restart finds in the store. Must never know of the launcher of ours.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from phalanx.engines.torchrun.addresses import interface_of, is_loopback, own_address

PATIENCE = 60.0

_OF_BACKEND = re.compile(r"^default_pg/.*//[a-z]+//")
"""Keys of a group's backend, below the name of its device."""
"""Seconds until the ranks of all machines have found each other."""


@dataclass(frozen=True)
class RankPlace:
    """What torch's launcher says about this rank."""

    rank: int
    ranks: int
    local_rank: int
    local_ranks: int
    generation: int
    meeting: str
    master: str
    port: int
    has_store: bool

    @property
    def world(self) -> str:
        """A name for these ranks that those before a restart did not have."""
        return f"{self.meeting or self.generation} of {self.ranks}"


def read_place(meeting: str = "") -> RankPlace:
    """`meeting` names the meeting of the machines, if it is known."""
    environ = os.environ
    return RankPlace(
        rank=int(environ["RANK"]),
        ranks=int(environ["WORLD_SIZE"]),
        local_rank=int(environ["LOCAL_RANK"]),
        local_ranks=int(environ["LOCAL_WORLD_SIZE"]),
        generation=int(environ["TORCHELASTIC_RESTART_COUNT"]),
        meeting=meeting,
        master=environ["MASTER_ADDR"],
        port=int(environ["MASTER_PORT"]),
        has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def choose_interface(master: str) -> None:
    """Gloo looks the machine's name up, which on many leads to the wrong address. The way to
    rank 0's machine is a right one."""
    own = own_address(master)
    if own is None or "GLOO_SOCKET_IFNAME" in os.environ:
        return
    interface = interface_of(own)
    alone = os.environ.get("GROUP_WORLD_SIZE") == "1"
    if interface is not None and (alone or not is_loopback(own)):
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def open_store(place: RankPlace) -> Store | None:
    """The store that torch's launcher serves for the ranks; None where it has none."""
    if not place.has_store:
        return None
    store = TCPStore(
        place.master,
        place.port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=PATIENCE),
    )
    if place.meeting or place.generation > 0:
        _forget_before(store, place)
    return store


def _forget_before(store: TCPStore, place: RankPlace) -> None:
    """After a restart torch 2.11-2.13 gives the ranks the store of before, with the addresses
    of ranks that are gone in it: with plain torchrun, 5 of 7 restarts on Gloo failed or hung.
    What the program has put there stays, as it does with torchrun."""
    key = f"phalanx restart {place.world}"
    if place.rank == 0 and hasattr(store, "list_keys"):
        for name in store.list_keys():
            if _OF_BACKEND.search(name):
                store.delete_key(name)
    if place.rank == 0:
        store.set(key, "")
    store.wait([key])
