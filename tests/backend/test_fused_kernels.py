"""Tables for kernels, and when a kernel is compiled, without a GPU."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch

from phalanx.backend.collectives.reduction import AVG, SUM
from phalanx.backend.devices import fused_kernels
from phalanx.backend.devices.fused_kernels import COPY

ROWS = [(64, (1600, 3200), (4800,)), (32, (160, 320), (480,))]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is launched, on a machine that seems to have Triton."""
    launched: list[Any] = []

    class Kernels:
        @staticmethod
        def constants_of(settings: Any, block: int) -> Any:
            return (*settings, block)

        class Jit:
            def __getitem__(self, grid: Any) -> Any:
                def launch(table: Any, *constants: Any) -> Any:
                    launched.append((grid, table.tolist(), constants))
                    return self

                return launch

        move_rows = sum_words = Jit()

    monkeypatch.setattr(fused_kernels, "_has_triton", lambda: True)
    monkeypatch.setattr(fused_kernels.importlib, "import_module", lambda name: Kernels)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        fused_kernels, "_on_device", lambda numbers, device: torch.tensor(numbers)
    )
    for name in ("_asked", "_ready", "_compiled", "_tables", "_broken"):
        monkeypatch.setattr(fused_kernels, name, type(getattr(fused_kernels, name))())
    return launched


def move(nbytes: int = 64, op: int = SUM, rows: Any = ROWS, key: Any = ("rows",)) -> bool:
    return fused_kernels.move_rows(
        key, lambda: rows, op=op, dtype=torch.float32, nbytes=nbytes, device=0
    )


def test_small_work_is_left_to_torch_until_it_has_come_often(compiled) -> None:
    asked = [move() for _ in range(fused_kernels.PATIENCE + 3)]
    assert asked == [False] * fused_kernels.PATIENCE + [True] * 3


def test_large_work_is_compiled_at_once(compiled) -> None:
    assert move(fused_kernels.LARGE)
    assert move(16)


def test_a_table_has_the_rows_in_elements(compiled) -> None:
    assert move(fused_kernels.LARGE)
    ((grid, table, constants),) = compiled
    assert table[:2] == [2, 1]
    assert table[3:] == [16, 1600, 3200, 4800, 8, 160, 320, 480]
    assert grid == (1, 2, 1)
    assert constants == (SUM, "float32", 16, 1024)


def test_an_average_is_multiplied_as_torch_does_it(compiled) -> None:
    rows = [(64, (16, 32, 48), (64,))]
    assert move(fused_kernels.LARGE, AVG, rows)
    (inverse,) = struct.unpack("d", struct.pack("q", compiled[0][1][2]))
    assert inverse == (torch.tensor(1.0) / 3).item()


@pytest.mark.parametrize(
    ("size", "address", "element", "align"),
    [(64, 16, "int32", 16), (64, 20, "int32", 4), (66, 16, "uint8", 16), (64, 17, "uint8", 1)],
)
def test_copies_take_memory_as_it_lies(
    size: int, address: int, element: str, align: int, compiled
) -> None:
    assert move(fused_kernels.LARGE, COPY, [(size, (address,), (160,))])
    assert compiled[0][2][1:3] == (element, align)


def test_a_table_is_made_once(compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    assert move(fused_kernels.LARGE)
    assert fused_kernels.move_rows(
        ("rows",), pytest.fail, op=SUM, dtype=torch.float32, nbytes=64, device=0
    )
    assert len(compiled) == 2


def test_tables_do_not_become_more_and_more(compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernels, "MOST_TABLES", 3)
    for number in range(10):
        assert move(fused_kernels.LARGE, key=("rows", number))
    assert len(fused_kernels._tables) <= 3


def test_rows_that_overlap_are_left_to_torch(compiled) -> None:
    assert not move(fused_kernels.LARGE, rows=[])


def test_another_device_than_the_current_one_is_left_to_torch(compiled) -> None:
    assert not fused_kernels.move_rows(
        ("rows",), lambda: ROWS, op=SUM, dtype=torch.float32, nbytes=1 << 30, device=1
    )


def test_where_nothing_can_be_compiled_torch_does_it(
    compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str) -> Any:
        raise RuntimeError("no compiler for C")

    monkeypatch.setattr(fused_kernels.importlib, "import_module", broken)
    assert not move(fused_kernels.LARGE)
    assert not fused_kernels.is_available()
    assert not move(fused_kernels.LARGE)
