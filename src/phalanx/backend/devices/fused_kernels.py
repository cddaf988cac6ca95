"""One launch for many pieces of memory on a GPU, where Triton is there.

`move_rows` reduces and copies, for collectives; `sum_words` makes checksums. Each says whether
it did: if not, the caller does the same with operations of torch. What is moved is the same bit
by bit either way. Compiling a kernel takes up to two seconds, so small work is left to torch
until the same kernel has been asked for several times. A machine on which compiling fails is
left to torch for good.

What a kernel works on is a table in the GPU's memory. Programs use the same memory again and
again, so tables are kept, by what is in them.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from phalanx.backend.torch_private.private_devices import current_raw_stream

Row = tuple[int, Sequence[int], Sequence[int]]
"""A number of bytes, and the addresses of inputs and outputs."""

COPY = -1
"""Instead of a reduce operation: rows have one input."""

LARGE = 1 << 20
"""Bytes of a row from which on a kernel is compiled at once."""
PATIENCE = 12
"""How often small work is left to torch before its kernel is compiled."""
MOST_TABLES = 2048
_MOST_ROWS = 65_535
_BLOCK = 1024
_WIDEST = 16
"""Bytes that a thread reads at once, where addresses allow it."""

TYPES = {
    torch.float64: ("float64", 8),
    torch.float32: ("float32", 4),
    torch.float16: ("float16", 2),
    torch.bfloat16: ("bfloat16", 2),
    torch.int64: ("int64", 8),
    torch.int32: ("int32", 4),
    torch.int16: ("int16", 2),
    torch.int8: ("int8", 1),
    torch.uint8: ("uint8", 1),
}
"""What can be reduced: the name that Triton has for it, and its bytes."""
_WORDS, _BYTES = ("int32", 4), ("uint8", 1)


class _Table(NamedTuple):
    """Rows in the GPU's memory, and how to launch a kernel on them."""

    numbers: Tensor
    grid: tuple[int, int, int]
    element: str
    align: int


_asked: Counter[Any] = Counter()
_ready: set[Any] = set()
_compiled: dict[Any, Any] = {}
_tables: dict[Any, _Table] = {}
_broken: list[Exception] = []
"""Why nothing is compiled here any more."""


def is_available() -> bool:
    return not _broken and _has_triton()


@functools.cache
def _has_triton() -> bool:
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


def move_rows(
    key: tuple[Any, ...],
    make_rows: Callable[[], Sequence[Row]],
    *,
    op: int,
    dtype: torch.dtype,
    nbytes: int,
    device: int,
) -> bool:
    """Reduce the inputs of each row in their order, by a code of `reduction.py`, and write the
    result to its outputs. All rows have as many inputs and as many outputs as the first, and
    rows with equal keys are equal. `nbytes` tells how much there is to do. Memory that is
    written and read must be the same or apart. Launched on the current stream of the device."""
    kind = (op, None if op == COPY else dtype)
    if not _is_worthwhile(kind, nbytes) or device != torch.cuda.current_device():
        return False
    place = (device, current_raw_stream(device), *kind, *key)
    table = _tables.get(place)
    if table is None:
        rows = make_rows()
        if not 0 < len(rows) <= _MOST_ROWS:
            return False
        table = _keep(place, _table_of(rows, None if op == COPY else TYPES[dtype], device))
    return _launch("move_rows", (max(op, 0), table.element, table.align), kind, table)


def sum_words(pieces: Sequence[tuple[int, int]], device: int) -> Tensor | None:
    """A checksum on the GPU for each piece of memory, given as bytes and address: equal for
    equal bytes. None if there is no kernel."""
    kind = "sum_words"
    nbytes = sum(size for size, _ in pieces)
    if not _is_worthwhile(kind, nbytes) or device != torch.cuda.current_device():
        return None
    place = (device, current_raw_stream(device), kind, *pieces)
    table = _tables.get(place)
    if table is None:
        name, size = _element_of([number for piece in pieces for number in piece])
        numbers = [number for each, at in pieces for number in (each // size, at)]
        align = _alignment([at for _, at in pieces], size)
        grid = (_blocks(max(each for each, _ in pieces) // size), len(pieces), 1)
        table = _keep(place, _Table(_on_device(numbers, device), grid, name, align))
    totals = torch.zeros(len(pieces), dtype=torch.int64, device=table.numbers.device)
    done = _launch(kind, (table.element, table.align), kind, table, totals)
    return totals if done else None


def _is_worthwhile(kind: Any, nbytes: int) -> bool:
    if kind in _ready:
        return True
    if not is_available():
        return False
    _asked[kind] += 1
    return nbytes >= LARGE or _asked[kind] > PATIENCE


def _keep(place: Any, table: _Table) -> _Table:
    if len(_tables) >= MOST_TABLES:
        _tables.clear()  # programs that never come back to the same memory
    _tables[place] = table
    return table


def _table_of(rows: Sequence[Row], element: tuple[str, int] | None, device: int) -> _Table:
    """`element` is None for copies, which take memory as it comes."""
    _, inputs, outputs = rows[0]
    addresses = [number for row in rows for number in (*row[1], *row[2])]
    name, size = element or _element_of([*addresses, *(row[0] for row in rows)])
    numbers = [len(inputs), len(outputs), _inverse(len(inputs), size)]
    for nbytes, given, taken in rows:
        numbers += (nbytes // size, *given, *taken)
    grid = (_blocks(max(row[0] for row in rows) // size), len(rows), 1)
    return _Table(_on_device(numbers, device), grid, name, _alignment(addresses, size))


def _element_of(numbers: Sequence[int]) -> tuple[str, int]:
    """Words, if all addresses and sizes are whole numbers of them."""
    return _BYTES if any(number % 4 for number in numbers) else _WORDS


def _alignment(addresses: Sequence[int], size: int) -> int:
    return size if any(each % _WIDEST for each in addresses) else _WIDEST


def _inverse(count: int, size: int) -> int:
    """The bits of what torch multiplies a sum by to divide it, rounded as what it computes in:
    64 bits for elements of that size, else 32."""
    value = 1.0 / count
    if size < 8:
        (value,) = struct.unpack("f", struct.pack("f", value))
    return int(struct.unpack("q", struct.pack("d", value))[0])


def _blocks(number: int) -> int:
    return max(1, -(-number // _BLOCK))


def _on_device(numbers: Sequence[int], device: int) -> Tensor:
    """Without waiting for the device: the memory on the way belongs to torch's allocator."""
    given = torch.tensor(numbers, dtype=torch.int64, pin_memory=True)
    return given.to(torch.device("cuda", device), non_blocking=True)


def _launch(name: str, settings: tuple[Any, ...], kind: Any, table: _Table, *more: Any) -> bool:
    found = _compiled.get((name, settings))
    if found is not None:
        kernel, constants = found
        kernel[table.grid](table.numbers, *more, *constants)
        return True
    try:
        kernels = importlib.import_module("phalanx.backend.devices.triton_kernels")
        constants = kernels.constants_of(settings, _BLOCK)
        kernel = getattr(kernels, name)[table.grid](table.numbers, *more, *constants)
    except Exception as problem:  # no compiler for C, a version of Triton that differs, ...
        _broken.append(problem)
        _ready.clear()
        return False
    _compiled[name, settings] = kernel, constants
    _ready.add(kind)
    return True
