"""Reads dumps of torch's Flight Recorder, of versions 2.x: NCCL's and Gloo's, pickled or JSON.

What one entry tells: the group by name, the operation as the backend names it, the count of
collectives on the group, sizes and dtypes, whether it is complete (`retired`, or its state),
and mostly the frames. It tells neither the root nor the reduce operation, nor whether the rank
waited at once. Gloo's entries lack messages, and its dumps do not tell who is in a group;
`last_enqueued_collective` counts what was not recorded, too.

Field names are torch's. Whatever is missing or of another type is left out: torch adds fields
with every version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from phalanx.explain.bounded_values import (
    MOST_CALLS,
    MOST_DIMENSIONS,
    MOST_GROUPS,
    MOST_MEMBERS,
    MOST_TENSORS,
    FieldError,
    members,
    text,
)
from phalanx.explain.program_lines import MOST_FRAMES, is_of_library, site_at
from phalanx.explain.rank_dump import DumpedCall, DumpedGroup, DumpError, RankDump
from phalanx.model import Site, TensorSpec

MAJOR = 2

_NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "all_gather_single": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "all_to_all_base": "all_to_all_single",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
}
"""Other names that versions and backends have for the operations of `torch.distributed`."""

_OPERATIONS = frozenset(
    {"all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "all_gather", "gather"}
    | {"all_gather_into_tensor", "all_gather_coalesced", "scatter", "reduce_scatter"}
    | {"reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier"}
    | {"monitored_barrier", "send", "recv"}
)
_FRAMES_OF_C10D = ("distributed_c10d.py",)
_LOOSE = frozenset({"all_to_all", "all_to_all_single"})
"""How much goes where is not recorded, and may differ between ranks: nothing is compared."""

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "ComplexHalf": "complex32",
}
_WHO = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


def is_flight_recorder(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and "version" in data
        and ("entries" in data or "pg_config" in data)
    )


def read_flight_recorder(data: Mapping[str, Any], rank: int, name: str) -> RankDump:
    """One rank's dump; `data` is what the file holds. Raises `DumpError`."""
    _check_version(data.get("version"), name)
    entries = data.get("entries", [])
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise DumpError(f"{name}: 'entries' is no list of entries; was the file changed?")
    if len(entries) > MOST_CALLS:
        raise DumpError(f"{name}: {len(entries)} entries; no ring is that large")
    entries = sorted(entries, key=lambda each: _whole(each.get("record_id"), 0))
    found = RankDump(rank, name, "Flight Recorder", status="running")
    configured = _configured_groups(data.get("pg_config"))
    found.world = _least_world(data.get("pg_config"))
    backends: set[str] = set()
    for entry in _without_summaries(entries):
        group = _group(entry, configured)
        found.groups.setdefault(group.key, group)
        backends.add(_backend(entry))
        found.calls.append(_call(entry, group, rank))
    for group in configured.values():
        found.groups.setdefault(group.key, group)
    found.begins_late = bool(entries) and _whole(entries[0].get("record_id"), 0) > 0
    found.records_messages = "gloo" not in backends
    found.unrecorded = _unrecorded(data.get("pg_status"), entries)
    found.calls = _joined(found.calls)
    if entries and not any(entry.get("frames") for entry in entries):
        found.notes.append("no lines of the program: its dump has no frames")
    return found


def _check_version(version: Any, name: str) -> None:
    given = f"{version:g}" if isinstance(version, float) else _text(version)
    numbers = re.match(r"(\d{1,9})(\.\d+)?$", given)
    if numbers is None:
        raise DumpError(f"{name}: version {given[:40]!r} is none of the Flight Recorder")
    if int(numbers[1]) != MAJOR:
        raise DumpError(
            f"{name}: version {given} of the Flight Recorder; this Phalanx reads {MAJOR}.x. "
            "Update Phalanx"
        )


# -- groups ---------------------------------------------------------------------------------


def _configured_groups(config: Any) -> dict[str, DumpedGroup]:
    """The groups that the dump lists with their members, by name; Gloo's list is empty."""
    found: dict[str, DumpedGroup] = {}
    room = MOST_MEMBERS
    for number, given in config.items() if isinstance(config, dict) else ():
        if not isinstance(given, dict):
            continue
        name = _text(given.get("name", number))
        ranks = _members(given.get("ranks"))
        room -= len(ranks or ())
        if room < 0 or len(found) == MOST_GROUPS:
            raise FieldError("'pg_config' has more groups or members than any job")
        if name and ranks:
            description = _text(given.get("desc"))
            found[name] = DumpedGroup(_key(name, ranks), _shown(name), ranks, "", description)
    return found


