"""`--device` and `--gpus` of `phalanx run`: what the options mean, and one line about what
became of them. Used by `run.py`; what they do is `backend.device_map`, which loads torch.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from phalanx.errors import UsageError

if TYPE_CHECKING:
    from phalanx.backend.devices.device_map import DeviceMap

USUAL = "auto"


def add_options(group: Any) -> None:
    group.add_argument(
        "--device",
        default=USUAL,
        metavar="WHERE",
        help="auto: ranks share the GPUs where there are too few, so that cuda:3 means one "
        "that is there; cuda: the same, and there must be one; cpu: ranks see none",
    )
    group.add_argument("--gpus", metavar="K", help="use only the first K GPUs")


def device_settings(arguments: argparse.Namespace, per_node: int) -> dict[str, Any]:
    """`device` and `gpus` for an engine's settings; what is not there is refused here."""
    from phalanx.backend.devices.device_map import plan_devices, visible_to_processes

    given = _given(arguments)
    plan = plan_devices if arguments.engine == "threads" else visible_to_processes
    plan(given["device"], given["gpus"], per_node=per_node)
    return given


def device_environ(arguments: argparse.Namespace) -> dict[str, str]:
    """The same for ranks that torch's launcher starts, as their environment."""
    from phalanx.backend.devices.device_map import visible_to_processes

    given = _given(arguments)
    per_node = int(arguments.ranks) if arguments.ranks.isdecimal() else 1
    return visible_to_processes(given["device"], given["gpus"], per_node=per_node)


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    from phalanx.backend.devices.device_map import DEVICES, check_devices

    gpus = arguments.gpus
    if gpus is not None and not gpus.isdecimal():
        raise UsageError(f"--gpus {gpus}: a whole number is needed, e.g. --gpus 1")
    number = None if gpus is None else int(gpus)
    check_devices(arguments.device, number, allowed=DEVICES)
    return {"device": arguments.device, "gpus": number}


def replay_words(arguments: argparse.Namespace) -> list[str]:
    words = [] if arguments.device == USUAL else ["--device", arguments.device]
    return words if arguments.gpus is None else [*words, "--gpus", arguments.gpus]


def sharing_lines(maps: list[tuple[DeviceMap, int]]) -> list[str]:
    """What to tell the user whose ranks named GPUs that are not there: a line for each world,
    by its map and number of ranks."""
    used = [(devices, ranks) for devices, ranks in maps if devices.used]
    if not used:
        return []
    from phalanx.backend.devices.device_map import render_sharing

    return [f"phalanx: {render_sharing(devices, ranks)}" for devices, ranks in used]
