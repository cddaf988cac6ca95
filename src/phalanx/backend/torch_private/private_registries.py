"""Private torch names of registries that exist once per process.

A part of `private.py`, under the same rule: the name, the reason, the versions. Used by
`emulation/modules/registrations.py`, because ranks that each import a module register what it
defines once per rank, by `engines/processes/group_rendezvous.py` (the kinds of rendezvous), and
by `engines/remote/rank_main.py` (the numbers of calls).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

# 2.11-2.13: how `torch.library.register_fake` and `custom_op` register, and how `custom_op`
# takes an operator back that is defined again.
FAKE_NAME = "_register_fake"
DESTROY_NAME = "_destroy"

# 2.11-2.13: what `add_safe_globals` has added, by full name, for each object that
# `torch.load(weights_only=True)` makes. With one class per rank the last one would win.
_UNPICKLER = "torch._weights_only_unpickler"
_SAFE_NAME = "_get_user_allowed_globals"


def safe_globals_place() -> tuple[Any, str]:
    """The place of the function that `torch.load` calls; torch has imported the module."""
    return sys.modules[_UNPICKLER], _SAFE_NAME


# 2.11-2.13: what leads from `env://` and the like to a store, by scheme. The public
# `register_rendezvous_handler` refuses a scheme that there is already.
_RENDEZVOUS = "torch.distributed.rendezvous"
_HANDLERS_NAME = "_rendezvous_handlers"


def rendezvous_patch(
    schemes: Iterable[str], make: Callable[[Any], Any]
) -> tuple[Any, str, dict[str, Any]]:
    """Owner, name and replacement: a table in which `make` has replaced these schemes."""
    module = sys.modules[_RENDEZVOUS]
    handlers: dict[str, Any] = getattr(module, _HANDLERS_NAME)
    return module, _HANDLERS_NAME, handlers | {each: make(handlers[each]) for each in schemes}


# 2.11-2.13: the number of a group's next call, messages included; the public flight recorder
# has to be switched on before.
_COUNT_NAME = "_get_sequence_number_for_group"


def calls_made() -> int:
    """By this process on the groups that it has now."""
    module = sys.modules["torch.distributed.distributed_c10d"]
    made = 0
    for group in list(module._world.pg_map):
        with suppress(Exception):  # a backend that does not count
            made += getattr(group, _COUNT_NAME)()
    return made


# 2.11-2.13: the module behind `torch.library`, through which registrations go.
BEHIND_LIBRARY = "torch._library"

# 2.11-2.13: the module that defines `torch.Tensor` with its methods in Python.
OF_TENSOR = "torch._tensor"


def has_used_rpc() -> bool:
    """2.11-2.13: whether this process has called `init_rpc`, which counts its calls."""
    rpc: Any = sys.modules.get("torch.distributed.rpc")
    return bool(getattr(rpc, "_init_counter", 0))
