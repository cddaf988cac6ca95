"""Let wrong programs hang under plain torchrun, and have their dumps explained.

python benchmarks/explain.py --write docs/explain.md       all programs (an hour)
python benchmarks/explain.py --only F1,F2                  some
python benchmarks/explain.py --most 40                     the first so many of each kind
python benchmarks/explain.py --add FILE                    go on where FILE (of --json) ends

Programs are those of the bug benchmark whose calls disagree or wait for ever, on Gloo, with at
most 4 ranks. Each is run once by torchrun with TORCH_FR_BUFFER_SIZE set and a black box in
every rank. Once the ranks stand still, their files are explained: those of the black box alone,
those of torch's recorder alone, and these once more by torch's own analyser. What is right is
what the threads engine says of the same program. Right programs are run as well.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.bugs.children import run_jobs  # noqa: E402
from benchmarks.bugs.places import as_data, job, preload  # noqa: E402
from benchmarks.bugs.programs import Program, load, load_scripts  # noqa: E402
from phalanx.errors import UsageError  # noqa: E402
from phalanx.explain.dump_files import read_dumps  # noqa: E402
from phalanx.explain.explanation import explain  # noqa: E402

KINDS = {"mismatch", "deadlock", "stall", "rank-failed"}
MOST_RANKS = 4
LIMIT = 40.0
"""Seconds for a program; it counts as hanging when nothing changes for `SETTLED`."""
SETTLED = 2.5
RECORDER = 20.0
"""Seconds for torch's recorder, which looks names of functions up when it is first asked."""
UNRECORDED = {"send", "recv", "new_group", "monitored_barrier"}
"""What torch's recorder does not have on Gloo."""


@dataclass
class Result:
    """One program. `threads`, `box`, `recorder`: kind, ranks and lines of each verdict."""

    id: str
    right: bool
    how: str
    """"hangs", "fails" or "passes"."""
    threads: dict[str, Any] | None = None
    box: dict[str, Any] | None = None
    recorder: dict[str, Any] | None = None
    both: dict[str, Any] | None = None
    analyser: dict[str, Any] | None = None
    recorded: bool = False
    """Whether torch's recorder has the calls that the verdict is about."""
    what: str = ""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.cost:
        print(f"{measure_cost():.2f}")
        return 0
    results: dict[str, Result] = {}
    if options.add and Path(options.add).exists():
        results = {
            each["id"]: Result(**each) for each in json.loads(Path(options.add).read_text())
        }
    programs = choose(options)
    fit = {program.id for program in programs}
    if options.look:
        known = {program.id: program for program in programs}
        for each in results.values():
            look_again(each, Path(options.look, each.id), known[each.id].ranks)
        programs = []
    preload("phalanx")
    end = time.monotonic() + options.minutes * 60
    for number, program in enumerate(programs, 1):
        if program.id in results and not options.again:
            continue
        if time.monotonic() > end:
            print("time is up", file=sys.stderr)
            break
        result = results[program.id] = run(program, options.keep)
        said = " ".join(
            f"{name}:{'=' if fits(result, name) else 'x'}" for name in ("box", "recorder")
        )
        print(
            f"{number:4}/{len(programs)} {program.id} {result.how} {said} "
            f"{result.seconds:.1f} s",
            file=sys.stderr,
            flush=True,
        )
        if options.json:
            save(results, options.json)
    print(summary(list(results.values())))
    if options.write:
        Path(options.write).write_text(
            document(list(results.values()), options.write, len(fit - results.keys()))
        )
    return 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="ID,...", help="only these programs, or classes")
    parser.add_argument("--most", type=int, help="wrong programs, and half as many right ones")
    parser.add_argument("--minutes", type=float, default=600, help="begin no program after")
    parser.add_argument("--json", metavar="FILE", help="write the results there, as they come")
    parser.add_argument("--add", metavar="FILE", help="results of an earlier run")
    parser.add_argument("--again", action="store_true", help="run those of --add again, too")
    parser.add_argument("--cost", action="store_true", help="what a recorded call costs, in us")
    parser.add_argument("--keep", metavar="DIR", help="keep the dumps there")
    parser.add_argument("--look", metavar="DIR", help="explain the dumps of --keep again")
    parser.add_argument("--write", metavar="FILE", help="write the tables into that page")
    return parser.parse_args(arguments)


