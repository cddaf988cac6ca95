"""The groups of a run with faults: their ranks look before each call whether one is due."""

from __future__ import annotations

from typing import Any

from phalanx.backend.dispatch import VisibleGroup
from phalanx.core.strand import here
from phalanx.matching.slots import Call

_GIVEN = "given call"


class StruckGroup(VisibleGroup):
    """Whatever is put into the place of `_call` later, by an abort or a lost connection, stands
    behind the look."""

    @property
    def _call(self) -> Any:
        return self._look_and_call

    @_call.setter
    def _call(self, given: Any) -> None:
        self.__dict__[_GIVEN] = given

    def _look_and_call(self, name: str) -> Call:
        strand = here.strand
        if strand is not None and strand.local.strikes is not None:
            strand.local.strikes.at_call(strand)
        make = vars(self).get(_GIVEN) or self.make_call
        made: Call = make(name)
        return made
