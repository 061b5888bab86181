"""Handing mail to an SMTP server, in a thread of its own."""

import asyncio
import smtplib
import ssl
from email.message import EmailMessage
from typing import Final, Literal

import msgspec

TIMEOUT_S: Final = 15.0
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
        """Return the SMTP status, 250 for mail that was taken for everybody. Raises OSError without an answer."""
        return await asyncio.to_thread(self._send, mail)

    def _send(self, mail: EmailMessage) -> int:
        try:
            with self._connected() as server:
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

    def _connected(self) -> smtplib.SMTP:
        if self.security == "tls":
            return smtplib.SMTP_SSL(self.host, self.port, timeout=TIMEOUT_S, context=ssl.create_default_context())
        return smtplib.SMTP(self.host, self.port, timeout=TIMEOUT_S)
