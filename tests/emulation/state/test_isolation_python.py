"""What Python's own modules keep for the process: logging, exit functions, the environment,
file descriptors. Each rank has its own, as a process would."""

from __future__ import annotations

import atexit
import ctypes
import logging
import logging.config
import multiprocessing.util
import os
import random
import subprocess
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import phalanx
from phalanx.cli import streams
from phalanx.emulation.state import exits, interpreter, logs
from tests.emulation.isolation_programs import in_processes, in_ranks, run_script

Meet = Callable[[], object]


# -- logging ----------------------------------------------------------------------------------


def configure(folder: Path) -> Callable[[int, Meet], list[Any]]:
    """As training programs do: a file for each rank, and a level by rank."""

    def program(rank: int, meet: Meet) -> list[Any]:
        path = folder / f"{rank}.log"
        path.unlink(missing_ok=True)
        logging.root.handlers = []  # of the program that tests
        logging.basicConfig(
            filename=path, level=[logging.DEBUG, logging.WARNING][rank], format="%(message)s"
        )
        meet()
        own = logging.getLogger("own.program")
        own.setLevel(logging.INFO if rank == 0 else logging.ERROR)
        own.addHandler(logging.FileHandler(path))
        own.propagate = rank == 0
        meet()
        logging.debug("debug of %d", rank)
        logging.warning("warning of %d", rank)
        own.info("info of %d", rank)
        own.error("error of %d", rank)
        meet()
        if rank == 1:
            logging.disable(logging.CRITICAL)
        meet()
        logging.error("last of %d", rank)
        box: list[bool] = []
        helper = threading.Thread(target=lambda: box.append(own.isEnabledFor(logging.INFO)))
        helper.start()
        helper.join()
        meet()
        logging.disable(logging.NOTSET)
        return [*path.read_text().splitlines(), *box, len(own.handlers), own.propagate]

    return program


def test_the_configuration_of_logging_is_each_ranks_own(tmp_path: Path) -> None:
    root, own = logging.getLogger(), logging.getLogger("own.program")
    before = root.level, list(root.handlers), own.level, list(own.handlers), own.propagate
    wanted = in_processes(configure(tmp_path), 2)
    assert in_ranks(configure(tmp_path), 2) == wanted
    assert in_ranks(configure(tmp_path), 2, seed=3) == wanted
    after = root.level, list(root.handlers), own.level, list(own.handlers), own.propagate
    assert after == before
    assert len(wanted[0]) == 10 and wanted[0][0] == "debug of 0"


def test_ranks_begin_with_the_callers_configuration(caplog: pytest.LogCaptureFixture) -> None:
    def program() -> None:
        logging.getLogger("anything").warning("from %d", dist.get_rank())

    phalanx.run(program, ranks=3)
    assert sorted(caplog.messages) == ["from 0", "from 1", "from 2"]


def test_dict_config_closes_only_the_ranks_own_handlers(tmp_path: Path) -> None:
    mine = logging.FileHandler(tmp_path / "caller.log")
    logger = logging.getLogger("callers")
    logger.addHandler(mine)

    def program() -> int:
        rank = dist.get_rank()
        handler = {"class": "logging.FileHandler", "filename": str(tmp_path / f"d{rank}.log")}
        config: dict[str, Any] = {"version": 1, "disable_existing_loggers": True}
        config |= {"handlers": {"file": handler}, "root": {"handlers": ["file"]}}
        logging.config.dictConfig(config)
        dist.barrier()
        logging.error("of %d", rank)
        dist.barrier()
        assert logger.disabled
        return len((tmp_path / f"d{rank}.log").read_text().splitlines())

    try:
        assert phalanx.run(program, ranks=2) == [1, 1]
        assert not logger.disabled
        logger.warning("still there")
        assert (tmp_path / "caller.log").read_text() == "still there\n"
    finally:
        logger.removeHandler(mine)
        mine.close()


