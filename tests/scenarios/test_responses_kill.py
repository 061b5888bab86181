"""kill -9 of a worker between turns and in the middle of one: conversations go on elsewhere, and nothing is kept half."""

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.processes import Server, Site, make_site, oracle, serving, until
from tests.running_gateway import model

_BROKEN = (httpx.HTTPError,)
_ENDED = frozenset({"completed", "incomplete", "failed", "cancelled"})


def _client(site: Site, server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=site.key, base_url=server.base_url, max_retries=5)


async def _killed(server: Server, pids: list[int]) -> None:
    """Kills these, and waits until others stand in their place."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not set(pids) & set(server.children()))
    await server.ready()


async def _said(caller: openai.AsyncOpenAI, conversation_id: str) -> list[str]:
    items: list[Any] = [item async for item in caller.conversations.items.list(conversation_id, order="asc")]
    return [part.text for item in items for part in item.content]


async def test_a_conversation_outlives_its_workers(tmp_path: Path) -> None:
    """Between two turns, and in the middle of one: of that nothing is kept, and the next one goes on from the one before."""
    with oracle(tmp_path) as upstream:
        models = [
            model("quick", [upstream.deployment("ok")]),
            model("slow", [upstream.deployment("tokens-2000+every-20ms")]),
        ]
        site = await make_site(tmp_path, models, server={"workers": 2})
        async with serving(site) as server, _client(site, server) as caller:
            made = await caller.conversations.create()
            first = await caller.responses.create(model="quick", input="one", conversation=made.id)
            await _killed(server, server.workers())
            second = await caller.responses.create(model="quick", input="two", conversation=made.id)
            words = ["one", " w0 w1 w2", "two", " w0 w1 w2"]
            assert await _said(caller, made.id) == words

            stream = await caller.responses.create(model="slow", input="three", conversation=made.id, stream=True)
            named = ""
            kinds: list[str] = []
            with contextlib.suppress(openai.APIError, *_BROKEN):
                async for event in stream:
                    kinds.append(event.type)
                    if event.type == "response.created":
                        named = event.response.id
                    if kinds.count("response.output_text.delta") == 3:
                        await _killed(server, server.workers())
            assert "response.completed" not in kinds
            with contextlib.suppress(openai.NotFoundError):
                await caller.responses.retrieve(named)
                raise AssertionError("a reply that broke off was kept")
            assert await _said(caller, made.id) == words

            fourth = await caller.responses.create(model="quick", input="four", conversation=made.id)
            assert await _said(caller, made.id) == [*words, "four", " w0 w1 w2"]
            for response in (first, second, fourth):
                assert (await caller.responses.retrieve(response.id)).output_text == " w0 w1 w2"
            on = await caller.responses.create(model="quick", input="on", previous_response_id=second.id)
            inputs: Any = await caller.responses.input_items.list(on.id, order="asc")
            assert [item.content[0].text for item in inputs.data] == [*words, "on"]


@pytest.mark.long
async def test_a_response_in_the_background_outlives_who_makes_it(tmp_path: Path) -> None:
    """The control plane that makes it is killed in the middle: the next one makes it, once, and it is kept whole."""
    with oracle(tmp_path) as upstream:
        models = [model("steady", [upstream.deployment("tokens-60+every-30ms")])]
        # Who lives and works renews it; a busy machine may keep it from that for seconds.
        site = await make_site(tmp_path, models, responses={"background_lease_s": 5.0})
        async with serving(site) as server, _client(site, server) as caller:
            made = await caller.conversations.create()
            queued = await caller.responses.create(
                model="steady", input="one", conversation=made.id, background=True, stream=False
            )
            await until(lambda: any(line.event == "arrived" for line in upstream.seen()))
            control = server.control()
            assert control is not None
            await _killed(server, [control])

            async def has_ended() -> bool:
                return (await caller.responses.retrieve(queued.id)).status in _ENDED

            await until(has_ended)
            words = "".join(f" w{number}" for number in range(60))
            response = await caller.responses.retrieve(queued.id)
            assert (response.status, response.output_text) == ("completed", words)
            assert await _said(caller, made.id) == ["one", words]
            assert sum(line.event == "arrived" for line in upstream.seen()) == 2
