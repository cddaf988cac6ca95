"""A process that imports modules and runs programs in forks of itself (forked_programs.py).

It reads one request a line, and answers with the process id of the fork and then with its exit
status as `waitpid` gives it. A fork becomes the program: its own `__main__`, arguments,
environment and folder, and the interpreter ends as it does after any program.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import signal
import sys
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
    for line in sys.stdin:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy has a thread, and knows of forks
            child = os.fork()
        if not child:
            return dict(json.loads(line))
        print(child, file=answers, flush=True)
        print(os.waitpid(child, 0)[1], file=answers, flush=True)
    sys.exit()


def become(program: dict[str, Any]) -> None:
    os.setpgid(0, 0)
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
    sys.excepthook(type(error), error.with_traceback(frames), frames)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who asks
    load(sys.argv[1:])
    asked = next_program()
    become(asked)
    try:
        run(asked["command"])
    except SystemExit:
        raise
    except BaseException as error:
        show_error(error)
        sys.exit(1)
