"""Exchanges without a connection: requests that this process makes itself, whose replies are kept."""

from collections.abc import Sequence

from providers.held_bytes import HeldBytes
from proxy.http.exchange import Exchange, ProtocolUpgrade
from proxy.http.head import Head, Header
from proxy.http.reply_head import fields_of


class _NoWire:
    """The wire of an exchange without a connection: it does nothing."""

    blocked_since = None
    peer = None
    tls = False

    def write(self, data: bytes) -> None:
        pass

    async def drained(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def more_wanted(self, *, whole: bool) -> None:
        pass

    def tail(self, exchange: Exchange, *, closes: bool) -> bytes:  # noqa: ARG002 - the connection's signature
        return b"\r\n"

    def reply_ended(self) -> None:
        pass

    def switched(self, upgraded: ProtocolUpgrade) -> None:
        pass

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass

    def close(self) -> None:
        pass


def post_of(body: bytes | None, headers: Sequence[Header], path: str = "") -> Head:
    """Return the head of a POST that came by no connection."""
    return Head(
        method="POST",
        path=path,
        query=b"",
        version="1.1",
        headers=list(headers),
        length=None if body is None else len(body),
        keeps=True,
        noted={},
    )


class InMemoryExchange(Exchange):
    """A POST of this process's own. A `body` of None never comes."""

    def __init__(self, body: bytes | None, headers: Sequence[Header] = (), path: str = "") -> None:
        super().__init__(post_of(body, headers, path), _NoWire(), HeldBytes(len(body or b"")))
        self._headers: Sequence[Header] = ()
        self._lines = b""
        self.reply_pieces: list[bytes] = []
        """The body of the reply as it was sent."""
        if body:
            self.add_body(body, whole=True)

    @property
    def reply_headers(self) -> list[Header]:
        """The fields of the reply that was begun."""
        return [*self._headers, *fields_of(self._lines)]

    def respond(self, status: int, headers: Sequence[Header], body: bytes = b"", lines: bytes = b"") -> None:
        super().respond(status, headers, body, lines)
        self._headers, self._lines = headers, lines
        self.reply_pieces.append(body)

    def start(
        self, status: int, headers: Sequence[Header], lines: bytes = b"", *, probe: bytes = b"", waits: bool = False
    ) -> None:
        super().start(status, headers, lines, probe=probe, waits=waits)
        self._headers, self._lines = headers, lines

    def write(self, data: bytes) -> None:
        super().write(data)
        self.reply_pieces.append(data)

    def end(self, data: bytes = b"") -> None:
        super().end(data)
        self.reply_pieces.append(data)
