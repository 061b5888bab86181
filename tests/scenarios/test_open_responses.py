"""The cases of the Open Responses acceptance suite, said anew from its published specification, over HTTP and a WebSocket."""

import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import msgspec
import pytest
from openai.types.responses import ResponseCompactionItem, ResponseUsage

from tests.published_types import check_events, check_response
from tests.running_gateway import Running, running_gateway
from tests.scenarios.conftest import Upstream
from tests.scenarios.test_responses_client import house

PIXEL: Final = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
        "1f15c4890000000d49444154789c63f8cfc0f01f00050001ff89993d1d0000000049454e44ae426082"
    )
).decode()
WEATHER: Final = {
    "type": "function",
    "name": "weigh",
    "description": "Weighs a truck.",
    "parameters": {"type": "object", "properties": {"kg": {"type": "integer"}}, "required": ["kg"]},
}


def user(content: Any) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": content}


def tags(gateway: Running) -> dict[str, str]:
    return {"authorization": f"Bearer {gateway.key}"}


async def posted(gateway: Running, path: str = "responses", **body: Any) -> dict[str, Any]:
    async with httpx.AsyncClient(headers=tags(gateway), timeout=300) as plain:
        reply = await plain.post(f"{gateway.base_url}/{path}", json=body)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def streamed(gateway: Running, **body: Any) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(headers=tags(gateway), timeout=300) as plain:
        reply = await plain.post(f"{gateway.base_url}/responses", json={**body, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in reply.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


class Socket:
    """A WebSocket of a caller."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.raw = socket

    async def events(self, **body: Any) -> list[dict[str, Any]]:
        """The events of one turn, up to its last or an error."""
        await self.raw.send_json({"type": "response.create", "model": "auto", **body})
        events: list[dict[str, Any]] = []
        while True:
            event = await self.raw.receive_json(timeout=300)
            events.append(event)
            kinds = {"response.completed", "response.incomplete", "response.failed"}
            if event["type"] in kinds or ("status" in event and event["type"] == "error"):
                return events

    async def turn(self, **body: Any) -> dict[str, Any]:
        """The response of one turn that goes well."""
        events = await self.events(**body)
        check_events(events)
        response: dict[str, Any] = events[-1]["response"]
        return response


@contextlib.asynccontextmanager
async def socket_of(gateway: Running, key: str | None = None) -> AsyncIterator[Socket]:
    headers = {"authorization": f"Bearer {key or gateway.key}", "openai-beta": "responses_websockets=2026-02-06"}
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{gateway.base_url}/responses", headers=headers) as socket,
    ):
        yield Socket(socket)


def texts(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item["content"])


# Over HTTP.


async def test_basic_response(tmp_path: Path, upstream: Upstream) -> None:
    """A user's message, and a whole response."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        response = await posted(gateway, model="auto", input=[user("Say hello in exactly 3 words.")])
        check_response(response)
        assert (response["status"], texts(response)) == ("completed", " w0 w1 w2")


async def test_streaming_response(tmp_path: Path, upstream: Upstream) -> None:
    """Every event, in its order."""
    async with running_gateway(tmp_path, house(upstream, "tokens-5")) as gateway:
        events = await streamed(gateway, model="auto", input=[user("Count from 1 to 5.")])
        check_events(events)
        assert texts(events[-1]["response"]) == " w0 w1 w2 w3 w4"


async def test_system_prompt(tmp_path: Path, upstream: Upstream) -> None:
    """As a message of the input, and as instructions, which the response repeats."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        said = {"type": "message", "role": "system", "content": "You are a pirate."}
        check_response(await posted(gateway, model="auto", input=[said, user("Say hello.")]))
        response = await posted(gateway, model="auto", input="Say hello.", instructions="You are a pirate.")
        assert response["instructions"] == "You are a pirate."


@pytest.mark.parametrize("streams", [False, True])
async def test_tool_calling(tmp_path: Path, upstream: Upstream, streams: bool) -> None:
    """A function is called, whole and as events."""
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway:
        asked: dict[str, Any] = {"model": "auto", "input": [user("How heavy?")], "tools": [WEATHER]}
        if streams:
            events = await streamed(gateway, **asked)
            check_events(events)
            kinds = {event["type"] for event in events}
            assert {f"response.function_call_arguments.{each}" for each in ("delta", "done")} <= kinds
            response = events[-1]["response"]
        else:
            response = await posted(gateway, **asked)
        check_response(response)
        (call,) = response["output"]
        assert (call["type"], call["name"], call["arguments"]) == ("function_call", "weigh", '{"kg": 7}')


@pytest.mark.parametrize(
    "asked",
    [
        {"tools": [{"type": "function", "name": "weigh"}]},
        {
            "tools": [{"type": "function", "name": "weigh", "strict": True}, {"type": "custom", "name": "write"}],
            "tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "weigh"}]},
        },
        {"text": {"format": {"type": "json_schema", "name": "truck", "schema": {"type": "object"}}}},
        {"text": {"format": {"type": "json_schema", "name": "truck", "schema": {"type": "object"}, "strict": None}}},
        {"text": {"format": None, "verbosity": "low"}},
        {"reasoning": {"effort": "low"}},
    ],
)
async def test_what_a_response_repeats_is_whole(tmp_path: Path, upstream: Upstream, asked: dict[str, Any]) -> None:
    """Tools, forms and choices have all the names that are published of them, whatever the caller left out."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        check_response(await posted(gateway, model="auto", input="Weigh it.", **asked))
        check_events(await streamed(gateway, model="auto", input="Weigh it.", **asked))


async def test_image_input(tmp_path: Path, upstream: Upstream) -> None:
    """A picture in a user's message."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        picture = {"type": "input_image", "image_url": f"data:image/png;base64,{PIXEL}"}
        content = [{"type": "input_text", "text": "What do you see?"}, picture]
        check_response(await posted(gateway, model="auto", input=[user(content)]))


async def test_file_input(tmp_path: Path, upstream: Upstream) -> None:
    """A small document in a user's message."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        document = {
            "type": "input_file",
            "filename": "fixture.pdf",
            "file_data": "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.1\n").decode(),
        }
        content = [{"type": "input_text", "text": "Answer with its title only."}, document]
        check_response(await posted(gateway, model="auto", input=[user(content)]))


