"""The cases of the Open Responses acceptance suite for a real engine: shapes and the order of events, whatever it says.

`tests/scenarios/test_open_responses.py` has them all with a scripted one, and the helpers.
"""

from typing import Any, Final

from openai.types.responses import ResponseCompactionItem, ResponseUsage

from tests.published_types import check_events, check_response
from tests.running_gateway import Running, model
from tests.scenarios.test_open_responses import WEATHER, posted, socket_of, streamed, user

SHORT: Final[Any] = {"max_output_tokens": 16}
_TRIES: Final = 12
ENDED: Final = ("completed", "incomplete")
PICTURE: Final = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mM4ISdHEmIY1TCqYfhqAADkYgQQ6ZuA8QAAAABJRU5ErkJg"
    "gg=="
)
"""Sixteen pixels by sixteen, all of one red."""


def house(kind: str, url: str, upstream_model: str, *, sees: bool = False) -> list[dict[str, Any]]:
    """The engine as the only model."""
    deployment = {"name": "main", "kind": kind, "base_url": f"{url}/v1", "upstream_model": upstream_model}
    return [model("tiny", [deployment], capabilities=["tools", "json", *(["vision"] if sees else [])])]


async def check_basics(gateway: Running) -> None:
    """A whole response, a stream, system prompts, a history, phases."""
    response = await posted(gateway, model="auto", input=[user("Say hello in exactly 3 words.")], **SHORT)
    check_response(response)
    assert response["status"] in ENDED
    assert response["usage"]["output_tokens"] > 0
    events = await streamed(gateway, model="auto", input=[user("Count from 1 to 5.")], **SHORT)
    check_events(events)
    said = {"type": "message", "role": "system", "content": "You are a pirate."}
    check_response(await posted(gateway, model="auto", input=[said, user("Say hello.")], **SHORT))
    pirate = await posted(gateway, model="auto", input="Say hello.", instructions="You are a pirate.", **SHORT)
    assert pirate["instructions"] == "You are a pirate."
    history = [
        user("My name is Alice."),
        {"type": "message", "role": "assistant", "content": "Hello Alice!"},
        user("What is my name?"),
    ]
    first = await posted(gateway, model="auto", input=history, **SHORT)
    second = await posted(gateway, model="auto", input="And now?", previous_response_id=first["id"], **SHORT)
    check_response(second)
    assert second["previous_response_id"] == first["id"]
    # All of the conversation was sent again.
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    for phase in ("commentary", "final_answer"):
        before = {"type": "message", "role": "assistant", "phase": phase, "content": "Let me see."}
        check_response(await posted(gateway, model="auto", input=[user("Weigh it."), before, user("Well?")], **SHORT))


async def check_tools(gateway: Running) -> None:
    """A function is called, whole and as events. A model that speaks at random may need several tries to end a call."""
    asked: dict[str, Any] = {
        "model": "auto",
        "input": [user("How heavy?")],
        "tools": [WEATHER],
        "tool_choice": {"type": "function", "name": "weigh"},
        "max_output_tokens": 100,
    }
    for streams in (False, True):
        calls: list[dict[str, Any]] = []
        for _ in range(_TRIES):
            if streams:
                events = await streamed(gateway, **asked)
                check_events(events)
                response = events[-1]["response"]
            else:
                response = await posted(gateway, **asked)
            check_response(response)
            calls = [item for item in response["output"] if item["type"] == "function_call"]
            if calls:
                break
        assert {call["name"] for call in calls} == {"weigh"}


async def check_pictures(gateway: Running) -> None:
    """One in a question: its tokens are the engine's own."""
    asked = {"type": "input_text", "text": "What do you see?"}
    told: list[dict[str, Any]] = []
    for beside in ([], [{"type": "input_image", "image_url": PICTURE}]):
        question = {"type": "message", "role": "user", "content": [asked, *beside]}
        response = await posted(gateway, model="auto", input=[question], **SHORT)
        check_response(response)
        assert response["status"] in ENDED
        told.append(response)
    without, seen = (each["usage"]["input_tokens"] for each in told)
    assert seen > without


async def check_compaction(gateway: Running) -> None:
    """With and without a model; the conversation goes on with what came back."""
    said = {"type": "message", "role": "assistant", "content": "It weighs 7 kg."}
    names: Any = ({"model": "auto"}, {})
    for named in names:
        talk = [user("Weigh it."), said, user("And now?")]
        compact = await posted(gateway, "responses/compact", input=talk, **named, **SHORT)
        ResponseCompactionItem.model_validate(compact["output"][-1])
        ResponseUsage.model_validate(compact["usage"])
        assert [item["type"] for item in compact["output"]] == ["message", "message", "compaction"]
        going_on = await posted(gateway, model="auto", input=[*compact["output"], user("Go on.")], **SHORT)
        check_response(going_on)


async def check_socket(gateway: Running) -> None:
    """One response after the other, from what was kept and from what was not, over a break, and after errors."""
    async with socket_of(gateway) as socket:
        first = await socket.turn(input=[user("Say hello.")], store=False, **SHORT)
        second = await socket.turn(input="two", store=False, previous_response_id=first["id"], **SHORT)
        assert second["previous_response_id"] == first["id"]
        assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
        kept = await socket.turn(input="one", **SHORT)
        (error,) = await socket.events(input="on", previous_response_id="resp_never", **SHORT)
        assert error["error"]["code"] == "previous_response_not_found"
        (error,) = await socket.events(input="on", previous_response_id=second["id"], store=False, tool_choice="odd")
        assert error["status"] == 400
        assert (await socket.turn(input="and on", previous_response_id=kept["id"], **SHORT))["status"] in ENDED
        warmed = await socket.turn(input="one", store=False, generate=False)
        assert warmed["output"] == []
        going_on = await socket.turn(input="two", store=False, previous_response_id=warmed["id"], **SHORT)
        assert going_on["usage"]["output_tokens"] > 0
    async with socket_of(gateway) as socket:
        (error,) = await socket.events(input="two", store=False, previous_response_id=second["id"], **SHORT)
        assert error["error"]["code"] == "previous_response_not_found"
        whole = [user("one"), *kept["output"], user("two")]
        assert (await socket.turn(input=whole, store=False, **SHORT))["status"] in ENDED
