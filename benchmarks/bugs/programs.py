"""What a program of the benchmark is, and where programs come from: functions of this package,
or a folder of scripts of somebody else with the same facts in comments at the top.

Used by every module of programs, the runner and the tests. Knows nothing of Phalanx.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

Body = Callable[[int, int], None]

TIMEOUT = 3.0
"""The timeout of groups, in seconds, so that hangs of Gloo end within the benchmark's time."""

MARK = "# <- here"
"""Ends the source lines of which a report has to name at least one."""

MODULES = (
    "a_invalid_call",
    "b_lifecycle",
    "c_requests",
    "d_buffers",
    "e_parameters",
    "f_order",
    "f_stack",
    "g_races",
    "h_rank_spaces",
    "i_buffering",
    "j_scale",
    "k_faults",
    "correct",
    "correct_stack",
    "correct_more",
)

CLASSES = {
    "A": "invalid call",
    "B": "lifecycle",
    "C": "requests",
    "D": "buffers in flight",
    "E": "parameters that must match",
    "F": "order of calls",
    "G": "races",
    "H": "rank spaces",
    "I": "buffering",
    "J": "scale",
    "K": "faults",
    "X": "correct",
}

_FIRST = """
A1 A3 A4 A6 A8 A10  B2 B4 B5  C2 C3 C6  D1 D3 D4  E1 E2 E5 E7 E9 E11 E14 E16
F1 F2 F4 F5 F8 F12 F14 F15 F18 F21  G2 G4  I1 I2  J2  K1 K3
"""
OPEN = frozenset(_FIRST.split())
"""The programs that were laid down before there were checks."""


@dataclass(frozen=True)
class Program:
    """One program, and what is to be said about it.

    `kinds` are the kinds that count as right, any of them; none for a correct program.
    `faulty` are the ranks at fault, None if that cannot be decided. `lines` are those of
    which at least one has to be named. A program is a function (`body`), called between
    `init_process_group` and `destroy_process_group` unless `bare`, or a `script`.
    """

    id: str
    kinds: tuple[str, ...]
    ranks: int
    faulty: frozenset[int] | None
    lines: frozenset[int]
    file: str
    profile: str
    what: str
    body: Body | None = None
    bare: bool = False
    script: str | None = None

    @property
    def letter(self) -> str:
        return self.id[0].upper() if self.kinds else "X"

    @property
    def is_open(self) -> bool:
        return self.id in OPEN


_registered: list[Program] = []


def bug(
    id: str,
    kinds: str,
    *,
    what: str,
    ranks: int = 2,
    faulty: Iterable[int] | None = None,
    profile: str = "gloo",
    bare: bool = False,
) -> Callable[[Body], Body]:
    """Register a wrong program. `kinds` has a bar between those that count as right."""

    def register(body: Body) -> Body:
        _registered.append(
            Program(
                id=id,
                kinds=tuple(kinds.split("|")),
                ranks=ranks,
                faulty=None if faulty is None else frozenset(faulty),
                lines=marked_lines(body),
                file=inspect.getfile(body),
                profile=profile,
                what=what,
                body=body,
                bare=bare,
            )
        )
        return body

    return register


def fine(
    id: str, *, what: str, ranks: int = 2, profile: str = "gloo", bare: bool = False
) -> Callable[[Body], Body]:
    """Register a correct program."""

    def register(body: Body) -> Body:
        _registered.append(
            Program(
                id=id,
                kinds=(),
                ranks=ranks,
                faulty=None,
                lines=frozenset(),
                file=inspect.getfile(body),
                profile=profile,
                what=what,
                body=body,
                bare=bare,
            )
        )
        return body

    return register


def marked_lines(body: Body) -> frozenset[int]:
    source, first = inspect.getsourcelines(body)
    return frozenset(
        first + offset for offset, line in enumerate(source) if line.rstrip().endswith(MARK)
    )


def load() -> list[Program]:
    """All programs of this package, in the order of their modules."""
    for name in MODULES:
        importlib.import_module(f"benchmarks.bugs.{name}")
    return list(_registered)


def registered() -> list[Program]:
    """The programs of the modules that are imported."""
    return list(_registered)


def load_scripts(folder: Path) -> list[Program]:
    """The scripts of a folder, by the comments at their top."""
    found = [_from_script(path) for path in sorted(folder.rglob("*.py"))]
    return [program for program in found if program is not None]


def _from_script(path: Path) -> Program | None:
    given = dict(re.findall(r"^# (\w+): *(.*?) *$", path.read_text(), re.MULTILINE))
    if "ranks" not in given or "kind" not in given:
        return None
    kinds = tuple(part.strip() for part in given["kind"].split("|"))
    faulty = given.get("faulty", "any")
    numbered = re.findall(r"\d+", faulty)
    return Program(
        id=path.stem,
        kinds=() if kinds == ("none",) else kinds,
        ranks=int(given["ranks"]),
        faulty=frozenset(map(int, numbered)) if numbered else None,
        lines=frozenset(map(int, re.findall(r"\d+", given.get("lines", "")))),
        file=str(path),
        profile=given.get("profile", "gloo"),
        what=given.get("what", ""),
        script=str(path),
    )


def start() -> None:
    """As a script begins. Bare programs call it themselves."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT))


def carry_out(program: Program) -> None:
    """What one rank does."""
    assert program.body is not None
    if program.bare:
        program.body(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
        return
    start()
    program.body(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()
