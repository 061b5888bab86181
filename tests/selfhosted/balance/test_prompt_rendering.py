"""A rendered prompt: the same for the same conversation, longer for a longer one, another where the engine's would be."""

from typing import Any

import msgspec

from providers.wire import ChatRequest
from selfhosted.balance.prompt_rendering import instructions, rendered, root_of
from tests.providers.calls import chat_request

_SYSTEM = {"role": "system", "content": "Weigh trucks."}
_HI = {"role": "user", "content": "hi"}
_MOST = 1_000_000
_ROOT = 1_603_358_421


def _talk(*messages: dict[str, Any], **fields: Any) -> ChatRequest:
    return chat_request(messages=list(messages), **fields)


def test_a_conversation_grows_at_its_end() -> None:
    """What was said before is a prefix of what is said after the next turn."""
    before = rendered(_talk(_SYSTEM, _HI), most_bytes=_MOST)
    after = rendered(_talk(_SYSTEM, _HI, {"role": "assistant", "content": "yes?"}, _HI), most_bytes=_MOST)
    assert after.startswith(before)
    assert len(after) > len(before)


def test_how_it_was_written_does_not_matter() -> None:
    """Text in parts and text as a string are one prompt; blanks in the JSON are none of it."""
    parts = {"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}
    assert rendered(_talk(parts), most_bytes=_MOST) == rendered(_talk(_HI), most_bytes=_MOST)


def test_what_engines_render_differently_differs() -> None:
    """Who speaks, tools, tool calls and pictures are part of the prompt, and nobody can fake one in a text."""
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
    other = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}]}
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    asked = [
        _talk(_HI),
        _talk({"role": "assistant", "content": "hi"}),
        _talk(_HI, tools=[{"type": "function", "function": {"name": "f"}}]),
        _talk(picture),
        _talk(other),
        _talk(call),
        _talk({"role": "user", "content": "h"}, {"role": "user", "content": "i"}),
    ]
    assert len({rendered(request, most_bytes=_MOST) for request in asked}) == len(asked)


def test_it_is_cut_at_its_limit() -> None:
    """However long the prompt is, and however it is written."""
    long = _talk({"role": "user", "content": "x" * 100_000})
    assert len(rendered(long, most_bytes=4_096)) == 4_096
    pictures = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 100_000}}]}
    assert len(rendered(_talk(pictures), most_bytes=2_048)) == 2_048


def test_a_picture_weighs_what_it_takes() -> None:
    """Not its megabytes: the texts around it count, and what was said before it is a prefix of what is said with it."""
    url = "data:image/png;base64," + "A" * 2_000_000
    picture = {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "Which?"}],
    }
    before = rendered(_talk(_SYSTEM, _HI), most_bytes=_MOST)
    shown = rendered(_talk(_SYSTEM, _HI, picture), most_bytes=_MOST)
    after = rendered(_talk(_SYSTEM, _HI, picture, {"role": "assistant", "content": "that"}, _HI), most_bytes=_MOST)
    assert shown.startswith(before)
    assert after.startswith(shown)
    assert shown.endswith(b"Which?")
    assert 3_000 < len(shown) - len(before) < 3_200
    other = {**picture, "content": [{"type": "image_url", "image_url": {"url": f"{url}B"}}, picture["content"][1]]}
    assert rendered(_talk(_SYSTEM, _HI, other), most_bytes=_MOST) != shown


def test_half_a_letter_is_rendered() -> None:
    """Clients that cut an emoji in two send half a surrogate pair."""
    assert rendered(_talk({"role": "user", "content": "\\ud83d"}), most_bytes=_MOST)


def test_another_salt_shares_nothing() -> None:
    """Neither a beginning nor the conversation's name."""
    request = _talk(_SYSTEM, _HI)
    first, second = (rendered(request, most_bytes=_MOST, salt=salt) for salt in ("a", "b"))
    assert first[0] != second[0]
    assert root_of(request, salt="a") != root_of(request, salt="b")


def test_the_root_names_the_conversation_in_every_process() -> None:
    """It stays while the conversation goes on, differs by what was asked first, and is a known number."""
    request = _talk(_SYSTEM, _HI)
    assert root_of(request) == root_of(_talk(_SYSTEM, _HI, {"role": "assistant", "content": "yes?"}, _HI))
    assert root_of(request) != root_of(_talk(_SYSTEM, {"role": "user", "content": "ho"}))
    assert root_of(request) != root_of(_talk(_HI))
    assert root_of(request) == _ROOT


def test_embeddings_are_spread_by_what_is_embedded() -> None:
    """They have no conversation, so each goes its own way."""
    asked = [
        ChatRequest(operation="embeddings", fields={"input": msgspec.Raw(text)}, model="e", messages=[])
        for text in (b'"a"', b'"b"')
    ]
    assert root_of(asked[0]) != root_of(asked[1])


def test_instructions_are_what_stands_before_the_conversation() -> None:
    """Tools and the system prompt; nothing of what is asked, and nothing where there are none."""
    tools = [{"type": "function", "function": {"name": "weigh"}}]
    told = instructions(_talk(_SYSTEM, {"role": "developer", "content": "Be brief."}, _HI, _SYSTEM, tools=tools))
    assert b"weigh" in told
    assert told.endswith(b"Weigh trucks.\x00Be brief.")
    assert instructions(_talk(_HI)) == b""
