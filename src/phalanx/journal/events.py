"""The events of a run: one frozen tuple for each thing that happened.

Every engine writes these and nothing else; readers import the classes to tell them apart. The
first four fields are the same everywhere: `time` (seconds of the process that writes, which
only go up), `rank` (of the world), `thread` (0 for the rank's own, 1 for callbacks that run in
it, any other number for one that it started) and `mark` (where in the program, unresolved:
`site` resolves it when somebody asks). `docs/journal.md` describes every field.

An event holds no tensor, no text made for it and no object of the program but its code, so
that writing one costs the hot path a tuple. `VERSION` goes up when a field is taken away or
changes its meaning.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from types import CodeType
from typing import Any, NamedTuple

from phalanx.callsite import Mark, resolve
from phalanx.model import Group, Op, Site, TensorSpec

VERSION = 1

REDUCE_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
"""Reduce operations by their number in torch's enumeration."""

Place = Mark | Site | None
"""A line of the program: a mark of this process, or a site that another one has resolved."""

CallId = tuple[int, int]
"""A call: the rank that made it, and how many calls it had made before."""


class GroupRecord:
    """A group as the journal knows it; events of one group share one of these.

    Engines complete it as they learn more (`ranks` are those of the world, in the group's
    order; `backend` is as the program asked for it). It is equal to itself only: two groups of
    the same members are two records.
    """

    __slots__ = (
        "backend",
        "description",
        "eager",
        "name",
        "number",
        "ranks",
        "used",
    )

    def __init__(self, number: int, name: str, ranks: tuple[int, ...]) -> None:
        self.number = number
        self.name = name
        self.ranks = ranks
        self.backend = ""
        self.description = ""
        """What the program calls it, or a mesh for its dimension."""
        self.eager = False
        """Whether the program bound a device to it when it was made."""
        self.used = False
        """Whether it was there before this journal began."""

    @property
    def title(self) -> str:
        """The name, and the description if there is one."""
        return f"{self.name}: {self.description}" if self.description else self.name

    def as_group(self) -> Group:
        return Group(self.title, self.ranks)

    def __repr__(self) -> str:
        return f"<group {self.number} {self.name!r} {self.ranks}>"


def described(description: object) -> str:
    """What the program calls a group; nothing for what torch says where nobody has.

    >>> described("tp"), described("default_pg")
    ('tp', '')
    """
    told = str(description)
    return "" if told in ("undefined", "None", "default_pg") else told


class Posted(NamedTuple):
    """A rank makes a call on a group. `serial` counts the rank's calls; both together name this
    one (`call`). `number` is the slot of a collective; messages have `peer` (None: from
    any source) and `tag`. `root` and `peer` are places in the group, as `member` is. Calls of
    one `batch` are launched at once; `device` is a GPU's index.

    `signature` is equal on all ranks whose calls surely agree; None where the engine has none.
    """

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    name: str
    serial: int
    member: int
    number: int | None = None
    root: int | None = None
    peer: int | None = None
    tag: int | None = None
    reduce_op: int | str | None = None
    asynchronous: bool = False
    batch: int | None = None
    device: int | None = None
    signature: Any = None

    @property
    def kind(self) -> str:
        return "posted"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)

    @property
    def call(self) -> CallId:
        return self.rank, self.serial

    @property
    def is_message(self) -> bool:
        return self.number is None

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """What the signature says about tensors."""
        return tuple(specs_in(self.signature))

    def as_op(self, *, bare: bool = True) -> Op:
        """As a report names it; `bare` leaves tensors, peer and tag out."""
        ranks = self.group.ranks
        code = self.reduce_op
        specs = () if bare else self.tensors
        return Op(
            rank=self.rank,
            name=self.name,
            group=self.group.as_group(),
            number=self.number,
            root=None if self.root is None else ranks[self.root],
            reduce_op=REDUCE_OPS[code] if isinstance(code, int) else code,
            peer=None if self.peer is None else ranks[self.peer],
            tag=self.tag,
            inputs=() if self.name == "recv" else specs,
            outputs=specs if self.name == "recv" else (),
            site=self.site,
        )


