"""The batch APIs of OpenAI and Anthropic over the scripts, for the scripted server: files, batches, results.

A batch ends once the slowest of its scripts would have answered, so `slow-first-token-500ms` makes one that takes half a second
and `hang` one that ends only when it is cancelled. One whose model names no script fails as a whole.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from aiohttp import web

from testing.scripted.log import LogLine, Write
from testing.scripted.upstream import Script, ScriptUnknown, completion, completion_tokens, error_body, script_named

_PAGE: Final = 20
_NEVER_S: Final = 3_600.0
_DAY_S: Final = 86_400


class _Call(msgspec.Struct):
    custom_id: str
    model: str
    url: str
    script: Script | None
    """Script of the call; None where the model names none."""


class _Batch(msgspec.Struct):
    batch_id: str
    created_at: float
    calls: list[_Call]
    file: str = ""
    endpoint: str = ""
    metadata: dict[str, str] | None = None
    cancelled_at: float | None = None
    told: bool = False

    def ends_at(self) -> float:
        """Return the time at which the slowest script has answered."""
        return self.created_at + max((_takes_s(each.script) for each in self.calls), default=0.0)


class _File(msgspec.Struct):
    file_id: str
    filename: str
    created_at: float
    content: bytes


class ScriptedBatches:
    """All files and batches of one scripted server. Whatever it is sent is answered once, and in the log once."""

    def __init__(self, write: Write, clock: Callable[[], float] = time.time) -> None:
        self._write = write
        self._clock = clock
        self._files: dict[str, _File] = {}
        self._batches: dict[str, _Batch] = {}

    def add_to(self, app: web.Application) -> None:
        """Add the routes of both APIs."""
        router = app.router
        router.add_post("/v1/files", self._upload)
        router.add_get("/v1/files", self._list_files)
        router.add_delete("/v1/files/{file_id}", self._delete_file)
        router.add_get("/v1/files/{file_id}/content", self._content)
        router.add_post("/v1/batches", self._create)
        router.add_get("/v1/batches", self._list)
        router.add_get("/v1/batches/{batch_id}", self._show)
        router.add_post("/v1/batches/{batch_id}/cancel", self._cancel)
        router.add_post("/v1/messages/batches", self._create_messages)
        router.add_get("/v1/messages/batches", self._list_messages)
        router.add_get("/v1/messages/batches/{batch_id}", self._show_messages)
        router.add_delete("/v1/messages/batches/{batch_id}", self._delete_messages)
        router.add_post("/v1/messages/batches/{batch_id}/cancel", self._cancel_messages)
        router.add_get("/v1/messages/batches/{batch_id}/results", self._results)

    # OpenAI's.

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        sent = form.get("file")
        if not isinstance(sent, web.FileField) or form.get("purpose") != "batch":
            return _refused(400)
        file = _File(f"file-{secrets.token_hex(8)}", sent.filename, self._clock(), sent.file.read())
        self._files[file.file_id] = file
        return web.json_response(_as_file(file))

    async def _list_files(self, _request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [_as_file(each) for each in self._files.values()]})

    async def _delete_file(self, request: web.Request) -> web.Response:
        file = self._files.pop(request.match_info["file_id"], None)
        return _refused(404) if file is None else web.json_response({"id": file.file_id, "deleted": True})

    async def _content(self, request: web.Request) -> web.Response:
        name = request.match_info["file_id"]
        kind, _, batch_id = name.partition("-of-")
        batch = self._batches.get(batch_id)
        if batch is not None:
            good = kind == "output"
            lines = [self._result(each) for each in self._answered(batch) if _is_good(each) == good]
            return web.Response(body=b"".join(lines), content_type="application/jsonl")
        file = self._files.get(name)
        return _refused(404) if file is None else web.Response(body=file.content, content_type="application/jsonl")

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        file = self._files.get(asked.get("input_file_id", ""))
        if file is None or asked.get("completion_window") != "24h":
            return _refused(400)
        lines = [msgspec.json.decode(line) for line in file.content.splitlines()]
        calls = [_call(each["custom_id"], each["body"]["model"], each["url"]) for each in lines]
        batch = self._begin(calls, file=file.file_id, endpoint=asked["endpoint"], metadata=asked.get("metadata"))
        return web.json_response(self._as_batch(batch))

    async def _list(self, request: web.Request) -> web.Response:
        page, more = self._page(request.query.get("after"), int(request.query.get("limit", _PAGE)))
        return web.json_response({"object": "list", "data": [self._as_batch(each) for each in page], "has_more": more})

    async def _show(self, request: web.Request) -> web.Response:
        batch = self._batches.get(request.match_info["batch_id"])
        return _refused(404) if batch is None else web.json_response(self._as_batch(batch))

    async def _cancel(self, request: web.Request) -> web.Response:
        batch = self._stopped(request)
        return _refused(404) if batch is None else web.json_response(self._as_batch(batch))

    def _as_batch(self, batch: _Batch) -> dict[str, Any]:
        status = self._status(batch)
        ended = status != "in_progress"
        answered = self._answered(batch)
        good = sum(_is_good(each) for each in answered)
        return {
            "id": batch.batch_id,
            "object": "batch",
            "endpoint": batch.endpoint,
            "input_file_id": batch.file,
            "completion_window": "24h",
            "status": status,
            "output_file_id": f"output-of-{batch.batch_id}" if ended and good else None,
            "error_file_id": f"error-of-{batch.batch_id}" if ended and good < len(answered) else None,
            "created_at": int(batch.created_at),
            "request_counts": {"total": len(batch.calls), "completed": good, "failed": len(answered) - good},
            "metadata": batch.metadata,
        }

    def _result(self, call: _Call) -> bytes:
        script = call.script or Script()
        status = 200 if _is_good(call) else script.error_status or 500
        body = completion(script, call.model, call.custom_id) if status == 200 else error_body(status)  # noqa: PLR2004
        response = {"status_code": status, "request_id": call.custom_id, "body": msgspec.Raw(body)}
        line = {"id": f"batch_req_{call.custom_id}", "custom_id": call.custom_id, "response": response, "error": None}
        return msgspec.json.encode(line) + b"\n"

    # Anthropic's.

    async def _create_messages(self, request: web.Request) -> web.Response:
        asked = (await request.json()).get("requests") or []
        calls = [_call(each["custom_id"], each["params"]["model"], "/v1/messages") for each in asked]
        return web.json_response(self._as_messages(self._begin(calls)))

    async def _list_messages(self, request: web.Request) -> web.Response:
        page, more = self._page(request.query.get("after_id"), int(request.query.get("limit", _PAGE)))
        data = [self._as_messages(each) for each in page]
        last = data[-1]["id"] if data else None
        return web.json_response({"data": data, "has_more": more, "last_id": last})

    async def _show_messages(self, request: web.Request) -> web.Response:
        batch = self._batches.get(request.match_info["batch_id"])
        return _refused(404) if batch is None else web.json_response(self._as_messages(batch))

    async def _delete_messages(self, request: web.Request) -> web.Response:
        batch = self._batches.pop(request.match_info["batch_id"], None)
        return _refused(404) if batch is None else web.json_response({"id": batch.batch_id})

    async def _cancel_messages(self, request: web.Request) -> web.Response:
        batch = self._stopped(request)
        return _refused(404) if batch is None else web.json_response(self._as_messages(batch))

    async def _results(self, request: web.Request) -> web.Response:
        batch = self._batches.get(request.match_info["batch_id"])
        if batch is None or self._status(batch) == "in_progress":
            return _refused(404)
        answered = {each.custom_id for each in self._answered(batch)}
        lines = [_message_result(each, batch, answered=each.custom_id in answered) for each in batch.calls]
        return web.Response(body=b"".join(lines), content_type="application/x-jsonl")

    def _as_messages(self, batch: _Batch) -> dict[str, Any]:
        counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
        ended = self._status(batch) != "in_progress"
        if ended:
            answered = self._answered(batch)
            counts["succeeded"] = sum(_is_good(each) for each in answered)
            counts["errored"] = len(answered) - counts["succeeded"]
            counts["canceled"] = len(batch.calls) - len(answered)
        else:
            counts["processing"] = len(batch.calls)
        return {
            "id": batch.batch_id,
            "type": "message_batch",
            "processing_status": "ended" if ended else "in_progress",
            "request_counts": counts,
            "created_at": _rfc3339(batch.created_at),
            "expires_at": _rfc3339(batch.created_at + _DAY_S),
            "results_url": f"/v1/messages/batches/{batch.batch_id}/results" if ended else None,
        }

    # Both.

    def _begin(
        self, calls: list[_Call], *, file: str = "", endpoint: str = "", metadata: dict[str, str] | None = None
    ) -> _Batch:
        batch = _Batch(f"batch_{secrets.token_hex(8)}", self._clock(), calls, file, endpoint, metadata)
        self._batches[batch.batch_id] = batch
        for call in calls:
            self._log("arrived", call)
        return batch

    def _stopped(self, request: web.Request) -> _Batch | None:
        batch = self._batches.get(request.match_info["batch_id"])
        if batch is not None and self._status(batch) == "in_progress":
            batch.cancelled_at = self._clock()
        return batch

    def _status(self, batch: _Batch) -> str:
        if any(call.script is None for call in batch.calls):
            return "failed"
        if batch.cancelled_at is not None:
            return "cancelled"
        return "completed" if self._clock() >= batch.ends_at() else "in_progress"

    def _answered(self, batch: _Batch) -> list[_Call]:
        """Return the calls that had been made by the time that the batch ended, or by now. Each is logged once."""
        if self._status(batch) == "failed":
            return []
        until = self._clock() if batch.cancelled_at is None else batch.cancelled_at
        made = [each for each in batch.calls if batch.created_at + _takes_s(each.script) <= until]
        if not batch.told and self._status(batch) != "in_progress":
            batch.told = True
            for call in made:
                self._log("ended", call)
        return made

    def _page(self, after: str | None, limit: int) -> tuple[list[_Batch], bool]:
        newest = list(reversed(self._batches.values()))
        ids = [each.batch_id for each in newest]
        start = ids.index(after) + 1 if after in ids else 0
        return newest[start : start + limit], start + limit < len(newest)

    def _log(self, event: Any, call: _Call) -> None:
        script = call.script or Script()
        self._write(
            LogLine(
                event=event,
                request_id=call.custom_id,
                model=call.model,
                stream=False,
                prompt_tokens=script.prompt_tokens,
                completion_tokens=completion_tokens(script, script.tokens + 1) if event == "ended" else 0,
            )
        )


def _call(custom_id: str, model: str, url: str) -> _Call:
    try:
        return _Call(custom_id, model, url, script_named(model))
    except ScriptUnknown:
        return _Call(custom_id, model, url, None)


def _takes_s(script: Script | None) -> float:
    if script is None:
        return 0.0
    return _NEVER_S if script.hang_at is not None else script.first_token_after_s + script.tokens * script.every_s


def _is_good(call: _Call) -> bool:
    return call.script is not None and call.script.error_status is None


def _message_result(call: _Call, batch: _Batch, *, answered: bool) -> bytes:
    script = call.script or Script()
    result: dict[str, Any]
    if not answered:
        result = {"type": "canceled" if batch.cancelled_at is not None else "expired"}
    elif not _is_good(call):
        result = {"type": "errored", "error": {"type": "error", "error": {"type": "api_error", "message": "scripted"}}}
    else:
        message = {
            "id": f"msg_{call.custom_id}",
            "type": "message",
            "role": "assistant",
            "model": call.model,
            "content": [{"type": "text", "text": "".join(f" w{index}" for index in range(script.tokens))}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {
                "input_tokens": script.prompt_tokens,
                "output_tokens": script.tokens,
                "cache_read_input_tokens": 0,
                "cache_creation_input_tokens": 0,
                "service_tier": "batch",
            },
        }
        result = {"type": "succeeded", "message": message}
    return msgspec.json.encode({"custom_id": call.custom_id, "result": result}) + b"\n"


def _as_file(file: _File) -> dict[str, Any]:
    return {
        "id": file.file_id,
        "object": "file",
        "bytes": len(file.content),
        "created_at": int(file.created_at),
        "filename": file.filename,
        "purpose": "batch",
        "status": "processed",
    }


def _refused(status: int) -> web.Response:
    return web.Response(status=status, body=error_body(status), content_type="application/json")


def _rfc3339(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat().replace("+00:00", "Z")
