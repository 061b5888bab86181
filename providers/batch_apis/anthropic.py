"""Anthropic's batch API: requests in one body, results in one stream. Its batches carry no name of ours."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from providers.batch_apis.batch_api import (
    CLOCKS_S,
    MOST_PAGES,
    BatchCall,
    BatchHttp,
    CallOutcome,
    HandedBatch,
    gone_already,
    malformed,
    outcomes,
    text_of,
)
from providers.claude.reply import chat_of_message
from providers.errors import RequestRejected, UpstreamError
from providers.provider_tools import address_of_dialect
from providers.refusals import SERVER_FAULT, status_of
from providers.target import Deployment
from settings.decoding import DECODE_ERRORS

_VERSION: Final = "2023-06-01"
_PATH: Final = "messages/batches"
_WHOSE: Final = "Anthropic"
_PAGE: Final = "1000"


class AnthropicBatches:
    """The API of `/v1/messages/batches`."""

    names_batches = False

    def __init__(self, http: BatchHttp) -> None:
        self._http = http

    async def create(self, deployment: Deployment, name: str, path: str, calls: Sequence[BatchCall]) -> str:  # noqa: ARG002  Batches have no name, and one path.
        """Send all calls in one body."""
        asked = [{"custom_id": call.custom_id, "params": msgspec.Raw(call.body)} for call in calls]
        made = await self._ask(deployment, "POST", _PATH, body=msgspec.json.encode({"requests": asked}))
        return text_of(made, "id", deployment, _WHOSE)

    async def find(self, deployment: Deployment, name: str, since_s: float, calls: int) -> list[str]:  # noqa: ARG002  Batches have no name.
        """Return batches with that many requests created since then, ours among them if it was created at all."""
        found: list[str] = []
        after: str | None = None
        for _ in range(MOST_PAGES):
            params = {"limit": _PAGE} if after is None else {"limit": _PAGE, "after_id": after}
            page = await self._ask(deployment, "GET", _PATH, params=params)
            data = page.get("data") or []
            made = [each for each in data if _seconds(each.get("created_at")) >= since_s - CLOCKS_S]
            found += [text_of(each, "id", deployment, _WHOSE) for each in made if _requests(each) == calls]
            if not page.get("has_more") or len(made) < len(data):
                break
            after = str(page.get("last_id") or "")
        return found

    async def look(self, deployment: Deployment, batch_id: str) -> HandedBatch:
        """Ask for the batch's state; its counts are told once it has ended."""
        found = await self._ask(deployment, "GET", f"{_PATH}/{batch_id}")
        if found.get("processing_status") != "ended":
            return HandedBatch(batch_id=batch_id)
        counts = found.get("request_counts") or {}
        expired, cancelled = counts.get("expired") or 0, counts.get("canceled") or 0
        return HandedBatch(
            batch_id=batch_id,
            outcome="expired" if expired else "cancelled" if cancelled else "completed",
            answered=int(counts.get("succeeded") or 0),
        )

    async def cancel(self, deployment: Deployment, batch_id: str) -> None:
        """Begin no more of its requests."""
        with contextlib.suppress(RequestRejected):
            # It may have ended meanwhile.
            await self._ask(deployment, "POST", f"{_PATH}/{batch_id}/cancel")

    async def results(self, deployment: Deployment, batch: HandedBatch) -> AsyncIterator[CallOutcome]:
        """Yield the outcomes of its requests; an answer as a chat completion."""
        url = _url(deployment, f"{_PATH}/{batch.batch_id}/results")
        lines = self._http.lines(deployment, url, _headers(deployment))
        async for outcome in outcomes(lines, partial(_outcome, deployment), deployment, _WHOSE):
            yield outcome

    async def forget(self, deployment: Deployment, batch: HandedBatch) -> None:
        """Delete it, with what it holds."""
        with gone_already():
            await self._ask(deployment, "DELETE", f"{_PATH}/{batch.batch_id}")

    async def _ask(
        self,
        deployment: Deployment,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        params: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        found = await self._http.asked(
            deployment, method, _url(deployment, path), _headers(deployment), body=body, params=params
        )
        if not isinstance(found, dict):
            raise malformed(deployment, _WHOSE)
        return found


class _Fault(msgspec.Struct):
    type: str = ""


class _Error(msgspec.Struct):
    error: _Fault | None = None


class _Result(msgspec.Struct):
    type: str
    message: msgspec.Raw = msgspec.Raw()
    error: _Error | None = None


class _Line(msgspec.Struct):
    custom_id: str
    result: _Result


_decode_line: Final = msgspec.json.Decoder(_Line).decode


<<<<<<< HEAD
def _outcome(deployment: Deployment, line: bytes) -> CallOutcome:
    read = _decode_line(line)
=======
def _outcome(line: bytes, deployment: Deployment) -> CallOutcome:
    try:
        read = _decode_line(line)
    except DECODE_ERRORS as error:
        raise malformed(deployment, _WHOSE) from error
>>>>>>> main
    result = read.result
    if result.type == "succeeded":
        try:
            body = chat_of_message(bytes(result.message), deployment)
        except UpstreamError:
            # It is paid for; that it is of no use shows where it is read as an answer.
            body = b""
        return CallOutcome(custom_id=read.custom_id, status=200, body=body)
    if result.type == "errored":
        kind = result.error.error.type if result.error is not None and result.error.error is not None else ""
        return CallOutcome(custom_id=read.custom_id, status=status_of(None, kind) or SERVER_FAULT)
    return CallOutcome(custom_id=read.custom_id, status=0)


def _url(deployment: Deployment, path: str) -> str:
    return f"{address_of_dialect(deployment)}/{path}"


def _headers(deployment: Deployment) -> dict[str, str]:
    headers = {**deployment.headers, "anthropic-version": _VERSION, "content-type": "application/json"}
    return headers if deployment.api_key is None else {**headers, "x-api-key": deployment.api_key}


def _requests(batch: dict[str, Any]) -> int:
    counts = batch.get("request_counts")
    return sum(each for each in counts.values() if isinstance(each, int)) if isinstance(counts, dict) else 0


def _seconds(told: object) -> float:
    try:
        return datetime.fromisoformat(str(told)).timestamp()
    except ValueError:
        return 0.0
