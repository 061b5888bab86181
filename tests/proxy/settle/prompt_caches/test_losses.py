"""Why a prompt had less of its provider's cache than it could: what strangers ran into, in their words' shape, and their kinds."""

import json
from collections.abc import Iterable
from typing import Any, Final

import pytest

from providers.quirks import Quirks, quirks_of
from providers.wire import ChatRequest
from proxy.parse.chat_request import parse_chat
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.messages.parser import read_messages
from proxy.parse.wires.responses.parser import read_response
from proxy.settle.prompt_caches.losses import Loss, Read, Seen, losses
from proxy.settle.prompt_caches.pieces import PieceMaker

HEADERS: Final = RequestHeaders(tier="interactive")
MAKER: Final = PieceMaker(b"secret")
OPENAI: Final = quirks_of("openai", "https://api.openai.com/v1", "gpt-5-mini")
CLAUDE: Final = quirks_of("litellm", "", "anthropic/claude-sonnet-4-5")
NOBODY: Final = Quirks()
RULES: Final = "".join(
    f"Rule {word}: never do {word} without asking for the {word} first.\n"
    for word in map(str, "abcdefghijklmnopqrstuvwxyz" * 8)
)
TOKENS: Final = 10_000


def tool(name: str, **more: Any) -> dict[str, Any]:
    words = "Reads what is wanted and says what it found there, at length. " * 6
    return {
        "type": "function",
        "function": {"name": name, "description": words, "parameters": {"type": "object", **more}},
    }


TOOLS: Final = [tool(name) for name in ("alpha", "mu", "zeta", "read", "write", "list")]


def chat(system: str, *turns: str, tools: Any = None, **more: Any) -> ChatRequest:
    messages = [{"role": "system", "content": system}] if system else []
    for place, turn in enumerate(turns):
        messages.append({"role": "assistant" if place % 2 else "user", "content": turn})
    body = {"model": "m", "messages": messages, **({"tools": tools} if tools else {}), **more}
    return parse_chat(json.dumps(body).encode(), HEADERS)


def claude(**body: Any) -> ChatRequest:
    said = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **body}
    return read_messages(json.dumps(said).encode(), HEADERS, lambda _name: True).request


def seen(request: ChatRequest, *, at_s: float = 0.0, target_id: str = "m", took_s: float = 1.0) -> Seen:
    return Seen(MAKER.pieces(request), target_id, at_s, at_s + took_s)


def found(
    before: ChatRequest | Iterable[Seen],
    now: ChatRequest | Seen,
    *,
    cached: int = 0,
    written: int = 0,
    quirks: Quirks = OPENAI,
) -> dict[str, int]:
    known = [seen(before)] if isinstance(before, ChatRequest) else list(before)
    then = now if isinstance(now, Seen) else seen(now, at_s=10.0)
    return _by_cause(losses(then, Read(TOKENS, cached, written), known, quirks))


def _by_cause(told: Iterable[Loss]) -> dict[str, int]:
    return {each.cause: each.tokens for each in told}


def stamped(said: str) -> str:
    return f"You are a helpful assistant.\n{said}\n{RULES}"


# What strangers sent.


@pytest.mark.parametrize(
    ("before", "now", "cause"),
    [
        # goruck/home-generative-agent#617, at the very front
        ("Current time is 15:09:20. Today's date is 2026-09-09.", "Current time is 15:09:34. Today's date is 2026-09-09.", "time"),
        # openclaw/openclaw#63071, earendil-works/pi#1873: to the second, in words
        ("## Current Date & Time\nFriday, March 6, 2026 at 3:04:05 PM UTC", "## Current Date & Time\nFriday, March 6, 2026 at 3:04:09 PM UTC", "time"),
        # joshuadavidthomas/opencode-agent-memory#29: three digits of milliseconds
        ("<memory_metadata>updated 2026-09-02T14:58:23.413Z</memory_metadata>", "<memory_metadata>updated 2026-09-02T14:58:23.869Z</memory_metadata>", "time"),
        # can1357/oh-my-pi#7324: midnight
        ("Today is 2026-08-01, and the current working directory is '/src'.", "Today is 2026-08-02, and the current working directory is '/src'.", "time"),
        # anthropics/claude-code#92524: a folder of the session
        ("Use `/tmp/fc9aab5b-da05-4cc7-bbe2-410a1c472151/scratchpad`.", "Use `/tmp/88966ec9-2cb4-4872-bc6b-624b66257462/scratchpad`.", "id"),
        # anthropics/claude-code#68900, ggml-org/llama.cpp#20623
        ("x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;", "x-anthropic-billing-header: cc_version=2.1.177.48f; cc_entrypoint=cli; cch=0aaa9;", "id"),
        # a counter
        ("This is request 41 of this session.", "This is request 42 of this session.", "id"),
        # can1357/oh-my-pi#7324: another folder
        ("The current working directory is '/src/one'.", "The current working directory is '/src/other'.", "system"),
    ],
)  # fmt: skip
def test_what_varies_in_the_system_prompt_is_named(before: str, now: str, cause: str) -> None:
    """And nearly all of the prompt is lost by it, also where tools stand before the instructions and were read."""
    lost = found(chat(stamped(before), "Hello"), chat(stamped(now), "Hello"))
    assert set(lost) == {cause}
    assert TOKENS * 0.9 < lost[cause] < TOKENS
    with_tools = found(
        chat(stamped(before), "Hello", tools=TOOLS), chat(stamped(now), "Hello", tools=TOOLS), cached=1_500
    )
    assert set(with_tools) == {cause}


