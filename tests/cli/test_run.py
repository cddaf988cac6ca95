"""`phalanx run` as a user meets it: real command lines, in processes of their own where that
matters and through `main` where it does not (importing torch takes a second each time)."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.cli.main import main

SCRIPTS = {
    # What every rank has of its own, and a class of __main__ that travels.
    "show.py": """
        import os, sys
        import __main__
        import torch.distributed as dist

        class Letter:
            def __init__(self, sender):
                self.sender = sender

        dist.init_process_group()
        rank = dist.get_rank()
        sys.argv.append(str(rank))
        print("arguments", *sys.argv[1:-1])
        print("hello from all", flush=True)
        letters = [None] * dist.get_world_size()
        dist.all_gather_object(letters, Letter(rank))
        assert __main__.Letter is Letter and __name__ == "__main__"
        assert all(type(letter) is Letter for letter in letters)
        assert sys.argv[-1] == str(rank), sys.argv
        names = ("LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT")
        print(f"rank {rank}", *(f"{name}={os.environ[name]}" for name in names))
        if rank == 0:
            print("only rank 0", file=sys.stderr)
        dist.destroy_process_group()
        """,
    "broken.py": """
        import torch, torch.distributed as dist

        def load(batch):
            raise ValueError("bad batch")

        def main():
            dist.init_process_group("gloo")
            dist.barrier()
            load(dist.get_rank())

        main()
        """,
    "one_broken.py": """
        import sys, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 2:
            sys.exit("no data")
        dist.barrier()
        """,
    "lonely.py": "print('hello')\n",
    "typo.py": "import torch\nprint('a'\n",
    "mismatch.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 1:
            dist.barrier()
        else:
            dist.all_reduce(torch.ones(4))
        """,
    "caught.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        try:
            dist.all_reduce(torch.ones(2 + dist.get_rank()))
        except RuntimeError:
            pass
        print("done")
        """,
    "caught_deadlock.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        try:
            dist.recv(torch.ones(2), 1 - dist.get_rank())
        except RuntimeError:
            pass
        print("done")
        """,
    "order.py": """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        dist.barrier()
        print("rank", dist.get_rank(), "comes as number", store.add("came", 1))
        """,
    "stuck.py": """
        import threading, torch.distributed as dist
        dist.init_process_group("gloo")
        threading.Event().wait()
        """,
    "unheard.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.isend(torch.ones(2), 1)
        print("done")
        """,
    "silenced.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        if dist.get_rank() == 0:
            dist.isend(torch.ones(2), 1)  # phalanx: ignore[unmatched-message] nobody listens
        """,
    "counted.py": """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        rank, t = dist.get_rank(), torch.ones(2)
        for _ in range(10):
            dist.all_reduce(t)
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        dist.barrier(group=pairs[rank // 2])
        if rank % 2:
            dist.send(t, rank - 1)
        else:
            dist.recv(t, rank + 1)
        dist.destroy_process_group(pairs[rank // 2])
        """,
    "talkative.py": """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        for number in range(50_000):
            print("line", number)
        """,
    "broken_package/__init__.py": "raise RuntimeError('not today')\n",
    "package/__init__.py": "",
    "package/beside.py": "WORD = 'beside'\n",
    "package/train.py": """
        import sys
        import torch.distributed as dist
        from package.beside import WORD
        dist.init_process_group("gloo")
        print(WORD, __spec__.name, __package__, *sys.argv[1:])
        """,
    "package/__main__.py": """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        print("main of", __package__)
        """,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts")
    for name, source in SCRIPTS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(textwrap.dedent(source))
    return folder


@dataclass
class Answer:
    status: int
    out: str
    err: str


