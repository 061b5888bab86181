"""Every reply and event of the wires, held against the types that OpenAI and Anthropic publish."""

import json
from pathlib import Path
from typing import Any, Final

import anthropic.types
import httpx
import openai.types
import openai.types.audio
import openai.types.chat
import openai.types.conversations
import openai.types.responses
import openai.types.responses.input_token_count_response
import openai.types.shared
import pydantic

from tests.published_types import check_events, check_message, check_message_events, check_response
from tests.running_gateway import CHEAP_PRICES, Running, model, running_gateway
from tests.scenarios.conftest import Upstream

TALK: Final[list[Any]] = [{"role": "user", "content": "Weigh it."}]
CHAT: Final[Any] = {"model": "auto", "messages": TALK, "max_tokens": 50}
SAID: Final[Any] = {"type": "message", "role": "user", "content": "Weigh it."}


def _house(upstream: Upstream) -> list[dict[str, Any]]:
    hosted = model("hosted", [upstream.deployment("ok")], prices=CHEAP_PRICES)
    own = model("own", [upstream.deployment("ok+tokens-4", kind="vllm")])
    free: Any = {"prices": {"input": 0, "output": 0, "version": "test"}}
    metered = [
        model(name, [upstream.deployment("ok")], capabilities=[name], **free)
        for name in ("moderation", "images", "transcription")
    ]
    return [hosted, own, *metered]