def test_a_logger_made_in_a_rank_is_a_whole_one_afterwards() -> None:
    name = "made.in.a.rank"
    phalanx.run(lambda: logging.getLogger(name).addHandler(logging.NullHandler()), ranks=2)
    left = logging.getLogger(name)
    assert (left.level, left.handlers, left.propagate) == (logging.NOTSET, [], True)
    assert not left.isEnabledFor(logging.DEBUG - 1) or logging.root.level < logging.DEBUG


def test_files_of_handlers_are_closed_with_the_rank(tmp_path: Path) -> None:
    made: list[logging.FileHandler] = []

    def program() -> None:
        made.append(logging.FileHandler(tmp_path / f"{dist.get_rank()}.log"))
        logging.getLogger().addHandler(made[-1])
        logging.warning("hello")

    phalanx.run(program, ranks=2)
    assert [handler.stream is None for handler in made] == [True, True]
    assert logs.OWN not in vars(logging.getLogger())


# -- exit functions ---------------------------------------------------------------------------


def test_exit_functions_run_at_the_end_of_the_rank_with_its_groups() -> None:
    said: list[Any] = []
    before = atexit._ncallbacks()

    def say(*words: Any) -> None:
        said.append((dist.get_rank(), os.environ["RANK"], *words))

    def program() -> str:
        atexit.register(say, "first")
        atexit.register(say, "second")
        atexit.register(print, "never")
        atexit.unregister(print)
        dist.barrier()
        if dist.get_rank() == 1:
            raise SystemExit(0)
        return "value"

    assert phalanx.run(program, ranks=2) == ["value", None]
    assert sorted(said) == sorted(
        (rank, str(rank), word) for rank in (0, 1) for word in ("first", "second")
    )
    assert [each[2] for each in said if each[0] == 0] == ["second", "first"]
    assert atexit._ncallbacks() == before


def test_exit_functions_may_communicate_and_register_more() -> None:
    said: list[float] = []

    def program() -> None:
        def last() -> None:
            found = [None] * dist.get_world_size()
            dist.all_gather_object(found, dist.get_rank())
            said.append(sum(map(int, map(str, found))))

        atexit.register(lambda: atexit.register(last))

    phalanx.run(program, ranks=3)
    assert said == [3, 3, 3]


def test_errors_in_exit_functions_are_told_and_stop_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran: list[int] = []

    def program() -> int:
        atexit.register(lambda: ran.append(dist.get_rank()))

        def bad() -> None:
            raise ValueError(f"bad end of {dist.get_rank()}")

        atexit.register(bad)
        return 7

    assert phalanx.run(program, ranks=2) == [7, 7]
    assert sorted(ran) == [0, 1]
    told = capsys.readouterr().err
    assert told.count("Exception ignored in atexit callback") == 2
    assert "ValueError: bad end of 1" in told
    assert "\n\n" not in told


def test_exit_functions_run_after_a_failure_too() -> None:
    ran: list[int] = []

    def program() -> None:
        atexit.register(ran.append, dist.get_rank())
        dist.barrier()
        if dist.get_rank() == 1:
            raise ValueError("as planned")
        dist.barrier()

    with pytest.raises(phalanx.RankFailedError, match="as planned"):
        phalanx.run(program, ranks=3)
    assert sorted(ran) == [0, 1, 2]


def test_finalizers_run_at_the_end_of_the_rank() -> None:
    said: list[tuple[str, int]] = []

    class Thing:
        pass

    def program() -> str:
        rank = dist.get_rank()
        thing = kept.setdefault(rank, Thing())
        weakref.finalize(thing, said.append, ("finalize", rank))
        weakref.finalize(thing, said.append, ("not at exit", rank)).atexit = False
        multiprocessing.util.Finalize(None, said.append, (("low", rank),), exitpriority=1)
        multiprocessing.util.Finalize(None, said.append, (("high", rank),), exitpriority=9)
        return tempfile.TemporaryDirectory().name if rank == 5 else ""

    kept: dict[int, Thing] = {}
    phalanx.run(program, ranks=2)
    for rank in (0, 1):
        own = [word for word, whose in said if whose == rank]
        assert own == ["high", "low", "finalize"]