class Met(NamedTuple):
    """Calls have met: those of slot `number`, or, if that is None, the send and the receive in
    `calls`. `source` is the sender's place in the group. `rank` is the one that came last."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    number: int | None
    calls: tuple[CallId, ...] = ()
    source: int | None = None

    @property
    def kind(self) -> str:
        return "met"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class Completed(NamedTuple):
    """The data of a slot or of a message has moved, or the calls ended with an error."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    number: int | None
    calls: tuple[CallId, ...] = ()
    failed: bool = False

    @property
    def kind(self) -> str:
        return "completed"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class WaitBegan(NamedTuple):
    """A thread waits for an asynchronous call of its rank. Any other call is waited for from
    its `posted` event on."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    call: CallId | None

    @property
    def kind(self) -> str:
        return "wait-began"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class WaitEnded(NamedTuple):
    """A thread that had to wait goes on; `met` is False if it gave up."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    call: CallId | None
    met: bool = True

    @property
    def kind(self) -> str:
        return "wait-ended"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class Withdrawn(NamedTuple):
    """A message was taken back after a timeout: nobody meets it any more."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    call: CallId

    @property
    def kind(self) -> str:
        return "withdrawn"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class GroupMade(NamedTuple):
    """A rank has its end of a group. `default` says that it is the world's, `by_program` that
    the program asked for it and not Phalanx."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    member: int
    default: bool = False
    by_program: bool = True

    @property
    def kind(self) -> str:
        return "group-made"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class GroupDestroyed(NamedTuple):
    """A rank has destroyed its end of a group. `world` is the default group of that time, and
    `calls` says how many collectives the rank had called on it."""

    time: float
    rank: int
    thread: int
    mark: Place
    group: GroupRecord
    default: bool = False
    world: GroupRecord | None = None
    calls: int = 0

    @property
    def kind(self) -> str:
        return "group-destroyed"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class StoreWritten(NamedTuple):
    """The program changed a key of a store by `name` (`set`, `add`, ...). `digest` is equal for
    equal values; None where the old value counts, too. `store` tells stores apart; `key` is
    the whole key, `shown` the part that the program names. `amount` is what an `add` adds;
    `proves` and `use` are those of a `StoreRead`, for what an `add` returns."""

    time: float
    rank: int
    thread: int
    mark: Place
    store: Hashable
    name: str
    key: str
    shown: str
    digest: int | None = None
    amount: int | None = None
    proves: int | None = None
    use: str = ""

    @property
    def kind(self) -> str:
        return "store-written"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class StoreRead(NamedTuple):
    """The program looked at a key of a store by `name` (`get`, `check`, `wait`). `proves` is
    the least count that the key must have for the program to go on as it does, as far as the
    source tells; None: it may depend on all that was read. `use` says what becomes of the
    value: `dropped`, `polled` (a loop asks again), `shown`, `computed` (and then
    shown, also as a total) or `used`; nothing where that is not known."""

    time: float
    rank: int
    thread: int
    mark: Place
    store: Hashable
    name: str
    key: str
    shown: str
    found: bool = True
    proves: int | None = None
    use: str = ""

    @property
    def kind(self) -> str:
        return "store-read"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class BufferTouched(NamedTuple):
    """The program touched a tensor of `call` while the call was in flight; `how` is `read`,
    `written`, `resized`, `freed` or `used` (by another call)."""

    time: float
    rank: int
    thread: int
    mark: Place
    call: CallId | None
    how: str

    @property
    def kind(self) -> str:
        return "buffer-touched"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class RankEnded(NamedTuple):
    """`how` is `finished`, `failed`, `stopped` (because another rank failed) or `killed` (by a
    plan of faults)."""

    time: float
    rank: int
    thread: int
    mark: Place
    how: str
    error: str = ""
    """The name of the exception's class."""

    @property
    def kind(self) -> str:
        return "rank-ended"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class FindingMade(NamedTuple):
    """A check has found something: `about` is its kind, as in `phalanx.kinds`."""

    time: float
    rank: int
    thread: int
    mark: Place
    about: str
    severity: str
    ranks: tuple[int, ...]

    @property
    def kind(self) -> str:
        return "finding-made"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class FaultStruck(NamedTuple):
    """A fault of the plan `struck` this rank, or has `ended` (`how`). `name` is its kind,
    `shown` the fault as one writes it. One that names no rank, or several, stands with the
    first."""

    time: float
    rank: int
    thread: int
    mark: Place
    name: str
    shown: str
    how: str = "struck"

    @property
    def kind(self) -> str:
        return "fault-struck"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


