"""Mail, to a server that never comes to an end."""

import asyncio
import contextlib
from email.message import EmailMessage

import pytest

from api.webhooks import mail
from api.webhooks.mail import Mailer


@pytest.mark.parametrize("said", [b"2", b"220-more to come\r\n"])
async def test_a_server_that_dribbles_is_left(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read is in time. Its thread ends, too: a stop would wait for it, and there are few."""
    monkeypatch.setattr(mail, "_WHOLE_S", 0.3)

    async def dribble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(said)
                await writer.drain()
                await asyncio.sleep(0.01)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        is_over.set()

    is_over = asyncio.Event()
    server = await asyncio.start_server(dribble, "127.0.0.1", 0)
    async with server, asyncio.timeout(20):
        port = server.sockets[0].getsockname()[1]
        mailer = Mailer(host="127.0.0.1", port=port, security="none", sender="wb@example.com")
        with pytest.raises(TimeoutError):
            await mailer.send(EmailMessage())
        await asyncio.get_running_loop().shutdown_default_executor()
        await is_over.wait()
