"""Run the bug benchmark and say how each place fared.

python -m benchmarks.bugs                             Phalanx alone, half a minute
python -m benchmarks.bugs --on gloo,detail,phalanx --write docs/bugs.md     (25 minutes)
python -m benchmarks.bugs --on processes              real process groups, 4 minutes
python -m benchmarks.bugs --only A1,F5
python -m benchmarks.bugs --scripts DIR               scripts with comments at their top:
                                                      # ranks: 4
                                                      # kind: mismatch|deadlock   (or none)
                                                      # faulty: 2                 (or any)
                                                      # lines: 31,35
                                                      # profile: gloo             (or nccl)
                                                      # what: one sentence
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.bugs.children import Job, run_jobs
from benchmarks.bugs.judging import Score, judge_texts, judge_verdicts
from benchmarks.bugs.places import PLACES, job, on_processes, preload
from benchmarks.bugs.programs import Program, load, load_scripts
from benchmarks.bugs.table import document, failures, summary


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    programs = choose(options)
    places = options.on.split(",")
    scores: list[Score] = []
    if options.add:
        scores += [as_score(each) for each in json.loads(Path(options.add).read_text())]
    for place in places:
        fit = [each for each in programs if is_for(place, each)]
        found = run_place(place, fit, at_once=options.at_once)
        scores += second_chance(place, fit, found)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(score) for score in scores], indent=1))
    known = {program.id for program in programs}
    scores = [score for score in scores if score.id in known]
    ours = [score for score in scores if score.place in ("phalanx", "processes")]
    shown = failures(ours if ours and not options.all else scores, programs)
    print(shown, summary(scores), sep="\n")
    if options.write:
        text = document(scores, programs, machine=machine())
        Path(options.write).write_text(text)
    return 0


def is_for(place: str, program: Program) -> bool:
    """What is wrong by NCCL's rules is right on Gloo, so Gloo need not say anything."""
    ours = place in ("phalanx", "processes")
    return ours or not program.kinds or program.profile == "gloo"


def as_score(data: dict[str, Any]) -> Score:
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    return Score(**values)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bugs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--on", default="phalanx", help=f"places: {','.join(PLACES)}")
    parser.add_argument("--only", metavar="ID,...", help="only these programs, or classes")
    parser.add_argument("--set", default="all", help="open, more, all, or a folder of scripts")
    parser.add_argument("--scripts", metavar="DIR", help="the scripts of a folder instead")
    parser.add_argument("--json", metavar="FILE", help="write the scores there")
    parser.add_argument("--add", metavar="FILE", help="scores of other places, from there")
    parser.add_argument("--write", metavar="FILE", help="write the document there")
    parser.add_argument("--at-once", type=int, default=2, help="programs at a time")
    parser.add_argument("--all", action="store_true", help="list what Gloo misses too")
    options = parser.parse_args(arguments)
    unknown = set(options.on.split(",")) - set(PLACES)
    if unknown:
        parser.error(f"--on {options.on}: choose from {', '.join(PLACES)}")
    if options.set not in ("open", "more", "all"):
        options.scripts = options.set
    if options.scripts and not Path(options.scripts).is_dir():
        parser.error(f"--scripts {options.scripts}: no such folder")
    return options


def choose(options: argparse.Namespace) -> list[Program]:
    programs = load_scripts(Path(options.scripts)) if options.scripts else load()
    if options.set == "open":
        programs = [program for program in programs if program.is_open]
    elif options.set == "more":
        programs = [program for program in programs if not program.is_open]
    if options.only:
        asked = options.only.split(",")
        programs = [each for each in programs if each.id in asked or each.letter in asked]
    if not programs:
        sys.exit("no program is left by these options")
    return programs


def run_place(place: str, programs: list[Program], *, at_once: int) -> list[Score]:
    """The scores of all programs on one place, in the programs' order."""
    preload(place)
    if place == "processes":
        return [
            run_warm(program, f"{at}/{len(programs)}") for at, program in enumerate(programs, 1)
        ]
    known = {f"{place}:{program.id}": program for program in programs}
    jobs = (job(place, program) for program in programs)
    scores: dict[str, Score] = {}
    for number, done in enumerate(run_jobs(jobs, at_once=at_once), 1):
        program = known[done.label]
        score = scores[program.id] = judge(place, program, done)
        print(
            f"{number:4}/{len(programs)} {done.label}: {score.outcome} {done.seconds:.1f} s",
            file=sys.stderr,
        )
    return [scores[program.id] for program in programs]


def run_warm(program: Program, number: str) -> Score:
    """In this process, whose parent of all ranks stays warm: a second a program, not ten."""
    result = on_processes(program)
    score = judge_verdicts(program, "processes", result, hung=False)
    told = f"{number:>9} processes:{program.id}: {score.outcome} {result['seconds']:.1f} s"
    print(told, file=sys.stderr)
    return score


def second_chance(place: str, programs: list[Program], scores: list[Score]) -> list[Score]:
    """A correct program that failed on the real Gloo is run again, alone: the machine may be
    busy, and plain Gloo fails, too, where it begins again on a port that closes."""
    alarming = {score.id for score in scores if score.outcome == "false alarm"}
    if place == "phalanx" or not alarming:
        return scores
    again = [program for program in programs if program.id in alarming]
    better = {score.id: score for score in run_place(place, again, at_once=1)}
    return [better.get(score.id, score) for score in scores]


def judge(place: str, program: Program, done: Job) -> Score:
    results = [child.result for child in done.children]
    if place in ("phalanx", "processes"):
        return judge_verdicts(program, place, results[0], hung=done.hung)
    return judge_texts(
        program,
        place,
        results,
        [child.code for child in done.children],
        [child.output for child in done.children],
        hung=done.hung,
    )


def machine() -> str:
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{os.cpu_count()} cores, Python {version}, torch {torch.__version__}"


if __name__ == "__main__":
    sys.exit(main())
