"""What the baton calls at a hand-over: one rank's state out, another one's in.

Used by the engine, one `RankSwitcher` per run. What is swapped stands in the other modules.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import torch

from phalanx.backend.session import RankContext
from phalanx.core.baton import Strand, Switcher
from phalanx.running import attributes
from phalanx.running.attributes import places
from phalanx.running.isolation.environ import seen_by_c, show_to_c
from phalanx.running.isolation.settings import get_settings, set_settings
from phalanx.running.isolation.warning_filters import (
    filters_mutated,
    get_warnings,
    set_warnings,
)


class RankSwitcher(Switcher):
    """Swaps, when a rank gets the baton after another one: torch's CPU generator always,
    `sys.argv` for ranks that have their own (scripts do), and what is in use of the rest."""

    def __init__(self) -> None:
        self._owner: RankContext | None = None
        self._generator = torch.default_generator
        self._outer_random = self._generator.get_state()
        self._outer_argv = sys.argv
        self._outer_attributes = attributes.current()
        self._outer_warnings = get_warnings()
        self._outer_filters = list(warnings.filters)
        self._outer_settings = get_settings()

    def leave(self, strand: Strand) -> None:
        if self._owner is strand.local:
            self._save(self._owner)
            self._owner = None

    def enter(self, strand: Strand) -> None:
        context: RankContext = strand.local
        if self._owner is context:
            return
        self._owner = context
        saved = context.saved
        self._generator.set_state(saved.get("random", self._outer_random))
        if "argv" in saved:
            sys.argv = saved["argv"]
        if "warnings" in saved or self._warnings_changed():
            set_warnings(saved.get("warnings", self._outer_warnings))
        if places:
            attributes.load(context)
        if seen_by_c:
            show_to_c(context.environ)

    def _save(self, context: RankContext) -> None:
        saved = context.saved
        saved["random"] = self._generator.get_state()
        if "warnings" in saved or self._warnings_changed():
            self._save_warnings(saved)
        if places:
            attributes.save(context)

    def _warnings_changed(self) -> bool:
        """Replaced (`catch_warnings`), or changed in place: new filters come first or last."""
        filters, show, _ = self._outer_warnings
        now, were = warnings.filters, self._outer_filters
        return bool(
            now is not filters
            or warnings.showwarning is not show
            or len(now) != len(were)
            or (were and (now[0] is not were[0] or now[-1] is not were[-1]))
        )

    def _save_warnings(self, saved: dict[str, Any]) -> None:
        filters, *rest = get_warnings()
        if filters is self._outer_warnings[0]:
            filters, common = list(filters), filters
            common[:] = self._outer_filters
            filters_mutated()
        saved["warnings"] = (filters, *rest)

    def restore(self) -> None:
        """After the run: as the launcher had it."""
        if self._owner is not None:
            self._save(self._owner)
            self._owner = None
        self._generator.set_state(self._outer_random)
        sys.argv = self._outer_argv
        set_warnings(self._outer_warnings)
        set_settings(self._outer_settings)
        attributes.restore(self._outer_attributes)
        if seen_by_c:
            show_to_c(os.environ)  # the caller is no rank: this is the process's own
            seen_by_c.clear()
