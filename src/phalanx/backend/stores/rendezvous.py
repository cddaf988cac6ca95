"""Rendezvous inside one process: `env://`, `tcp://` and `file://` without ports and files.

Stands in for torch's `rendezvous` during runs. Ranks that name the same address get the
same in-process store. Threads that are nobody's go to torch's own function.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torch.distributed.distributed_c10d import Store

from phalanx.backend.session import MEETING_KEY, RankContext, context_here
from phalanx.backend.stores.store import InProcessStore, refuse_rpc
from phalanx.core.strand import here

Found = tuple[Store, int, int]

_ENV = urlsplit("env://")


def make_rendezvous(original: Any) -> Any:
    def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Any:
        context = context_here()
        if context is None:
            return original(url, rank, world_size, **kwargs)
        refuse_rpc(context, sys._getframe(1))
        return _meet(context, url, rank, world_size)

    return rendezvous


def _meet(context: RankContext, url: str, rank: int, world_size: int) -> Iterator[Found]:
    if not isinstance(url, str):
        raise RuntimeError(f"`url` must be a string. {type(url)}: {url}")
    parts = urlsplit(url)
    if parts.scheme not in ("env", "tcp", "file"):
        raise RuntimeError(
            f"init_method={url!r}: no rendezvous for {parts.scheme + '://'!r}; "
            "write env://, tcp://host:port or file:///path"
        )
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    rank = _number(context, "rank", rank, query, "RANK", parts.scheme)
    _check_address(context, parts.scheme)
    size = _number(context, "world_size", world_size, query, "WORLD_SIZE", parts.scheme)
    check_size(context, rank, size)
    note_rank(context, rank)
    # Some of the ranks may make a smaller world there before all make theirs.
    address = _address(context, parts)
    if here.strand is not None and context.session.losses is not None:
        context.session.losses.await_server(here.strand, address)
    yield _store_at(context, address, size, _waits(context, parts.scheme)), rank, size


def _waits(context: RankContext, scheme: str) -> bool:
    """A TCPStore waits for its clients, but not that of torchrun's agent."""
    is_agents = scheme == "env" and "TORCHELASTIC_RUN_ID" in context.environ
    return scheme != "file" and not is_agents


def _check_address(context: RankContext, scheme: str) -> None:
    """Ranks that the program starts itself must set it themselves."""
    missing = [key for key in ("MASTER_ADDR", "MASTER_PORT") if key not in context.environ]
    if scheme == "env" and missing:
        raise ValueError(
            "Error initializing torch.distributed using env://: no environment variable "
            f"{missing[0]} given"
        )


def _number(
    context: RankContext, name: str, given: int, query: dict[str, str], key: str, scheme: str
) -> int:
    if given != -1:
        return given
    if name in query:
        return int(query[name])
    if scheme == "env" and key in context.environ:
        return int(context.environ[key])
    where = f"environment variable {key}" if scheme == "env" else f"{name}="
    raise ValueError(
        f"Error initializing torch.distributed using {scheme}://: no {where} given"
    )


def note_rank(context: RankContext, rank: int) -> None:
    """The rank makes its default group, as this number."""
    if context.session.renumber is not None and not context.initialised:
        context.session.renumber(context, rank)
    context.initialised = True


def check_size(context: RankContext, rank: int, size: int) -> None:
    """Refuse a group that would wait for ranks that this run does not have."""
    have = context.session.size
    if size > have:
        raise ValueError(
            f"init_process_group(world_size={size}) in a run of {have} ranks would wait for "
            f"ranks that do not exist: start {size} ranks, or leave world_size out"
        )
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not in 0..{size - 1} (world_size={size})")


def _address(context: RankContext, parts: Any) -> str:
    if parts.scheme == "file":
        return f"file://{parts.netloc}{parts.path}"
    if parts.scheme == "tcp":
        return f"tcp://{parts.hostname}:{parts.port}"
    host = context.environ.get("MASTER_ADDR", "")
    return f"tcp://{host}:{context.environ.get('MASTER_PORT', '')}"


def keep_store(context: RankContext, store: Any, attempt: int) -> None:
    """Ranks that start again after a failure first find the store of before, which is that of
    torchrun's agent, at the address in their environment, with all keys in it."""
    session = context.session
    session.meeting_key = f"{MEETING_KEY} {attempt}" if attempt else MEETING_KEY
    session.stores.setdefault(f"{_address(context, _ENV)} of {session.size}#0", store)


def _store_at(context: RankContext, address: str, size: int, waits: bool) -> Store:
    """Each rank's n-th rendezvous at an address meets the others' n-th: initialising again
    after `destroy_process_group` must not find the old keys."""
    place = f"{address} of {size}"
    turn = context.incarnations.get(place, 0)
    context.incarnations[place] = turn + 1
    store: Any = context.session.stores.setdefault(f"{place}#{turn}", InProcessStore())
    store.address = f"{address} (time {turn + 1})" if turn else address
    store.waits_for_clients = waits
    if context.session.losses is not None:
        context.session.losses.note_connection(context, store)
    found: Store = store
    return found
