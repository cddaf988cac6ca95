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
from typing import Any, TypeVar

from phalanx.explain import bounded_values as values
from phalanx.explain.bounded_values import MOST_CALLS, MOST_GROUPS
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
MOST_THREADS = 4096
MOST_FRAMES = 1 << 16
"""Of one thread: Python's own limit is 1,000 unless a program raises it."""
LONGEST_ERROR = 1 << 16

_T = TypeVar("_T")


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
    world = values.whole(data["world"], "world", 1, MOST_RANKS)
    rank = values.whole(data["rank"], "rank", 0, world - 1)
    sites = [_site(each) for each in values.items(data["sites"], "sites", MOST_CALLS)]
    tensors = [_tensor(each) for each in values.items(data["tensors"], "tensors", MOST_CALLS)]
    groups = [_group(each) for each in values.items(data["groups"], "groups", MOST_GROUPS)]
    if sum(len(group.ranks or ()) for group in groups) > values.MOST_MEMBERS:
        raise values.FieldError(f"'groups' have more than {values.MOST_MEMBERS} members")
    given = values.items(data["calls"], "calls", MOST_CALLS)
    calls = [_call(each, sites, tensors, groups) for each in given]
    threads = values.items(data["threads"], "threads", MOST_THREADS)
    status, error = data["status"], data.get("error")
    return RankDump(
        rank=rank,
        file=name,
        kind="black box",
        groups={group.key: group for group in groups},
        calls=calls,
        status=status if status in STATUSES else "running",
        error=None if error is None else values.text(error, "error", LONGEST_ERROR),
        error_at=_at(sites, data.get("error_at"), "error_at"),
        threads=[_thread(each, sites, len(calls)) for each in threads],
        begins_late=values.whole(data["dropped"], "dropped", 0) > 0,
        taken=values.finite(data["taken"], "taken"),
        world=world,
        pid=values.whole(data["pid"], "pid", 0),
        run=values.text(data.get("run", ""), "run"),
    )


def _row(given: Any, field: str, length: int, at_most: int | None = None) -> Sequence[Any]:
    """A list of `length` parts, or of up to `at_most`."""
    row = values.items(given, field, at_most or length)
    if len(row) < length:
        raise values.FieldError(f"{field!r} has {len(row)} parts; it needs {length}")
    return row


def _at(table: Sequence[_T], place: Any, field: str) -> _T | None:
    """None for none; an index that is not there is an error."""
    return None if place is None else table[values.whole(place, field, 0, len(table) - 1)]


def _each_at(table: Sequence[_T], places: Any, field: str, most: int) -> tuple[_T, ...]:
    given = values.items(places, field, most)
    return tuple(table[values.whole(each, field, 0, len(table) - 1)] for each in given)


def _site(given: Any) -> Site:
    file, line, function, source = _row(given, "sites", 4)
    return site_at(
        values.text(file, "file"),
        values.whole(line, "line", 0),
        values.text(function, "function"),
        values.text(source, "source"),
    )


def _tensor(given: Any) -> TensorSpec:
    dtype, shape, device, strides = _row(given, "tensors", 4)
    return TensorSpec(
        values.text(dtype, "dtype"),
        values.shape(shape, "shape"),
        values.text(device, "device"),
        values.shape(strides, "strides"),
    )


def _group(given: Any) -> DumpedGroup:
    key, name, ranks, backend, description = _row(given, "groups", 5)
    return DumpedGroup(
        values.text(key, "key"),
        values.text(name, "name"),
        values.members(ranks, "ranks"),
        values.text(backend, "backend"),
        values.text(description, "description"),
    )


def _call(
    given: Any,
    sites: Sequence[Site],
    tensors: Sequence[TensorSpec],
    groups: Sequence[DumpedGroup],
) -> DumpedCall:
    row = _row(given, "calls", 15)
    time, site, name, group, number, root, peer, tag, op, inputs, outputs, splits, *rest = row
    done, made, source = rest
    of_group = _at(groups, group, "group")
    sent, received = _row(splits, "splits", 2)
    return DumpedCall(
        name=values.text(name, "name"),
        group="" if of_group is None else of_group.key,
        number=values.optional(number, "number", 0),
        root=values.optional(root, "root"),
        peer=values.optional(peer, "peer"),
        tag=values.optional(tag, "tag"),
        reduce_op=None if op is None else values.text(op, "reduce op"),
        inputs=_each_at(tensors, inputs, "inputs", values.MOST_TENSORS),
        outputs=_each_at(tensors, outputs, "outputs", values.MOST_TENSORS),
        input_splits=_splits(sent),
        output_splits=_splits(received),
        site=_at(sites, site, "site"),
        done=None if done is None else bool(done),
        time=values.whole(time, "time") / 1e9,
        made=None if made is None else _made(made),
        source=values.optional(source, "source"),
    )


def _splits(given: Any) -> tuple[int, ...]:
    return tuple(
        values.whole(each, "splits") for each in values.items(given, "splits", MOST_RANKS)
    )


def _made(given: Any) -> tuple[tuple[int, ...], str]:
    ranks, backend = _row(given, "made", 2)
    return _splits(ranks), values.text(backend, "backend")


def _thread(given: Any, sites: Sequence[Site], calls: int) -> ThreadStack:
    name, main, lines, call, doing, *more = _row(given, "threads", 5, at_most=6)
    branch = more[0] if more and isinstance(more[0], (str, type(None))) else False
    return ThreadStack(
        name=values.text(name, "name"),
        lines=_each_at(sites, lines, "lines", MOST_FRAMES),
        is_main=bool(main),
        waits_in=values.optional(call, "call", 0, calls - 1),
        doing=values.text(doing, "doing"),
        branch=branch,
    )