def test_what_a_library_registers_for_the_process_stays_there() -> None:
    """torch's pools, and what any library registers while it is imported."""
    source = "def register(do, fn): do(fn)\nhere = __import__('atexit').register"

    def program() -> tuple[int, int]:
        names: dict[str, Any] = {"__name__": "torch.something"}
        exec(compile(source, os.path.join(_library_folder(), "x.py"), "exec"), names)
        names["register"](atexit.register, _nothing)
        as_torch = len(context_functions())
        names = {"__name__": "some_library"}
        exec(compile(source, os.path.join(_library_folder(), "y.py"), "exec"), names)
        names["register"](atexit.register, _nothing)
        return as_torch, len(context_functions())

    try:
        assert phalanx.run(program, ranks=1) == [(0, 1)]
    finally:
        atexit.unregister(_nothing)


def _nothing() -> None: ...


def _library_folder() -> str:
    return os.path.dirname(os.path.dirname(dist.__file__ or "")).removesuffix("/torch")


def context_functions() -> list[Any]:
    from phalanx.core.strand import here

    assert here.strand is not None
    return list(here.strand.local.saved.get(exits.FUNCTIONS, []))


@pytest.mark.slow
@pytest.mark.programs
def test_exit_functions_of_a_script(tmp_path: Path) -> None:
    source = """
        import atexit, logging, os, subprocess, sys
        import torch.distributed as dist
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        atexit.register(dist.destroy_process_group)
        atexit.register(lambda: print("bye of", dist.get_rank(), os.environ["RANK"]))
        logging.basicConfig(level=logging.INFO, format=f"%(levelname)s {rank} %(message)s")
        logging.info("logged")
        dist.barrier()
        print("to the first stream", file=sys.__stdout__)
        os.write(1, b"raw bytes\\n")
        print("before")
        subprocess.run(["echo", "a child of", str(rank)], check=True)
        print("after", flush=True)
        subprocess.run("echo to its error >&2", shell=True, check=True)
        sys.stdout.reconfigure(line_buffering=True)
        sys.stdout.buffer.write(b"bytes\\n")
        sys.exit()
    """
    found = run_script(tmp_path, source)
    assert found.returncode == 0, found.stderr
    assert "[0]   bye of 0 0\n" in found.stdout and "[1]   bye of 1 1\n" in found.stdout
    assert "[0]   INFO 0 logged\n" in found.stderr and "[1]   INFO 1 logged\n" in found.stderr
    assert found.stderr.count("logged") == 2
    assert "[0-1] to the first stream\n" in found.stdout
    assert "[0-1] raw bytes\n" in found.stdout
    for rank in (0, 1):
        own = [line for line in found.stdout.splitlines() if _is_of(rank, line)]
        words = [line.partition("] ")[2].strip() for line in own]
        place = words.index("before")
        assert words[place : place + 3] == ["before", f"a child of {rank}", "after"]
    assert "[0-1] to its error\n" in found.stderr
    assert "[0-1] bytes\n" in found.stdout


def _is_of(rank: int, line: str) -> bool:
    return line.startswith(("[0-1]", f"[{rank}]"))


# -- the environment --------------------------------------------------------------------------


def variables(rank: int, meet: Meet) -> list[Any]:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    for name in ("PHALANX_A", "PHALANX_B", "PHALANX_C"):
        os.environ.pop(name, None)
    meet()
    os.environ["PHALANX_A"] = str(rank)
    os.environ["PHALANX_B"] = f"put {rank}"
    if rank == 0:
        os.environ["PHALANX_C"] = "zero"
        os.environb[b"PHALANX_D"] = b"bytes"
    meet()
    found: list[Any] = [os.getenv("PHALANX_A"), os.environ.get("PHALANX_B")]
    found += [getenv(b"PHALANX_A"), getenv(b"PHALANX_B"), getenv(b"PHALANX_C")]
    meet()
    command = "echo $PHALANX_A $PHALANX_B $PHALANX_C $PHALANX_D"
    found.append(subprocess.check_output(command, shell=True))
    meet()
    del os.environ["PHALANX_A"]
    if rank == 0:
        del os.environ["PHALANX_C"]
    meet()
    found += [os.environ.get("PHALANX_A"), getenv(b"PHALANX_A"), getenv(b"PHALANX_C")]
    with os.popen("echo $PHALANX_A $PHALANX_B") as pipe:
        found.append(pipe.read())
    meet()
    return found


