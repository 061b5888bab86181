"""Older completions: prompts as chats, or as texts for the engines that complete those; answers in the older shape."""

import json
from typing import Any

import msgspec
import pytest

from providers.parameters import TEXT, lacking
from providers.wire import decode_event, path_of, text_as_chat, upstream_body
from proxy.errors import BadRequest
from proxy.parse.chat_request import decisive_parameters, input_tokens, prompt_of
from proxy.parse.wires.chat.dialect import CHAT
from proxy.parse.wires.completions.wire import COMPLETIONS, CompletionsDialect
from tests.providers.calls import deployment
from tests.proxy.parse.wires.reading import chat_fields, read, understood
from tests.proxy.parse.wires.writing import chunk, completion, served

HI: dict[str, Any] = {"model": "auto", "prompt": "hi"}
VLLM = deployment("vllm")


def dialect(**fields: Any) -> CompletionsDialect:
    found = understood(COMPLETIONS, HI | fields).dialect
    assert isinstance(found, CompletionsDialect)
    return found


def test_a_prompt_is_a_users_message() -> None:
    """To `auto` wherever it goes, and to a named model that only chats."""
    request = read(COMPLETIONS, HI | {"max_tokens": 9, "temperature": 0.5, "stop": ["END"]})
    fields = chat_fields(request)
    assert fields["messages"] == [{"role": "user", "content": "hi"}]
    assert (fields["max_tokens"], fields["temperature"], fields["stop"]) == (9, 0.5, ["END"])
    assert (path_of(request, VLLM), path_of(request, deployment())) == ("chat/completions", "chat/completions")
    assert chat_fields(read(COMPLETIONS, HI))["max_tokens"] == 16
    assert prompt_of(request) == prompt_of(read(CHAT, {"model": "auto", "messages": fields["messages"]}))


def test_an_engine_that_is_named_completes_the_text() -> None:
    """As its callers expect of it: without a template, and with what the engine reads beside."""
    request = read(COMPLETIONS, {"model": "llama", "prompt": "Once", "top_k": 3, "x-tier": "batch"})
    assert path_of(request, VLLM) == "completions"
    sent = msgspec.json.decode(upstream_body(request, VLLM))
    assert sent == {"model": "ok", "prompt": "Once", "top_k": 3, "max_tokens": 16}
    assert path_of(request, deployment()) == "chat/completions"


@pytest.mark.parametrize(
    ("fields", "need"),
    [
        ({"echo": True}, "an echo"),
        ({"suffix": "end"}, "a suffix"),
        ({"prompt": ["a", "b"]}, "several prompts"),
        ({"prompt": [1, 2, 3]}, "tokens as a prompt"),
    ],
)
def test_what_a_chat_cannot_do_goes_to_who_can(fields: dict[str, Any], need: str) -> None:
    """Engines of one's own, as far as each does it; all others are not asked."""
    request = read(COMPLETIONS, HI | fields)
    assert decisive_parameters(request) == {need}
    assert path_of(request, VLLM) == "completions"
    assert need in lacking([deployment()]).lacks
    assert need in lacking([deployment("tgi")]).lacks
    assert (need in lacking([VLLM]).lacks) == (need == "a suffix")
    assert not TEXT & lacking([deployment("sglang")]).lacks


def test_tokens_and_answers_are_counted() -> None:
    """Tokens of every list, and answers of every prompt."""
    listed = read(COMPLETIONS, HI | {"prompt": [[1, 2], [3, 4, 5]], "n": 2})
    assert (listed.given_tokens, listed.n) == (5, 4)
    assert input_tokens(listed, prompt_of(listed)) >= 5
    assert read(COMPLETIONS, HI | {"prompt": ["a"]}).n == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [[1], ["a"]]}, "prompt"),
        ({"prompt": ["a"] * 65}, "prompt"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"cache_salt": "x"}, "cache_salt"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Each with the field that is wrong."""
    with pytest.raises(BadRequest) as refused:
        read(COMPLETIONS, HI | fields)
    assert refused.value.param == param


def test_best_of_as_many_as_are_given_asks_for_nothing() -> None:
    """As clients send it that fill in every field."""
    request = read(COMPLETIONS, {"model": "llama", "prompt": "hi", "n": 2, "best_of": 2})
    assert b"best_of" not in upstream_body(request, VLLM)


def test_a_whole_answer_in_the_older_shape() -> None:
    """Text, finish reason and usage; log-probabilities as parallel lists."""
    told = {
        "content": [
            {"token": "a", "logprob": -0.5, "top_logprobs": [{"token": "a", "logprob": -0.5}]},
            {"token": "bc", "logprob": -1.0, "top_logprobs": []},
        ]
    }
    answer = json.loads(dialect().whole(completion({"content": "abc"}, "length", logprobs=told), served()))
    assert (answer["object"], answer["id"], answer["model_used"]) == ("text_completion", "cmpl-1", "t0")
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert choice["logprobs"] == {
        "tokens": ["a", "bc"],
        "token_logprobs": [-0.5, -1.0],
        "top_logprobs": [{"a": -0.5}, {}],
        "text_offset": [0, 1],
    }
    assert answer["usage"] == {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}


@pytest.mark.parametrize("asked", [True, False])
def test_a_stream_in_the_older_shape(asked: bool) -> None:
    """The usage chunk for who asked, then the end marker."""
    writer = dialect(stream=True, stream_options={"include_usage": asked}).events(served())
    events = [chunk({"role": "assistant"}), chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop")]
    data = writer.render(events) + writer.last_words()
    *told, end = data.decode().split("\n\n")[:-1]
    decoded = [json.loads(event.removeprefix("data: ")) for event in told]
    assert end == "data: [DONE]"
    assert [event["choices"][0]["text"] for event in decoded if event["choices"]] == ["a", "b", ""]
    assert [event for event in decoded if not event["choices"]] == ([decoded[-1]] if asked else [])


def test_a_completed_text_is_a_chat_from_the_door_on() -> None:
    """So that counting, judging and writing know one shape; what is no completion stays as it is."""
    payload = b'{"choices": [{"index": 0, "text": "ab", "finish_reason": null}], "usage": null}'
    event = decode_event(text_as_chat(payload, stream=True), "t0/a")
    assert (event.token, event.text_chars) == (True, 2)
    assert b'"delta": {"content": "ab"}' in event.payload
    assert text_as_chat(b"{broken", stream=True) == b"{broken"
    told = {"tokens": ["a"], "token_logprobs": [-0.5]}
    whole = json.loads(dialect().whole(completion({"content": "a"}, logprobs=told), served()))
    assert whole["choices"][0]["logprobs"] == told