@pytest.mark.parametrize(
    "tools",
    [
        # openai/codex#2611, maximhq/bifrost#2347, langchain-ai/deepagents#2497: a map's order
        [TOOLS[2], *TOOLS[:2], *TOOLS[3:]],
        # can1357/oh-my-pi#890: a server that came back stands last
        [*TOOLS[1:], TOOLS[0]],
        # github/copilot-sdk#1931: the keys of a schema
        [{**each, "function": dict(reversed(each["function"].items()))} for each in TOOLS],
    ],
)
def test_tools_in_another_order_are_named(tools: list[Any]) -> None:
    assert set(found(chat(RULES, "Hello", tools=TOOLS), chat(RULES, "Hello", tools=tools))) == {"tools_order"}


@pytest.mark.parametrize(
    "tools",
    [
        # HKUDS/nanobot#2723: servers of tools come and go
        [*TOOLS, tool("later")],
        TOOLS[:-1],
        [tool("alpha", additionalProperties=False), *TOOLS[1:]],
    ],
)
def test_other_tools_are_named(tools: list[Any]) -> None:
    assert set(found(chat(RULES, "Hello", tools=TOOLS), chat(RULES, "Hello", tools=tools))) == {"tools"}


LONG: Final = [f"Turn {place}: " + "what was said there at length, and more. " * 20 for place in range(9)]


def test_an_old_tool_result_that_was_shortened_is_the_history() -> None:
    """macanderson/stella#3690, QwenLM/qwen-code#8463, anomalyco/opencode#32515: what comes before it was read."""
    later = [*LONG[:3], "[old result cleared]", *LONG[4:], "go on", "Next"]
    lost = found(chat(RULES, *LONG), chat(RULES, *later), cached=7_300)
    assert set(lost) == {"history"}
    assert 1_000 < lost["history"] < 4_000


def test_messages_that_were_dropped_at_the_front_are_the_history() -> None:
    assert set(found(chat("", *LONG), chat("", *LONG[2:], "go on", "Next"))) == {"history"}


def test_a_time_in_the_first_message_is_named() -> None:
    """openclaw/openclaw#71973, and reminders that Claude Code puts before the first message."""
    before, now = (f"<system-reminder>Time: {at}</system-reminder>\nHello" for at in ("10:01:02", "10:02:07"))
    assert set(found(chat("", before, *LONG[1:]), chat("", now, *LONG[1:]))) == {"time"}


def test_a_cache_that_nobody_asked_for_is_unmarked() -> None:
    """TeacherOp/NoobBook#185: a Claude keeps what is marked, and nothing was."""
    assert set(found(claude(system=RULES), claude(system=RULES), quirks=CLAUDE)) == {"unmarked"}


def test_marks_that_end_early_leave_the_rest_unmarked() -> None:
    """anthropics/claude-agent-sdk-typescript#89: the same 6,612 tokens each turn, whatever follows."""
    before, now = chat("", *LONG), chat("", *LONG, "go on", "Next")
    lost = found(before, now, cached=3_000, quirks=CLAUDE)
    assert set(lost) == {"unmarked"}
    assert lost["unmarked"] > 5_000


def test_a_mark_that_moves_on_changes_nothing() -> None:
    """A client marks its last message, which is a list of one text then, and a text alone the next time."""
    mark = {"cache_control": {"type": "ephemeral"}}
    long = "what was said " * 600
    tools = [{"name": "t", "description": "d" * 900, "input_schema": {"type": "object"}}]
    before = claude(system=[{"type": "text", "text": RULES, **mark}], tools=[{**tools[0], **mark}],
                    messages=[{"role": "user", "content": [{"type": "text", "text": long, **mark}]}])  # fmt: skip
    now = claude(system=RULES, tools=tools, messages=[
        {"role": "user", "content": long}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": [{"type": "text", "text": "more", **mark}]},
    ])  # fmt: skip
    assert found(before, now, cached=9_900, written=90, quirks=CLAUDE) == {}
    assert set(found(before, now, written=9_990, quirks=CLAUDE)) == {"unknown"}