async def test_function_call_roundtrip(tmp_path: Path, upstream: Upstream) -> None:
    """A call, and its output to the response that made it; an output of a call that nobody made is refused."""
    async with running_gateway(tmp_path, house(upstream, "tools")) as gateway:
        choice = {"type": "function", "name": "weigh"}
        first = await posted(gateway, model="auto", input="How heavy?", tools=[WEATHER], tool_choice=choice)
        (call,) = first["output"]
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "7 kg"}
        second = await posted(gateway, model="auto", input=[output], previous_response_id=first["id"])
        check_response(second)
        assert second["output"]
        async with httpx.AsyncClient(headers=tags(gateway), timeout=300) as plain:
            for body in (
                {"input": [{**output, "call_id": "call_missing"}], "previous_response_id": first["id"]},
                {"input": [user("hi"), {**output, "type": "custom_tool_call_output"}]},
            ):
                reply = await plain.post(f"{gateway.base_url}/responses", json={"model": "auto", **body})
                error = reply.json()["error"]
                assert reply.status_code == 400
                assert error["message"].startswith("No tool call found for function call output with call_id call_")
                assert error["param"].endswith(".call_id")


async def test_multi_turn(tmp_path: Path, upstream: Upstream) -> None:
    """A history of both sides in the input, and by the id of the response before."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        history = [
            user("My name is Alice."),
            {"type": "message", "role": "assistant", "content": "Hello Alice!"},
            user("What is my name?"),
        ]
        first = await posted(gateway, model="auto", input=history)
        second = await posted(gateway, model="auto", input="And now?", previous_response_id=first["id"])
        check_response(second)
        assert second["previous_response_id"] == first["id"]


@pytest.mark.parametrize("phase", ["commentary", "final_answer"])
async def test_phases(tmp_path: Path, upstream: Upstream, phase: str) -> None:
    """An assistant's message may say which part of its turn it was; so may a response's own messages."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        said = {"type": "message", "role": "assistant", "phase": phase, "content": "Let me see."}
        response = await posted(gateway, model="auto", input=[user("Weigh it."), said, user("Well?")])
        check_response(response)
        assert response["output"][0].get("phase") in {None, "commentary", "final_answer"}


@pytest.mark.parametrize("named", [{"model": "auto"}, {}])
async def test_compaction(tmp_path: Path, upstream: Upstream, named: dict[str, str]) -> None:
    """With and without a model: the user's messages and one item for the rest, with which the conversation goes on."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        call = {"type": "function_call", "call_id": "c1", "name": "weigh", "arguments": "{}"}
        output = {"type": "function_call_output", "call_id": "c1", "output": "7 kg"}
        said = {"type": "message", "role": "assistant", "content": "It weighs 7 kg."}
        compact = await posted(
            gateway, "responses/compact", input=[user("Weigh it."), call, output, said, user("And now?")], **named
        )
        # OpenAI's type for the whole has no place for the users' messages that its description has.
        ResponseCompactionItem.model_validate(compact["output"][-1])
        ResponseUsage.model_validate(compact["usage"])
        assert compact["object"] == "response.compaction"
        assert [item["type"] for item in compact["output"]] == ["message", "message", "compaction"]
        assert [item["content"][0]["text"] for item in compact["output"][:2]] == ["Weigh it.", "And now?"]
        assert compact["usage"]["total_tokens"] > 0
        following = await posted(gateway, model="auto", input=[*compact["output"], user("Go on.")])
        check_response(following)
        again = await posted(gateway, "responses/compact", previous_response_id=following["id"])
        assert [item["type"] for item in again["output"]] == ["message", "message", "message", "compaction"]


# Over a WebSocket.


async def test_websocket_response(tmp_path: Path, upstream: Upstream) -> None:
    """The same events as messages; the books have the call."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        response = await socket.turn(input=[user("Say hello.")])
        assert texts(response) == " w0 w1 w2"
        (row,) = await gateway.rows("entry = 'settle'")
        assert row["team_id"] == "team_a"