def test_variables_are_each_ranks_own_also_for_c_and_children() -> None:
    before = dict(os.environ)
    wanted = in_processes(variables, 3)
    assert in_ranks(variables, 3) == wanted
    assert in_ranks(variables, 3, seed=1) == wanted
    assert dict(os.environ) == before
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    assert getenv(b"PHALANX_B") is None


def test_a_thread_changes_a_variable_while_another_rank_runs() -> None:
    """C code of that other rank does not find it, C code of its own does."""
    may_set, is_set = threading.Event(), threading.Event()

    def program() -> bytes | None:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_char_p
        if dist.get_rank() == 0:

            def change() -> None:
                may_set.wait()
                os.environ["PHALANX_A"] = "zero"
                is_set.set()

            helper = threading.Thread(target=change)
            helper.start()
            dist.barrier()
            helper.join()
            dist.barrier()
            return bytes(getenv(b"PHALANX_A"))
        may_set.set()
        while not is_set.is_set():
            sum(range(100))
        found: bytes | None = getenv(b"PHALANX_A")
        dist.barrier()
        dist.barrier()
        return found

    assert phalanx.run(program, ranks=2) == [b"zero", None]


def refused_variables(rank: int, meet: Meet) -> list[Any]:
    found: list[Any] = []
    for name, value in (("A=B", "x"), ("N", "a\0b"), ("U", "\ud800"), ("", "x")):
        try:
            os.environ[name] = value
        except (ValueError, OSError) as error:
            found.append((type(error), name in os.environ))
        meet()
    return found


def test_variables_that_cannot_be_are_refused_and_forgotten() -> None:
    before = dict(os.environ)
    wanted = in_processes(refused_variables, 2)
    assert len(wanted[0]) == 4
    assert in_ranks(refused_variables, 2) == wanted
    assert dict(os.environ) == before


def test_whatever_fails_the_rest_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("cannot be put back")

    def program() -> None:
        sys.argv = ["mine"]
        random.seed(1)
        os.environ["PHALANX_A"] = "mine"
        warnings.simplefilter("ignore")
        dist.barrier()

    monkeypatch.setattr(interpreter.Names, "restore", fail)
    before = [sys.argv, random.getstate(), list(warnings.filters), os.environ.get("PHALANX_A")]
    with pytest.raises(OSError, match="cannot be put back"):
        phalanx.run(program, ranks=2)
    after = [sys.argv, random.getstate(), list(warnings.filters), os.environ.get("PHALANX_A")]
    assert after == before
    monkeypatch.undo()
    assert phalanx.run(dist.get_rank, ranks=2) == [0, 1]


# -- what ranks print -------------------------------------------------------------------------


