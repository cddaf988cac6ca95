"""The words of the library tests: a program, how it is judged, and what came of a run."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Program:
    """One program of one library, at one number of ranks."""

    library: str
    """Its name on PyPI, for the version in the table."""
    name: str
    """A file in `examples/libraries`, or with `module` what stands behind `-m`."""
    ranks: int = 2
    args: tuple[str, ...] = ()
    module: bool = False
    compare: str = "lines"
    """`lines`: what each rank prints on standard output must be equal, and there must be some.
    `results`: only the lines that begin with "result ", where a library prints more. `status`:
    both must succeed; for scripts of a library's own, which assert."""
    tolerance: float = 0.0
    """By how much numbers in lines may differ, relative to the larger one (at least 1)."""
    starts_ranks: bool = False
    """It starts its ranks itself (by torch.multiprocessing): then it is run without a number of
    ranks, and compared with plain Python instead of torchrun, all lines together and sorted."""
    options: tuple[str, ...] = ()
    """Options for `phalanx run`; for most programs there should be none."""
    limit: float = 120.0
    """Seconds, for each of the two runs."""
    fails_with_torchrun: str = ""
    """Why it cannot run with torchrun on a CPU; nothing is expected of `phalanx run` then."""
    fails_here: str = ""
    """Why it cannot run with `phalanx run` though it does with torchrun; shown in the docs."""
    environment: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    """Whether pytest runs it too, where the library is installed."""

    @property
    def title(self) -> str:
        """As one would write it behind `phalanx run`; unique in the table."""
        size = [] if self.starts_ranks else ["-n", str(self.ranks)]
        words = [*size, *self.options, *(["-m"] if self.module else [])]
        return " ".join([*words, self.name, *self.args])


@dataclass(frozen=True)
class Ran:
    """How one run of a program ended."""

    status: str
    """passed, failed or timed out"""
    seconds: float
    lines: dict[int, list[str]]
    """What each rank printed on standard output."""
    text: str
    """All output, errors too, for whoever looks for the reason of a failure."""


@dataclass(frozen=True)
class Row:
    """One program on both."""

    program: Program
    version: str
    torchrun: Ran
    phalanx: Ran
    difference: str = ""
    """Where the results are not the same; empty if they are."""

    @property
    def verdict(self) -> str:
        """What became of it with `phalanx run`."""
        if self.phalanx.status == "passed" and self.difference:
            return "differs"
        return self.phalanx.status
