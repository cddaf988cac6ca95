"""What the baton calls at a hand-over: saves one rank's state and loads another's.

The engine makes one `RankSwitcher` per run. The other modules of this folder hold what is
swapped, and each is called only if it is in use: most runs swap torch's generator and nothing
else.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch

from phalanx.backend.evidence.model_names import THREAD
from phalanx.backend.session import RankContext
from phalanx.core.strand import Strand, Switcher
from phalanx.emulation.modules.monkeypatches import due, look, look_at_watched, watched
from phalanx.emulation.random.cuda_randomness import CudaGenerators
from phalanx.emulation.random.randomness import APART, NUMPY, RandomSource, note_numpy, sources
from phalanx.emulation.state import (
    descriptors,
    exits,
    folder,
    logs,
    rank_settings,
    torch_attributes,
)
from phalanx.emulation.state.borrowed_state import Visits
from phalanx.emulation.state.environ import seen_by_c, show_to_c
from phalanx.emulation.state.interpreter import KEPT as NAMES
from phalanx.emulation.state.interpreter import Names
from phalanx.emulation.state.shared_settings import SharedSettings, read_mask
from phalanx.emulation.state.torch_attributes import places
from phalanx.emulation.state.warning_filters import (
    get_warnings,
    logging_module,
    note_valid,
    set_warnings,
    settle,
)
from phalanx.system import folder_here

ORDINARY = frozenset({THREAD, torch_attributes.KEPT})
"""The state of an ordinary rank. It has nothing to end, except descriptors, which are checked
when the baton is handed over."""

IN_PLACE = "arguments in place"
"""The contents that a rank has put into the caller's own `sys.argv`."""

switchers: list[RankSwitcher] = []
"""The switchers of the current runs, the innermost last."""


