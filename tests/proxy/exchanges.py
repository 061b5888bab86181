"""A caller in memory: one request, and what it is answered, message by message."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from proxy.http.exchange import Gone
from proxy.http.head import Header
from proxy.http.in_memory import InMemoryExchange


class HeardExchange(InMemoryExchange):
    """An exchange whose reply is kept as messages: `{"status", "headers"}`, and then `{"body", "more"}`.

    A `body` of None never comes. Without `reads` the caller takes nothing.
    """

    def __init__(
        self,
        body: bytes | None = b"",
        headers: Sequence[Header] = (),
        path: str = "/v1/chat/completions",
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(body, headers, path)
        self.messages: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.was_cut = False
        self._heard = heard

    @property
    def blocked_since(self) -> float | None:
        return None if self.reads.is_set() else 0.0

    def respond(self, status: int, headers: Sequence[Header], body: bytes = b"", lines: bytes = b"") -> None:
        super().respond(status, headers, body, lines)
        self._say({"status": status, "headers": self.reply_headers})
        self._say({"body": body, "more": False})

    def start(
        self, status: int, headers: Sequence[Header], lines: bytes = b"", *, probe: bytes = b"", waits: bool = False
    ) -> None:
        super().start(status, headers, lines, probe=probe, waits=waits)
        self._say({"status": status, "headers": self.reply_headers})

    def write(self, data: bytes) -> None:
        super().write(data)
        self._say({"body": data, "more": True})

    async def drained(self) -> None:
        await self.reads.wait()

    def end(self, data: bytes = b"") -> None:
        super().end(data)
        self._say({"body": data, "more": False})

    def abort(self) -> None:
        if not self.ended:
            self.ended = self.was_cut = True

    def hang_up(self, why: Gone = "hung_up") -> None:
        """The caller is gone."""
        self.lost(why)
        self.reads.set()

    def _say(self, message: dict[str, Any]) -> None:
        if self.gone is None:
            self.messages.append(message)
            self._heard()
