"""A failing run told as a story: the choices that matter, in order, each a sentence.

A choice matters because of a step that others notice: where a thread goes first out of turn,
the story names what it does, and what of the other thread comes only afterwards. Pure: equal
runs give equal texts, in ASCII and 88 columns. No torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.callsite import resolve
from phalanx.explore.trace import Candidate, Choice, Thread, Trace, conflicts
from phalanx.model import Site
from phalanx.report.layout import WIDTH, ascii_text, cut, wrap

MOST_SENTENCES = 12
_MARGIN = "  "
_SOURCE = ">  "
IN_DEFAULT_ORDER = (
    "in the default order: each rank goes on as far as it can, then the first that can"
)


@dataclass(frozen=True)
class Sentence:
    """What happens, and the program's lines that do it."""

    text: str
    sites: tuple[Site, ...] = ()


def story_lines(sentences: Sequence[Sentence]) -> list[str]:
    """The sentences with their numbers and their source; without any, that there are none."""
    if not sentences:
        return [_MARGIN + IN_DEFAULT_ORDER]
    shown = sentences[:MOST_SENTENCES]
    lines = [line for number, each in enumerate(shown, 1) for line in _lines(number, each)]
    if len(sentences) > len(shown):
        lines += ["", f"{_MARGIN}... and {len(sentences) - len(shown)} choices more"]
    return lines


def sentences_of(trace: Trace, without: Sequence[Trace] = ()) -> list[Sentence]:
    """One for each choice of the run that is not the usual one. `without` has for each of them
    a run in which it alone was the usual one: what comes the other way round there is what
    matters."""
    found: list[Sentence] = []
    for index, choice in enumerate(trace.choices):
        if choice.is_usual:
            continue
        other, without = (without[0], without[1:]) if without else (None, ())
        sentence = _of_value(choice) if choice.values else _of_order(index, trace, other)
        if sentence is not None and sentence not in found:
            found.append(sentence)
    return found


def _lines(number: int, sentence: Sentence) -> Iterator[str]:
    label = f"{_MARGIN}{number}. "
    texts = wrap(ascii_text(sentence.text), WIDTH - len(label))
    yield label + texts[0]
    inside = " " * len(label)
    yield from (inside + text for text in texts[1:])
    for site in dict.fromkeys(sentence.sites):
        if site.source:
            yield inside + _SOURCE + cut(site.source, WIDTH - len(inside) - len(_SOURCE))


# -- a value --------------------------------------------------------------------------------


def _of_value(choice: Choice) -> Sentence | None:
    """None for one that could not be followed: the run went on as usual."""
    if len(choice.values) < 2:
        return None
    site = resolve(choice.mark)
    chosen, usual = choice.value, choice.values[choice.usual]
    place = f" at {site}" if site else ""
    who = thread_text(choice.thread)
    sites = (site,) if site else ()
    if choice.kind.startswith("receive"):
        text = f"the receive from any source of {who}{place} takes the message of {chosen}"
        return Sentence(f"{text}, not of {usual}", sites)
    if choice.kind == "poll":
        return Sentence(f"{who} asks{place} and hears {chosen!r}, not {usual!r}", sites)
    return Sentence(f"{choice.kind} of {who}{place}: {chosen}, not {usual}", sites)


# -- an order -------------------------------------------------------------------------------


def _of_order(index: int, trace: Trace, other: Trace | None) -> Sentence:
    choice = trace.choices[index]
    passed = choice.candidates[choice.usual]
    first, second = (_reversed_pair(index, trace, other) if other is not None else None) or (
        _pair(index, trace.choices)
    )
    site, time = resolve(first.mark), _time_of(first, trace.choices)
    text = f"{thread_text(first.thread)} reaches {_act(first, site, time)} before "
    later = resolve(second.mark) if second is not None else None
    who = thread_text((second or passed).thread)
    if later is not None and second is not None:
        again = _time_of(second, trace.choices)
        same = (site, first.kind, time) == (later, second.kind, again)
        text += f"{who} does" if same else f"{who} reaches {_act(second, later, again)}"
    else:
        text += f"{who} comes to its {step_text(passed)}"
    return Sentence(text, tuple(each for each in (site, later) if each is not None))


