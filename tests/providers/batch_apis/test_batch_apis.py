"""Providers' batch APIs over real HTTP, and the scripted server that plays them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import anthropic
import msgspec
import openai
import pytest

from cost.times import wall_us
from providers.batch_apis.anthropic import AnthropicBatches
from providers.batch_apis.anthropic import _headers as anthropic_headers
from providers.batch_apis.anthropic import _url as anthropic_url
from providers.batch_apis.batch_api import BatchApi, BatchCall, BatchHttp, CallOutcome, HandedBatch
from providers.batch_apis.openai import OpenAiBatches
from providers.batch_apis.openai import _headers as openai_headers
from providers.errors import MalformedReply, UpstreamError
from providers.target import Deployment
from tests.providers.calls import deployment
from tests.scenarios.conftest import Upstream, scripted_upstream

CHAT = "chat/completions"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with scripted_upstream() as served:
        yield served


@pytest.fixture
async def http() -> AsyncIterator[BatchHttp]:
    async with aiohttp.ClientSession() as session:
        yield BatchHttp(session)


def apis(http: BatchHttp) -> list[BatchApi]:
    return [OpenAiBatches(http), AnthropicBatches(http)]


def calls(*scripts: str) -> list[BatchCall]:
    """One call for each script."""
    return [
        BatchCall(custom_id=f"c{number}", body=b'{"model":"%s","messages":[]}' % script.encode())
        for number, script in enumerate(scripts)
    ]


async def ended(api: BatchApi, at: Deployment, batch_id: str) -> HandedBatch:
    for _ in range(1_000):
        found = await api.look(at, batch_id)
        if found.outcome:
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("the batch does not end")


async def outcomes(api: BatchApi, at: Deployment, batch: HandedBatch) -> dict[str, CallOutcome]:
    return {each.custom_id: each async for each in api.results(at, batch)}


def statuses(found: dict[str, CallOutcome], asked: Sequence[BatchCall]) -> list[int | None]:
    return [found[each.custom_id].status if each.custom_id in found else None for each in asked]


async def test_a_batch_is_made_answered_and_forgotten(upstream: Upstream, http: BatchHttp) -> None:
    """By both APIs: answers with their bodies, an error with its status, and afterwards nothing is left."""
    at = deployment(base_url=upstream.url)
    asked = calls("tokens-2", "error-500")
    for api in apis(http):
        batch = await ended(api, at, await api.create(at, "pb_1", CHAT, asked))
        assert (batch.outcome, batch.answered) == ("completed", 1)
        found = await outcomes(api, at, batch)
        assert statuses(found, asked) == [200, 500]
        assert b" w0 w1" in found["c0"].body
        assert not found["c1"].body
        await api.forget(at, batch)
    assert (await http.asked(at, "GET", f"{upstream.url}/files", {}))["data"] == []


async def test_a_batch_that_nobody_wrote_down_is_found(upstream: Upstream, http: BatchHttp) -> None:
    """OpenAI's by its name alone, Anthropic's among those of its size; what was uploaded for no batch is removed."""
    at = deployment(base_url=upstream.url)
    since_s = wall_us() / 1_000_000
    for size, api in enumerate(apis(http), start=1):
        others = [await api.create(at, f"other_{number}", CHAT, calls(*["ok"] * 5)) for number in range(150 // size)]
        made = await api.create(at, "pb_1", CHAT, calls(*["ok"] * size))
        assert await api.find(at, "pb_1", since_s, size) == [made]
        found = await api.find(at, "other_0", since_s, 5)
        assert others[0] in found
        assert (len(found) == 1) == api.names_batches
        assert await api.find(at, "pb_2", since_s, 3) == []


async def test_a_batch_that_is_cancelled_tells_what_it_answered(upstream: Upstream, http: BatchHttp) -> None:
    """And what it did not has no answer. To cancel one that has ended does nothing."""
    at = deployment(base_url=upstream.url)
    asked = calls("ok", "hang")
    for api in apis(http):
        made = await api.create(at, "pb_1", CHAT, asked)
        assert (await api.look(at, made)).outcome == ""
        await api.cancel(at, made)
        batch = await ended(api, at, made)
        assert batch.outcome == "cancelled"
        found = statuses(await outcomes(api, at, batch), asked)
        assert found[0] == 200
        assert not found[1]
        await api.cancel(at, made)


async def test_a_provider_that_refuses_or_is_not_there_is_an_upstream_error(
    upstream: Upstream, http: BatchHttp
) -> None:
    for api in apis(http):
        with pytest.raises(UpstreamError):
            await api.look(deployment(base_url=upstream.url), "batch_unknown")
        with pytest.raises(UpstreamError):
            await api.create(deployment(base_url="http://127.0.0.1:1/v1"), "pb_1", CHAT, calls("ok"))


async def test_the_scripted_server_speaks_to_the_providers_own_clients(upstream: Upstream, http: BatchHttp) -> None:
    """So what is tested against it is tested against those shapes."""
    at = deployment(base_url=upstream.url)
    theirs = openai.AsyncOpenAI(api_key="k", base_url=upstream.url)
    made = await OpenAiBatches(http).create(at, "pb_1", CHAT, calls("ok"))
    seen = await theirs.batches.retrieve(made)
    assert (seen.status, seen.metadata) == ("completed", {"weighbridge": "pb_1"})
    assert "c0" in (await theirs.files.content(seen.output_file_id or "")).text
    claude = anthropic.AsyncAnthropic(api_key="k", base_url=upstream.url.removesuffix("/v1"))
    batch = await claude.messages.batches.create(
        requests=[
            {
                "custom_id": "m1",
                "params": {"model": "ok", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]},
            }
        ]
    )
    results = [each async for each in await claude.messages.batches.results(batch.id)]
    assert [(each.custom_id, each.result.type) for each in results] == [("m1", "succeeded")]
    await theirs.close()
    await claude.close()


def test_headers_of_a_deployment_go_with_its_batches() -> None:
    """Beside the key, which they cannot replace; of both providers."""
    headed = msgspec.structs.replace(deployment(), headers={"X-Title": "My app"}, api_key="k")
    assert openai_headers(headed) == {"X-Title": "My app", "authorization": "Bearer k"}
    told = anthropic_headers(headed)
    assert (told["X-Title"], told["x-api-key"]) == ("My app", "k")


def test_anthropics_batches_are_where_its_messages_are() -> None:
    """With and without an address of one's own."""
    claude = deployment("litellm", upstream_model="anthropic/m", base_url="")
    for base, url in (
        ("", "https://api.anthropic.com/v1/x"),
        ("http://h", "http://h/v1/x"),
        ("http://h/v1", "http://h/v1/x"),
    ):
        assert anthropic_url(msgspec.structs.replace(claude, base_url=base), "x") == url


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_a_line_that_cannot_be_read_keeps_no_other_back(kind: str) -> None:
    """The answers before and after it are delivered; a file that breaks off is read again later instead."""
    if kind == "openai":
        body = b'{"choices":[]}'
        line = b'{"custom_id":"%s","response":{"status_code":200,"body":{"choices":[]}}}'
    else:
        body = b""
        line = b'{"custom_id":"%s","result":{"type":"succeeded","message":"of another shape"}}'
    told = [line % b"first", (line % b"torn")[:40], line % b"last"]

    class Read:
        def __init__(self, whole: bytes) -> None:
            self._whole = whole

        async def lines(self, *_asked: object) -> AsyncIterator[bytes]:
            for each in self._whole.splitlines(keepends=True):
                yield each

    def reads(whole: bytes) -> BatchApi:
        http: Any = Read(whole)
        return OpenAiBatches(http) if kind == "openai" else AnthropicBatches(http)

    at, batch = deployment(base_url="http://127.0.0.1:9"), HandedBatch(batch_id="b", files=("answers",))
    found = await outcomes(reads(b"\n".join(told) + b"\n"), at, batch)
    assert {name: (each.status, each.body) for name, each in found.items()} == {
        "first": (200, body),
        "last": (200, body),
    }
    with pytest.raises(MalformedReply):
        await outcomes(reads(b"\n".join(told[:2])), at, batch)
