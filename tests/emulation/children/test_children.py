"""Programs that start their ranks themselves: their processes become ranks."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from phalanx.cli.self_spawned import tell_launch
from phalanx.emulation.children.spawn_rules import find_launches
from phalanx.engines.program import load_module, load_script
from phalanx.engines.run_settings import Settings
from phalanx.engines.threads.script_on_threads import run_program
from phalanx.engines.threads.self_spawning_scripts import LaunchResult, run_launched
from phalanx.errors import CollectiveMismatchError, DeadlockError, RankFailedError, UsageError

PROGRAMS = Path(__file__).parent / "programs"
EVERY = sorted(path.stem for path in PROGRAMS.glob("*.py") if not path.stem.startswith("_"))

HEAD = """
import os, sys, time
import torch, torch.distributed as dist, torch.multiprocessing as mp

def init(rank, size):
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1234")
    dist.init_process_group("gloo", rank=rank, world_size=size)
"""


def launch(path: Path | str, *args: str) -> LaunchResult:
    return run_launched(load_script(str(path), list(args)), Settings(ranks=1, init=False))


def launch_text(folder: Path, text: str) -> LaunchResult:
    path = folder / "script.py"
    path.write_text(HEAD + text)
    return launch(path)


@pytest.mark.slow  # a fork copies all modules of tests as the program's own: too long for CI
@pytest.mark.parametrize("name", EVERY)
def test_a_program_runs_and_leaves_nothing(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """That the results are those of plain Python is compared below, where there is time."""
    before = set(threading.enumerate()), dict(os.environ), sys.modules["__main__"], sys.argv
    modules = set(sys.modules)
    found = launch(PROGRAMS / f"{name}.py")
    assert found.error is None, capfd.readouterr()
    assert found.worlds and found.worlds[0].tally
    assert {t for t in threading.enumerate() if "rank-" in t.name} <= before[0]
    assert dict(os.environ) == before[1]
    assert (sys.modules["__main__"], sys.argv) == before[2:]
    assert not {each for each in set(sys.modules) - modules if "_program_" in each}


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", EVERY)
def test_a_program_gives_what_plain_python_gives(name: str, tmp_path: Path) -> None:
    def run(*command: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, *command],
            capture_output=True,
            text=True,
            timeout=110,
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": ""},  # or lines of processes mix
        )
        assert done.returncode == 0, done.stderr
        lines = [
            line.partition("] ")[2].strip() if _labelled(line) else line
            for line in done.stdout.splitlines()
        ]
        return sorted(lines)

    path = str(PROGRAMS / f"{name}.py")
    assert run("-m", "phalanx", "run", path) == run(path, str(_free_port()))


def _labelled(line: str) -> bool:
    label, end, _ = line.partition("] ")
    return bool(end) and label[:1] == "[" and label[1:].replace("-", "").isdecimal()


def _free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_reports_name_the_ranks_that_init_process_group_was_given(tmp_path: Path) -> None:
    text = """
def work(index, size):
    init(size - 1 - index, size)
    if dist.get_rank() != 2:
        dist.barrier()

if __name__ == "__main__":
    children = [mp.Process(target=work, args=(i, 3)) for i in range(3)]
    for child in children: child.start()
    for child in children: child.join()
"""
    found = launch_text(tmp_path, text)
    error = found.worlds[0].error
    assert isinstance(error, DeadlockError)
    assert str(error).startswith(("rank 2 returned; ranks 0, 1 wait", "rank 2 returned; rank "))
    assert found.error is None and not found.observed


def test_a_mismatch_is_raised_in_ranks_and_by_spawn(tmp_path: Path) -> None:
    text = """
def work(rank, size):
    init(rank, size)
    dist.barrier() if rank == 1 else dist.all_reduce(torch.ones(2))

if __name__ == "__main__":
    mp.spawn(work, args=(3,), nprocs=3)
"""
    found = launch_text(tmp_path, text)
    assert isinstance(found.worlds[0].error, CollectiveMismatchError)
    assert type(found.error).__name__ == "ProcessRaisedException"
    assert "rank 1 called barrier where ranks 0, 2 called all_reduce" in str(found.error)


def test_the_end_of_a_child_is_as_that_of_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
def leave(rank, how):
    if how == "exit":
        sys.exit(7)
    if how == "_exit":
        os._exit(4)
    if how == "_exit well":
        os._exit(0)
    if how == "raise":
        raise ValueError("no")

def one(how):
    child = mp.Process(target=leave, args=(0, how))
    child.start()
    child.join()
    return child.exitcode

def wait(rank):
    time.sleep(60)

if __name__ == "__main__":
    print([one(how) for how in ("return", "exit", "_exit", "_exit well", "raise")])
    children = [mp.Process(target=wait, args=(rank,)) for rank in range(2)]
    for child in children: child.start()
    print([child.is_alive() for child in children], children[0].exitcode)
    children[0].join(0.2)
    children[0].terminate()
    children[1].kill()
    for child in children: child.join()
    print([child.exitcode for child in children], mp.active_children())
    daemon = mp.Process(target=wait, args=(0,), daemon=True)
    daemon.start()
"""
    found = launch_text(tmp_path, text)
    assert found.error is None
    assert capsys.readouterr().out.splitlines() == [
        "[0, 7, 4, 0, 1]",
        "[True, True] None",
        "[-15, -9] []",
    ]


