# ruff: noqa: N803, SIM300, constants of a kernel are written so
"""Kernels for a GPU, in Triton: imported by `fused_kernels.py` where Triton is there.

A kernel gets one table of 64-bit numbers and no other argument that could change, so that it is
compiled once for each kind of element. Addresses are numbers in the table. Kernels are compiled
from the text of this file: no annotations but those of constants.
"""

import triton
import triton.language as tl

SUM = tl.constexpr(0)
AVG = tl.constexpr(1)
PRODUCT = tl.constexpr(2)
MIN = tl.constexpr(3)
MAX = tl.constexpr(4)
BAND = tl.constexpr(5)
BOR = tl.constexpr(6)
BXOR = tl.constexpr(7)

HEADER = tl.constexpr(3)
"""Numbers of a table of `move_rows` before its first row: how many inputs a row has, how many
outputs, and what an average is multiplied by."""


@triton.jit
def _wide(x, T: tl.constexpr):
    """What arithmetic is done in: torch computes 16-bit floats as 32-bit ones and rounds each
    result."""
    if T == tl.float16 or T == tl.bfloat16:
        return x.to(tl.float32)
    else:
        return x


@triton.jit
def _combine(a, b, OP: tl.constexpr, T: tl.constexpr):
    if OP == BAND:
        return a & b
    elif OP == BOR:
        return a | b
    elif OP == BXOR:
        return a ^ b
    elif OP == MIN:
        x, y = _wide(a, T), _wide(b, T)
        return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL).to(T)
    elif OP == MAX:
        x, y = _wide(a, T), _wide(b, T)
        return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL).to(T)
    elif OP == PRODUCT:
        return (_wide(a, T) * _wide(b, T)).to(T)
    else:
        return (_wide(a, T) + _wide(b, T)).to(T)


@triton.jit
def _pointer(entry, T: tl.constexpr, ALIGN: tl.constexpr):
    return tl.multiple_of(tl.load(entry).to(tl.pointer_type(T)), ALIGN)


@triton.jit
def _block(
    table,
    row,
    offsets,
    mask,
    OP: tl.constexpr,
    T: tl.constexpr,
    ALIGN: tl.constexpr,
):
    count = tl.load(table)
    total = tl.load(_pointer(row + 1, T, ALIGN) + offsets, mask=mask)
    for i in range(1, count):
        total = _combine(
            total, tl.load(_pointer(row + 1 + i, T, ALIGN) + offsets, mask=mask), OP, T
        )
    if OP == AVG:
        if T.is_floating():
            inverse = tl.load(table + 2).to(tl.float64, bitcast=True)
            if T == tl.float64:
                total = total * inverse
            else:
                total = (total.to(tl.float32) * inverse.to(tl.float32)).to(T)
        else:
            total = (total.to(tl.int64) // count).to(T)
    for i in range(tl.load(table + 1)):
        tl.store(_pointer(row + 1 + count + i, T, ALIGN) + offsets, total, mask=mask)


@triton.jit
def move_rows(
    table, OP: tl.constexpr, T: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr
):
    """For each row, reduce its inputs in their order and write the result to its outputs. A row
    is its number of elements and the addresses of inputs and outputs. Grid: blocks, rows."""
    width = 1 + tl.load(table) + tl.load(table + 1)
    row = table + HEADER + tl.program_id(1) * width
    number = tl.load(row)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    offsets = start + tl.arange(0, BLOCK)
    if start + BLOCK <= number:  # without a mask memory is read in pieces of 16 bytes
        _block(table, row, offsets, None, OP, T, ALIGN)
    else:
        _block(table, row, offsets, offsets < number, OP, T, ALIGN)


@triton.jit
def _weighted(values, places):
    """Each value with an odd weight of 64 bits that its place decides."""
    return tl.sum(values.to(tl.int64) * ((places * -7046029254386353131) | 1))


@triton.jit
def sum_words(table, totals, T: tl.constexpr, ALIGN: tl.constexpr, BLOCK: tl.constexpr):
    """Add the weighted sum of each row to its total, in whatever order: 64 bits wrap. A row is
    a number of elements and their address. Grid: blocks, rows."""
    row = table + tl.program_id(1) * 2
    number = tl.load(row)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    if start < number:
        places = start + tl.arange(0, BLOCK)
        first = _pointer(row + 1, T, ALIGN)
        if start + BLOCK <= number:
            found = _weighted(tl.load(first + places), places)
        else:
            found = _weighted(tl.load(first + places, mask=places < number, other=0), places)
        tl.atomic_add(totals + tl.program_id(1), found)


def constants_of(settings, block):
    """The constants of a kernel, in the order of its parameters: what `fused_kernels.py` names
    by words is one of Triton's types."""
    return (*(getattr(tl, each) if isinstance(each, str) else each for each in settings), block)