def choose(options: argparse.Namespace) -> list[Program]:
    every = [*load(), *load_scripts(ROOT / "benchmarks/bugs/third")]
    fit = [p for p in every if p.ranks <= MOST_RANKS and p.profile == "gloo"]
    wrong = [p for p in fit if KINDS.intersection(p.kinds)]
    right = [p for p in fit if not p.kinds]
    if options.most is not None:
        wrong, right = wrong[: options.most], right[: options.most // 2]
    chosen = mixed(wrong, right)
    if options.only:
        asked = options.only.split(",")
        chosen = [p for p in chosen if p.id in asked or p.letter in asked]
    return chosen


def mixed(wrong: list[Program], right: list[Program]) -> list[Program]:
    """A right program after every third wrong one, and all classes at any time."""
    wrong = [p for at in range(5) for p in wrong[at::5]]
    found: list[Program] = []
    for at, program in enumerate(wrong):
        found += [program, *right[at // 3 : at // 3 + 1]] if at % 3 == 2 else [program]
    return found


def save(results: dict[str, Result], path: str) -> None:
    Path(path).write_text(json.dumps([asdict(each) for each in results.values()], indent=1))


# -- one program ----------------------------------------------------------------------------


def run(program: Program, keep: str | None) -> Result:
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        how = let_hang(program, folder)
        result = Result(program.id, not program.kinds, how, what=program.what)
        result.threads = on_threads(program)
        look_again(result, folder / "kept", program.ranks)
        if keep:
            shutil.copytree(folder / "kept", Path(keep, program.id), dirs_exist_ok=True)
    result.seconds = time.perf_counter() - begun
    return result


def look_again(result: Result, folder: Path, ranks: int) -> None:
    result.analyser = by_torch(folder / "recorder", ranks)
    result.notes = []
    result.box = explained(folder / "box", result.notes)
    result.recorder = explained(folder / "recorder", result.notes)
    result.both = explained(folder, [])
    result.recorded = is_recorded(result, folder / "recorder")


def let_hang(program: Program, folder: Path) -> str:
    """Run it until it ends or stands still; the files of its ranks lie in `kept` then."""
    where = program.script or str(getattr(program.body, "__module__", ""))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [
        "--nproc-per-node",
        str(program.ranks),
        str(ROOT / "benchmarks/explain_rank.py"),
    ]
    environ = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000", "GLOO_SOCKET_IFNAME": "lo"}
    environ["PYTHONPATH"] = f"{ROOT / 'src'}:{ROOT}"
    environ["OMP_NUM_THREADS"] = "1"
    if not program.kinds:  # it may be slow, but hangs nowhere
        environ["EXPLAIN_HANG"] = "10"
    for name in ("box", "recorder"):
        (folder / name).mkdir()
    with subprocess.Popen(
        [*command, where, program.id, str(folder)],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    ) as process:
        how = wait(process, folder, program.ranks)
        copy(folder)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
    return how


def wait(process: subprocess.Popen[bytes], folder: Path, ranks: int) -> str:
    asked, end = folder / "box" / ".dump", time.monotonic() + LIMIT
    changed = time.monotonic()
    last = 0
    while time.monotonic() < end:
        time.sleep(0.1)
        if process.poll() is not None:
            return "passes" if process.returncode == 0 else "fails"
        now = asked.stat().st_mtime_ns if asked.exists() else 0
        if now != last:
            last, changed = now, time.monotonic()
        elif last and time.monotonic() - changed > SETTLED:
            break
    asked.write_text("all")  # one more from everybody, at about the same time
    time.sleep(1.2)
    end = time.monotonic() + RECORDER
    while time.monotonic() < end and not all_recorded(folder):
        time.sleep(0.1)
    return "hangs"


def all_recorded(folder: Path) -> bool:
    """Whether torch's recorder has written for every rank that still runs."""
    asked = (folder / "box" / ".dump").stat().st_mtime_ns
    for path in (folder / "box").glob("rank_*.json"):
        if json.loads(path.read_text())["status"] != "running":
            continue
        other = folder / "recorder" / path.stem
        if not other.exists() or other.stat().st_mtime_ns < asked:
            return False
    return True


def copy(folder: Path) -> None:
    for name in ("box", "recorder"):
        shutil.copytree(folder / name, folder / "kept" / name)


def on_threads(program: Program) -> dict[str, Any] | None:
    """The first verdict of the threads engine."""
    verdicts: list[dict[str, Any]] = []
    for done in run_jobs(iter([job("phalanx", program)]), at_once=1):
        result = done.children[0].result  # which is gone after the loop
        verdicts = [] if result is None else result["verdicts"]
    return min(verdicts, key=lambda each: str(each["severity"]), default=None)


def explained(folder: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        answer = explain(read_dumps([folder]))
    except UsageError as error:
        notes.append(str(error).splitlines()[0].replace(str(folder), folder.name))
        return None
    verdict = next(iter(answer.verdicts), None)
    return None if verdict is None else {**as_data(verdict), "ops": sorted(names_in(verdict))}


def names_in(verdict: Any) -> set[str]:
    """The operations of a verdict."""
    found = set()
    for block in getattr(verdict, "blocks", ()):
        view = getattr(block, "view", None)
        op = block.op if view is None else (view.wait.op if view.wait else None)
        if op is not None:
            found.add(op.name)
    return found


def is_recorded(result: Result, folder: Path) -> bool:
    """The black box says which operations it is about; the recorder has collectives only, and
    writes nothing for a rank that is gone."""
    if result.how != "hangs" or not any(folder.iterdir()):
        return False
    ops = set((result.box or {}).get("ops", ()))
    return bool(ops) and not ops & UNRECORDED


# -- what the black box costs -----------------------------------------------------------------


def measure_cost(calls: int = 2000, rounds: int = 40) -> float:
    """Microseconds of processor time that the black box adds to an `all_reduce` and its wait:
    its functions around ones that do nothing, less these alone. The best of many rounds."""
    import torch
    import torch.distributed as dist

    from phalanx.blackbox.call_ring import IN, CallRing

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group, tensor, given = dist.group.WORLD, torch.ones(4), dist.AllreduceOptions()
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    work.wait()

    def call(self: Any, *args: Any, **options: Any) -> Any:
        return work

    def wait(self: Any, *args: Any, **options: Any) -> bool:
        return True

    ring = CallRing()
    recorded, waited = ring._recording(call, "all_reduce", IN), ring._waiting(wait)

    def best(call: Any, wait: Any) -> float:
        times = []
        for _ in range(rounds):
            begun = time.thread_time()
            for _ in range(calls):
                wait(call(group, [tensor], given))
            times.append(time.thread_time() - begun)
        return min(times) / calls * 1e6

    return best(recorded, waited) - best(call, wait)


def cost_text() -> str:
    command = [sys.executable, str(ROOT / "benchmarks/explain.py"), "--cost"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return f"{done.stdout.split()[-1]} us"


# -- torch's own analyser ---------------------------------------------------------------------


def by_torch(folder: Path, ranks: int) -> dict[str, Any]:
    """What `torchfrtrace` says: of the dumps as they are, and with the members of groups, which
    Gloo's dumps lack, written into them."""
    as_they_are = run_torchfrtrace(folder)
    with tempfile.TemporaryDirectory() as temporary:
        fixed = Path(temporary)
        for path in folder.glob("rank_*"):
            data = pickle.loads(path.read_bytes())
            names = {entry["process_group"] for entry in data["entries"]}
            data["pg_config"] = {
                name: {"name": name, "desc": text, "ranks": str(list(range(ranks)))}
                for name, text in names
            }
            (fixed / path.name).write_bytes(pickle.dumps(data))
        told = run_torchfrtrace(fixed)
    return {"as they are": as_they_are, **told}


def run_torchfrtrace(folder: Path) -> dict[str, Any]:
    from torch.distributed.flight_recorder import fr_trace

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("Flight Recorder")
    logger.handlers, before = [handler], logger.handlers
    said = ""
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            given = [str(folder), "--prefix", "rank_", "--allow-incomplete-ranks"]
            fr_trace.main(given)
    except SystemExit as error:
        said = f"SystemExit: {error}"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    finally:
        logger.handlers = before
    text = stream.getvalue()
    first = re.split(r"(?=Not all ranks joining|.*has errors)", text)
    part = next((each for each in first if "collective stack trace" in each), text)
    missing = re.search(r"missing ranks: \{([\d, ]*)\}", part)
    culprits = re.findall(r"Culprit rank (\d+)", part)
    named = culprits or (re.findall(r"\d+", missing[1]) if missing else [])
    lines = re.findall(r"at (\S+?\.py):(\d+)", part)
    return {
        "failed": said[:120],
        "ranks": sorted({int(each) for each in named}),
        "sites": sorted({(Path(file).name, int(line)) for file, line in lines}),
    }


# -- what it amounts to ---------------------------------------------------------------------


def fits(result: Result, place: str) -> bool:
    """Whether a verdict names the ranks and a line of the verdict from threads."""
    ours, theirs = getattr(result, place), result.threads
    if theirs is None or ours is None or ours.get("failed"):
        return theirs is None and not ours
    same_ranks = set(ours["ranks"]) == set(theirs["ranks"])
    lines = {tuple(each) for each in ours["sites"]} & {tuple(each) for each in theirs["sites"]}
    return same_ranks and (bool(lines) or not theirs["sites"])


def summary(results: list[Result]) -> str:
    rows = figures(results)
    return "\n".join(f"{name:60} {value}" for name, value in rows)


def figures(results: list[Result]) -> list[tuple[str, str]]:
    wrong = [each for each in results if not each.right]
    right = [each for each in results if each.right]
    stuck = [each for each in wrong if each.how in ("hangs", "fails") and each.threads]
    hung = [each for each in stuck if each.how == "hangs"]
    recorded = [each for each in hung if each.recorded]
    return [
        ("wrong programs run", f"{len(wrong)}"),
        ("of these hang on Gloo", f"{len([e for e in wrong if e.how == 'hangs'])}"),
        ("of these fail on Gloo", f"{len([e for e in wrong if e.how == 'fails'])}"),
        ("of these pass on Gloo", f"{len([e for e in wrong if e.how == 'passes'])}"),
        ("black box: same ranks and line, of those that hang", share(hung, "box")),
        ("black box: same ranks and line, of those that hang or fail", share(stuck, "box")),
        ("both in one folder: same, of those that hang", share(hung, "both")),
        ("both in one folder: same, of those that hang or fail", share(stuck, "both")),
        ("Flight Recorder alone, where it has the calls", share(recorded, "recorder")),
        ("Flight Recorder alone, of all that hang", share(hung, "recorder")),
        ("torchfrtrace, where it has the calls, members given", share(recorded, "analyser")),
        (
            "torchfrtrace on the dumps as Gloo writes them",
            f"ends with an error on {len([e for e in hung if fails_as_is(e)])} of {len(hung)}",
        ),
        (
            "right programs run, blamed by black box or recorder",
            f"{len(right)}, {len([e for e in right if e.box or e.recorder])}",
        ),
    ]


def fails_as_is(result: Result) -> bool:
    return bool(result.analyser and result.analyser["as they are"]["failed"])


def share(results: list[Result], place: str) -> str:
    good = sum(fits(each, place) for each in results)
    return f"{good} of {len(results)}" + (
        f" ({100 * good / len(results):.0f} %)" if results else ""
    )


LEGEND = (
    "Each cell has the kind and the ranks; **=** marks those that name the same ranks and a "
    "line of the verdict from threads. Torch's recorder leaves no dump of a rank that has "
    "ended; where that is so of all, the cell says `no dump`."
)
HEAD = "| program | what is wrong | on Gloo | threads | black box | recorder | torchfrtrace |"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"


def document(results: list[Result], path: str, left: int) -> str:
    """The page, with the part between the marks written anew; `left` programs were not run."""
    text = Path(path).read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    rows = [*figures(results), ("the black box adds to a call and its wait", cost_text())]
    rows += [("programs of the same kind that were not run, right and wrong", str(left))]
    table = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    programs = [HEAD, "|---|---|---|---|---|---|---|"]
    for each in sorted(results, key=lambda each: each.id):
        if not each.right:
            cells = [each.id, each.what, each.how, shown(each.threads)]
            cells += [shown(each.box, fits(each, "box"))]
            if each.how == "hangs":
                cells += [shown(each.recorder, fits(each, "recorder")), torch_shown(each)]
            else:
                cells += ["no dump", "no dump"]
            programs.append(f"| {' | '.join(cells)} |")
    measured = [head + BEGIN, "", *table, "", LEGEND, "", *programs, "", END]
    return "\n".join(measured) + tail


def shown(verdict: dict[str, Any] | None, same: bool | None = None) -> str:
    if verdict is None:
        return "nothing"
    ranks = ",".join(map(str, verdict["ranks"])) or "-"
    mark = "" if same is None else "**=** " if same else ""
    return f"{mark}{verdict['kind']} {ranks}"


def torch_shown(result: Result) -> str:
    told = result.analyser
    if told is None or told["failed"]:
        return "error"
    ranks = ",".join(map(str, told["ranks"]))
    return ("**=** " if fits(result, "analyser") else "") + (ranks or "nothing")


if __name__ == "__main__":
    sys.exit(main())
