"""Explore programs whose bug depends on order, time or a fault, and run them on plain Gloo.

python -m benchmarks.orders                            explore all, a few minutes
python -m benchmarks.orders --only b07,r07             these
python -m benchmarks.orders --gloo 1000 --json g.json  plain Gloo, no Phalanx: a second for
                                                       each ten runs and core
python -m benchmarks.orders --gloo 1000 --shard 1/2    the first half of these runs; the file
                                                       keeps what is done, so the same command
                                                       goes on where it was stopped
python -m benchmarks.orders --write docs/orders.md     the page, with --gloo-json g.json
python -m benchmarks.orders --replays 100000           replay what --json has found; goes on
                                                       where it was stopped, --shard as above
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.orders.programs import Program, load


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    programs = load(options.only)
    if options.gloo:
        return run_gloo(options, programs)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # before torch is imported
    if options.replays:
        from benchmarks.orders.replays import run_replays

        return run_replays(options, programs)
    from benchmarks.orders.exploring import run_explore

    return run_explore(options, programs)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.orders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="ID,...", help="only these programs")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--seeds", type=int, default=5, help="of each strategy (5)")
    parser.add_argument(
        "--limit", type=int, default=200, help="schedules for each search (200)"
    )
    parser.add_argument("--write", metavar="FILE", help="write the page there")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="processes that explore (one a core)"
    )
    parser.add_argument("--page-only", action="store_true", help="write the page from --json")
    parser.add_argument(
        "--gloo-json", default="", metavar="FILE,...", help="what --gloo wrote, for the page"
    )
    parser.add_argument("--replays", type=int, metavar="N", help="replay tokens of --json")
    parser.add_argument(
        "--replays-json", default="", metavar="FILE,...", help="what --replays writes"
    )
    parser.add_argument("--gloo", type=int, metavar="N", help="run each N times on plain Gloo")
    parser.add_argument("--right", type=int, metavar="N", help="and the right ones N times")
    parser.add_argument("--shard", default="1/1", metavar="I/K", help="the I-th of K parts")
    parser.add_argument("--slots", type=int, help="runs at once (3 for each core)")
    parser.add_argument("--run-limit", type=float, default=3.0, help="seconds for a run (3)")
    parser.add_argument("--seconds", type=float, default=500.0, help="seconds for all (500)")
    return parser.parse_args(arguments)


def run_gloo(options: argparse.Namespace, programs: list[Program]) -> int:
    from benchmarks.orders.gloo import measure

    part, _, parts = options.shard.partition("/")
    file = Path(options.json or "gloo.json")
    tallies = measure(
        programs,
        runs=lambda each: options.gloo if each.is_wrong else options.right or options.gloo,
        slots=options.slots or 3 * (os.cpu_count() or 1),
        limit=options.run_limit,
        seconds=options.seconds,
        file=file,
        shard=(int(part), int(parts)),
    )
    for program in programs:
        tally = tallies[program.id]
        error = max(tally.errors, key=lambda each: tally.errors[each], default="")
        print(
            f"{program.id}: {tally.bad(program)} of {tally.runs} fail, {tally.hung} hang, "
            f"{tally.cpu / max(1, tally.runs):.3f} s of a core each; {error}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