def _reversed_pair(index: int, trace: Trace, other: Trace) -> tuple[Choice, Choice] | None:
    """The first step from this choice on that comes before a step of another thread which in
    the other run comes first, if one of the two writes what both touch. Of several of that kind
    one that does the same as the first says most."""
    places = {key: at for at, (key, _) in enumerate(_numbered(other.choices))}
    numbered = _numbered(trace.choices)
    for at in range(index, len(numbered)):
        key, first = numbered[at]
        there = places.get(key)
        if first.values or there is None:
            continue
        after = [
            each
            for later, each in numbered[at + 1 :]
            if not each.values
            and later in places
            and places[later] < there
            and later[0] != key[0]
            and conflicts(first, each)
        ]
        if after:
            alike = [each for each in after if each.kind == first.kind]
            return first, (alike or after)[0]
    return None


def _numbered(choices: Sequence[Choice]) -> list[tuple[tuple[Thread, int], Choice]]:
    """Each choice with its thread and how many that thread had made."""
    made: dict[Thread, int] = {}
    found = []
    for choice in choices:
        number = made.get(choice.thread, 0)
        made[choice.thread] = number + 1
        found.append(((choice.thread, number), choice))
    return found


def _pair(index: int, choices: Sequence[Choice]) -> tuple[Choice, Choice | None]:
    """The step because of which the order may matter, and that of the thread that was passed
    over, which now comes later. Steps of which neither writes what the other touches say
    nothing."""
    candidate = choices[index].candidates[choices[index].usual]
    passed = candidate.thread
    later = [at for at in range(index, len(choices)) if choices[at].thread == passed]
    until = later[0] if later else len(choices)
    between = [each for each in choices[index:until] if each.thread != passed]
    if not later:
        return _first_conflict(between, candidate) or choices[index], None
    for at in later:
        found = _first_conflict(between, choices[at])
        if found is not None:
            return found, choices[at]
    return choices[index], choices[until]


def _first_conflict(between: Sequence[Choice], other: Choice | Candidate) -> Choice | None:
    return next((each for each in between if conflicts(each, other)), None)


# -- words ----------------------------------------------------------------------------------


def thread_text(thread: Thread) -> str:
    rank, number = thread
    return f"thread {number} of rank {rank}" if number else f"rank {rank}"


def step_text(step: Choice | Candidate) -> str:
    """What is done, and to what: `store.add of "head"`.

    >>> step_text(Candidate((0, 0), "send", (("messages", "world", 2, 0),), True))
    'send to rank 2'
    """
    return f"{step.kind}{_places_text(step.kind, step.places)}"


def _act(step: Choice, site: Site | None, time: str) -> str:
    return f"{site} ({step_text(step)}{time})" if site else step_text(step)


def _time_of(step: Choice, choices: Sequence[Choice]) -> str:
    """Which time its thread does the same at the same line, if it does so several times."""
    alike = [each for each in choices if each[:5] == step[:5]]
    if len(alike) < 2:
        return ""
    return f", time {1 + next(at for at, each in enumerate(alike) if each is step)}"


def _places_text(kind: str, places: tuple[Hashable, ...]) -> str:
    keys = [each[-1] for each in _named(places, "store")]
    if keys:
        shown = ", ".join(f'"{_last_part(str(key))}"' for key in keys[:3])
        return f" of {shown}{', ...' if len(keys) > 3 else ''}"
    peers = [each[2] for each in _named(places, "messages") if len(each) > 2]
    return f" to rank {peers[0]}" if peers and kind == "send" else ""


def _named(places: tuple[Hashable, ...], kind: str) -> list[tuple[Any, ...]]:
    return [
        each for each in places if isinstance(each, tuple) and len(each) > 1 and each[0] == kind
    ]


def _last_part(key: str) -> str:
    """A key as the program names it: what `PrefixStore` puts before it is left out."""
    return cut(key.rpartition("/")[2] or key, 40)
