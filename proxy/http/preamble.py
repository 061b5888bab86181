"""The line with which a worker begins a connection to the control plane, before the request: the caller's peer.

A request cannot write there, whatever bytes it is made of, and a connection carries one request. So the control plane
believes it, and takes no connection without it.
"""

from typing import Final, NamedTuple

MOST_BYTES: Final = 128
_FIRST: Final = b"weighbridge/1"
_WAYS: Final = {b"tcp": False, b"tls": True}
_NOBODY: Final = b"-"
_MOST_PORT: Final = 65_535


class Asker(NamedTuple):
    """The facts that a worker knows of its caller's connection."""

    peer: tuple[str, int] | None
    """Address and port; None where the connection has none."""
    tls: bool


def preamble(asker: Asker) -> bytes:
    """Write the line, with its end."""
    host, port = (_NOBODY.decode(), 0) if asker.peer is None else asker.peer
    return b"%b %b %b %d\n" % (_FIRST, b"tls" if asker.tls else b"tcp", host.encode("ascii"), port)


def parse_preamble(line: bytes) -> Asker:
    """Read the line, without its end. Raises ValueError for anything else."""
    first, way, host, port = line.split(b" ")
    if first != _FIRST or way not in _WAYS or not host or not port.isdigit() or int(port) > _MOST_PORT:
        raise ValueError("a connection begins with who asks")
    return Asker(None if host == _NOBODY else (host.decode("ascii"), int(port)), _WAYS[way])
