"""`phalanx explore` as a user meets it: what it finds, repeats, refuses and ends with."""

from __future__ import annotations

import gzip
import json
import signal
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from phalanx.cli.main import main
from tests.forked_programs import run_forked, start_forked

SCRIPTS = {
    # Fails where rank 1 is the first one to come.
    "race.py": """
        import sys
        import torch.distributed as dist

        dist.init_process_group("gloo")
        place = dist.distributed_c10d._get_default_store().add("come", 1)
        print(f"rank {dist.get_rank()} came as number {place}", *sys.argv[1:])
        if dist.get_rank() == 1 and place == 1:
            raise ValueError("rank 1 came first")
        dist.barrier()
        dist.destroy_process_group()
        """,
    # Deadlocks where rank 1 is the first one to come.
    "stuck.py": """
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        place = dist.distributed_c10d._get_default_store().add("come", 1)
        if dist.get_rank() == 1 and place == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()
        """,
    "right.py": """
        import torch, torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print("total", total.item())
        dist.destroy_process_group()
        """,
    "come.py": """
        import torch.distributed as dist

        dist.init_process_group("gloo")
        print("place", dist.distributed_c10d._get_default_store().add("come", 1))
        """,
    "alone.py": "print('hello')",
    "spawn.py": """
        import torch.multiprocessing as mp, torch.distributed as dist

        def work(rank):
            dist.init_process_group("gloo", rank=rank, world_size=2)

        if __name__ == "__main__":
            mp.spawn(work, nprocs=2)
        """,
    # Tells when it has begun, and never ends by itself.
    "long.py": """
        import os, torch.distributed as dist

        dist.init_process_group("gloo")
        store = dist.distributed_c10d._get_default_store()
        place = store.add("come", 1)
        os.close(os.open("began", os.O_CREAT | os.O_WRONLY))
        if dist.get_rank() == 1 and place == 1:
            raise ValueError("rank 1 came first")
        dist.destroy_process_group()
        """,
}


@pytest.fixture(autouse=True)
def _scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@dataclass
class Done:
    status: int
    out: str
    err: str


@pytest.fixture
def explore(capsys: pytest.CaptureFixture[str]) -> object:
    def run(*arguments: str) -> Done:
        try:
            status = main(["explore", *arguments])
        except SystemExit as end:
            status = int(end.code or 0)
        shown = capsys.readouterr()
        return Done(status, shown.out, shown.err)

    return run


def token_in(text: str) -> str:
    _, _, rest = text.partition("--replay ")
    return rest.split()[0]


def test_an_error_of_the_script_ends_with_1(explore) -> None:  # type: ignore[no-untyped-def]
    done = explore("-n", "2", "--schedules", "20", "race.py", "--lr", "1")
    assert done.status == 1
    assert "rank 1 raised ValueError: rank 1 came first" in done.out
    assert "  replay    phalanx explore --ranks 2 --replay 2-" in done.out
    assert " race.py --lr 1\n" in done.out
    assert "came as number" not in done.out + done.err


def test_a_verdict_of_ours_ends_with_3(explore) -> None:  # type: ignore[no-untyped-def]
    done = explore("-n", "2", "--schedules", "20", "stuck.py")
    assert done.status == 3
    assert "deadlock" in done.out


def test_nothing_found_ends_with_0(explore) -> None:  # type: ignore[no-untyped-def]
    done = explore("-n", "2", "--schedules", "3", "right.py")
    assert (done.status, done.err) == (0, "")
    assert done.out == (
        "the only behaviour of right.py on 2 ranks with this input explored: it does not fail\n"
    )
    assert explore("-n", "2", "-q", "--schedules", "3", "right.py") == Done(0, "", "")


