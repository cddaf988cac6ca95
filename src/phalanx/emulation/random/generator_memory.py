"""The generators behind `random` and NumPy's legacy functions, as memory to copy.

`python_generator()` and `numpy_generator(module)` return a `Generator`, which tells whether it
was used, gives a snapshot of its state and takes one back. Both kinds are Mersenne twisters of
2.5 KiB. Through their own methods, a look and a swap take tens of microseconds; to
copy the memory takes a microsecond, and the ranks of a script swap at every hand-over, since
nothing tells beforehand which of them will draw. NumPy publishes the address of its state.
Python's state lies behind the head of its object; that, and where NumPy keeps the second of two
normal numbers, is tried on spare objects first. If it is not found there, the methods are used.
"""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Hashable
from functools import cache
from types import ModuleType
from typing import Any, cast

WORDS = 624
SIZE = 4 * (WORDS + 1)


class Generator:
    """A source of random numbers whose state `randomness.py` swaps between ranks."""

    owner: Any
    mark: Callable[[], Any]
    """Returns an equal value as long as the generator is not used."""

    def snapshot(self) -> Any:
        raise NotImplementedError

    def put(self, snapshot: Any) -> None:
        """Continue from that snapshot."""
        raise NotImplementedError

    def spare(self) -> Generator:
        """Another generator of this kind."""
        raise NotImplementedError

    def seed(self, seed: bytes) -> None:
        raise NotImplementedError


class PythonGenerator(Generator):
    """A `random.Random`, by its own methods."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.mark = self.snapshot

    def snapshot(self) -> Any:
        return random.Random.getstate(self.owner)

    def put(self, snapshot: Any) -> None:
        random.Random.setstate(self.owner, snapshot)

    def spare(self) -> Generator:
        return type(self)(random.Random())

    def seed(self, seed: bytes) -> None:
        random.Random.seed(self.owner, seed)


# Drawing moves the position. Seeding sets that to the same place every time, but another word
# differs. Of two normal numbers that are drawn together the second one waits for its turn.


class PythonGeneratorMemory(PythonGenerator):
    """The same by its memory."""

    def __init__(self, owner: Any) -> None:
        super().__init__(owner)
        self.raw = _memory(id(owner) + object.__basicsize__, SIZE)
        words = self.raw.cast("I")
        self.mark = lambda: (words[0], words[2], owner.gauss_next)

    def snapshot(self) -> Any:
        return self.raw.tobytes(), self.owner.gauss_next

    def put(self, snapshot: Any) -> None:
        self.raw[:], self.owner.gauss_next = snapshot


class NumpyGenerator(Generator):
    """A `numpy.random.RandomState`, by its own methods."""

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.mark = lambda: self.snapshot()[1:]

    def snapshot(self) -> Any:
        name, words, *rest = self.owner.get_state()
        return name, tuple(words.tolist()), *rest

    def put(self, snapshot: Any) -> None:
        self.owner.set_state(snapshot)

    def spare(self) -> Generator:
        return NumpyGenerator(type(self.owner)())

    def seed(self, seed: bytes) -> None:
        self.owner.seed(_numbers(seed))


class NumpyGeneratorMemory(NumpyGenerator):
    """The same by its memory, over an `MT19937`."""

    def __init__(self, owner: Any, bits: Any, gauss_place: int) -> None:
        super().__init__(owner)
        self._bits, self._place = bits, gauss_place
        self._gauss = gauss = _memory(id(owner) + gauss_place, 16)
        self.raw = _memory(bits.ctypes.state_address, SIZE)
        last = _memory(bits.ctypes.state_address + SIZE - 8, 8).cast("Q")
        self.mark = lambda: (last[0], gauss[0])  # the last word and the position; waits one?

    def snapshot(self) -> Any:
        return self.raw.tobytes(), self._gauss.tobytes()

    def put(self, snapshot: Any) -> None:
        self.raw[:], self._gauss[:] = snapshot

    def spare(self) -> Generator:
        bits = type(self._bits)()
        owner = type(self.owner)(bits)
        return NumpyGeneratorMemory(owner, bits, self._place)


def _numbers(seed: bytes) -> list[int]:
    return [*struct.unpack(f"{len(seed) // 4}I", seed)]


def python_generator() -> Generator:
    """The generator behind the functions of `random`."""
    seed: Any = random.seed
    kind = PythonGeneratorMemory if _is_where_we_think() else PythonGenerator
    return kind(seed.__self__)


def numpy_generator(module: ModuleType) -> Generator | None:
    """The generator behind the functions of `numpy.random`; `module` is `numpy.random.mtrand`.
    None if the program has put another kind of generator there."""
    owner = module._rand
    bits = owner._bit_generator
    if type(bits).__name__ != "MT19937":
        return None
    kinds: Any = (type(owner), type(bits))
    place = _gauss_place(kinds[0])
    if place is None or not _is_where_numpy_says(*kinds):
        return NumpyGenerator(owner)
    return NumpyGeneratorMemory(owner, bits, place)


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


@cache
def _is_where_we_think() -> bool:
    one, other = random.Random(1), random.Random(2)
    least = object.__basicsize__ + SIZE
    if not least <= random.Random.__mro__[1].__basicsize__ < least + 16:
        return False
    one.getrandbits(1000)
    words = PythonGeneratorMemory(one).raw.cast("I")
    if (*words[1:], words[0]) != one.getstate()[1]:
        return False
    PythonGeneratorMemory(other).put(PythonGeneratorMemory(one).snapshot())
    return one.getstate() == other.getstate()


@cache
def _gauss_place(kind: Hashable) -> int | None:
    """The offset in the object at which 8 bytes say whether there is a second number, followed
    by the number. None if it is not found."""
    make: Any = kind
    trial = make(1)
    name, words, position, *_ = trial.get_state()
    memory = _memory(id(trial), make.__basicsize__)
    places = []
    for number in (0.7362514938271, -3.0291827364512):
        trial.set_state((name, words, position, 1, number))
        found = bytes(memory).find(struct.pack("d", number))
        is_there = bytes(memory[found - 8 : found - 4]) == struct.pack("i", 1)
        trial.set_state((name, words, position, 0, number))
        is_not = bytes(memory[found - 8 : found - 4]) == struct.pack("i", 0)
        places.append(found - 8 if found >= 8 and is_there and is_not else None)
    return places[0] if places[0] == places[1] else None


@cache
def _is_where_numpy_says(kind: Hashable, bits_kind: Hashable) -> bool:
    make, make_bits = cast(Any, kind), cast(Any, bits_kind)
    bits, other_bits = make_bits(1), make_bits(2)
    one, other = make(bits), make(other_bits)
    one.standard_normal()
    place = _gauss_place(kind) or 0
    NumpyGeneratorMemory(other, other_bits, place).put(
        NumpyGeneratorMemory(one, bits, place).snapshot()
    )
    (_, words, *rest), (_, other_words, *other_rest) = one.get_state(), other.get_state()
    return bool(rest == other_rest and words.tobytes() == other_words.tobytes())
