"""How ranks of several machines prove to the referee that they belong to the run.

Ranks of the referee's own machine come to it over the launcher's private socket. For the others
rank 0 writes an offer into the store that torch's launcher serves, which everybody who reaches
that store can read. With a key that the user has given to all machines, the offer holds a
number that is worth nothing without the key; without one it holds the token itself, and the
network is trusted not to disturb the run. Must never hold what is not checked: an offer may be
anybody's.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.errors import UsageError

KEY = "PHALANX_KEY"
SHORTEST_KEY = 16


@dataclass(frozen=True)
class Offer:
    """Where the referee is, and what its token is made of. `word` is the token, or, if it is
    `keyed`, a number."""

    port: int
    word: str
    keyed: bool = False

    def __str__(self) -> str:
        return f"{self.port} {'key' if self.keyed else 'open'} {self.word}"

    def token(self, key: str) -> str:
        """Bound to the port, so that nobody who listens elsewhere learns it. Raises
        `UsageError` where one side has a key and the other has none."""
        if self.keyed and key:
            said = f"phalanx referee {self.port} {self.word}".encode()
            return hmac.new(key.encode(), said, "sha256").hexdigest()
        if self.keyed:
            raise UsageError(
                f"{KEY} is set on rank 0's machine and not on this one: {_WAY_OUT}"
            )
        if key:
            raise UsageError(f"{KEY} is set on this machine and not on rank 0's: {_WAY_OUT}")
        return self.word


_WAY_OUT = "set it alike on all machines, or on none"


def new_offer(port: int, key: str) -> Offer:
    return Offer(port, secrets.token_hex(16), bool(key))


def read_offer(text: bytes) -> Offer | None:
    """None if it is none."""
    try:
        port, kind, word = text.decode("ascii").split()
        offer = Offer(int(port), word, kind == "key")
    except ValueError:
        return None
    return offer if str(offer) == text.decode() and 0 < offer.port < 1 << 16 else None


def read_key(environ: Mapping[str, str]) -> str:
    """What the user gave; empty for none. Raises `UsageError` if it can be guessed."""
    key = environ.get(KEY, "").strip()
    if key and len(key) < SHORTEST_KEY:
        raise UsageError(
            f"{KEY} has {len(key)} characters and can be guessed; it needs {SHORTEST_KEY} or "
            "more: make one with openssl rand -hex 16, and set it alike on all machines"
        )
    return key