async def test_websocket_sequential(tmp_path: Path, upstream: Upstream) -> None:
    """One response after the other, in the order in which they were asked for, also when that is at once."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        for number in range(3):
            asked = {"type": "response.create", "model": "auto", "input": "hi", "metadata": {"n": str(number)}}
            await socket.raw.send_json(asked)
        events: list[dict[str, Any]] = []
        while sum(event["type"] == "response.completed" for event in events) < 3:
            events.append(await socket.raw.receive_json(timeout=300))
        ends = [index for index, event in enumerate(events) if event["type"] == "response.completed"]
        begin = 0
        for number, end in enumerate(ends):
            check_events(events[begin : end + 1])
            assert events[end]["response"]["metadata"] == {"n": str(number)}
            begin = end + 1


@pytest.mark.parametrize("store", [True, False])
async def test_websocket_continuation(tmp_path: Path, upstream: Upstream, store: bool) -> None:
    """From the response before, whether it is kept or not; the upstream gets all of the conversation."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        first = await socket.turn(input="one " * 50, store=store)
        assert first["store"] is store
        second = await socket.turn(input="two", store=store, previous_response_id=first["id"])
        third = await socket.turn(input="three", store=store, previous_response_id=second["id"])
        assert third["previous_response_id"] == second["id"]
        before, after = [row["input_tokens"] for row in await gateway.rows("entry = 'reserve'")][::2]
        assert after > before


async def test_websocket_store_false_reconnect_recovery(tmp_path: Path, upstream: Upstream) -> None:
    """What was not kept is gone with its socket; the caller sends everything and goes on. What was kept is there."""
    async with running_gateway(tmp_path, house(upstream)) as gateway:
        async with socket_of(gateway) as socket:
            lost = await socket.turn(input="one", store=False)
            kept = await socket.turn(input="one")
        async with socket_of(gateway) as socket:
            (error,) = await socket.events(input="two", store=False, previous_response_id=lost["id"])
            assert (error["status"], error["error"]["code"]) == (400, "previous_response_not_found")
            whole = [user("one"), *lost["output"], user("two")]
            assert (await socket.turn(input=whole, store=False))["status"] == "completed"
            assert (await socket.turn(input="two", previous_response_id=kept["id"]))["status"] == "completed"


async def test_websocket_missing_previous_response(tmp_path: Path, upstream: Upstream) -> None:
    """An error as a message, after which the socket goes on."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        (error,) = await socket.events(input="on", previous_response_id="resp_never")
        assert (error["type"], error["error"]["code"], error["error"]["param"]) == (
            "error",
            "previous_response_not_found",
            "previous_response_id",
        )
        assert (await socket.turn(input="on"))["status"] == "completed"


async def test_websocket_failed_continuation_evicts_the_cache(tmp_path: Path, upstream: Upstream) -> None:
    """A turn that failed is not gone on from: what it went on from is forgotten, unless it is kept."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        first = await socket.turn(input="one", store=False)
        (error,) = await socket.events(
            input="two", store=False, previous_response_id=first["id"], tools=[{"type": "web_search"}]
        )
        assert error["status"] == 400
        (error,) = await socket.events(input="two", store=False, previous_response_id=first["id"])
        assert error["error"]["code"] == "previous_response_not_found"
        # The suite's own way to make a turn fail.
        first = await socket.turn(input="one", store=False)
        output = {"type": "function_call_output", "call_id": "call_openresponses_missing", "output": "x"}
        (error,) = await socket.events(input=[output], store=False, previous_response_id=first["id"])
        assert (error["status"], error["error"]["type"]) == (400, "invalid_request_error")
        (error,) = await socket.events(input="two", store=False, previous_response_id=first["id"])
        assert error["error"]["code"] == "previous_response_not_found"


async def test_websocket_warm_up(tmp_path: Path, upstream: Upstream) -> None:
    """With `generate: false` no model is asked, and the next turn goes on from what was sent."""
    async with running_gateway(tmp_path, house(upstream)) as gateway, socket_of(gateway) as socket:
        warmed = await socket.turn(input="one " * 50, store=False, generate=False)
        assert (warmed["output"], warmed["usage"]["total_tokens"], upstream.log) == ([], 0, [])
        whole = await socket.turn(input="two", store=False, previous_response_id=warmed["id"])
        assert texts(whole) == " w0 w1 w2"
