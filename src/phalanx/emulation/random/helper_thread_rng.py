"""Random numbers in threads of a rank that do not hold the baton.

At that moment the generators of the process hold the state of the rank that runs. So once a
rank has started a thread, the functions of `random` and `numpy.random` look up the calling
thread; if its rank does not run, they draw from that rank's saved state. Names that were bound
before (`from random import random`) draw from the process's generator. Functions that draw from
torch's generator wait for their rank's turn. Used by the engine when a helper thread begins.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from phalanx.backend.torch_private import private_generators
from phalanx.core.strand import RUNNING, Strand, here
from phalanx.emulation.patch_installer import put_in
from phalanx.emulation.patch_table import HELPERS
from phalanx.emulation.random.randomness import NUMPY, PYTHON, spare
from phalanx.emulation.state.borrowed_state import in_turn, visiting

_installed: dict[str, Callable[[], None]] = {}
lock: Any = threading.Lock()


@contextmanager
def as_helper(strand: Strand) -> Iterator[None]:
    """A context for all that a rank's helper thread does."""
    cast(Any, strand.baton.switcher).expect_visits()
    with lock:
        if PYTHON not in _installed:
            _installed[PYTHON] = _install(random, PYTHON, random.seed.__self__)  # type: ignore[attr-defined]
        if NUMPY not in _installed and NUMPY in sys.modules:
            owner = sys.modules[NUMPY]._rand
            _installed[NUMPY] = _install(sys.modules["numpy.random"], NUMPY, owner)
    with _DrawInTurn():
        yield


def _install(module: Any, name: str, owner: Any) -> Callable[[], None]:
    """Replace the module's functions that are methods of the process's generator."""
    found = {
        key: value
        for key, value in vars(module).items()
        if getattr(value, "__self__", None) is owner or key == "seed"  # NumPy's is no method
    }
    return put_in(HELPERS, [(module, key, _looking(found[key], name)) for key in found])


def uninstall() -> None:
    """Put the functions back after the last world."""
    while _installed:
        _installed.popitem()[1]()


def _looking(original: Any, name: str) -> Any:
    method = original.__name__

    @wraps(original)
    def draw(*args: Any, **kwargs: Any) -> Any:
        strand = here.strand
        if strand is None or strand.state is RUNNING:
            return original(*args, **kwargs)
        with visiting(strand) as is_in_place:
            if is_in_place:
                return original(*args, **kwargs)
            context, switcher = strand.local, cast(Any, strand.baton.switcher)
            with spare(name) as generator:
                generator.put(switcher.own(context, name))
                try:
                    return getattr(generator.owner, method)(*args, **kwargs)
                finally:
                    context.saved[name] = generator.snapshot()

    return draw


RANDOM = frozenset(
    getattr(owner, name)
    for owner, names in (
        (
            torch,
            "bernoulli binomial dropout dropout_ feature_dropout feature_dropout_ "
            "alpha_dropout alpha_dropout_ feature_alpha_dropout feature_alpha_dropout_ "
            "multinomial normal poisson rand rand_like randint randint_like randn randn_like "
            "randperm rrelu rrelu_ native_dropout lstm gru rnn_relu rnn_tanh",
        ),
        (torch, private_generators.PRIVATE_RANDOM),
        (
            torch.Tensor,
            "bernoulli bernoulli_ cauchy_ exponential_ geometric_ log_normal_ multinomial "
            "normal_ random_ uniform_",
        ),
        (
            # These are written in Python. What they call is not seen any more, so they take
            # their turn as a whole.
            torch.nn.functional,
            "dropout dropout1d dropout2d dropout3d alpha_dropout feature_alpha_dropout "
            "fractional_max_pool2d fractional_max_pool2d_with_indices "
            "fractional_max_pool3d fractional_max_pool3d_with_indices "
            "gumbel_softmax multi_head_attention_forward rrelu scaled_dot_product_attention",
        ),
        (
            torch.nn.init,
            "uniform_ normal_ trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ "
            "kaiming_normal_ orthogonal_ sparse_",
        ),
    )
    for name in names.split()
    if hasattr(owner, name)
)
"""Functions that draw from torch's generator, unless they are given another one."""


class _DrawInTurn(TorchFunctionMode):
    """Sees the torch functions that a helper thread calls; those that draw wait for the rank's
    turn."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = kwargs or {}
        strand = here.strand
        if func not in RANDOM or strand is None or given.get("generator") is not None:
            return func(*args, **given)
        with in_turn(strand):
            return func(*args, **given)


SEEDS = ("manual_seed", "get_rng_state", "set_rng_state")


def seed_patches() -> list[tuple[Any, str, Any]]:
    """Patches for torch's functions that touch its generator and are no operators."""
    return [
        (owner, name, _taking_turns(vars(owner)[name]))
        for owner in (torch, torch.random)
        for name in SEEDS
    ]


@cache
def _taking_turns(original: Any) -> Any:
    @wraps(original)
    def touch(*args: Any, **kwargs: Any) -> Any:
        strand = here.strand
        if strand is None or strand.state is RUNNING:
            return original(*args, **kwargs)
        with in_turn(strand):
            return original(*args, **kwargs)

    return touch