def _least_world(config: Any) -> int | None:
    """There are at least so many ranks: Gloo lists members without a group's name."""
    given = config.get("") if isinstance(config, dict) else None
    ranks = _members(given.get("ranks")) if isinstance(given, dict) else None
    return max(ranks) + 1 if ranks else None


def _members(given: Any) -> tuple[int, ...] | None:
    """Versions write a list, or the text of one."""
    if isinstance(given, str) and re.fullmatch(r"\[[\d,\s]*\]", given):
        given = [int(each) if len(each) < 9 else -1 for each in re.findall(r"\d+", given)]
    return members(given, "ranks") or None if isinstance(given, (list, tuple)) else None


def _group(entry: Mapping[str, Any], configured: Mapping[str, DumpedGroup]) -> DumpedGroup:
    pair = entry.get("process_group")
    name = description = ""
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        name, description = map(_text, pair)
    if name in configured:
        return configured[name]
    return DumpedGroup(_key(name, None), _shown(name), None, "", description)


def _key(name: str, ranks: tuple[int, ...] | None) -> str:
    """Groups made by splitting share a name; their members tell them apart."""
    return name if ranks is None or name in ("0", "default_pg") else f"{name} of {ranks}"


def _shown(name: str) -> str:
    return "0" if name == "default_pg" else name


# -- entries --------------------------------------------------------------------------------


