"""OpenAI's batch API: a file of requests, a batch of it, a file of answers. Others have it in the same shape."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import aiohttp
import msgspec

from providers.batch_apis.batch_api import (
    CLOCKS_S,
    MOST_PAGES,
    BatchCall,
    BatchHttp,
    CallOutcome,
    HandedBatch,
    Outcome,
    gone_already,
    malformed,
    outcomes,
    text_of,
)
from providers.errors import RequestRejected
from providers.target import Deployment
from settings.decoding import DECODE_ERRORS

_NAME: Final = "weighbridge"
"""The key of a batch's metadata under which our name for it stands."""
_OK: Final = 200
_WHOSE: Final = "OpenAI"
_PAGE: Final = "100"
_OUTCOMES: Final[dict[str, Outcome]] = {
    "completed": "completed",
    "failed": "failed",
    "expired": "expired",
    "cancelled": "cancelled",
}


class OpenAiBatches:
    """The API of `/files` and `/batches` below a deployment's `base_url`."""

    names_batches = True

    def __init__(self, http: BatchHttp) -> None:
        self._http = http

    async def create(self, deployment: Deployment, name: str, path: str, calls: Sequence[BatchCall]) -> str:
        """Upload the calls, and make a batch of them."""
        url = f"/v1/{path}"
        form = aiohttp.FormData()
        form.add_field("purpose", "batch")
        form.add_field(
            "file",
            b"".join(_line(call, url) for call in calls),
            filename=_filename(name),
            content_type="application/jsonl",
        )
        file = await self._ask(deployment, "POST", "files", body=form)
        file_id = text_of(file, "id", deployment, _WHOSE)
        asked = {
            "input_file_id": file_id,
            "endpoint": url,
            "completion_window": "24h",
            "metadata": {_NAME: name},
        }
        made = await self._ask(deployment, "POST", "batches", body=msgspec.json.encode(asked))
        return text_of(made, "id", deployment, _WHOSE)

    async def find(self, deployment: Deployment, name: str, since_s: float, calls: int) -> list[str]:  # noqa: ARG002  Names suffice.
        """Return the batch that has our name; without one, its file is deleted."""
        after: str | None = None
        for _ in range(MOST_PAGES):
            page = await self._ask(deployment, "GET", "batches", params=_page(after))
            for each in page.get("data", ()):
                if (each.get("metadata") or {}).get(_NAME) == name:
                    return [text_of(each, "id", deployment, _WHOSE)]
            data = page.get("data") or [{}]
            if not page.get("has_more") or float(data[-1].get("created_at") or 0) < since_s - CLOCKS_S:
                break
            after = text_of(data[-1], "id", deployment, _WHOSE)
        await self._remove_file(deployment, _filename(name))
        return []

    async def look(self, deployment: Deployment, batch_id: str) -> HandedBatch:
        """Ask for the batch's state; its files are named once it has ended."""
        found = await self._ask(deployment, "GET", f"batches/{batch_id}")
        counts = found.get("request_counts") or {}
        files = (found.get("output_file_id"), found.get("error_file_id"))
        return HandedBatch(
            batch_id=batch_id,
            outcome=_OUTCOMES.get(str(found.get("status")), ""),
            answered=int(counts.get("completed") or 0),
            files=tuple(str(each) for each in files if each),
            input_file=str(found.get("input_file_id") or ""),
        )

    async def cancel(self, deployment: Deployment, batch_id: str) -> None:
        """Begin no more of its lines."""
        with contextlib.suppress(RequestRejected):
            # It may have ended meanwhile.
            await self._ask(deployment, "POST", f"batches/{batch_id}/cancel")

    async def results(self, deployment: Deployment, batch: HandedBatch) -> AsyncIterator[CallOutcome]:
        """Yield the lines of its output and error files."""
        for file in batch.files:
            url = _url(deployment, f"files/{file}/content")
            lines = self._http.lines(deployment, url, _headers(deployment))
            async for outcome in outcomes(lines, _outcome, deployment, _WHOSE):
                yield outcome

    async def forget(self, deployment: Deployment, batch: HandedBatch) -> None:
        """Delete its files."""
        for file in (*batch.files, batch.input_file):
            if file:
                await self._delete(deployment, file)

    async def _remove_file(self, deployment: Deployment, filename: str) -> None:
        page = await self._ask(deployment, "GET", "files", params={"purpose": "batch", "limit": "10000"})
        for each in page.get("data", ()):
            if each.get("filename") == filename:
                await self._delete(deployment, text_of(each, "id", deployment, _WHOSE))

    async def _delete(self, deployment: Deployment, file: str) -> None:
        with gone_already():
            await self._ask(deployment, "DELETE", f"files/{file}")

    async def _ask(
        self,
        deployment: Deployment,
        method: str,
        path: str,
        *,
        body: bytes | aiohttp.FormData | None = None,
        params: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        headers = _headers(deployment)
        if isinstance(body, bytes):
            headers["content-type"] = "application/json"
        found = await self._http.asked(deployment, method, _url(deployment, path), headers, body=body, params=params)
        if not isinstance(found, dict):
            raise malformed(deployment, _WHOSE)
        return found


class _Response(msgspec.Struct):
    status_code: int
    body: msgspec.Raw = msgspec.Raw()


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None


_decode_line: Final = msgspec.json.Decoder(_Line).decode


def _line(call: BatchCall, url: str) -> bytes:
    asked = {"custom_id": call.custom_id, "method": "POST", "url": url, "body": msgspec.Raw(call.body)}
    return msgspec.json.encode(asked) + b"\n"


<<<<<<< HEAD
def _outcome(line: bytes) -> CallOutcome:
    read = _decode_line(line)
=======
def _outcome(line: bytes, deployment: Deployment) -> CallOutcome:
    try:
        read = _decode_line(line)
    except DECODE_ERRORS as error:
        raise malformed(deployment, _WHOSE) from error
>>>>>>> main
    if read.response is None:
        return CallOutcome(custom_id=read.custom_id, status=0)
    body = bytes(read.response.body) if read.response.status_code == _OK else b""
    return CallOutcome(custom_id=read.custom_id, status=read.response.status_code, body=body)


def _filename(name: str) -> str:
    return f"{_NAME}-{name}.jsonl"


def _url(deployment: Deployment, path: str) -> str:
    return f"{deployment.base_url.rstrip('/')}/{path}"


def _headers(deployment: Deployment) -> dict[str, str]:
    key = {} if deployment.api_key is None else {"authorization": f"Bearer {deployment.api_key}"}
    return {**deployment.headers, **key}


def _page(after: str | None) -> dict[str, str]:
    return {"limit": _PAGE} if after is None else {"limit": _PAGE, "after": after}
