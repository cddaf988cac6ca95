"""A process that imports modules and runs programs in forks of itself (forked_programs.py).

It reads one request a line, and answers with the process id of the fork. When the fork has
ended it writes the exit status, as `waitpid` gives it, to the pipe of the request. A fork
becomes the program: its own `__main__`, arguments, environment and folder. It ends as the
interpreter does after any program, but for undoing torch object by object, which takes as long
as a small program.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import select
import signal
import sys
import threading
import types
import warnings
import weakref
from typing import Any


def load(names: list[str]) -> None:
    """Import what programs import, and make it cheap to have for forks: not to be looked at by
    their collector, which would copy it, nor undone object by object at their end."""
    for name in names:
        importlib.import_module(name)
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False
    gc.collect()
    gc.freeze()


def next_program() -> dict[str, Any]:
    """Return in each fork, with what it is to run; leave when nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ended, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    running: dict[int, str] = {}
    asked = b""
    while True:
        ready, _, _ = select.select([0, ended], [], [])
        if ended in ready:
            os.read(ended, 4096)
            report(running)
        if 0 not in ready:
            continue
        more = os.read(0, 1 << 16)
        if not more:
            for child in running:
                os.killpg(child, signal.SIGKILL)
            sys.exit()
        *lines, asked = (asked + more).split(b"\n")
        for line in lines:
            request = dict(json.loads(line))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy has a thread, and knows of forks
                child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.setpgid(0, 0)
                return request
            with contextlib.suppress(OSError):  # it may have done so itself, and ended
                os.setpgid(child, child)
            running[child] = request["ended"]
            print(child, file=answers, flush=True)


def report(running: dict[int, str]) -> None:
    """Tell of all that have ended since."""
    while running:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with contextlib.suppress(OSError), open(running.pop(child), "w") as pipe:
            pipe.write(f"{status}\n")


def become(program: dict[str, Any]) -> None:
    for name, descriptor, flags in (("in", 0, os.O_RDONLY), ("out", 1, os.O_WRONLY)):
        os.dup2(os.open(program[name], flags | os.O_APPEND), descriptor)
    os.dup2(os.open(program["err"], os.O_WRONLY | os.O_APPEND) if program["err"] else 1, 2)
    os.closerange(3, 64)
    sys.stdin = os.fdopen(0, closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environ"])
    sys.orig_argv = [sys.executable, *program["command"]]


def run(command: list[str]) -> None:
    """Run what the interpreter would run for these arguments."""
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __spec__=None)
    sys.modules["__main__"] = main
    first, *rest = command
    if first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = ["-m", *rest[1:]]
        as_main: Any = runpy
        as_main._run_module_as_main(rest[0])
        return
    if first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        sys.argv = list(command)
        main.__file__ = first
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", first)
        with open(first, "rb") as file:
            code = compile(file.read(), first, "exec")
    exec(code, main.__dict__)


def show_error(error: BaseException) -> None:
    """As the interpreter shows it, without the frames of this file."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, frames
    sys.last_exc = error
    sys.excepthook(type(error), error.with_traceback(frames), frames)


def end(status: object, interrupted: bool) -> None:
    """What the interpreter does when a program has ended with this argument of `sys.exit`, or
    by Ctrl-C."""
    if status is not None and not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    as_any: Any = (threading, atexit)
    as_any[0]._shutdown()
    as_any[1]._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(int(status or 0) & 0xFF)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    load(sys.argv[1:])
    asked = next_program()
    become(asked)
    how: object = 0
    interrupted = False
    try:
        run(asked["command"])
    except SystemExit as error:
        how = error.code
    except BaseException as error:
        show_error(error)
        how, interrupted = 1, isinstance(error, KeyboardInterrupt)
    end(how, interrupted)
