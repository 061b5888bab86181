"""Handing mail to an SMTP server, in a thread of its own."""

import asyncio
import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from typing import Any, Final, Literal

import msgspec

TIMEOUT_S: Final = 15.0
_WHOLE_S: Final = 45.0
"""How long one mail may take, within the lease of its message."""
_SENT: Final = 250


class Mailer(msgspec.Struct, frozen=True, kw_only=True):
    """The SMTP server and who signs in there. Never show this struct: it has the password."""

    host: str
    port: int
    security: Literal["starttls", "tls", "none"]
    sender: str
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Mailer({self.host!r}, {self.port})"

    async def send(self, mail: EmailMessage) -> int:
        """Return the SMTP status, 250 for mail that was taken for everybody. Raises OSError without an answer in time."""
        opened: list[smtplib.SMTP] = []
        sending = asyncio.create_task(asyncio.to_thread(self._send, opened.append, mail))
        # Where it is cut off below, nobody else takes its end.
        sending.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            async with asyncio.timeout(_WHOLE_S):
                return await asyncio.shield(sending)
        finally:
            if not sending.done():
                # Its own time is that of a single read: a byte now and then would keep the thread, and a stop, for ever.
                _cut_off(opened)

    def _send(self, known: "_Known", mail: EmailMessage) -> int:
        try:
            with self._connected(known) as server:
                if self.security == "starttls":
                    server.starttls(context=ssl.create_default_context())
                if self.user is not None and self.password is not None:
                    server.login(self.user, self.password)
                refused = server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            return max(status for status, _ in error.recipients.values())
        except smtplib.SMTPResponseException as error:
            return error.smtp_code
        # Some may have been taken: sent again, they would get it twice.
        del refused
        return _SENT

    def _connected(self, known: "_Known") -> smtplib.SMTP:
        if self.security == "tls":
            return _OverTls(known, self.host, self.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return _Plain(known, self.host, self.port, timeout=TIMEOUT_S)


_Known = Callable[[smtplib.SMTP], None]


class _Plain(smtplib.SMTP):
    """A client that is made known before it connects, which it does as it is made."""

    def __init__(self, known: _Known, *args: Any, **fields: Any) -> None:
        known(self)
        super().__init__(*args, **fields)


class _OverTls(smtplib.SMTP_SSL):
    """The same with TLS from the start."""

    def __init__(self, known: _Known, *args: Any, **fields: Any) -> None:
        known(self)
        super().__init__(*args, **fields)


def _cut_off(opened: Sequence[smtplib.SMTP]) -> None:
    for each in opened:
        if each.sock is not None:
            with contextlib.suppress(OSError):
                each.sock.shutdown(socket.SHUT_RDWR)