def _without_summaries(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Less the entries that only say that a batch was launched; its parts have their own."""
    entries = list(entries)
    parts = {_batch(entry) for entry in entries if "coalesced" not in _profiled(entry)}
    return [
        entry
        for entry in entries
        if not _profiled(entry).endswith("coalesced")
        or _operation(entry) in _OPERATIONS
        or _batch(entry) not in parts
    ]


def _batch(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    pair = entry.get("process_group")
    group = _text(pair[0]) if isinstance(pair, (list, tuple)) and pair else ""
    numbers = (_whole(entry.get(each), -1) for each in ("collective_seq_id", "p2p_seq_id"))
    return group, *numbers


def _profiled(entry: Mapping[str, Any]) -> str:
    return _text(entry.get("profiling_name"))


def _backend(entry: Mapping[str, Any]) -> str:
    return _profiled(entry).partition(":")[0]


def _operation(entry: Mapping[str, Any]) -> str:
    name = (_profiled(entry).partition(":")[2] or _profiled(entry)).split(" ")[0]
    return _NAMES.get(name, name)


def _call(entry: Mapping[str, Any], group: DumpedGroup, rank: int) -> DumpedCall:
    name = _operation(entry)
    frames = _frames(entry.get("frames"))
    message = name in ("send", "recv") or entry.get("is_p2p") is True
    if not message:
        name = _public_name(frames) or name
    inputs = _specs(entry.get("input_sizes"), entry.get("input_dtypes"), _backend(entry))
    outputs = _specs(entry.get("output_sizes"), entry.get("output_dtypes"), _backend(entry))
    inputs, outputs = _comparable(name, inputs, outputs, group)
    created = entry.get("time_created_ns")
    time = created / 1e9 if isinstance(created, int) and not isinstance(created, bool) else None
    return DumpedCall(
        name=name,
        group=group.key,
        number=None if message else max(0, _whole(entry.get("collective_seq_id"), 1) - 1),
        peer=_peer(_profiled(entry), name) if message else None,
        tag=0 if message else None,
        inputs=inputs,
        outputs=outputs,
        site=_site(frames),
        done=_is_done(entry),
        time=time,
        stack=tuple((file, line) for file, line, _ in frames if not is_of_library(file)),
    )


def _is_done(entry: Mapping[str, Any]) -> bool:
    return entry.get("retired") is True or entry.get("state") == "completed"


def _peer(profiled: str, name: str) -> int | None:
    """ "send 0->1" has the receiver behind the arrow, "recv 0<-1" the sender."""
    who = _WHO.search(profiled)
    return _whole(who[3], 0) if who else None


def _frames(given: Any) -> list[tuple[str, int, str]]:
    frames = given if isinstance(given, list) else []
    return [
        (_text(each.get("filename")), _whole(each.get("line"), 0), _text(each.get("name")))
        for each in frames[:MOST_FRAMES]
        if isinstance(each, dict)
    ]


def _public_name(frames: Iterable[tuple[str, int, str]]) -> str | None:
    """What the program called, where Gloo does it by another operation (`reduce_scatter` is an
    `all_reduce` there)."""
    for file, _, function in frames:
        if not is_of_library(file):
            return None
        if file.endswith(_FRAMES_OF_C10D):
            name = _NAMES.get(function, function)
            if name in _OPERATIONS:
                return name
    return None


def _site(frames: Iterable[tuple[str, int, str]]) -> Site | None:
    for file, line, function in frames:
        if not is_of_library(file):
            return site_at(file, line, function)
    return None


def _specs(sizes: Any, dtypes: Any, backend: str) -> tuple[TensorSpec, ...]:
    if not isinstance(sizes, list) or len(sizes) > MOST_TENSORS:
        return ()
    kinds = dtypes if isinstance(dtypes, list) else []
    device = "cpu" if backend == "gloo" else "cuda"
    found = []
    for at, size in enumerate(sizes):
        if not isinstance(size, (list, tuple)) or len(size) > MOST_DIMENSIONS:
            return ()
        if not all(isinstance(each, int) and 0 <= each < 1 << 62 for each in size):
            return ()
        dtype = (_text(kinds[at]) if at < len(kinds) else "") or "unknown"
        found.append(TensorSpec(_DTYPES.get(dtype, dtype.lower()), tuple(size), device))
    return tuple(found)


def _comparable(
    name: str,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    group: DumpedGroup,
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """What ranks may be held to. Lists that a backend has joined into one tensor are taken
    apart; what depends on the place of the root, or on splits, is left out."""
    if name in _LOOSE:
        return (), ()
    if name in ("scatter", "recv"):
        return (), outputs
    if name == "all_gather":
        return inputs, _apart(inputs, outputs)
    return inputs, ()


def _apart(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]
) -> tuple[TensorSpec, ...]:
    """The list that was gathered into: one row for each member."""
    if len(inputs) != 1 or len(outputs) != 1 or not outputs[0].shape:
        return ()
    whole, part = outputs[0], inputs[0]
    rows, *rest = whole.shape
    if not 0 < rows <= MOST_TENSORS or tuple(rest) != part.shape:
        return ()
    if prod(whole.shape) != rows * prod(part.shape):
        return ()
    return (TensorSpec(whole.dtype, part.shape, whole.device),) * rows


def _joined(calls: list[DumpedCall]) -> list[DumpedCall]:
    """Collectives that were launched at once have one number: they count as one call, with the
    tensors of all."""
    found: list[DumpedCall] = []
    for call in calls:
        last = found[-1] if found else None
        if (
            last is not None
            and call.number is not None
            and (last.group, last.number) == (call.group, call.number)
        ):
            found[-1] = DumpedCall(
                name=last.name,
                group=last.group,
                number=last.number,
                inputs=(*last.inputs, *call.inputs),
                site=last.site,
                done=bool(last.done and call.done),
                time=last.time,
            )
        else:
            found.append(call)
    return found


def _unrecorded(status: Any, entries: list[dict[str, Any]]) -> int:
    """How many calls the groups have counted after the last one that is recorded."""
    last: dict[str, int] = {}
    for entry in entries:
        name = str(_batch(entry)[0])
        numbers = [_whole(entry.get(each), 0) for each in ("op_id", "collective_seq_id")]
        last[name] = max(last.get(name, 0), *numbers)
    missing = 0
    for each in status.values() if isinstance(status, dict) and len(status) == 1 else ():
        if isinstance(each, dict) and len(last) == 1:
            enqueued = _whole(each.get("last_enqueued_collective"), 0)
            missing += max(0, enqueued - next(iter(last.values())))
    return missing


def _text(value: Any) -> str:
    """Text that is not too long; nothing for what is no text."""
    try:
        return text(value, "")
    except FieldError:
        return ""


def _whole(value: Any, default: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return default
    if isinstance(value, str) and len(value) > 20:
        return default
    try:
        return int(value) if abs(int(value)) < 1 << 62 else default
    except ValueError:
        return default
