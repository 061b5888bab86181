"""The listening socket of `weighbridge serve`, which every worker inherits."""

import socket

_BACKLOG = 8192
_IN_USE = {98, 48}
"""The errno of EADDRINUSE on Linux and on macOS."""


class PortTaken(Exception):
    """Raised when the address cannot be listened on; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """Binds a listening socket; port 0 lets the system choose. Raises PortTaken."""
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
        hint = "; another server is already there, choose another --port" if error.errno in _IN_USE else ""
        raise PortTaken(f"cannot listen on {host}:{port}: {error.strerror}{hint}") from error
    listener.setblocking(False)
    return listener
