"""The folder that all ranks of a test share, put back between the runs of an exploration."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class FolderState:
    """Remembers what is in the folder, which pytest's own fixtures may have put there;
    `restore` removes the rest. What a run has changed in those files stays changed."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._before = frozenset() if folder is None else frozenset(_paths_in(folder))

    def restore(self) -> None:
        if self._folder is not None:
            self._clean(self._folder)

    def _clean(self, folder: Path) -> None:
        for entry in list(os.scandir(folder)):
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.path in self._before:
                if is_folder:
                    self._clean(Path(entry.path))
            elif is_folder:
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                os.unlink(entry.path)


def _paths_in(folder: Path) -> list[str]:
    return [
        os.path.join(where, name)
        for where, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
