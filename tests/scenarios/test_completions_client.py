"""OpenAI's own client and its older completions, against a gateway on a socket."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream


def client(gateway: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key=gateway.key, base_url=gateway.base_url, max_retries=0)


def house(upstream: Upstream) -> list[dict[str, Any]]:
    """A hosted model that chats, and an engine of our own."""
    return [
        model("hosted", [upstream.deployment("ok")], prices=CHEAP_PRICES),
        model("own", [upstream.deployment("ok+tokens-4", kind="vllm")]),
    ]


async def test_a_prompt_to_auto_and_to_an_engine(tmp_path: Path, upstream: Upstream) -> None:
    """Both answer in the older shape, whole and streamed, and both are booked."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        chatted = await caller.completions.create(model="hosted", prompt="hi")
        assert (chatted.choices[0].text, chatted.object) == (" w0 w1 w2", "text_completion")
        completed = await caller.completions.create(model="own", prompt="hi")
        assert completed.choices[0].text == " w0 w1 w2 w3"
        stream = await caller.completions.create(model="own", prompt="hi", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == " w0 w1 w2 w3"
        rows = await gateway.rows("entry = 'settle'")
        assert [(row["target_id"], row["output_tokens"]) for row in rows] == [("hosted", 3), ("own", 4), ("own", 4)]


async def test_what_only_an_engine_does_goes_there(tmp_path: Path, upstream: Upstream) -> None:
    """By `auto` as well; a model that cannot do it is told so."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, client(gateway) as caller:
        raw = await caller.completions.with_raw_response.create(model="auto", prompt=[1, 2, 3], echo=True)
        assert raw.headers["x-weighbridge-target"] == "own"
        with pytest.raises(openai.BadRequestError) as refused:
            await caller.completions.create(model="hosted", prompt="hi", echo=True)
        assert "cannot take an echo" in refused.value.message
