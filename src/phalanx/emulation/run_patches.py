"""What every world on threads replaces: put in for the first open world, out after the last.

Used by the threads engine and by what opens many worlds one after the other. The names are
those of mode `threads` in `patch_table.py`; the lists of replacements come from the modules
that are named in `_begin`.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from phalanx.backend import one_rank_assumptions, torch_patches
from phalanx.backend.devices import device_calls
from phalanx.backend.evidence import replica_watch
from phalanx.backend.torch_private import private
from phalanx.backend.work import execution_traces
from phalanx.emulation.patch_installer import Held, Kept, Patch, put_in
from phalanx.emulation.patch_table import FEWER_GPUS, THREADS
from phalanx.emulation.random import cuda_randomness, helper_thread_rng
from phalanx.emulation.state import (
    descriptors,
    environ,
    exits,
    logs,
    rank_settings,
)
from phalanx.emulation.state.torch_attributes import AttributeFinder
from phalanx.emulation.stdlib.replaced_calls import call_patches
from phalanx.emulation.stdlib.warning_places import warning_patches


def _state_patches() -> list[Patch]:
    return [
        *environ.environ_patches(),
        *rank_settings.setting_patches(),
        *rank_settings.thread_patches(),
        *helper_thread_rng.seed_patches(),
        *cuda_randomness.absent_patches(),
        *descriptors.descriptor_patches(),
        *logs.log_patches(),
        *exits.exit_patches(),
        *warning_patches(),
    ]


state_patches = Kept(_state_patches)
"""By which ranks have their own state. Runs are short, and these take longest to make."""


def _begin(stack: ExitStack) -> None:
    """In this order, since some keep what they find: hooks in torch's own tables first, which
    ranks get a copy of, then torch's names."""
    stack.callback(replica_watch.register(replica_watch.watch_here))
    restore_level = one_rank_assumptions.keep_debug_level()
    observer = execution_traces.SharedObserver()
    stack.callback(torch_patches.close, observer)
    excepthook = (sys, "excepthook", sys.excepthook)  # torch wraps it at init_process_group
    stack.callback(put_in(THREADS, [excepthook, *torch_patches.torch_patches(observer)]))
    stack.callback(restore_level)
    AttributeFinder().install(stack)
    for forget in (helper_thread_rng.uninstall, descriptors.forget, rank_settings.forget):
        stack.callback(forget)
    patches = [*state_patches.patches(), *cuda_randomness.cuda_patches(), *call_patches()]
    stack.callback(put_in(THREADS, patches))


_threads = Held(_begin)
hold, release, patched = _threads.hold, _threads.release, _threads.held
"""`with patched():`, or `hold()` and later `release()`: all of it is in place meanwhile."""

devices_mapped = Held(
    lambda stack: stack.callback(put_in(FEWER_GPUS, device_calls.device_patches()))
).held
"""While a run lasts whose ranks name GPUs that are not there."""

_runs = 0


def keep_groups_by_thread(now: bool) -> None:
    """Keep torch's map from names to groups per thread, for as long as a run lasts and not
    longer: the surrounding program may have groups of its own in the common one."""
    global _runs
    _runs += 1 if now else -1
    if now or _runs == 0:
        private.set_thread_isolation(now)
