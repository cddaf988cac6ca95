"""What the engine asks the system for, where that has traps."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import phalanx
from phalanx import system

# Hangs within milliseconds with `sys._current_frames` of Python 3.11.7.
LOOKING = """
import gc, threading, time
from phalanx.system import current_frames

class Garbage:
    def __init__(self):
        self.own = self

    def __del__(self):
        time.sleep(0)  # lets another thread run

def look():
    for _ in range(300):
        Garbage()
        assert threading.get_ident() in current_frames()

gc.set_threshold(1)
threads = [threading.Thread(target=look, daemon=True) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert gc.isenabled()
"""


def test_threads_may_look_at_frames_while_garbage_is_collected() -> None:
    subprocess.run([sys.executable, "-c", LOOKING], check=True, timeout=30)


def test_frames_are_asked_for_in_that_one_way() -> None:
    root = Path(phalanx.__file__).parent
    asking = [p.name for p in root.rglob("*.py") if "sys._current_frames" in p.read_text()]
    assert asking == ["system.py"]


def test_the_errors_that_threads_handle() -> None:
    assert threading.get_ident() not in system.current_exceptions()
    try:
        raise KeyError("here")
    except KeyError as error:
        assert system.current_exceptions()[threading.get_ident()] is error
    assert threading.get_ident() not in system.current_exceptions()


@pytest.mark.parametrize("collects", [True, False])
def test_looking_leaves_garbage_collection_as_it_was(collects: bool) -> None:
    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        found = system._frames_without_collection()
        assert found.pop(threading.get_ident()) is sys._getframe()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()


# Python 3.12 warns of forks while there are threads: that is what is tried here.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_forked_while_others_look_can_look_and_collects() -> None:
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            system.current_frames()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(10)  # which ends it, should it hang
                system.current_frames()
                os._exit(0 if gc.isenabled() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        done.set()
        thread.join()
