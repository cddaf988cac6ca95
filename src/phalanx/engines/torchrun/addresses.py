"""Which of this machine's addresses and interfaces leads to another machine.

Used at both ends of the torchrun engine. torch and Gloo look the machine's name up instead,
which on many machines leads to the loopback address or nowhere. Must never send anything.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
import sys
import threading
from contextlib import suppress
from pathlib import Path

LOOK_UP = 1.0
"""Seconds for a name that should be in a file of this machine."""

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface


def own_address(host: str, port: int = 9) -> str | None:
    """The address that this machine uses towards that host."""
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM):
            with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)  # chooses a route; no packet leaves
                return str(probe.getsockname()[0])
    return None


def is_here(host: str, port: str = "") -> bool:
    """Whether the host is this machine: only then can its address be bound. And whether the
    port is free, if one is named."""
    number = int(port) if port.isdigit() else 0
    with suppress(OSError):
        for family, _, _, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address[0], number, *address[2:]))
                return True
    return False


def network_trouble() -> str:
    """Why programs of this machine may not find each other; empty if no reason is known. A
    name that nobody answers for takes long to be looked up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("127.0.0.1", 9))  # chooses a route; no packet leaves
        except OSError as error:
            return f"this machine has no loopback network (127.0.0.1: {error.strerror})"
    found: list[str | None] = []
    asking = threading.Thread(
        target=lambda: found.append(own_address("localhost")), daemon=True
    )
    asking.start()
    asking.join(LOOK_UP)
    return "" if found and found[0] else 'this machine does not know the name "localhost"'


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return address == "localhost"


def interface_of(address: str) -> str | None:
    """The name of the interface that has this address; None where that cannot be found."""
    if not sys.platform.startswith("linux"):
        return None
    wanted = ipaddress.ip_address(address.partition("%")[0])
    if wanted.version == 6:
        return _interface_of_six(wanted.packed.hex())
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in names if _address_of(name) == str(wanted)), None)


def _address_of(interface: str) -> str | None:
    import fcntl

    request = struct.pack("256s", interface.encode()[:15])
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
        return socket.inet_ntoa(answer[20:24])
    return None


def _interface_of_six(digits: str) -> str | None:
    with suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            fields = line.split()
            if fields[0] == digits:
                return fields[-1]
    return None
