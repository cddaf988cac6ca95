"""The text of `phalanx doctor`: what is wrong first, then the facts, then what is patched."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from phalanx.report.health import MEGA, WRONG, Health, Hint, ReplacedName
from phalanx.report.layout import WIDTH

_LABEL = 16
USUAL_UNDO = "put back as it was"


def render_health(health: Health, hints: Sequence[Hint], *, patches: bool = False) -> str:
    """`patches`: every replaced name, with what it is replaced for."""
    lines = [_headline(hints)]
    if hints:
        lines += ["", *_hints(hints)]
    for title, rows in _sections(health):
        lines += ["", title, *_labelled(rows)]
    lines += ["", *(_all_patches(health) if patches else _patches_by_mode(health))]
    return "\n".join(lines) + "\n"


def _headline(hints: Sequence[Hint]) -> str:
    wrong = sum(hint.level == WRONG for hint in hints)
    notes = len(hints) - wrong
    said = {0: "nothing is wrong", 1: "1 thing is wrong"}.get(
        wrong, f"{wrong} things are wrong"
    )
    if notes:
        said += ", 1 note" if notes == 1 else f", {notes} notes"
    return f"phalanx doctor: {said}"


def _hints(hints: Sequence[Hint]) -> Iterator[str]:
    for hint in hints:
        yield from _wrapped(hint.what, first=f"  {hint.level:<7}", rest=" " * 9)
        if hint.remedy:
            yield from _wrapped(hint.remedy, first=" " * 9 + "-> ", rest=" " * 12)


def _sections(health: Health) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    yield "versions", [*_versions(health.versions), ("system", health.system)]
    yield "libraries that Phalanx knows", _versions(health.libraries)
    yield "torch", _about_torch(health)
    yield f"limits (for {health.ranks} ranks)", _limits(health)
    if health.environment:
        yield "environment", list(health.environment.items())


def _versions(versions: dict[str, str | None]) -> list[tuple[str, str]]:
    rows = [(name, version) for name, version in versions.items() if version is not None]
    absent = [name for name, version in versions.items() if version is None]
    return [*rows, ("not installed", ", ".join(absent))] if absent else rows


def _about_torch(health: Health) -> list[tuple[str, str]]:
    torch = health.torch
    if torch.error is not None:
        return [("", "could not be asked")]
    there = [name for name, is_there in torch.backends.items() if is_there]
    missing = [name for name, is_there in torch.backends.items() if not is_there]
    backends = ", ".join(there) or "none"
    if missing:
        backends += f" (not compiled in: {', '.join(missing)})"
    return [
        ("backends", backends),
        ("CUDA", torch.cuda or "not compiled in"),
        ("GPUs", ", ".join(torch.gpus) or "none"),
    ]


def _limits(health: Health) -> list[tuple[str, str]]:
    limits = health.limits
    files = _number(limits.open_files)
    if limits.most_open_files != limits.open_files:
        files += f" (ulimit -n may raise it to {_number(limits.most_open_files)})"
    rows = [
        ("cores", str(limits.cores)),
        ("threads", f"{_number(limits.threads)}, of which {limits.threads_used} are there"),
        ("open files", files),
    ]
    if limits.shared_memory is not None:
        free = (limits.shared_memory_free or 0) // MEGA
        size = limits.shared_memory // MEGA
        rows.append(("shared memory", f"{size} MiB in /dev/shm, {free} MiB free"))
    ports = "any" if limits.ports is None else f"{limits.ports[0]}-{limits.ports[1]}"
    rows.append(
        ("ports", f"{ports}; " + ("none could be opened" if limits.port_error else "ok"))
    )
    return rows


def _number(limit: int | None) -> str:
    return "no limit" if limit is None else str(limit)


def _patches_by_mode(health: Health) -> Iterator[str]:
    yield f"{_count(health.patches)}; --patches says which and why"
    for mode, when in health.modes.items():
        count = sum(mode in (row.when, row.also) for row in health.patches)
        yield from _wrapped(when, first=f"  {count:>4}  ", rest=" " * 8)


def _count(patches: Sequence[ReplacedName]) -> str:
    return f"{len(patches)} names of torch, Python and pytest are replaced at times"


def _all_patches(health: Health) -> Iterator[str]:
    yield _count(health.patches)
    for mode, when in health.modes.items():
        of_mode = [row for row in health.patches if mode in (row.when, row.also)]
        if of_mode:
            yield ""
            yield from _wrapped(f"{when} ({len(of_mode)})", first="", rest="  ")
            for (why, undo), names in _by_reason(of_mode).items():
                yield from _wrapped(why, first="  ", rest="  ")
                if undo != USUAL_UNDO:
                    yield from _wrapped(f"({undo})", first="  ", rest="  ")
                yield from _wrapped(", ".join(names), first="      ", rest="      ")


def _by_reason(patches: Sequence[ReplacedName]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for row in patches:
        found.setdefault((row.why, row.undo), []).append(f"{row.owner}.{row.name}")
    return found


def _labelled(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    width = max([_LABEL, *(len(label) + 2 for label, _ in rows)])
    for label, value in rows:
        yield from _wrapped(value, first=f"  {label:<{width}}", rest=" " * (width + 2))


def _wrapped(text: str, *, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]
