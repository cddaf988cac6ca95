"""What a rank has of its own although ranks share a process.

Two ways: state that Python code reads (`os.environ`) is looked up by the calling
thread; state inside torch and the interpreter (random generators, `sys.argv`, what C code sees
of the environment) is swapped when another rank gets the baton. One module for each kind;
`switcher.py` is what the baton calls. Used by the engine and by `patches.py`.
"""

from __future__ import annotations

from phalanx.emulation.state import fork
from phalanx.emulation.state.environ import (
    RankEnviron,
    RankEnvironBytes,
    environ_here,
    environ_of_process,
)
from phalanx.emulation.state.switcher import RankSwitcher

__all__ = [
    "RankEnviron",
    "RankEnvironBytes",
    "RankSwitcher",
    "environ_here",
    "environ_of_process",
]

fork.install()
