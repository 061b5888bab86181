"""Stories: teams embed texts through the same line as their chats."""

import base64
import contextlib
import struct
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from aiohttp import web

from tests.running_gateway import Running, model, running_gateway

_CONTEXT = 64


class Engine:
    """Answers like an embedding server, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.url = ""
        self.encodes = False
        """Answers in base64, whatever it is asked for."""

    async def embed(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        texts = (
            body["input"]
            if isinstance(body["input"], list) and not isinstance(body["input"][0], int)
            else [body["input"]]
        )
        data: list[dict[str, Any]] = [
            {"object": "embedding", "index": index, "embedding": [0.5, float(index)]} for index in range(len(texts))
        ]
        if self.encodes:
            for each in data:
                packed = struct.pack("<2f", *each["embedding"])
                each["embedding"] = base64.b64encode(packed).decode()
        usage = {"prompt_tokens": 7 * len(texts), "total_tokens": 7 * len(texts)}
        return web.json_response({"object": "list", "data": data, "model": body["model"], "usage": usage})


@contextlib.asynccontextmanager
async def embedding_house(tmp_path: Path, **sections: Any) -> AsyncIterator[tuple[Running, Engine]]:
    engine = Engine()
    app = web.Application()
    app.router.add_post("/v1/embeddings", engine.embed)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    prices = {"input": "0.1", "output": "0", "version": "test"}
    embedder = model(
        "bge",
        [{"kind": "vllm", "base_url": engine.url}],
        capabilities=["embeddings"],
        max_context_tokens=_CONTEXT,
        max_output_tokens=1,
        prices=prices,
    )
    try:
        async with running_gateway(
            tmp_path, [embedder, model("chatty", [{"kind": "scripted", "upstream_model": "ok"}])], **sections
        ) as gateway:
            yield gateway, engine
    finally:
        await runner.cleanup()


async def test_texts_are_embedded_and_booked(tmp_path: Path) -> None:
    """The official client gets its vectors in order, and the team is booked the engine's own count of tokens."""
    async with (
        embedding_house(tmp_path) as (gateway, engine),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key) as client,
    ):
        answer = await client.embeddings.create(model="bge", input=["a gate", "a bridge"], encoding_format="float")
        rows = await gateway.rows("entry = 'settle'")
    assert [each.index for each in answer.data] == [0, 1]
    assert answer.data[1].embedding == [0.5, 1.0]
    assert engine.asked[0]["input"] == ["a gate", "a bridge"]
    row = rows[0]
    assert (row["input_tokens"], row["output_tokens"], row["usage_source"]) == (14, 0, "upstream")
    assert row["cost_nanousd"] == 14 * 100


async def test_many_texts_are_longer_than_one_may_be(tmp_path: Path) -> None:
    """The model's context bounds each text, not all of them together."""
    async with (
        embedding_house(tmp_path) as (gateway, _),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, max_retries=0) as client,
    ):
        many = await client.embeddings.create(model="bge", input=["one of many short texts"] * 100)
        with pytest.raises(openai.BadRequestError, match="fits no target"):
            await client.embeddings.create(model="bge", input="word " * 1_000)
    assert len(many.data) == 100


async def test_tokens_may_be_sent_in_place_of_text(tmp_path: Path) -> None:
    """Lists of numbers pass as they are."""
    async with (
        embedding_house(tmp_path) as (gateway, engine),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key) as client,
    ):
        await client.embeddings.create(model="bge", input=[1, 2, 3], encoding_format="float")
        await client.embeddings.create(model="bge", input=[[1, 2], [3]], encoding_format="float")
    assert [asked["input"] for asked in engine.asked] == [[1, 2, 3], [[1, 2], [3]]]


_REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("embeddings", {"model": "auto", "input": "x"}, "never chooses one"),
    ("embeddings", {"model": "chatty", "input": "x"}, "cannot do embeddings"),
    ("embeddings", {"model": "nobody", "input": "x"}, "does not exist"),
    ("embeddings", {"model": "bge", "input": ""}, "is empty"),
    ("embeddings", {"model": "bge", "input": []}, "is empty"),
    ("embeddings", {"model": "bge", "input": ["x", ""]}, "is empty"),
    ("embeddings", {"model": "bge", "input": ["x", 1]}, "mixes"),
    ("embeddings", {"model": "bge", "input": ["x"] * 2_049}, "at most 2048"),
    ("embeddings", {"model": "bge", "input": {"a": 1}}, "input"),
    ("embeddings", {"model": "bge"}, "input"),
    ("embeddings", {"model": "bge", "input": "x", "api_base": "http://10.0.0.1"}, "not accepted"),
    ("chat/completions", {"model": "bge", "messages": [{"role": "user", "content": "x"}]}, "makes embeddings"),
    (
        "chat/completions",
        {"model": "chatty", "priority": -9, "messages": [{"role": "user", "content": "x"}]},
        "x-priority",
    ),
]


