"""The kinds of faults, and how a run that suffers one may end. No torch.

A status is the exit status of the command: 0 right, 1 the program's own error, 3 a verdict.
What is written for `threads` holds where ranks share a process.
"""

from __future__ import annotations

from typing import NamedTuple

ENGINES = ("threads", "processes", "torchrun")
RIGHT, FAILED, JUDGED = 0, 1, 3
TIMEOUT = 6
"""Seconds without progress that a run is given, for faults that only a limit ends."""


class Fault(NamedTuple):
    """One kind. `status` are the statuses that are right, `text` a pattern that the output must
    have. A negative status is a signal that ended the command itself."""

    name: str
    status: tuple[int, ...]
    text: str = ""
    threads: tuple[int, ...] | None = None
    """The statuses on threads, if they differ."""
    engines: tuple[str, ...] = ENGINES
    outside: str = ""
    """What is done to the run from outside, instead of a function of the victim."""
    limited: bool = False
    """Whether only the time limit ends it."""


SEPARATE = ENGINES[1:]
"""Engines whose ranks are processes."""

FAULTS = (
    Fault("none", (RIGHT,)),
    # A rank's own error.
    Fault("raises", (FAILED,), r"ValueError: the step failed"),
    Fault("raises_base", (FAILED,), r"BaseException"),
    Fault("raises_strange", (FAILED,), r"Strange"),
    Fault("raises_group", (FAILED,), r"ImportError: a module is missing"),
    Fault("raises_interrupt", (FAILED, 130), r"KeyboardInterrupt|interrupted"),
    Fault("raises_generator_exit", (FAILED,), r"GeneratorExit"),
    Fault("raises_stop_iteration", (FAILED,), r"StopIteration"),
    Fault("raises_assertion", (FAILED,), r"AssertionError: a wrong result"),
    Fault("raises_memory_error", (FAILED,), r"RuntimeError|MemoryError"),
    Fault("exits_with_3", (FAILED, JUDGED), r"exit"),
    Fault("exits_with_text", (FAILED, JUDGED), r"the rank gives up"),
    Fault("exits_at_once_with_7", (FAILED, JUDGED), r"7"),
    Fault("recurses", (FAILED,), r"RecursionError"),
    Fault("fails_while_it_cleans_up", (FAILED,), r"and so did the cleaning up"),
    Fault("fails_in_another_thread", (RIGHT, FAILED), r"the helper failed"),
    # It leaves early: the others wait for it.
    Fault("exits", (FAILED, JUDGED), r"rank \d"),
    Fault("exits_at_once", (FAILED, JUDGED), r"rank \d"),
    Fault("destroys_its_group", (FAILED, JUDGED), r"destroy"),
    # It dies, or gets a signal.
    Fault("dies_by_sigkill", (FAILED,)),
    Fault("dies_with_semaphores", (FAILED, JUDGED), r"7", engines=SEPARATE),
    Fault("dies_by_sigsegv", (FAILED,), threads=(-11,)),
    Fault("dies_by_abort", (FAILED,), threads=(-6,)),
    Fault("gets_sigterm", (FAILED, 143, -15), threads=(FAILED, JUDGED, 143, -15)),
    Fault("gets_sigusr1", (RIGHT,)),
    Fault("stops_itself", (JUDGED,), r"rank", engines=SEPARATE, limited=True),
    # Calls that do not fit.
    Fault("skips_a_collective", (JUDGED,), r"(?i)mismatch|deadlock|crossed"),
    Fault("makes_one_more", (JUDGED,), r"(?i)mismatch|deadlock"),
    Fault("calls_another", (JUDGED,), r"(?i)mismatch"),
    Fault("has_another_shape", (JUDGED,), r"(?i)mismatch"),
    Fault("has_another_dtype", (JUDGED,), r"(?i)mismatch"),
    Fault("uses_a_wrong_root", (FAILED, JUDGED), r"root|not in this group|rank"),
    Fault("receives_in_vain", (JUDGED,), r"(?i)deadlock|mismatch"),
    Fault("goes_on_after_an_error", (FAILED, JUDGED), r"(?i)mismatch"),
    # It never comes to its next call.
    Fault("waits_for_a_key", (FAILED, JUDGED), r"(?i)key|stall|deadlock", limited=True),
    Fault("computes_for_ever", (JUDGED,), r"(?i)stall", limited=True),
    Fault("holds_the_lock_of_python", (JUDGED,), r"rank", limited=True),
    Fault("waits_in_native_code", (JUDGED,), r"(?i)stall", limited=True),
    Fault("waits_for_a_lock", (JUDGED,), r"(?i)stall|deadlock", limited=True),
    # It harms what a process has once.
    Fault("replaces_stdout", (FAILED,), r"the disk is full"),
    Fault("closes_stdout", (FAILED,), r"closed file"),
    Fault("closes_descriptor_1", (RIGHT, FAILED)),
    Fault("eats_descriptors", (FAILED, JUDGED), r"Too many open files"),
    Fault("removes_its_folder", (RIGHT,)),
    Fault("clears_the_environment", (RIGHT,)),
    Fault("turns_warnings_into_errors", (FAILED,), r"DeprecationWarning: an old name"),
    Fault("turns_the_collector_off", (RIGHT,)),
    Fault("replaces_print", (RIGHT,)),
    Fault("replaces_time", (RIGHT,)),
    Fault("leaves_a_thread", (RIGHT,)),
    Fault("leaves_a_process", (RIGHT,)),
    Fault("forks_a_child", (RIGHT,)),
    Fault("sleeps", (RIGHT, JUDGED), r"(?i)stall", threads=(RIGHT,)),
    Fault("prints_strange_things", (RIGHT,)),
    # Somebody does it to the run.
    Fault("interrupted", (130, -2), outside="INT"),
    Fault("interrupted_twice", (130, -2), outside="INT INT"),
    Fault("terminated", (143, -15, FAILED), outside="TERM"),
    Fault("hung_up", (129, -1, FAILED), outside="HUP"),
    Fault("killed", (-9,), outside="KILL"),
    Fault("stopped_for_a_while", (RIGHT,), outside="STOP CONT"),
    Fault("reader_gone", (RIGHT, FAILED, 141, -13), outside="close"),
    Fault("a_rank_killed", (FAILED,), engines=SEPARATE, outside="rank KILL"),
    Fault("a_rank_stopped", (JUDGED,), engines=SEPARATE, outside="rank STOP", limited=True),
    Fault("a_child_killed", (FAILED, JUDGED), engines=SEPARATE, outside="child KILL"),
    Fault(
        "a_child_stopped",
        (RIGHT, FAILED, JUDGED),
        engines=SEPARATE,
        outside="child STOP",
        limited=True,
    ),
)
