"""Ask a moderation service over HTTP: within a deadline, some calls at a time, without redirects, with bounded replies.

Texts and keys go to the address of the configuration and nowhere else; a failure is told by a word, never by what was sent or came
back.
"""

import asyncio
import logging
import zlib
from collections.abc import Callable, Sequence
from typing import Final, Literal

import aiohttp
import msgspec

from guard.moderation import Call, Direction, OddReply, Shape, TooLong, Verdict, calls, together, verdict

_log = logging.getLogger("weighbridge.guard")

MOST_REPLY_BYTES: Final = 2**20
AT_ONCE: Final = 32
"""Calls to a service at a time, from one process."""
_OK: Final = 200
_GZIP: Final = 16 + zlib.MAX_WBITS

Reason = Literal["deadline", "connection", "status", "reply", "too_long", "left_alone"]


class ServiceUnavailable(Exception):
    """A service gave no verdict; `reason` is a word for metrics, `detail` a sentence without anything of request or reply."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason: Final = reason
        super().__init__(detail)


_FAILURES: Final = (ServiceUnavailable, OddReply, aiohttp.ClientError, OSError, zlib.error)


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service as it is configured. Two rules with the same one share a call."""

    url: str
    shape: Shape
    model: str | None = None
    key: str | None = None
    timeout_s: float = 0.3


class ModerationClient:
    """The process's client of all services."""

    def __init__(self, at_once: int = AT_ONCE, session: Callable[[], aiohttp.ClientSession] | None = None) -> None:
        self._at_once = at_once
        self._new_session = session or _session
        self._session: aiohttp.ClientSession | None = None
        self._places: dict[str, asyncio.Semaphore] = {}
        self._failing: set[str] = set()

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def judge(self, service: Service, texts: Sequence[str], direction: Direction) -> Verdict:
        """Return what the service says of the texts. Raises ServiceUnavailable."""
        if not texts:
            return Verdict(flagged=False)
        try:
            said = await self._judged(service, texts, direction)
        except ServiceUnavailable as error:
            self._tell(service, error)
            raise
        if service.url in self._failing:
            self._failing.discard(service.url)
            _log.warning("guard: the service at %s answers again", _host(service.url))
        return said

    def _tell(self, service: Service, error: ServiceUnavailable) -> None:
        if service.url not in self._failing:
            self._failing.add(service.url)
            _log.warning("guard: no verdict from the service at %s: %s", _host(service.url), error)

    async def _judged(self, service: Service, texts: Sequence[str], direction: Direction) -> Verdict:
        try:
            asked = calls(service.shape, texts, direction, service.model)
        except TooLong:
            raise ServiceUnavailable("too_long", "the texts are longer than it is asked about") from None
        try:
            async with asyncio.timeout(service.timeout_s):
                return await self._all(service, asked)
        except TimeoutError:
            raise ServiceUnavailable("deadline", f"not within {service.timeout_s * 1000:.0f} ms") from None
        except OddReply as error:
            raise ServiceUnavailable("reply", f"its reply is no verdict: {error}") from None
        except (aiohttp.ClientError, OSError, zlib.error) as error:
            raise ServiceUnavailable("connection", f"no reply ({type(error).__name__})") from None

    async def _all(self, service: Service, asked: Sequence[Call]) -> Verdict:
        """Return the verdict on all; where some calls fail, what the others flag counts."""
        if len(asked) == 1:
            return await self._one(service, asked[0])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._or_failure(service, call)) for call in asked]
        said = [task.result() for task in tasks]
        verdicts = [each for each in said if isinstance(each, Verdict)]
        failures = [each for each in said if not isinstance(each, Verdict)]
        if failures and not any(each.flagged for each in verdicts):
            raise failures[0]
        return together(verdicts, partial=bool(failures))

    async def _or_failure(self, service: Service, call: Call) -> "Verdict | Exception":
        try:
            return await self._one(service, call)
        except _FAILURES as error:
            return error

    async def _one(self, service: Service, call: Call) -> Verdict:
        places = self._places.setdefault(service.url, asyncio.Semaphore(self._at_once))
        async with places:
            try:
                body = await self._post(service, call)
            except aiohttp.ServerDisconnectedError:
                # It closed a connection that was kept just as we used it; a verdict can be asked for twice.
                body = await self._post(service, call)
        return verdict(service.shape, body, call.texts)

    async def _post(self, service: Service, call: Call) -> bytes:
        if self._session is None:
            self._session = self._new_session()
        headers = {} if service.key is None else {"authorization": f"Bearer {service.key}"}
        async with self._session.post(service.url, data=call.body, headers=headers, allow_redirects=False) as response:
            if response.status != _OK:
                raise ServiceUnavailable("status", f"it answered {response.status}")
            return await _body(response)


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Return the reply, decompressed as far as it is allowed to be long. Raises OddReply."""
    coding = response.headers.get("content-encoding", "identity").lower()
    if coding not in {"identity", "gzip"}:
        raise OddReply("its content coding was not asked for")
    unpacked = zlib.decompressobj(_GZIP) if coding == "gzip" else None
    parts: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        part = chunk if unpacked is None else unpacked.decompress(chunk, MOST_REPLY_BYTES + 1 - size)
        parts.append(part)
        size += len(part)
        if size > MOST_REPLY_BYTES:
            raise OddReply("it is too long")
    return b"".join(parts)


def _host(url: str) -> str:
    """Return whom an address names; the rest of it may hold a token."""
    return url.split("//", 1)[-1].split("/", 1)[0].rsplit("@", 1)[-1]


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # The time of a verdict is bounded as a whole, with its wait for a place.
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        connector=aiohttp.TCPConnector(limit=0, limit_per_host=AT_ONCE),
        headers={
            "content-type": "application/json",
            "accept": "application/json",
            "accept-encoding": "gzip, identity",
            "user-agent": "weighbridge-guard/1",
        },
    )
