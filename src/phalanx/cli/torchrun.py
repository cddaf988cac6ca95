"""`phalanx run --engine torchrun`: torch's own launcher starts the ranks, on this machine and
others, with our checks attached. Used by `phalanx run`; the engine is `engines.torchrun`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from phalanx.cli.folded_output import FoldingPrinter
from phalanx.cli.streams import Outlet
from phalanx.engines.program import load_module, load_script
from phalanx.engines.terminal import find_input
from phalanx.engines.torchrun.addresses import own_address
from phalanx.engines.torchrun.torchrun_options import (
    LAUNCHER_FLAGS,
    MAX_RESTARTS,
    WITH_VALUE,
    arguments_for,
    host_of,
    is_alone,
)
from phalanx.engines.torchrun.torchrun_start import TorchrunSettings, run_by_torchrun
from phalanx.errors import UsageError
from phalanx.model import Tally, Verdict
from phalanx.options import Options

if TYPE_CHECKING:
    from phalanx.cli.live.live_display import LiveDisplay

WORDS_FOR_RANKS = ("auto", "cpu", "gpu", "xpu")
"""What torchrun takes for the number of ranks besides a number."""


def run_by_launcher(
    arguments: argparse.Namespace,
    options: Options,
    *,
    only: frozenset[int] | None,
    replay: str,
    findings: list[Verdict],
    tallies: list[Tally],
    on_journal: Callable[[Any], Any],
    live: LiveDisplay | None,
) -> bool:
    """Whether a rank of the script made a group, as a distributed program does. Raises what
    the engine raises."""
    seen = _visible_gpus(options)
    given = {
        name: getattr(arguments, name.replace("-", "_"))
        for name in (*WITH_VALUE, *LAUNCHER_FLAGS)
    }
    given[MAX_RESTARTS] = str(options.max_restarts) if options.max_restarts else None
    line = arguments_for(given, per_node=arguments.ranks, nnodes=arguments.nnodes)

    # What is wrong with the script is said once, before anything is started.
    (load_module if arguments.module else load_script)(arguments.script, list(arguments.args))
    show = _Show(only, quiet=arguments.quiet, live=live)
    usual = {} if arguments.ranks == "1" else {"OMP_NUM_THREADS": "1"}
    environ = {name: os.environ.get(name, value) for name, value in usual.items()}
    settings = TorchrunSettings(
        **{each.name: getattr(options, each.name) for each in fields(Options)},
        launcher_options=line,
        program=["module" if arguments.module else "script", arguments.script, *arguments.args],
        on_world=show.begin,
        on_output=show.output,
        on_notice=show.notice,
        on_tick=show.tick,
        on_findings=findings.extend,
        on_tally=tallies.append,
        on_journal=on_journal,
        on_watch=None if live is None else live.watch,
        meeting=None if is_alone(arguments.nnodes) else lambda: _meeting(arguments),
        raw_output=arguments.redirects is not None or arguments.tee is not None,
        replay=replay,
        environ={**environ, **find_input(), **seen},
    )
    try:
        return run_by_torchrun(settings) or show.ranks == 1
    finally:
        show.close()


def _visible_gpus(options: Options) -> dict[str, str]:
    from phalanx.backend.devices.device_map import visible_to_processes

    return visible_to_processes(options.device, options.gpus, per_node=options.node_size)


def _meeting(arguments: argparse.Namespace) -> str:
    place = arguments.rdzv_endpoint or f"{arguments.master_addr}:{arguments.master_port}"
    text = f"still waiting for the other machines ({arguments.nnodes} in all) at {place}"
    host = host_of(place)
    return text if own_address(host) else f"{text}; this machine does not know {host}"


def check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse numbers of ranks and machines that torch's launcher does not take."""
    if arguments.ranks is None:
        raise UsageError(
            "say how many ranks to run on each machine: phalanx run --engine torchrun -n 4 "
            + arguments.script
        )
    if arguments.ranks not in WORDS_FOR_RANKS and not _is_count(arguments.ranks):
        raise UsageError(
            f"-n {arguments.ranks}: give the number of ranks on each machine, e.g. -n 4, or "
            f"one of {', '.join(WORDS_FOR_RANKS)}"
        )
    if not all(map(_is_count, arguments.nnodes.split(":"))) or arguments.nnodes.count(":") > 1:
        raise UsageError(
            f"--nnodes {arguments.nnodes}: give the number of machines, e.g. --nnodes 2, or "
            "the fewest and the most, e.g. --nnodes 1:4"
        )


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0


class _Show:
    """The printers of this machine's ranks, whose numbers are known once these have started."""

    def __init__(
        self, only: frozenset[int] | None, *, quiet: bool, live: LiveDisplay | None
    ) -> None:
        self.ranks = 0
        self._only = only
        self._quiet = quiet
        self._live = live
        self._printers: dict[str, FoldingPrinter] = {}
        self._outlets = Outlet(sys.stdout), Outlet(sys.stderr)

    def begin(self, ranks: int, here: range) -> None:
        self.close()
        self.ranks = ranks
        shown = frozenset(here) if self._only is None else self._only & frozenset(here)
        if self._quiet or not shown:
            return
        for stream, outlet in zip(("out", "err"), self._outlets, strict=True):
            sink: Any = outlet
            self._printers[stream] = FoldingPrinter(ranks, sink=sink, only=shown)

    def output(self, rank: int, stream: str, text: str) -> None:
        printer = self._printers.get(stream)
        if printer is not None:
            printer.write(rank, text)

    def notice(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def tick(self) -> None:
        for printer in self._printers.values():
            printer.tick()
        for outlet in self._outlets:
            outlet.check()
        if self._live is not None:
            self._live.tick()

    def close(self) -> None:
        for printer in self._printers.values():
            printer.close()
        self._printers.clear()
