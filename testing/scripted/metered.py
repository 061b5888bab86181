"""The scripted server's routes beside chats: rerank, moderations, images and audio, each with the usage that its kind tells."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from testing.scripted.upstream import Script, ScriptUnknown, error_body, pace, retry_headers, script_named

PIECE: Final = b"\xff\xfb" + bytes(1_022)
"""A piece of speech."""
PICTURE: Final = base64.b64encode(b"a picture").decode()
BYTES_A_SECOND: Final = 32_000
"""Bytes of a second of audio, as of uncompressed speech."""
_SEARCHED_AT_ONCE: Final = 100
_IMAGE_TOKENS: Final = 100
_MAX_FIELD_BYTES: Final = 64 * 1024

Answer = Callable[[web.Request, Script, dict[str, Any]], Awaitable[web.StreamResponse]]


def add_metered_routes(router: web.UrlDispatcher) -> None:
    """Add them; each is scripted by the request's `model`, as a chat is."""
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        router.add_post(path, _scripted(_rerank))
    router.add_post("/v1/moderations", _scripted(_moderate))
    for path in ("/v1/images/generations", "/v1/images/edits", "/v1/images/variations"):
        router.add_post(path, _scripted(_draw))
    router.add_post("/v1/audio/speech", _scripted(_speak))
    router.add_post("/v1/audio/transcriptions", _scripted(_hear))
    router.add_post("/v1/audio/translations", _scripted(_hear))


def _scripted(answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            asked = await _asked(request)
            script = script_named(str(asked.get("model")))
        except (msgspec.DecodeError, ScriptUnknown):
            return web.Response(status=400, body=error_body(400), content_type="application/json")
        await pace(script, -1, asyncio.sleep)
        if script.error_status is not None:
            body, headers = error_body(script.error_status), retry_headers(script)
            return web.Response(status=script.error_status, body=body, content_type="application/json", headers=headers)
        return await answer(request, script, asked)

    return answered


async def _asked(request: web.Request) -> dict[str, Any]:
    """Return the body's fields; of a file its name and size, as nobody holds it."""
    if request.content_type != "multipart/form-data":
        found: dict[str, Any] = msgspec.json.decode(await request.read(), type=dict[str, Any])
        return found
    fields: dict[str, Any] = {}
    async for part in await request.multipart():
        if part.filename is None:  # type: ignore[union-attr]
            fields[str(part.name)] = (await part.read())[:_MAX_FIELD_BYTES].decode()  # type: ignore[union-attr]
            continue
        size = 0
        while piece := await part.read_chunk():  # type: ignore[union-attr]
            size += len(piece)
        fields |= {"file": part.filename, "bytes": size}  # type: ignore[union-attr]
        fields.setdefault("files", []).append(f"{part.name}={part.filename}:{size}")  # type: ignore[union-attr]
    return fields


async def _rerank(request: web.Request, script: Script, asked: dict[str, Any]) -> web.Response:
    wanted = set(str(asked["query"]).lower().split())
    texts = [each if isinstance(each, str) else str(each.get("text")) for each in asked["documents"]]
    scores = [len(wanted & set(text.lower().split())) / max(1, len(wanted)) for text in texts]
    order = sorted(range(len(texts)), key=lambda place: -scores[place])[: asked.get("top_n") or len(texts)]
    reply: dict[str, Any] = {
        "id": "rerank-1",
        "results": [{"index": place, "relevance_score": scores[place]} for place in order],
    }
    if request.path.startswith("/v2"):
        # Cohere's shape, and its way to bill.
        searches = -(-len(texts) // _SEARCHED_AT_ONCE)
        reply["meta"] = {"api_version": {"version": "2"}, "billed_units": {"search_units": searches}}
    else:
        reply |= {
            "model": asked["model"],
            **_usage(script, prompt_tokens=script.prompt_tokens, total_tokens=script.prompt_tokens),
        }
    return web.json_response(reply)


async def _moderate(_request: web.Request, _script: Script, asked: dict[str, Any]) -> web.Response:
    texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
    results = [
        {"flagged": "attack" in str(text), "categories": {"violence": "attack" in str(text)}, "category_scores": {}}
        for text in texts
    ]
    return web.json_response({"id": "modr-1", "model": asked["model"], "results": results})


async def _draw(_request: web.Request, script: Script, asked: dict[str, Any]) -> web.Response:
    count = int(asked.get("n") or 1)
    tokens = {"input_tokens": script.prompt_tokens, "output_tokens": _IMAGE_TOKENS * count}
    details = {"image_tokens": 0, "text_tokens": script.prompt_tokens}
    told = _usage(script, **tokens, input_tokens_details=details, total_tokens=sum(tokens.values()))
    picture = {"b64_json": PICTURE} | ({"revised_prompt": " ".join(asked["files"])} if "files" in asked else {})
    return web.json_response({"created": 1, "data": [picture] * count, **told})


async def _speak(request: web.Request, script: Script, asked: dict[str, Any]) -> web.StreamResponse:
    if asked.get("stream_format") == "sse":
        return await _stream(request, script, _spoken_events(script))
    reply = web.StreamResponse(headers={"content-type": "audio/mpeg"})
    await reply.prepare(request)
    for index in range(script.tokens):
        await pace(script, index, asyncio.sleep)
        if index == script.cut_at:
            if request.transport is not None:
                request.transport.close()
            return reply
        await reply.write(PIECE)
    await reply.write_eof()
    return reply


def _spoken_events(script: Script) -> list[dict[str, Any]]:
    audio = base64.b64encode(PIECE).decode()
    done = _usage(script, input_tokens=script.prompt_tokens, output_tokens=script.tokens)
    deltas: list[dict[str, Any]] = [{"type": "speech.audio.delta", "audio": audio}] * script.tokens
    return [*deltas, {"type": "speech.audio.done", **done}]


async def _hear(request: web.Request, script: Script, asked: dict[str, Any]) -> web.StreamResponse:
    text = f"heard {asked.get('bytes')} bytes of {asked.get('file')}"
    seconds = int(asked.get("bytes") or 0) / BYTES_A_SECOND
    if asked.get("stream") == "true":
        tokens = {"input_tokens": script.prompt_tokens, "output_tokens": script.tokens}
        told = _usage(script, **tokens, total_tokens=sum(tokens.values()))
        deltas = [{"type": "transcript.text.delta", "delta": f"{word} "} for word in text.split()]
        return await _stream(request, script, [*deltas, {"type": "transcript.text.done", "text": text, **told}])
    wanted = asked.get("response_format") or "json"
    if wanted in {"text", "srt", "vtt"}:
        return web.Response(text=f"{text}\n", content_type="text/plain")
    more = {"duration": seconds, "language": "english"} if wanted == "verbose_json" else {}
    return web.json_response({"text": text, **more, **_usage(script, type="duration", seconds=seconds)})


def _usage(script: Script, **figures: Any) -> dict[str, Any]:
    return {} if script.usage == "none" else {"usage": figures}


async def _stream(request: web.Request, script: Script, events: list[dict[str, Any]]) -> web.StreamResponse:
    reply = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
    await reply.prepare(request)
    async for payload in _paced(script, events):
        await reply.write(b"data: " + payload + b"\n\n")
    await reply.write_eof()
    return reply


async def _paced(script: Script, events: list[dict[str, Any]]) -> AsyncIterator[bytes]:
    for index, event in enumerate(events):
        await pace(script, index, asyncio.sleep)
        yield msgspec.json.encode(event)
