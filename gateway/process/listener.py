"""The listening socket of `weighbridge serve`, which every worker inherits."""

import socket
import time

_BACKLOG = 8192
_IN_USE = {98, 48}
"""The errno of EADDRINUSE on Linux and on macOS."""
_AGAIN_S = 0.05


class PortTaken(Exception):
    """The error of an address that cannot be listened on; the message says why."""

    def __init__(self, message: str, *, in_use: bool = False) -> None:
        super().__init__(message)
        self.in_use = in_use
        """True when another server listens there."""


def bind(host: str, port: int, *, patience_s: float = 0.0) -> socket.socket:
    """Bind a listening socket; port 0 lets the system choose. An address that is in use is tried again for `patience_s`
    seconds. Raises PortTaken.
    """
    give_up_at = time.monotonic() + patience_s
    while True:
        try:
            return _bind(host, port)
        except PortTaken as refused:
            if not refused.in_use or time.monotonic() >= give_up_at:
                raise
        time.sleep(_AGAIN_S)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        in_use = error.errno in _IN_USE
        hint = "; another server is already there, choose another --port" if in_use else ""
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}{hint}", in_use=in_use) from error
    listener.setblocking(False)
    return listener
