"""What the header of each program says. No torch, no Phalanx.

A header is the comments before the first line of code, one `# name: value` for each field; a
value goes on in the next line if that is indented.

    # ranks: 3
    # decides: order              (or time, or fault)
    # kind: mismatch|deadlock     kinds of failure that count as this bug; none: it is right
    # lines: 14-16                the lines at fault
    # minimum: 1                  choices, and faults, that the shortest failure needs
    # faults: kill                kinds of faults that are drawn for it, if any
    # restarts: 3                 how often torchrun may start it again, if at all
    # report: https://...         the report that it follows, or none
    # what: one sentence
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
FIELDS = ("ranks", "decides", "kind", "lines", "minimum", "report", "what")


@dataclass(frozen=True)
class Program:
    """One script, with what its header says."""

    path: Path
    ranks: int
    decides: str
    kinds: tuple[str, ...]
    lines: tuple[int, ...]
    minimum: int
    report: str
    what: str
    faults: str = ""
    restarts: int = 0

    @property
    def id(self) -> str:
        """`b07` or `r07`."""
        return self.path.stem.partition("_")[0]

    @property
    def name(self) -> str:
        """The file's name without its number: `elect_leader`."""
        return self.path.stem.partition("_")[2]

    @property
    def is_wrong(self) -> bool:
        return bool(self.kinds)


def load(only: str = "") -> list[Program]:
    """All programs, in the order of their names; `only` names some of them: `b01,r07`."""
    programs = [read(path) for path in sorted(FOLDER.glob("[br][0-9][0-9]_*.py"))]
    asked = set(only.split(",")) if only else {program.id for program in programs}
    unknown = asked - {program.id for program in programs}
    if unknown:
        raise SystemExit(f"there is no program {', '.join(sorted(unknown))}; b01 is one")
    return [program for program in programs if program.id in asked]


def read(path: Path) -> Program:
    header = read_header(path.read_text())
    missing = [field for field in FIELDS if field not in header]
    if missing:
        raise SystemExit(f"{path.name}: its header has no {', '.join(missing)}")
    return Program(
        path=path,
        ranks=int(header["ranks"]),
        decides=header["decides"],
        kinds=() if header["kind"] == "none" else tuple(header["kind"].split("|")),
        lines=tuple(read_lines(header["lines"])),
        minimum=0 if header["minimum"] == "none" else int(header["minimum"]),
        report="" if header["report"] == "none" else header["report"],
        what=header["what"],
        faults=header.get("faults", ""),
        restarts=int(header.get("restarts", 0)),
    )


def read_header(text: str) -> dict[str, str]:
    """The fields of a header, by name."""
    header: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        found = re.match(r"# (\w+): (.*)", line)
        if found:
            name = found[1]
            header[name] = found[2].strip()
        elif name:
            header[name] += " " + line.lstrip("# ").strip()
    return header


def read_lines(text: str) -> list[int]:
    """`"14-16,20"` as numbers."""
    numbers: list[int] = []
    for part in text.split(",") if text != "none" else ():
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
