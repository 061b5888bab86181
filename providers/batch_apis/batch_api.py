"""The interface to a provider's batch API, and the HTTP that both kinds share."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, Literal, Protocol

import aiohttp
import msgspec

from providers.errors import AnswerLost, ConnectFailed, MalformedReply, UpstreamError, UpstreamTimeout
from providers.target import Deployment
from providers.upstream_faults import error_of_status
from settings.decoding import DECODE_ERRORS

_log: Final = logging.getLogger("weighbridge.batch")

Outcome = Literal["", "completed", "failed", "expired", "cancelled"]

_CONNECT_S: Final = 10.0
_TOTAL_S: Final = 600.0
_MOST_REPLY_BYTES: Final = 4 * 1024 * 1024
_MOST_LINE_BYTES: Final = 64 * 1024 * 1024
_PIECE_BYTES: Final = 64 * 1024
CLOCKS_S: Final = 300.0
"""Seconds by which the provider's clock may be behind ours."""
MOST_PAGES: Final = 20
"""Pages of a provider's list that are looked through for a batch."""


class BatchCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a batch: a name of ours for it, and its body as the provider's API takes it."""

    custom_id: str
    body: bytes


class HandedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch at a provider, as it stands there."""

    batch_id: str
    outcome: Outcome = ""
    """Empty while it runs."""
    answered: int = 0
    """Calls that it says it has answered well, which it charges for."""
    files: tuple[str, ...] = ()
    """The names of its result files."""
    input_file: str = ""


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one call. `status` is its HTTP status, 0 where it was never made; `body` is there with 200 alone."""

    custom_id: str
    status: int
    body: bytes = b""


class BatchApi(Protocol):
    """A provider's batch API. All of it raises an UpstreamError."""

    names_batches: bool
    """True when a batch carries our name for it, so that it can be told from everybody else's."""

    async def create(self, deployment: Deployment, name: str, path: str, calls: Sequence[BatchCall]) -> str:
        """Hand calls over, and return the batch's id there. `path` is the API's, such as `chat/completions`.

        Where it fails, something that was uploaded for it may be left there; `find` removes it.
        """
        ...

    async def find(self, deployment: Deployment, name: str, since_s: float, calls: int) -> list[str]:
        """Return ids of batches that may be the one called `name`, made since then with so many calls; the one alone where batches
        carry names. What was begun for it and is in no batch is removed.
        """
        ...

    async def look(self, deployment: Deployment, batch_id: str) -> HandedBatch:
        """Ask for the batch's state."""
        ...

    async def cancel(self, deployment: Deployment, batch_id: str) -> None:
        """Make no more of its calls. One that has ended stays as it is."""
        ...

    def results(self, deployment: Deployment, batch: HandedBatch) -> AsyncIterator[CallOutcome]:
        """Yield the outcomes of its calls, in any order; those that were never made may be missing."""
        ...

    async def forget(self, deployment: Deployment, batch: HandedBatch) -> None:
        """Delete the batch's prompts and answers there. That one is gone already is no error."""
        ...


def text_of(found: Mapping[str, Any], name: str, deployment: Deployment, whose: str) -> str:
    """Return a text that a reply has to have. Raises MalformedReply."""
    value = found.get(name)
    if not isinstance(value, str) or not value:
        raise malformed(deployment, whose)
    return value