def test_a_picture_is_the_same_with_and_without_a_mark() -> None:
    def asked(mark: dict[str, Any]) -> ChatRequest:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000}, **mark}
        body = {"model": "m", "messages": [{"role": "user", "content": [picture, {"type": "text", "text": RULES}]}]}
        return parse_chat(json.dumps(body).encode(), HEADERS)

    assert set(found(asked({}), asked({"cache_control": {"type": "ephemeral"}}))) == {"unknown"}


def test_a_pause_longer_than_the_provider_keeps_it_is_late() -> None:
    before = [seen(chat(RULES, "Hello"))]
    assert set(found(before, seen(chat(RULES, "Hello"), at_s=602.0))) == {"late"}
    assert set(found(before, seen(chat(RULES, "Hello"), at_s=590.0))) == {"unknown"}
    # Where nobody says for how long, nobody knows.
    assert set(found(before, seen(chat(RULES, "Hello"), at_s=9_000.0), quirks=NOBODY)) == {"unknown"}


def test_a_conversation_that_went_to_another_model_is_moved() -> None:
    """BerriAI/litellm#6784: each of several models or deployments has a cache of its own."""
    before = [seen(chat(RULES, *LONG), target_id="other")]
    assert set(found(before, seen(chat(RULES, *LONG), at_s=10.0))) == {"moved"}
    # What this one had itself is not lost by the move.
    both = [seen(chat(RULES, "Hello")), *before]
    lost = found(both, seen(chat(RULES, *LONG), at_s=10.0), cached=7_000)
    assert set(lost) == {"moved"}
    assert lost["moved"] <= 3_000


def test_requests_beside_each_other_cannot_read_what_none_has_written() -> None:
    """matt-house-e/accrue#116, voodootikigod/adlc#273."""
    assert set(found([seen(chat(RULES, "One"), took_s=20.0)], seen(chat(RULES, "Two"), at_s=1.0))) == {"parallel"}


def test_another_way_to_choose_tools_is_named() -> None:
    before, now = (chat(RULES, "Hello", tools=TOOLS, tool_choice=how) for how in ("auto", "required"))
    assert set(found(before, now)) == {"settings"}


# And what is no loss.


def test_the_first_of_its_kind_loses_nothing() -> None:
    assert found([], chat(RULES, "Hello")) == {}
    assert found(chat("Other " * 900, "Bye"), chat(RULES, "Hello")) == {}


def test_what_was_read_is_no_loss() -> None:
    assert found(chat(RULES, *LONG), chat(RULES, *LONG, "go on", "Next"), cached=9_728) == {}


def test_blocks_that_end_before_the_prompt_are_no_loss() -> None:
    assert found(chat(RULES, *LONG), chat(RULES, *LONG, "go on", "Next"), cached=9_300) == {}


def test_a_new_conversation_of_the_same_rules_has_only_these_to_read() -> None:
    assert found(chat(RULES, *LONG), chat(RULES, "Something else"), cached=9_800) == {}


def test_an_empty_prompt_is_nothing() -> None:
    assert found(chat(RULES, "Hello"), chat("", "")) == {}


def test_responses_are_taken_apart_as_chats_are() -> None:
    def asked(at: str) -> ChatRequest:
        body = {"model": "m", "instructions": stamped(f"It is {at}."), "input": "Hello", "store": False}
        return read_response(json.dumps(body).encode(), HEADERS, lambda _name: True).request

    assert set(found(asked("10:01:02"), asked("10:01:09"))) == {"time"}


def test_a_long_prompt_has_a_bound_of_pieces() -> None:
    """Of a prompt beyond all bounds only so much is told apart."""
    many = chat("x.\n" * 40_000, *(str(each) for each in range(3_000)), tools=[tool(str(each)) for each in range(400)])
    pieces = MAKER.pieces(many)
    assert len(pieces.digests) <= 256 + 513 + 1_024
    assert len(pieces.plain) == len(pieces.kinds) <= 256 + 513 + 1


def test_pieces_hold_no_text() -> None:
    """Two keys give two sets of digests, so none can be looked up."""
    asked = chat(RULES, "a secret word", tools=TOOLS)
    mine, theirs = MAKER.pieces(asked), PieceMaker(b"other").pieces(asked)
    assert not set(mine.digests) & set(theirs.digests)
    assert "secret" not in repr(mine)
