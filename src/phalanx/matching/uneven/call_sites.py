"""The lines of calls in the journal, resolved once each.

Used where all calls of a run are looked at: most of them come from a few lines.
"""

from __future__ import annotations

from collections.abc import Hashable

from phalanx.callsite import real_path
from phalanx.journal.events import Place, site_of
from phalanx.model import Site


def key_of(site: Site) -> tuple[str, int]:
    return site.file, site.line


class Sites(dict[Hashable, Site]):
    """The lines of calls, by file and number, as they come up."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[Hashable, Hashable] = {}
        self._files: dict[str, str] = {}

    def line_of(self, mark: Place) -> Hashable:
        """File and line of a mark. To hash code takes long, so its address is looked up."""
        known = (id(mark[0]), mark[1]) if isinstance(mark, tuple) else mark
        found = self._lines.get(known)
        if found is None:
            site = site_of(mark)
            found = self._lines[known] = ("", 0) if site is None else key_of(site)
            if site is not None:
                self.setdefault(found, site)
                if isinstance(mark, tuple):
                    self._files[site.file] = mark[0].co_filename
        return found

    def file_of(self, site: Site) -> str:
        """Where the source is: a report shows paths from the current folder on."""
        return self._files.get(site.file) or real_path(site.file)