async def outcomes(
    lines: AsyncIterator[bytes], read: Callable[[bytes], CallOutcome], deployment: Deployment, whose: str
) -> AsyncIterator[CallOutcome]:
    """Yield the outcomes in a file of answers. One line that cannot be read keeps none of the others back: it counts as a call whose answer
    was not delivered. Raises MalformedReply for a file that breaks off.
    """
    async for line in lines:
        if not line.strip():
            continue
        try:
            outcome = read(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if not line.endswith(b"\n"):
                raise malformed(deployment, whose) from error
            _log.error("batch: %s gave an answer that cannot be read; it is left out", deployment.deployment_id)
            continue
        yield outcome


@contextlib.contextmanager
def gone_already() -> Iterator[None]:
    """Pass over a status 404 while deleting: a thing that is gone already is as wanted."""
    try:
        yield
    except UpstreamError as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise


def malformed(deployment: Deployment, whose: str) -> MalformedReply:
    """Return the error for a reply in another shape than that provider's."""
    return MalformedReply(
        f"The provider's batch API answered with something else than {whose}'s.", deployment_id=deployment.deployment_id
    )


class BatchHttp:
    """The HTTP of batch APIs. Calls are few and large, so it is aiohttp's."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def asked(
        self,
        deployment: Deployment,
        method: str,
        url: str,
        headers: Mapping[str, str],
        *,
        body: bytes | aiohttp.FormData | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Any:
        """Return the JSON of a reply. Raises an UpstreamError for anything but success."""
        async with (
            _Translated(deployment),
            self._session.request(
                method, url, headers=headers, data=body, params=params, timeout=_TIMEOUT, allow_redirects=False
            ) as reply,
        ):
            await _refuse(reply, deployment)
            read = await _bounded(reply.content, _MOST_REPLY_BYTES, deployment)
        try:
            return msgspec.json.decode(read)
        except DECODE_ERRORS as error:
            raise MalformedReply(
                "The provider's batch API did not answer with JSON.", deployment_id=deployment.deployment_id
            ) from error

    async def lines(self, deployment: Deployment, url: str, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the lines of a file with their ends, however large it is."""
        async with (
            _Translated(deployment),
            self._session.get(url, headers=headers, timeout=_TIMEOUT, allow_redirects=False) as reply,
        ):
            await _refuse(reply, deployment)
            begun: list[bytes] = []
            size = 0
            async for piece in reply.content.iter_chunked(_PIECE_BYTES):
                *whole, rest = piece.split(b"\n")
                for end in whole:
                    yield b"".join([*begun, end, b"\n"])
                    begun, size = [], 0
                begun.append(rest)
                size += len(rest)
                if size > _MOST_LINE_BYTES:
                    raise MalformedReply(
                        "A line of a provider's batch is too long.", deployment_id=deployment.deployment_id
                    )
            if size:
                yield b"".join(begun)


_TIMEOUT: Final = aiohttp.ClientTimeout(total=_TOTAL_S, sock_connect=_CONNECT_S)


class _Translated:
    """A block whose aiohttp errors become an UpstreamError."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment_id = deployment.deployment_id

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, UpstreamError):
            return
        if isinstance(error, asyncio.TimeoutError | TimeoutError):
            raise UpstreamTimeout(
                "The provider's batch API took too long.", deployment_id=self._deployment_id
            ) from error
        if isinstance(error, aiohttp.ClientConnectorError):
            raise ConnectFailed(
                "The provider's batch API cannot be reached.", deployment_id=self._deployment_id
            ) from error
        if isinstance(error, aiohttp.ClientError):
            raise AnswerLost(
                "The provider's batch API broke off its answer.", deployment_id=self._deployment_id
            ) from error


async def _refuse(reply: aiohttp.ClientResponse, deployment: Deployment) -> None:
    if reply.status not in {HTTPStatus.OK, HTTPStatus.CREATED}:
        body = await reply.content.read(_PIECE_BYTES)
        headers = {name.lower(): value for name, value in reply.headers.items()}
        raise error_of_status(
            reply.status, body, headers, deployment_id=deployment.deployment_id, secret=deployment.api_key
        )


async def _bounded(content: aiohttp.StreamReader, most: int, deployment: Deployment) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in content.iter_chunked(_PIECE_BYTES):
        size += len(piece)
        if size > most:
            raise MalformedReply(
                "The provider's batch API answered with too much.", deployment_id=deployment.deployment_id
            )
        pieces.append(piece)
    return b"".join(pieces)