class Shown:
    """A printer: what it was given, with the rank."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, rank: int, text: str) -> None:
        self.written.append(f"{rank}{text}")

    def prompt(self, rank: int) -> None: ...

    def close(self) -> None: ...


def test_a_character_may_be_written_in_pieces() -> None:
    """By ranks that take turns; also past the buffer."""
    shown = Shown()

    def program() -> None:
        first, second = "é".encode()[:1], "é".encode()[1:]
        assert sys.stdout.buffer.write(first) == 1
        dist.barrier()
        buffer: Any = sys.stdout.buffer
        buffer.raw.write(second)
        dist.barrier()
        os.write(1, first)
        dist.barrier()
        os.write(1, second + b"!")

    with streams.redirected(shown, None):
        phalanx.run(program, ranks=2)
    assert sorted(shown.written) == ["0é", "0é!", "1é", "1é!"]


# -- how a script of a rank ends --------------------------------------------------------------


@pytest.mark.programs
def test_the_hook_of_a_failed_rank_is_called(tmp_path: Path) -> None:
    """Also if torch has put its own around it."""
    source = """
        import os, sys
        import torch.distributed as dist
        def mine(kind, error, trace):
            print("hook", os.environ["RANK"], kind.__name__, error, trace.tb_lineno)
        sys.excepthook = mine
        dist.init_process_group("gloo")
        dist.barrier()
        raise ValueError("why")
    """
    found = run_script(tmp_path, source)
    assert found.returncode == 1
    told = sorted(line[line.index("hook") :] for line in found.stdout.split("\n") if line)
    assert told == [f"hook {rank} ValueError why 9" for rank in range(2)]
    assert "ValueError" in found.stderr


# -- file descriptors -------------------------------------------------------------------------


def test_a_rank_may_put_a_file_in_place_of_descriptor_two() -> None:
    """As programs do that catch what a compiler says; ranks take turns meanwhile."""

    def program() -> str:
        rank = dist.get_rank()
        with tempfile.TemporaryFile() as file:
            old = os.dup(2)
            os.dup2(file.fileno(), 2)
            dist.barrier()
            subprocess.run(f"echo from {rank} >&2", shell=True, check=True)
            dist.barrier()
            os.write(2, b"raw")
            os.dup2(old, 2)
            os.close(old)
            dist.barrier()
            file.seek(0)
            return file.read().decode()

    before = os.stat(2)
    assert phalanx.run(program, ranks=3) == [f"from {rank}\nraw" for rank in range(3)]
    assert os.path.samestat(os.stat(2), before)


def test_a_rank_that_never_puts_it_back_takes_it_with_it() -> None:
    def program() -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        dist.barrier()
        if dist.get_rank() == 0:
            raise ValueError("as planned")

    before, open_files = os.stat(1), len(os.listdir("/proc/self/fd"))
    with pytest.raises(phalanx.RankFailedError, match="as planned"):
        phalanx.run(program, ranks=2)
    assert os.path.samestat(os.stat(1), before)
    assert len(os.listdir("/proc/self/fd")) == open_files + 2, "those that the program opened"


def test_what_python_prints_follows_descriptor_one() -> None:
    """Text, bytes and what a thread prints that does not hold the baton; and back."""
    shown, printed = Shown(), threading.Event()

    def program() -> bytes:
        rank = dist.get_rank()
        print("before", end="")
        with tempfile.TemporaryFile() as file:
            old = os.dup(1)
            os.dup2(file.fileno(), 1)
            print(f"é{rank}", end="", flush=True)
            sys.stdout.buffer.write(b"\xff")
            dist.barrier()
            if rank == 0:
                helper = threading.Thread(target=print_later)
                helper.start()
            dist.barrier()
            if rank == 1:
                printed.wait(10)
            dist.barrier()
            print("x" * 100_000, end="")
            os.dup2(old, 1)
            os.close(old)
            print("after", end="")
            file.seek(0)
            return file.read()

    def print_later() -> None:
        print("of a thread", end="")
        printed.set()

    with streams.redirected(shown, None):
        first, second = phalanx.run(program, ranks=2)
    long = b"x" * 100_000
    assert first == "é0".encode() + b"\xffof a thread" + long
    assert second == "é1".encode() + b"\xff" + long
    said = [text for text in shown.written if len(text) > 1]
    assert sorted(said) == ["0after", "0before", "1after", "1before"]


def test_errors_sent_to_the_output_are_shown_as_the_ranks_output() -> None:
    """`2>&1`, and then 1 goes to a file."""
    out, err = Shown(), Shown()

    def program() -> bytes:
        with tempfile.TemporaryFile() as file:
            os.dup2(1, 2)
            os.dup2(file.fileno(), 1)
            dist.barrier()
            sys.stderr.write("e")
            print("o", end="")
            subprocess.run("echo c >&2; echo d", shell=True, check=True)
            dist.barrier()
            file.seek(0)
            return file.read()

    with streams.redirected(out, err):
        assert phalanx.run(program, ranks=2) == [b"od\n", b"od\n"]
    assert sorted(out.written) == ["0c\n", "0e", "1c\n", "1e"]
    assert err.written == []


def test_a_ranks_stream_says_how_it_was_opened() -> None:
    with streams.redirected(Shown(), None):
        assert sys.stdout.mode == "w"