class Plain:
    """A caller without a client of anybody's, who reads what comes as it is."""

    def __init__(self, gateway: Running, session: httpx.AsyncClient) -> None:
        self._base = gateway.base_url
        self._session = session

    async def told(self, method: str, path: str, body: Any = None, status: int = 200, headers: Any = None) -> Any:
        reply = await self._session.request(method, f"{self._base}/{path}", json=body, headers=headers)
        assert reply.status_code == status, reply.text
        return reply.json()

    async def events(self, path: str, body: Any) -> list[Any]:
        reply = await self._session.post(f"{self._base}/{path}", json={**body, "stream": True})
        assert reply.status_code == 200, reply.text
        lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    async def is_as(self, kind: Any, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        """The reply, which is of this published type."""
        told = await self.told(method, path, body, status)
        pydantic.TypeAdapter(kind).validate_python(told)
        return told


async def test_every_reply_and_event_is_as_it_is_published(tmp_path: Path, upstream: Upstream) -> None:
    async with running_gateway(tmp_path, _house(upstream)) as gateway:
        headers = {"authorization": f"Bearer {gateway.key}"}
        async with httpx.AsyncClient(headers=headers, timeout=60) as session:
            plain = Plain(gateway, session)
            await _chats_and_completions(plain)
            await _messages(plain)
            await _responses(plain)
            await _conversations(plain)
            await _metered(plain)
            await _errors(plain)


async def _chats_and_completions(plain: Plain) -> None:
    await plain.is_as(openai.types.chat.ChatCompletion, "POST", "chat/completions", CHAT)
    for chunk in await plain.events("chat/completions", {**CHAT, "stream_options": {"include_usage": True}}):
        openai.types.chat.ChatCompletionChunk.model_validate(chunk)
    for name in ("hosted", "own"):
        asked = {"model": name, "prompt": "Weigh it.", "logprobs": 1}
        await plain.is_as(openai.types.Completion, "POST", "completions", asked)
        for event in await plain.events("completions", {**asked, "stream_options": {"include_usage": True}}):
            # OpenAI's own streams have null there, which the type of a whole answer does not know.
            for choice in event["choices"]:
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            openai.types.Completion.model_validate(event)
    listed = await plain.told("GET", "models")
    for each in listed["data"]:
        openai.types.Model.model_validate(each)


async def _messages(plain: Plain) -> None:
    check_message(await plain.told("POST", "messages", CHAT))
    check_message_events(await plain.events("messages", CHAT))
    counted = {name: CHAT[name] for name in ("model", "messages")}
    await plain.is_as(anthropic.types.MessageTokensCount, "POST", "messages/count_tokens", counted)
    listed = await plain.told("GET", "models", headers={"anthropic-version": "2023-06-01"})
    for each in listed["data"]:
        assert {"type", "id", "display_name", "created_at"} <= each.keys()


async def _responses(plain: Plain) -> None:
    asked = {"model": "auto", "input": "Weigh it."}
    made = await plain.told("POST", "responses", asked)
    check_response(made)
    check_events(await plain.events("responses", asked))
    check_response(await plain.told("GET", f"responses/{made['id']}"))
    items = openai.types.responses.ResponseItemList
    await plain.is_as(items, "GET", f"responses/{made['id']}/input_items")
    count = openai.types.responses.input_token_count_response.InputTokenCountResponse
    await plain.is_as(count, "POST", "responses/input_tokens", asked)
    compact = await plain.told("POST", "responses/compact", {**asked, "input": [SAID]})
    *messages, last = compact["output"]
    openai.types.responses.ResponseCompactionItem.model_validate(last)
    for each in messages:
        # The client's own type knows no users' messages there, which is what a compaction leaves as it is.
        pydantic.TypeAdapter(openai.types.conversations.ConversationItem).validate_python(each)
    openai.types.responses.CompactedResponse.model_validate({**compact, "output": [last]})
    queued = await plain.told("POST", "responses", {**asked, "background": True})
    check_response(queued)
    check_response(await plain.told("POST", f"responses/{queued['id']}/cancel"))
    assert (await plain.told("DELETE", f"responses/{made['id']}"))["deleted"] is True


async def _conversations(plain: Plain) -> None:
    kinds = openai.types.conversations
    made = await plain.is_as(kinds.Conversation, "POST", "conversations", {"items": [SAID], "metadata": {"a": "b"}})
    at = f"conversations/{made['id']}"
    check_response(
        await plain.told("POST", "responses", {"model": "auto", "input": "And?", "conversation": made["id"]})
    )
    await plain.is_as(kinds.Conversation, "GET", at)
    await plain.is_as(kinds.Conversation, "POST", at, {"metadata": {}})
    await plain.is_as(kinds.ConversationItemList, "POST", f"{at}/items", {"items": [SAID]})
    listed = await plain.is_as(kinds.ConversationItemList, "GET", f"{at}/items?limit=2")
    first = f"{at}/items/{listed['data'][0]['id']}"
    await plain.is_as(kinds.ConversationItem, "GET", first)
    await plain.is_as(kinds.Conversation, "DELETE", first)
    await plain.is_as(kinds.ConversationDeletedResource, "DELETE", at)


async def _metered(plain: Plain) -> None:
    asked = {"model": "moderation", "input": "Weigh it."}
    told = await plain.told("POST", "moderations", asked)
    assert {"id", "model", "results"} <= told.keys()
    drawn = {"model": "images", "prompt": "a truck"}
    await plain.is_as(openai.types.ImagesResponse, "POST", "images/generations", drawn)


async def _errors(plain: Plain) -> None:
    """Of each wire in its own shape, whatever is wrong."""
    nobody: dict[str, Any] = {"model": "nobody"}
    for path, body, status in (
        ("chat/completions", {**CHAT, **nobody}, 404),
        ("completions", {"prompt": "a", **nobody}, 404),
        ("responses", {"input": "a", **nobody}, 404),
        ("responses", {"model": "auto", "input": 7}, 400),
        ("embeddings", {"model": "auto", "input": "a"}, 400),
    ):
        told = await plain.told("POST", path, body, status)
        openai.types.shared.ErrorObject.model_validate(told["error"])
    for body, status in (({**CHAT, **nobody}, 404), ({"model": "auto"}, 400)):
        await plain.is_as(anthropic.types.ErrorResponse, "POST", "messages", body, status)