def test_ranks_that_are_ended_in_a_call_leave_nothing_to_find(tmp_path: Path) -> None:
    """What they were in the middle of is not forgotten work."""
    text = """
def work(rank):
    init(rank, 2)
    if rank:
        time.sleep(60)
    dist.barrier()

if __name__ == "__main__":
    children = [mp.Process(target=work, args=(rank,)) for rank in range(2)]
    for child in children: child.start()
    children[0].join(0.5)
    for child in children: child.terminate()
    for child in children: child.join()
"""
    path = tmp_path / "script.py"
    path.write_text(HEAD + text)
    told: list[object] = []
    settings = Settings(ranks=1, init=False, on_findings=told.extend)
    found = run_launched(load_script(str(path), []), settings)
    assert found.error is None and len(found.worlds) == 1
    assert told == []


LEAVING = """
def work(rank):
    if rank == 1:
        sys.exit("rank one gives up")

if __name__ == "__main__":
    try:
        mp.spawn(work, nprocs=2)
    except mp.ProcessExitedException:
        if "again" in sys.argv: raise
"""


@pytest.mark.parametrize("args", [(), ("again",)])
def test_what_a_rank_says_by_sys_exit_is_told_once(
    args: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def tell(error: BaseException) -> int:
        print(error, file=sys.stderr)
        return 1

    path = tmp_path / "script.py"
    path.write_text(HEAD + LEAVING)
    found = launch(path, *args)
    assert tell_launch(found, "script.py", tell) == len(args)
    told = capsys.readouterr().err
    if args:
        assert told.startswith("rank 1 raised SystemExit: rank one gives up\n")
        assert "[1]" not in told
    else:
        assert told == "[1]   rank one gives up\n"


def test_processes_that_are_no_ranks_stay_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import multiprocessing
def number(i, queue):
    queue.put(os.getpid())

def alone(queue):
    queue.put(os.getpid())

def square(x):
    return x * x, os.getpid()

if __name__ == "__main__":
    queue = mp.Queue()
    for target, args in ((alone, (queue,)), (number, (5, queue))):
        child = mp.Process(target=target, args=args)
        child.start()
        print(queue.get() != os.getpid())
        child.join()
    with multiprocessing.Pool(2) as pool:
        squares = pool.map(square, range(4))
    print([s for s, _ in squares], os.getpid() in {pid for _, pid in squares})
"""
    found = launch_text(tmp_path, text)
    assert found.error is None and not found.worlds
    assert capsys.readouterr().out.splitlines() == ["True", "True", "[0, 1, 4, 9] False"]


def test_children_may_be_started_with_pauses_between(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
def work(rank, world_size):
    init(rank, world_size)
    dist.barrier()

if __name__ == "__main__":
    children = []
    for rank in range(3):
        children.append(mp.Process(target=work, args=(rank, 3)))
        children[-1].start()
        time.sleep(0.5)
    for child in children: child.join()
    print([child.exitcode for child in children])
"""
    found = launch_text(tmp_path, text)
    assert [world.error for world in found.worlds] == [None]
    assert capsys.readouterr().out == "[0, 0, 0]\n"


def test_pauses_do_not_decide_how_many_ranks_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
N = 2
def work(rank):
    init(rank, N)
    dist.barrier()

if __name__ == "__main__":
    children = [mp.Process(target=work, args=(rank,)) for rank in range(N)]
    for child in children:
        child.start()
        time.sleep(0.6)
    for child in children: child.join()
    print([child.exitcode for child in children])
"""
    found = launch_text(tmp_path, text)
    assert [world.error for world in found.worlds] == [None]
    assert capsys.readouterr().out == "[0, 0]\n"


@pytest.mark.parametrize(
    "start, goes_on",
    [
        ("[mp.Process(target=work, args=(r, done)) for r in range(2)]", "c.is_alive()"),
        ("[mp.Process(target=work, args=(r, done)) for r in range(2)]", "c.exitcode is None"),
        ("mp.spawn(work, (done,), nprocs=2, join=False).processes", "not done.value"),
    ],
)
def test_a_program_that_waits_in_a_loop_is_noticed(
    start: str, goes_on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.emulation.children.spawned_ranks.LONG", 1000.0)
    text = f"""
def work(rank, done):
    init(rank, 2)
    dist.barrier()
    done.value = 1

if __name__ == "__main__":
    done = mp.get_context("spawn").Value("i", 0)
    children = {start}
    for c in children:
        if c._popen is None: c.start()
    while any({goes_on} for c in children): time.sleep(0.01)
    for c in children: c.join()
"""
    found = launch_text(tmp_path, text)
    assert [world.error for world in found.worlds] == [None] and found.error is None


@pytest.mark.parametrize("pause", [0.0, 0.2])
def test_threads_may_start_ranks_at_the_same_time(
    pause: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import threading
def work(rank, world_size, port, values):
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    total = torch.tensor(float(port))
    dist.all_reduce(total)
    values[rank] = total.item()

def begin(port):
    context = mp.get_context("spawn")
    values = context.Array("d", 2)
    children = [context.Process(target=work, args=(r, 2, port, values)) for r in range(2)]
    for child in children:
        child.start()
        time.sleep(PAUSE)
    for child in children: child.join()
    results.append((port, *values, [child.exitcode for child in children]))

if __name__ == "__main__":
    results = []
    threads = [threading.Thread(target=begin, args=(port,)) for port in (2000, 3000)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    print(sorted(results))
"""
    found = launch_text(tmp_path, text.replace("PAUSE", str(pause)))
    assert found.error is None and not any(world.error for world in found.worlds)
    tallies = [world.tally for world in found.worlds if world.tally]
    assert sum(each.ranks or 0 for each in tallies) == 4
    assert sum(each.collectives or 0 for each in tallies) == 2
    expected = [(port, 2.0 * port, 2.0 * port, [0, 0]) for port in (2000, 3000)]
    assert capsys.readouterr().out == f"{expected}\n"


def test_launches_are_told_apart_by_who_starts_them_and_numbers_that_return() -> None:
    def launches(numbers: list[int], starters: list[int]) -> list[list[int]]:
        processes = [multiprocessing.Process(target=launch, args=(n,)) for n in numbers]
        return find_launches(processes, [{}] * len(numbers), starters)

    assert launches([0, 0, 1, 1], [7, 8, 7, 8]) == [[0, 2], [1, 3]]
    assert launches([0, 1, 0], [7, 7, 8]) == [[0, 1], [2]]
    assert launches([0, 1, 2, 3], [7, 7, 8, 8]) == [[0, 1, 2, 3]]
    assert launches([0, 1, 0, 1], [7, 7, 7, 7]) == [[0, 1, 2, 3]]
    assert launches([0, 1, 5], [7, 8, 9]) == [[0, 1, 2]]


def test_a_rank_of_a_script_may_leave_by_os_exit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a process: no exit functions, and no thread is waited for."""
    text = """
import atexit, threading
dist.init_process_group("gloo")
atexit.register(print, "exit function")
def linger():
    while True: time.sleep(0.01)
threading.Thread(target=linger).start()
dist.barrier()
print("leaves", flush=True)
os._exit(0)
"""
    path = tmp_path / "script.py"
    path.write_text(HEAD + text)
    assert run_program(load_script(str(path), []), Settings(ranks=2, init=False))
    assert capsys.readouterr().out == "leaves\n" * 2


def test_a_world_that_came_out_too_small_says_why(tmp_path: Path) -> None:
    text = """
def work(rank):
    init(rank, 3)

if __name__ == "__main__":
    child = mp.Process(target=work, args=(0,))
    child.start()
    child.join()
"""
    (world,) = launch_text(tmp_path, text).worlds
    cause = world.error.__cause__ if world.error else None
    assert isinstance(cause, UsageError)
    assert "world_size=3), but the program had started 1 process when" in str(cause)


ALONE = """
import multiprocessing as mp

def work(i):
    print("number", i, flush=True)

if __name__ == "__main__":
    child = mp.get_context("spawn").Process(target=work, args=(0,))
    child.start()
    child.join()
    print("code", child.exitcode, flush=True)
"""


def test_a_lone_spawned_process_is_started_late(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "script.py"
    path.write_text(ALONE)
    found = launch(path)
    assert found.error is None and not found.worlds
    assert capfd.readouterr().out == "number 0\ncode 0\n"


def test_a_forked_process_that_is_no_rank_has_groups_of_torchs_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
def work():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.barrier()

if __name__ == "__main__":
    child = mp.get_context("fork").Process(target=work)
    child.start()
    child.join()
    print(child.exitcode)
"""
    found = launch_text(tmp_path, text)
    assert found.error is None and not found.worlds
    assert capsys.readouterr().out == "0\n"


def test_a_forked_rank_leaves_the_file_of_its_store_and_knows_its_parent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import tempfile

def work(rank, path):
    assert mp.parent_process().is_alive() and mp.parent_process().pid == os.getppid_of_rank
    store = dist.FileStore(path, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.destroy_process_group()

if __name__ == "__main__":
    os.getppid_of_rank = os.getpid()
    with tempfile.NamedTemporaryFile(dir=sys.argv[1]) as file:
        mp.start_processes(work, (file.name,), nprocs=2, start_method="fork")
    print(mp.parent_process())
"""
    folder = tmp_path / "files"
    folder.mkdir()
    path = tmp_path / "script.py"
    path.write_text(HEAD + text)
    found = launch(path, str(folder))
    assert found.error is None
    assert capsys.readouterr().out == "None\n"
    assert not list(folder.iterdir())


def test_the_main_module_of_a_package_is_executed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody guards it: multiprocessing leaves it alone."""
    package = tmp_path / "_unguarded_job"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("from .cli import main\nmain()\n")
    text = """
def work(rank):
    init(rank, 2)
    print("main is", sys.modules["__main__"].__name__, flush=True)

def main():
    mp.spawn(work, nprocs=2)
    print("done")
"""
    (package / "cli.py").write_text(HEAD + text)
    monkeypatch.syspath_prepend(tmp_path)
    program = load_module("_unguarded_job", [])
    found = run_launched(program, Settings(ranks=1, init=False))
    assert found.error is None and [world.error for world in found.worlds] == [None]
    assert capsys.readouterr().out == "main is __main__\n" * 2 + "done\n"


def test_a_rank_without_a_group_that_calls_spawn_is_told_what_is_meant(tmp_path: Path) -> None:
    from phalanx.engines.threads.script_on_threads import run_program

    path = tmp_path / "script.py"
    path.write_text(HEAD + "if __name__ == '__main__': mp.spawn(print, nprocs=2)")
    with pytest.raises(RankFailedError, match="starts its ranks itself") as caught:
        run_program(load_script(str(path), []), Settings(ranks=2, init=False))
    assert isinstance(caught.value.__cause__, UsageError)


def test_a_program_without_ranks_is_told_so(tmp_path: Path) -> None:
    found = launch_text(tmp_path, "dist.init_process_group('gloo')")
    assert isinstance(found.error, UsageError)
    assert "say how many ranks to run: phalanx run -n 4" in str(found.error)
    assert not launch_text(tmp_path, "x = 1").worlds


LAUNCHER = """
commands = [sys.executable, "-u", os.path.abspath("ranks.py"), "--rate", "3"]
names = dict(__name__="torch.distributed.elastic.pretended", commands=commands)
exec("import subprocess; [subprocess.run(commands) for _ in range(2)]", names)
"""


def test_a_program_that_uses_torchs_launcher_is_told_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranks.py").write_text("import sys; assert sys.argv[1:] == ['--rate', '3']")
    found = launch_text(tmp_path, LAUNCHER)
    with pytest.raises(UsageError, match=r"phalanx run -n 2 ranks\.py --rate 3"):
        tell_launch(found, "script.py", lambda error: 1)


@pytest.mark.slow  # a process of its own: the launcher leaves threads behind that harm forks
def test_torchs_launcher_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text("print('rank')")
    (tmp_path / "script.py").write_text(
        "from torch.distributed.run import main\n"
        "main(['--standalone', '--nproc-per-node', '2', 'ranks.py', '--rate', '3'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "phalanx", "run", "script.py"],
        capture_output=True,
        text=True,
        timeout=50,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (2, "rank\nrank\n")
    assert "give phalanx what is started: phalanx run -n 2 ranks.py --rate 3" in done.stderr


def test_a_program_that_starts_torchrun_is_told_what_to_write(tmp_path: Path) -> None:
    text = "import subprocess; subprocess.run([sys.executable, '-c', '', 'torchrun'])"
    found = launch_text(tmp_path, text)
    with pytest.raises(UsageError, match=r"torch's own launcher.* phalanx run -n 4 SCRIPT"):
        tell_launch(found, "script.py", lambda error: 1)


def test_an_address_that_is_missing_is_missed_as_in_a_process(tmp_path: Path) -> None:
    text = """
def work(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)

if __name__ == "__main__":
    os.environ.pop("MASTER_ADDR", None)
    mp.spawn(work, nprocs=2)
"""
    found = launch_text(tmp_path, text)
    assert "MASTER_ADDR" in str(found.error)


def test_programs_of_a_script_that_cannot_go_on_are_ended(tmp_path: Path) -> None:
    text = """
import pathlib, subprocess
program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("number").write_text(str(program.pid))
dist.init_process_group("gloo", rank=0, world_size=2, init_method="tcp://localhost:1")
"""
    found = launch_text(tmp_path, text.replace('"number"', repr(str(tmp_path / "number"))))
    assert isinstance(found.error, UsageError)
    assert not Path(f"/proc/{(tmp_path / 'number').read_text()}/stat").exists()