def test_it_says_what_to_know_besides(explore, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    found = explore("-n", "2", "--schedules", "20", "race.py", "--lr", "1")
    assert found.out.endswith(
        "phalanx: kept in .phalanx: the next exploration tries it first\n"
    )
    assert (tmp_path / ".phalanx" / ".gitignore").read_text() == "*\n"
    assert "kept in" not in explore("-n", "2", "--no-store", "race.py").out
    unproved = explore("-n", "3", "--compare", "none", "--schedules", "2", "come.py")
    assert unproved.out.splitlines()[1:] == [
        "phalanx: this is no proof; --strategy exhaustive explores all orders, if they are few"
    ]
    proved = explore("-n", "2", "--compare", "none", "--strategy", "exhaustive", "come.py")
    assert proved.out == (
        "all 2 behaviours of come.py on 2 ranks with this input explored: none fails\n"
    )


def test_a_module(explore) -> None:  # type: ignore[no-untyped-def]
    done = explore("-n", "2", "--schedules", "20", "-m", "race")
    assert done.status == 1
    assert " -m race\n" in done.out


def test_a_replay_shows_the_output_and_is_recorded(explore) -> None:  # type: ignore[no-untyped-def]
    token = token_in(explore("-n", "2", "--schedules", "20", "race.py").out)
    done = explore("-n", "2", "--replay", token, "--record", "run.jsonl.gz", "race.py")
    assert done.status == 1
    assert "[1]   rank 1 came as number 1" in done.out
    assert f"--replay {token} race.py" in done.out
    assert f"the run of {token} again, exactly: it ends in an error\n" in done.out
    assert "phalanx report run.jsonl.gz shows it" in done.out
    with gzip.open("run.jsonl.gz", "rt") as lines:
        head = json.loads(next(iter(lines)))
    assert head["command"] == f"phalanx explore --ranks 2 --replay {token} race.py"


def test_a_token_says_how_many_ranks(explore) -> None:  # type: ignore[no-untyped-def]
    token = token_in(explore("-n", "2", "race.py").out)
    done = explore("--replay", token, "race.py")
    assert (done.status, done.err) == (1, "")
    assert f"the run of {token} again, exactly" in done.out


def test_json_for_tools(explore) -> None:  # type: ignore[no-untyped-def]
    explore("-n", "2", "--schedules", "20", "--seed", "3", "--json", "found.json", "stuck.py")
    found = json.loads(Path("found.json").read_text())
    assert (found["passed"], found["schedules"], found["seed"]) == (False, 20, 3)
    kinds = [(each["kind"], each["verdict"]["type"]) for each in found["failures"]]
    assert ("deadlock", "Deadlock") in kinds
    assert all(each["token"] in each["replay"] for each in found["failures"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", "no script given; write: phalanx explore -n 4 train.py"),
        ("-n 2 none.py", "no such script: 'none.py'"),
        ("-n 0 race.py", "-n 0: at least 1 is needed"),
        ("race.py", "say how many ranks to explore: phalanx explore -n 4 race.py."),
        ("-n 2 spawn.py", "A script that starts its ranks itself (torch.multiprocessing.spawn"),
        ("-n 2 alone.py", "alone.py ended without a call of init_process_group"),
        ("-n 2 -m pytest", "pytest explores by itself: pytest --ranks-explore 200"),
        ("-n 2 --schedules 0 race.py", "--schedules 0: give how many schedules to try"),
        ("-n 2 --schedules x race.py", "--schedules x: a whole number is needed, e.g. --sch"),
        ("-n 2 --seconds 0 race.py", "--seconds 0: give seconds above 0"),
        ("-n 2 --strategy dfs race.py", "--strategy dfs: choose one of 'pos', 'pct',"),
        ("-n 2 --seed -1 race.py", "--seed -1: a seed is a whole number from 0 on"),
        ("-n 2 --compare all race.py", "write e.g. --compare values,output"),
        ("-n 2 --faults rain race.py", "there is no kind 'rain'; choose among kill"),
        ("-n 2 --replay no race.py", "--replay no: give the token that a failure was"),
        ("-n 2 --record f race.py", "--record f: one run is recorded, and this explores many"),
        ("-n 2 --clock wall race.py", "--clock wall: choose one of 'real', 'virtual'"),
        ("-n 2 --checks leek race.py", "there is no kind 'leek'; did you mean 'leak'?"),
        ("-n 2 --json no/x right.py --schedules 1", "--json no/x: cannot be written (No such"),
        (
            "-n 2 --engine processes race.py",
            "unknown option: --engine (an option of phalanx run, phalanx",
        ),
    ],
)
def test_wrong_usage_ends_with_2(explore, arguments: str, text: str) -> None:  # type: ignore[no-untyped-def]
    done = explore(*arguments.split())
    assert done.status == 2
    assert text in done.err
    assert "Traceback" not in done.err


@pytest.mark.programs
def test_ctrl_c_ends_with_what_was_found(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phalanx", "explore", "-n", "2", "--seconds", "600"]
    with start_forked([*command, "long.py"], cwd=tmp_path, env=None) as program:
        while not (tmp_path / "began").exists():
            assert program.poll() is None
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(60)
        assert program.wait() == 130
    assert "interrupted; this is what was found so far" in err
    assert "explored" in out


@pytest.mark.programs
def test_it_is_a_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "phalanx", "explore", "-n", "2", "race.py"]
    done = run_forked(command, cwd=tmp_path, timeout=60)
    assert (done.returncode, done.stderr) == (1, "")
