"""What the process of a script runs that starts its ranks (`python -m`, with this module).

It is the script: `spawned_script script train.py ARGUMENTS` or `spawned_script module NAME
ARGUMENTS`, executed once, as by Python itself, with `spawned_rank.py` in place. Ends with what
the script ended with. Must never be imported by a program.
"""

from __future__ import annotations

import sys
import traceback
from contextlib import suppress
from types import ModuleType

from phalanx.engines.outcome import trim_traceback
from phalanx.engines.program import Program, load_module, load_script
from phalanx.engines.remote.rank_main import die_with_parent
from phalanx.engines.spawned.spawned_messages import (
    How,
    ScriptEnd,
    SpawnBase,
    connect,
    read_base,
)
from phalanx.engines.spawned.spawned_rank import Presence
from phalanx.engines.spawned.suite_of_worlds import SuiteOfWorlds
from phalanx.engines.suite_of_run import activate
from phalanx.errors import RankStopped, VerdictError


def main(arguments: list[str]) -> None:
    die_with_parent(may_be_init=True)
    base = read_base()
    kind, name, *rest = arguments
    program = (load_module if kind == "module" else load_script)(name, rest)
    presence = Presence(base)
    presence.install()
    if program.is_pytest and base.checked:
        activate(SuiteOfWorlds(base, presence))
    try:
        _execute(program)
    except SystemExit as end:
        presence.leave(end)
        _tell(base, presence, "exit")
        raise
    except BaseException as error:
        presence.leave(error)
        trim_traceback(error)
        text = "".join(traceback.format_exception(error))
        is_about_ranks = isinstance(error, (VerdictError, RankStopped)) or any(
            kind.__name__ == "ProcessException" for kind in type(error).__mro__
        )
        _tell(base, presence, "ranks" if is_about_ranks else "error", text)
        sys.exit(130 if isinstance(error, KeyboardInterrupt) else 1)
    presence.leave(None)
    _tell(base, presence, "end")


def _execute(program: Program) -> None:
    module = ModuleType("__main__")
    names = vars(module)
    names.update(program.names_of_main())
    sys.modules["__main__"] = module
    sys.argv[:] = program.argv
    sys.path[0] = program.search_path
    exec(program.code, names)


def _tell(base: SpawnBase, presence: Presence, how: How, text: str = "") -> None:
    message = ScriptEnd(how, text[-2000:], tuple(presence.looked_at))
    with suppress(OSError), connect(base, message):
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