class RankSwitcher(Visits, Switcher):
    """Swaps state when a rank gets the baton after another one: torch's CPU generator always,
    `sys.argv` for ranks that have their own, and what else is in use."""

    def __init__(self) -> None:
        super().__init__()
        self._nested = bool(switchers)
        self._sources = sources(nested=self._nested)
        self._apart = False
        self._cuda = CudaGenerators() if torch.cuda.default_generators else None
        self._outer_argv = sys.argv
        self._arguments = list(sys.argv)
        self._names = Names()
        self._outer_attributes = torch_attributes.current()
        self._outer_warnings = get_warnings()
        self._outer_filters = list(warnings.filters)
        self._warned = False
        """Whether any rank has filters of its own."""
        self._outer_settings = rank_settings.current()
        self._folder = folder_here()
        self._mask = read_mask()
        self._shared = SharedSettings()
        switchers.append(self)

    def leave(self, strand: Strand) -> None:
        if self.owner is strand.local:
            if self.visits is None:
                self._save(strand.local)
                self.owner = None
            else:
                with self.visits:
                    self._save(strand.local)
                    self.owner = None

    def enter(self, strand: Strand) -> None:
        context: RankContext = strand.local
        if self.owner is context:
            return
        if self.visits is None:
            self._load(context)
            self.owner = context
        else:
            with self.visits:
                self._load(context)
                self.owner = context

    def _load(self, context: RankContext) -> None:
        saved = context.saved
        if self._apart or APART in saved:
            self._apart = True
            for source in self._sources:
                if source.apart or source.name in saved:
                    source.load(context)
        if self._cuda is not None:
            self._cuda.load(context)
        if "argv" in saved:
            self._load_argv(saved)
        if NAMES in saved:
            self._names.load(context)
        if "warnings" in saved:
            set_warnings(saved["warnings"])
            self._warned = True
        if self._warned:
            settle()
        if places:
            torch_attributes.load(context)
        if rank_settings.in_use:
            rank_settings.load(context, self._outer_settings)
        if descriptors.originals:
            descriptors.load(context)
        if seen_by_c:
            show_to_c(context.environ)

    def _save(self, context: RankContext) -> None:
        saved = context.saved
        for source in self._sources:
            if source.look() != source.mark:
                source.save(context)
                self._apart = True
        if self._cuda is None and torch.cuda.default_generators:
            self.note_cuda(context)
        if "argv" in saved or sys.argv is not self._outer_argv or sys.argv != self._arguments:
            self._save_argv(saved)
        if NAMES in saved or self._names.changed():
            self._names.save(context)
        if "warnings" in saved or self._warnings_changed():
            self._save_warnings(saved)
        if due:
            look()
        if watched:
            look_at_watched()
        if places:
            torch_attributes.save(context)
        if rank_settings.in_use:
            rank_settings.save(context, self._outer_settings)
        if descriptors.originals:
            descriptors.save(context)

    def note_numpy(self, module: ModuleType) -> None:
        """A rank has imported NumPy's generator."""
        source = note_numpy(module, nested=self._nested)
        if source is not None:
            self._sources.append(source)
            if source.in_script and self.owner is not None:
                self._begin_source(source, self.owner)

    def _begin_source(self, source: RandomSource, context: RankContext) -> None:
        """The rank of a script continues from its own state, whichever rank draws first."""
        self._apart = True
        source.load(context)

    def note_cuda(self, context: RankContext) -> None:
        """A rank has initialised CUDA."""
        if self._cuda is None:
            self._cuda = CudaGenerators()
            self._cuda.load(context)

    def own(self, context: RankContext, name: str) -> Any:
        """The state of the rank's generator of that name, for a thread without the baton."""
        source = next(each for each in self._sources if each.name == name)
        self._apart = True
        return source.own(context)

    def _warnings_changed(self) -> bool:
        """Whether the filters were replaced (`catch_warnings`) or changed in place: new filters
        come first or last."""
        filters, show, put_aside, _ = self._outer_warnings
        now, were = warnings.filters, self._outer_filters
        return bool(
            now is not filters
            or warnings.showwarning is not show
            or logging_module._warnings_showwarning is not put_aside
            or len(now) != len(were)
            or (were and (now[0] is not were[0] or now[-1] is not were[-1]))
        )

    def _save_argv(self, saved: dict[str, Any]) -> None:
        """Keep the rank's arguments and put the caller's back. The rank may have changed the
        caller's list in place: then its contents are kept as well."""
        outer = self._outer_argv
        changed = outer != self._arguments
        saved.pop(IN_PLACE, None)
        if changed or sys.argv is not outer:
            saved["argv"] = sys.argv
        else:
            saved.pop("argv", None)
        if changed:
            saved[IN_PLACE] = list(outer)
            outer[:] = self._arguments
        sys.argv = outer

    def _load_argv(self, saved: dict[str, Any]) -> None:
        if IN_PLACE in saved:
            self._outer_argv[:] = saved[IN_PLACE]
        sys.argv = saved["argv"]

    def _save_warnings(self, saved: dict[str, Any]) -> None:
        """Keep the rank's filters and put the caller's back."""
        self._warned = True
        note_valid()
        filters, *rest = get_warnings()
        if filters is self._outer_warnings[0]:
            filters, common = list(filters), filters
            common[:] = self._outer_filters
        saved["warnings"] = (filters, *rest)
        set_warnings(self._outer_warnings)

    # -- the beginning and the end of a rank, in its main thread --------------------------

    def begin(self, context: RankContext) -> None:
        """Called before the program's code."""
        folder.begin(self._folder, self._mask)
        for source in self._sources:
            if source.in_script:
                self._begin_source(source, context)

    def end(self, context: RankContext) -> bool:
        """Run the rank's exit functions and end its logging, folder and descriptors. Called
        after the program's code, also if it failed. Returns whether there was anything to
        end."""
        if context.saved.keys() <= ORDINARY and not descriptors.originals:
            return False
        exits.end(context)
        logs.end(context)
        if descriptors.originals:
            descriptors.end(context)
        return True

    def restore(self) -> None:
        """Put the launcher's state back after the run. If a step fails, the others are still
        made."""
        switchers.remove(self)
        owner, self.owner = self.owner, None
        problem: BaseException | None = None
        for step in self._steps_back(owner):
            try:
                step()
            except BaseException as error:
                is_worse = isinstance(problem, Exception) and not isinstance(error, Exception)
                problem = error if problem is None or is_worse else problem
        if problem is not None:
            raise problem

    def _steps_back(self, owner: RankContext | None) -> Iterator[Callable[[], Any]]:
        """The steps of `restore`. A step is computed when those before it are done; steps that
        cannot fail are done here."""
        if owner is not None:
            yield partial(self._save, owner)
        if self._apart:
            yield self._restore_sources
        if self._cuda is not None:
            yield self._cuda.restore
        sys.argv = self._outer_argv
        yield self._shared.restore
        yield self._names.restore
        yield self._restore_warnings
        if rank_settings.in_use:
            yield partial(rank_settings.restore, self._outer_settings)
        if descriptors.originals:
            yield descriptors.restore
        if places:
            yield partial(torch_attributes.restore, self._outer_attributes)
        if seen_by_c:
            yield _restore_environ

    def _restore_sources(self) -> None:
        for source in self._sources:
            source.restore()

    def _restore_warnings(self) -> None:
        set_warnings(self._outer_warnings)
        if self._warned:
            settle()


def _restore_environ() -> None:
    show_to_c(os.environ)  # the caller is no rank: this is the process's own
    seen_by_c.clear()


def _tell_of_numpy(module: ModuleType) -> None:
    for switcher in switchers:
        switcher.note_numpy(module)


torch_attributes.on_import[NUMPY] = _tell_of_numpy