async def test_what_cannot_be_embedded_is_told(tmp_path: Path) -> None:
    """With what to do instead, and before any engine sees it."""
    async with embedding_house(tmp_path) as (gateway, engine), aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {gateway.key}"}
        for path, body, said in _REFUSED:
            async with session.post(f"{gateway.base_url}/{path}", json=body, headers=headers) as answer:
                told = await answer.json()
            assert answer.status in {400, 404}, body
            assert said in told["error"]["message"]
    assert not engine.asked


async def test_a_repeat_with_its_key_is_embedded_once(tmp_path: Path) -> None:
    """The same vectors, byte for byte, from one call that is booked once; another text under that key is refused."""
    async with embedding_house(tmp_path) as (gateway, engine), aiohttp.ClientSession() as session:
        headers = {"authorization": f"Bearer {gateway.key}", "idempotency-key": "nightly-1"}
        told = []
        for text in ("a gate", "a gate", "a bridge"):
            body = {"model": "bge", "input": text}
            async with session.post(f"{gateway.base_url}/embeddings", json=body, headers=headers) as answer:
                told.append((answer.status, answer.headers.get("idempotent-replayed"), await answer.read()))
        rows = await gateway.rows("entry = 'settle'")
    assert [each[:2] for each in told] == [(200, None), (200, "true"), (422, None)]
    assert told[0][2] == told[1][2]
    assert len(engine.asked) == len(rows) == 1


async def test_finance_sees_embeddings_apart(tmp_path: Path) -> None:
    """What was embedded is in OpenAI's usage of embeddings, what was answered in that of completions."""
    async with (
        embedding_house(tmp_path) as (gateway, _),
        openai.AsyncOpenAI(base_url=gateway.base_url, api_key=gateway.key, admin_api_key=gateway.key) as client,
    ):
        await client.embeddings.create(model="bge", input=["a gate", "a bridge"])
        await client.chat.completions.create(model="chatty", messages=[{"role": "user", "content": "hello"}])
        shown = await client.models.retrieve("bge")
        await gateway.rows()
        usage = client.admin.organization.usage
        start = int(time.time()) - 86_400
        embedded = await usage.embeddings(start_time=start, group_by=["model"])
        answered = await usage.completions(start_time=start, group_by=["model"])
    assert shown.model_extra is not None
    assert shown.model_extra["capabilities"] == ["embeddings"]
    vectors: list[Any] = [each for bucket in embedded.data for each in bucket.results]
    chats: list[Any] = [each for bucket in answered.data for each in bucket.results]
    assert [(each.model, each.input_tokens, each.num_model_requests) for each in vectors] == [("bge", 14, 1)]
    assert [(each.model, each.num_model_requests) for each in chats] == [("chatty", 1)]


@pytest.mark.parametrize("encodes", [True, False])
@pytest.mark.parametrize("asked", [None, "float", "base64"])
async def test_vectors_come_in_the_encoding_that_was_asked_for(
    tmp_path: Path, asked: str | None, encodes: bool
) -> None:
    """Whatever the engine answers; the official client, which asks for base64 by itself, reads the same numbers."""
    async with embedding_house(tmp_path) as (gateway, engine), aiohttp.ClientSession() as session:
        engine.encodes = encodes
        body = {"model": "bge", "input": ["a", "b"]} | ({} if asked is None else {"encoding_format": asked})
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with session.post(f"{gateway.base_url}/embeddings", json=body, headers=headers) as reply:
            told = await reply.json()
        vectors = [each["embedding"] for each in told["data"]]
        if asked == "base64":
            vectors = [list(struct.unpack("<2f", base64.b64decode(each))) for each in vectors]
        assert vectors == [[0.5, 0.0], [0.5, 1.0]]
        assert [each["index"] for each in told["data"]] == [0, 1]
        assert told["usage"]["prompt_tokens"] == 14
        async with openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url) as caller:
            found = await caller.embeddings.create(model="bge", input=["a"])
            assert found.data[0].embedding == [0.5, 0.0]
