"""The file that the black box of a rank leaves: its format, written and read here.

JSON of plain values, so that it can be read without Phalanx, too:

    format, version     "phalanx black box", 1
    run                 equal for the ranks of one start of the program
    rank, world, pid, host, reason ("hang", "signal", "crash", "exit", "asked"), taken (seconds)
    status, error       "running", "finished" or "failed"; the error's text
    error_at            a place in `sites`, or null
    dropped             calls that were made before the first one here
    sites               [file, line, function, source]
    groups              [key, name, ranks, backend, description]
    tensors             [dtype, shape, device, strides]
    calls               [time in ns, site, name, group, number, root, peer, tag, reduce op,
                        inputs, outputs, splits, done, made, source]
    threads             [name, is it the main one, sites, call it is in, innermost function,
                        place of a branch that tests the rank around it]

`phalanx.blackbox` writes it; `phalanx explain` reads it and trusts nothing in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.explain.program_lines import site_at
from phalanx.explain.rank_dump import (
    MOST_RANKS,
    DumpedCall,
    DumpedGroup,
    DumpError,
    RankDump,
    ThreadStack,
)
from phalanx.model import Site, TensorSpec

FORMAT = "phalanx black box"
VERSION = 1
STATUSES = ("running", "finished", "failed")


def is_black_box(data: Any) -> bool:
    return isinstance(data, dict) and data.get("format") == FORMAT


def read_black_box(data: Mapping[str, Any], name: str) -> RankDump:
    """What `encode_black_box` wrote. Raises `DumpError`."""
    version = data.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise DumpError(
            f"{name}: version {str(version)[:40]!r} of the black box; this Phalanx reads up to "
            f"{VERSION}. Update Phalanx, or read it with the version that wrote it"
        )
    try:
        return _read(data, name)
    except DumpError:
        raise
    except Exception as error:  # of any kind: the file is not trusted
        raise DumpError(
            f"{name}: this is no whole file of a black box ({type(error).__name__}: "
            f"{str(error)[:80]}); was it changed?"
        ) from None


def _read(data: Mapping[str, Any], name: str) -> RankDump:
    rank, world = int(data["rank"]), int(data["world"])
    if not 0 <= rank < world <= MOST_RANKS:
        raise DumpError(f"{name}: rank {rank} of {world}; was the file changed?")
    sites = [site_at(str(f), int(n), str(w), str(s)) for f, n, w, s in data["sites"]]
    tensors = [_tensor(each) for each in data["tensors"]]
    groups = [_group(each) for each in data["groups"]]
    calls = [_call(each, sites, tensors, groups) for each in data["calls"]]
    status = data["status"] if data["status"] in STATUSES else "running"
    return RankDump(
        rank=rank,
        file=name,
        kind="black box",
        groups={group.key: group for group in groups},
        calls=calls,
        status=status,
        error=None if data.get("error") is None else str(data["error"]),
        error_at=_at(sites, data.get("error_at")),
        threads=[_thread(each, sites, len(calls)) for each in data["threads"]],
        begins_late=int(data["dropped"]) > 0,
        taken=float(data["taken"]),
        world=world,
        pid=int(data["pid"]),
        run=str(data.get("run", "")),
    )


def _at(table: Sequence[Any], place: Any) -> Any:
    """None for none; an index that is not there is an error."""
    if place is None:
        return None
    if not isinstance(place, int) or not 0 <= place < len(table):
        raise ValueError(f"there is no place {place!r} among {len(table)}")
    return table[place]


def _tensor(given: Sequence[Any]) -> TensorSpec:
    dtype, shape, device, strides = given
    return TensorSpec(str(dtype), tuple(map(int, shape)), str(device), tuple(map(int, strides)))


def _group(given: Sequence[Any]) -> DumpedGroup:
    key, name, ranks, backend, description = given
    return DumpedGroup(
        str(key), str(name), tuple(map(int, ranks)), str(backend), str(description)
    )


def _call(
    given: Sequence[Any],
    sites: Sequence[Site],
    tensors: Sequence[TensorSpec],
    groups: Sequence[DumpedGroup],
) -> DumpedCall:
    time, site, name, group, number, root, peer, tag, op, inputs, outputs, splits, *rest = given
    done, made, source = rest
    return DumpedCall(
        name=str(name),
        group=_at(groups, group).key if group is not None else "",
        number=_number(number),
        root=_number(root),
        peer=_number(peer),
        tag=_number(tag),
        reduce_op=None if op is None else str(op),
        inputs=tuple(_at(tensors, each) for each in inputs),
        outputs=tuple(_at(tensors, each) for each in outputs),
        input_splits=tuple(map(int, splits[0])),
        output_splits=tuple(map(int, splits[1])),
        site=_at(sites, site),
        done=None if done is None else bool(done),
        time=int(time) / 1e9,
        made=None if made is None else (tuple(map(int, made[0])), str(made[1])),
        source=_number(source),
    )


def _number(given: Any) -> int | None:
    return None if given is None else int(given)


def _thread(given: Sequence[Any], sites: Sequence[Site], calls: int) -> ThreadStack:
    name, main, lines, call, doing, *more = given
    branch = more[0] if more and isinstance(more[0], (str, type(None))) else False
    if call is not None and not 0 <= int(call) < calls:
        raise ValueError(f"there is no call {call!r}")
    return ThreadStack(
        name=str(name),
        lines=tuple(_at(sites, each) for each in lines),
        is_main=bool(main),
        waits_in=_number(call),
        doing=str(doing),
        branch=branch,
    )
