"""Installed libraries that keep in their modules what belongs to a process.

In scripts every rank imports them for itself, unless `--share` names them, so that programs
written for one process per rank run unchanged. A package that requires one of them is imported
once per rank too; otherwise it would hold the modules of the rank that came first. Used by
`isolation_rule.py`; must never import torch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """One library of the list."""

    package: str
    distribution: str
    """Its name on PyPI, as requirements use it."""
    reason: str
    versions: str
    """The versions that were read."""


LIBRARIES = (
    Library(
        "accelerate",
        "accelerate",
        "PartialState, AcceleratorState and GradientState share their attributes by the class: "
        "the first rank's process index would be everybody's",
        "1.15.0",
    ),
    Library(
        "transformers",
        "transformers",
        "imports accelerate; its logger, its DeepSpeed configuration and warnings that are "
        "given once are module globals",
        "5.22.2",
    ),
    Library("lightning", "lightning", "rank_zero_only.rank is a function's attribute", "2.6.6"),
    Library(
        "pytorch_lightning", "pytorch-lightning", "as lightning, under its older name", "2.6.6"
    ),
    Library("lightning_fabric", "lightning-fabric", "as lightning, Fabric alone", "2.6.6"),
    Library(
        "lightning_utilities", "lightning-utilities", "has lightning's rank_zero_only", "0.15.3"
    ),
    Library(
        "ignite",
        "pytorch-ignite",
        "ignite.distributed keeps the rank's model of computation in a module global",
        "0.5.5",
    ),
    Library("torchmetrics", "torchmetrics", "prints on rank 0 by lightning_utilities", "1.9.0"),
    Library(
        "megatron",
        "megatron-core",
        "parallel_state has the rank's groups in module globals",
        "0.16.1",
    ),
    Library("deepspeed", "deepspeed", "deepspeed.comm has its backend in a global", "0.19.8"),
    Library(
        "torchtitan",
        "torchtitan",
        "its logger is set up once a process",
        "0.3.0",
    ),
)

PACKAGES = frozenset(library.package for library in LIBRARIES)
_DISTRIBUTIONS = frozenset(library.distribution for library in LIBRARIES)


def is_known(top: str) -> bool:
    """Whether a top package is one of these, or requires one of them."""
    return top in PACKAGES or _requires_known(top)


def _requires_known(top: str) -> bool:
    from importlib import metadata  # takes a while, and most programs import none of these

    try:
        required = metadata.requires(top) or []
    except metadata.PackageNotFoundError:
        return False
    return any(_plain_name(line) in _DISTRIBUTIONS for line in required if _is_firm(line))


def _is_firm(requirement: str) -> bool:
    """Whether it is a requirement of the library itself, and not of an extra."""
    return "extra ==" not in requirement


def _plain_name(requirement: str) -> str:
    """`Torch_Metrics[image]>=1.0` is `torch-metrics`."""
    found = re.match(r"[\w.\-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""