class Noted(NamedTuple):
    """What only the rank itself could see, for the check `about`; only that reads `what`. It is
    made of plain values, the words of `phalanx.model` and marks."""

    time: float
    rank: int
    thread: int
    mark: Place
    about: str
    what: Any
    group: GroupRecord | None = None

    @property
    def kind(self) -> str:
        return "noted"

    @property
    def site(self) -> Site | None:
        return site_of(self.mark)


Event = (
    Posted
    | Met
    | Completed
    | WaitBegan
    | WaitEnded
    | Withdrawn
    | GroupMade
    | GroupDestroyed
    | StoreWritten
    | StoreRead
    | BufferTouched
    | RankEnded
    | FindingMade
    | FaultStruck
    | Noted
)

KINDS: dict[str, Any] = {
    "posted": Posted,
    "met": Met,
    "completed": Completed,
    "wait-began": WaitBegan,
    "wait-ended": WaitEnded,
    "withdrawn": Withdrawn,
    "group-made": GroupMade,
    "group-destroyed": GroupDestroyed,
    "store-written": StoreWritten,
    "store-read": StoreRead,
    "buffer-touched": BufferTouched,
    "rank-ended": RankEnded,
    "finding-made": FindingMade,
    "fault-struck": FaultStruck,
    "noted": Noted,
}
"""Every kind of event and its class."""

make: Any = tuple.__new__
"""`make(Posted, (time, rank, ...))` is `Posted(time, rank, ...)` with all fields given, without
the function that Python writes for a named tuple: for calls that count microseconds."""


def site_of(place: Place) -> Site | None:
    """The line that a mark means."""
    return place if place is None or isinstance(place, Site) else resolve(place)


def with_sites(value: Any) -> Any:
    """What was noted, with sites for its marks."""
    if type(value) is tuple:
        if len(value) == 2 and isinstance(value[0], CodeType):
            return resolve(value)
        return tuple(map(with_sites, value))
    return value


def specs_in(signature: Any) -> Iterator[TensorSpec]:
    """Tensors that a signature tells of. Engines write them as `TensorSpec`s, or as they have
    them: (dtype, shape, device or whether it is the CPU), with strides if these are odd."""
    if isinstance(signature, TensorSpec):
        yield signature
    elif isinstance(signature, tuple):
        if len(signature) in (3, 4) and _is_shape(signature[1]):
            dtype, shape, device, *strides = signature
            yield TensorSpec(
                str(dtype).removeprefix("torch."),
                tuple(shape),
                {True: "cpu", False: "cuda"}.get(device, str(device)),
                tuple(*strides) if strides and strides[0] else (),
            )
        else:
            for each in signature:
                yield from specs_in(each)


def _is_shape(given: Any) -> bool:
    return isinstance(given, tuple) and all(isinstance(n, int) for n in given)


def as_dict(event: Event) -> dict[str, Any]:
    """The event in plain values, as `docs/journal.md` lists them: the mark as `file:line`, the
    group by its number and name."""
    found: dict[str, Any] = {"kind": event.kind}
    for name, value in event._asdict().items():
        if name == "mark":
            site = site_of(value)
            found["site"] = None if site is None else str(site)
        elif isinstance(value, GroupRecord):
            found[name] = {"number": value.number, "name": value.name, "ranks": value.ranks}
        elif name == "what":
            found[name] = with_sites(value)
        elif name == "signature":
            found["tensors"] = [str(spec) for spec in specs_in(value)]
        else:
            found[name] = value
    return found