@pytest.fixture
def phalanx(folder, monkeypatch, capsys):
    """Run a command line through `main` in the folder of scripts."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    def run(line: str) -> Answer:
        try:
            status = main(line.split())
        except SystemExit as end:
            status = end.code
        return Answer(status, *capsys.readouterr())

    return run


def start(folder, line: str, *python: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *python, "-m", "phalanx", *line.split()],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def processes(folder):
    """The same in processes of their own, all started at once."""
    started = {
        "show": start(
            folder,
            "run --nproc-per-node 2 --nnodes 2 --standalone --master-port 1234 "
            "show.py --lr 0.1 -n 9 --help",
        ),
        "broken": start(folder, "run -n 4 broken.py"),
        "talkative": start(folder, "run -n 2 talkative.py"),
        "help": start(folder, "--help", "-X", "importtime"),
    }
    assert started["talkative"].stdout is not None
    started["talkative"].stdout.readline()
    started["talkative"].stdout.close()  # as `| head -1` does
    started["talkative"].stdout = None
    answers = {}
    for name, process in started.items():
        out, err = process.communicate(timeout=50)
        answers[name] = Answer(process.returncode, out, err)
    return answers


def lines_of(rank: int, out: str) -> list[str]:
    """What a rank printed, however time folded it: `[0-2] text`, `[1, 3] text`."""
    found = []
    for line in out.splitlines():
        ranks, _, text = line.removeprefix("[").partition("]")
        for part in ranks.split(","):
            first, _, last = part.partition("-")
            if int(first) <= rank <= int(last or first):
                found.append(text.strip())
    return found


# -- a script that works ------------------------------------------------------------------


def test_a_script_runs_as_under_torchrun(processes) -> None:
    answer = processes["show"]
    assert answer.status == 0, answer.err
    for rank in range(4):
        assert lines_of(rank, answer.out) == [
            "arguments --lr 0.1 -n 9 --help",
            "hello from all",
            f"rank {rank} LOCAL_RANK={rank % 2} GROUP_RANK={rank // 2} WORLD_SIZE=4 "
            "LOCAL_WORLD_SIZE=2 MASTER_PORT=1234",
        ]
    closing = "phalanx: 4 ranks, 2 collectives on 1 group checked: nothing found"
    assert answer.err == f"[0]   only rank 0\n{closing}\n"


def test_quiet_shows_no_output_of_ranks(phalanx) -> None:
    assert phalanx("run -n 2 --quiet show.py") == Answer(0, "", "")
    assert phalanx("run -n 2 -q show.py") == Answer(0, "", "")


def test_rank_shows_these_only(phalanx) -> None:
    answer = phalanx("run -n 4 --rank 1,2-3 show.py a b")
    assert answer.status == 0 and answer.err.count("\n") == 1, "the closing line"
    assert answer.out.splitlines()[0] == "[1-3] arguments a b"
    assert "[0" not in answer.out
    assert phalanx("run -n 2 --rank 0 show.py").out.startswith("[0] arguments\n")


def test_a_module_runs_as_with_python_m(phalanx) -> None:
    answer = phalanx("run -n 2 -m package.train --lr 0.1")
    assert answer == Answer(0, "[0-1] beside package.train package --lr 0.1\n", "")
    assert phalanx("run -n 2 -m package") == Answer(0, "[0-1] main of package\n", "")
    assert phalanx("run -n 2 -m package.absent").status == 2
    assert not any(name.partition(".")[0] == "package" for name in sys.modules)


@pytest.mark.parametrize("spelling", ["-n 3", "--ranks 3", "--nproc_per_node 3", "--ranks=3"])
def test_spellings_of_the_number_of_ranks(phalanx, spelling: str) -> None:
    assert phalanx(f"run {spelling} show.py").out.startswith("[0-2] arguments\n")


def test_world_size_may_say_how_many(phalanx, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert phalanx("run show.py").out.startswith("[0-1] arguments\n")


def test_after_a_run_the_process_is_as_before(phalanx) -> None:
    before = sys.argv, list(sys.argv), list(sys.path), sys.modules["__main__"], sys.stdout
    phalanx("run -n 2 show.py")
    phalanx("run -n 2 broken.py")
    assert before == (sys.argv, sys.argv, sys.path, sys.modules["__main__"], sys.stdout)


def test_the_same_seed_prints_the_same(phalanx) -> None:
    def outputs():
        runs = [phalanx(f"run -n 3 --seed {seed} order.py").out for seed in (1, 2, 3, 4, 5)]
        return [sorted(out.splitlines()) for out in runs]  # lines are shown as time passes

    once, again = outputs(), outputs()
    assert once == again
    assert all(len(lines) == 3 for lines in once)
    assert len({tuple(lines) for lines in once}) > 1, "seeds differ"


# -- a script that fails --------------------------------------------------------------------


def test_a_scripts_own_error_is_shown_once_with_its_ranks_and_without_our_frames(
    processes,
) -> None:
    answer = processes["broken"]
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.count("Traceback (most recent call last):") == 1
    places = [line.split(", in ")[1] for line in answer.err.splitlines() if ", in " in line]
    assert places == ["<module>", "main", "load"]
    assert "site-packages" not in answer.err and "src/phalanx" not in answer.err
    assert "RankFailedError: ranks 0-3 raised ValueError: bad batch\n" in answer.err
    *_, replay, timeline, closing = answer.err.splitlines()
    assert timeline == "  timeline  phalanx report LAST"
    assert replay == "  replay    phalanx run --ranks 4 broken.py"
    checked = "4 ranks, 1 collective on 1 group checked until ranks 0-3 failed"
    assert closing == f"phalanx: {checked}: nothing found"


def test_when_nobody_reads_any_more_it_ends_without_a_word_of_ours(processes) -> None:
    answer = processes["talkative"]
    assert (answer.status, answer.err) == (141, "")


def test_sys_exit_with_a_text_is_a_failure_without_traceback(phalanx) -> None:
    answer = phalanx("run -n 3 one_broken.py")
    assert answer.status == 1
    assert answer.err.startswith("RankFailedError: rank 2 raised SystemExit: no data\n")


def test_a_verdict_has_a_status_of_its_own(phalanx) -> None:
    answer = phalanx("run -n 3 --seed 4 --profile gloo mismatch.py --fast")
    assert answer.status == 3
    assert answer.err.startswith(
        "CollectiveMismatchError: rank 1 called barrier where ranks 0, 2 called all_reduce\n"
    )
    assert "Traceback" not in answer.err
    *_, replay, timeline, closing = answer.err.splitlines()
    assert timeline == "  timeline  phalanx report LAST"
    assert replay == (
        "  replay    phalanx run --ranks 3 --seed 4 --profile gloo mismatch.py --fast"
    )
    assert closing == "phalanx: 3 ranks, 1 collective on 1 group checked: 1 error (mismatch)"


def test_a_finding_is_a_warning_and_under_strict_a_verdict(phalanx) -> None:
    told = "send(dst=1, tag=0) of rank 0 was never received; the run ended without it\n"
    answer = phalanx("run -n 2 --checks unmatched-message unheard.py")
    assert (answer.status, answer.out) == (0, "[0-1] done\n")
    assert answer.err.startswith(f"warning [unmatched-message]: {told}")
    checked = "1 message on 1 group checked (only for unmatched-message)"
    closing = f"{checked}: 1 warning (1 unmatched-message)"
    assert answer.err.splitlines()[-1] == f"phalanx: 2 ranks, {closing}"
    answer = phalanx("run -n 2 --checks unmatched-message --strict unheard.py")
    assert (answer.status, answer.out) == (3, "[0-1] done\n")
    assert answer.err.startswith(f"HazardError: [unmatched-message]: {told}")
    *_, replay, _, last = answer.err.splitlines()
    words = "run --ranks 2 --checks unmatched-message --strict unheard.py"
    assert replay == f"  replay    phalanx {words}"
    assert last == f"phalanx: 2 ranks, {closing}"


@pytest.mark.parametrize(
    ("checks", "told"),
    [
        ("none", "2 ranks, not checked (--checks none)"),
        (
            "all,-unmatched-message,-unwaited-work",
            "2 ranks, 1 message on 1 group checked (not for unmatched-message, unwaited-work): "
            "nothing found",
        ),
        (
            "mismatch,leak",
            "2 ranks, 1 message on 1 group checked (only for leak, mismatch): nothing found",
        ),
    ],
)
def test_a_kind_that_was_not_chosen_is_not_told(phalanx, checks: str, told: str) -> None:
    answer = phalanx(f"run -n 2 --strict --checks {checks} unheard.py")
    assert (answer.status, answer.out) == (0, "[0-1] done\n")
    assert answer.err == f"phalanx: {told}\n"


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_errors_that_the_script_catches_are_counted_and_are_errors_under_strict(
    phalanx, engine: str
) -> None:
    answer = phalanx(f"run -n 2 --engine {engine} caught.py")
    assert (answer.status, answer.out) == (0, "[0-1] done\n")
    assert answer.err == (
        "phalanx: caught mismatch: "
        "rank 0 passed float32[2] where rank 1 passed float32[3] to all_reduce\n"
        "phalanx: 2 ranks, 1 collective on 1 group checked: 1 error (mismatch), caught by the "
        "program\n"
    )
    assert phalanx(f"run -n 2 --engine {engine} --strict caught.py").status == 3


def test_a_deadlock_that_the_script_catches_is_counted_also_without_checks(phalanx) -> None:
    answer = phalanx("run -n 2 --checks none caught_deadlock.py")
    assert (answer.status, answer.out) == (0, "[0-1] done\n")
    assert answer.err.endswith(
        "phalanx: 2 ranks, 0 collectives checked (only for deadlock, invalid-call, stall): "
        "1 error (deadlock), caught by the program\n"
    )


def test_the_chosen_kinds_are_in_the_replay_line(phalanx) -> None:
    answer = phalanx("run -n 3 --checks mismatch,leak mismatch.py")
    assert (
        "  replay    phalanx run --ranks 3 --checks mismatch,leak mismatch.py\n" in answer.err
    )
    answer = phalanx("run -n 3 --checks all,-mismatch mismatch.py")
    assert "CollectiveMismatchError" not in answer.err


def test_a_line_can_silence_its_finding_with_a_reason(phalanx) -> None:
    answer = phalanx("run -n 2 --checks unmatched-message --strict silenced.py")
    assert answer.status == 0
    assert answer.err == (
        "phalanx: silenced unmatched-message at silenced.py:5: nobody listens\n"
        "phalanx: 2 ranks, 1 message on 1 group checked (only for unmatched-message): "
        "nothing found; 1 silenced\n"
    )


def test_collectives_are_counted_on_all_groups_also_destroyed_ones(phalanx) -> None:
    told = "phalanx: 4 ranks, 12 collectives and 2 messages on 3 groups checked: nothing found"
    assert phalanx("run -n 4 counted.py").err == f"{told}\n"
    assert phalanx("run -n 4 --quiet counted.py").err == ""


def test_a_stall_is_a_verdict(phalanx) -> None:
    answer = phalanx("run -n 2 --timeout 1.5 stuck.py")
    assert answer.status == 3
    assert answer.err.startswith("StallError: no rank moved for 1.5 s; ranks 0, 1 are outside")


@pytest.mark.parametrize("script", ["typo.py", "-m typo"])
def test_a_script_that_does_not_compile_is_shown_as_python_shows_it(
    phalanx, script: str
) -> None:
    answer = phalanx(f"run -n 2 {script}")
    assert answer.status == 1
    assert 'typo.py", line 2' in answer.err and "SyntaxError: '(' was never" in answer.err
    assert "Traceback" not in answer.err


# -- wrong usage ------------------------------------------------------------------------------

MANY = "give the number of ranks as a whole number from 1 to 4096"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run", "no script given; write: phalanx run -n 4 train.py"),
        ("run -n 4", "no script given; write: phalanx run -n 4 train.py"),
        ("run show.py", "say how many ranks to run: phalanx run -n 4 show.py"),
        ("run -n 2 absent.py", "no such script: 'absent.py' (looked in "),
        ("run -n 2 package.train", "did you mean a module? Then write -m before it"),
        ("run -n 2 package", "'package' is a directory; name a script, or a module with -m"),
        ("run -n 2 -m absent.train", "no module named 'absent.train' (looked in "),
        ("run -n 2 -m package.absent", "no module named 'package.absent' (looked in "),
        ("run -n 2 -m show.py", "-m show.py: write -m show, or the script's path without -m"),
        ("run -n 2 -m broken_package.train", "it is in raised RuntimeError: not today"),
        ("run -n 0 show.py", "-n 0: at least 1 is needed, e.g. -n 4"),
        ("run -n -2 show.py", "-n -2: at least 1 is needed, e.g. -n 4"),
        ("run -n many show.py", "-n many: a whole number is needed, e.g. -n 4"),
        ("run -n 100000 show.py", f"--ranks 100000: {MANY}"),
        ("run -n 4 --nnodes 0 show.py", "--nnodes 0: at least 1 is needed, e.g. --nnodes 4"),
        ("run -n 4 --seed x show.py", "--seed x: a whole number is needed"),
        ("run -n 4 --seed -1 show.py", "--seed -1: a seed is a whole number from 0 on"),
        ("run -n 4 --timeout soon show.py", "--timeout soon: seconds are needed"),
        ("run -n 4 --timeout 0 show.py", "--timeout 0: give seconds above 0, or leave it out"),
        ("run -n 4 --timeout -1 show.py", "--timeout -1: give seconds above 0, or leave"),
        (
            "run -n 4 --checks mismach show.py",
            "--checks mismach: there is no kind 'mismach'; did",
        ),
        (
            "run -n 4 --checks all,-x show.py",
            "--checks all,-x: there is no kind 'x'. Give all",
        ),
        ("run -n 4 --profile mpi show.py", "--profile mpi: give gloo or nccl"),
        ("run -n 4 --engine torchrun --checks x show.py", "--checks x: there is no kind 'x'"),
        ("run -n 4 --engine torchrun --profile x show.py", "--profile x: give gloo or nccl"),
        ("run -n 4 --clock sun show.py", "--clock sun: choose one of 'real', 'virtual'"),
        ("run -n 4 --engine cloud show.py", "--engine cloud: choose one of 'threads', 'pro"),
        ("run -n 4 --rank 4 show.py", "--rank 4: there are ranks 0 to 3"),
        ("run -n 4 --rank 3-1 show.py", "--rank 3-1: there are ranks 0 to 3"),
        ("run -n 4 --rank first show.py", "--rank first: a whole number is needed"),
        ("run -n 4 --fast show.py", "unknown option: --fast"),
        ("run -n 4 --quie show.py", "unknown option: --quie; did you mean --quiet?"),
        ("--quiet run -n 4 show.py", "unknown option: --quiet; write it after 'run'"),
        ("fly", "invalid choice: 'fly'"),
        ("run -n 4 --checks= show.py", "phalanx: --checks: no kind is given. Give all"),
        ("run -n 4 --checks -leak show.py", "expected one argument, e.g. --checks mismatch"),
        ("--", "no command given; choose one of run, explore, conf"),
        ("run -n 2 lonely.py", "lonely.py ended without a call of init_process_group"),
    ],
    ids=str,
)
def test_wrong_usage_is_told_in_a_line(phalanx, line: str, told: str) -> None:
    answer = phalanx(line)
    assert answer.status == 2
    assert told in answer.err
    assert answer.err.startswith("phalanx: ") and "Traceback" not in answer.err
    assert len(answer.err.splitlines()) <= 2


def test_a_contradiction_to_world_size_is_refused(phalanx, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    answer = phalanx("run -n 4 show.py")
    assert answer.status == 2
    assert answer.err == (
        "phalanx: 4 ranks were asked for, but the environment says WORLD_SIZE=8; "
        "unset WORLD_SIZE or write -n 8\n"
    )


def test_a_single_rank_need_not_initialise(phalanx) -> None:
    assert phalanx("run -n 1 lonely.py") == Answer(0, "[0] hello\n", "")


# -- help ---------------------------------------------------------------------------------


def test_help_is_quick(processes) -> None:
    answer = processes["help"]
    assert answer.status == 0
    assert answer.out.startswith("usage: phalanx ") and "exit status: 0" in answer.out
    imported = {line.rpartition("|")[2].strip() for line in answer.err.splitlines()}
    assert "phalanx.cli.main" in imported
    assert not {name for name in imported if name.partition(".")[0] in ("torch", "numpy")}


def test_without_a_word_the_help_is_shown(phalanx) -> None:
    answer = phalanx("")
    assert answer.status == 2 and answer.err.startswith("usage: phalanx")
    assert "examples:" in answer.err


def test_help_of_run_names_every_option(phalanx) -> None:
    answer = phalanx("run --help")
    assert answer.status == 0
    for option in ("--ranks", "--nnodes", "--seed", "--clock", "--timeout", "--quiet", "-m"):
        assert option in answer.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--engine", "proc"], "phalanx: --engine proc: choose one of "),
        (["--engine", "processes", "--seed", "3"], "phalanx: --seed 3: the system decides"),
    ],
)
def test_errors_name_options_as_they_are_written(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    assert main(["run", "-n", "2", *options, str(script)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert "engine=" not in shown
