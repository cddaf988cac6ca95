"""What each backend takes and refuses: one file per backend, every rule with its source."""

from __future__ import annotations

from functools import cache

from phalanx.backend.profiles.gloo import GLOO
from phalanx.backend.profiles.nccl import NCCL
from phalanx.backend.profiles.profile_rules import (
    CORRUPTS,
    CRASHES,
    REFUSES,
    Profile,
    ProfileByDevice,
    ProfileRule,
    TensorUse,
)

__all__ = [
    "CORRUPTS",
    "CRASHES",
    "REFUSES",
    "Profile",
    "ProfileRule",
    "TensorUse",
    "profile_of",
]

DEFAULT = "cpu:gloo,cuda:nccl"
"""What torch makes of `init_process_group()` without a backend."""

_KNOWN = {"gloo": GLOO, "nccl": NCCL}


@cache
def profile_of(backend: str | None = None) -> Profile | None:
    """The profile of a backend by torch's name for it; None for one that has no profile.

    >>> profile_of("gloo").refusal(Use("all_reduce", torch.int16, "SUM")).name
    'dtype'
    """
    name = (backend or DEFAULT).lower()
    if ":" not in name:
        return _KNOWN.get(name)
    parts: dict[str, Profile] = {}
    for pair in name.split(","):
        device, _, part = pair.partition(":")
        if part not in _KNOWN:
            return None
        parts[device] = _KNOWN[part]
    return ProfileByDevice(name, parts)
