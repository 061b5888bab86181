"""Replies in OpenAI's form stay as they came; others are put into it. What each engine does is in tests/proxy/parse/wires/differential."""

import json
import random
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

import providers.finish_reasons
from providers.errors import MalformedReply, StreamCut
from providers.finish_reasons import meaning_of
from providers.regular_replies import RegularStream, regular_answer, whole_arguments
from providers.wire import Event, decode_event
from tests.providers.calls import chat_request

_PIECES: Final = ['{"', "kg", '":', " 7", ', "x": "}]\\', '\\ \\"{"', "}"]


def regular() -> RegularStream:
    return RegularStream(chat_request(stream=True), "req_1", "t/a")


def piece(index: int, arguments: str, **begins: Any) -> Event:
    function = {"arguments": arguments, **({"name": begins.pop("name")} if begins else {})}
    return of_delta({"tool_calls": [{"index": index, **begins, "function": function}]})


def of_delta(delta: Any, finish: str | None = None) -> Event:
    chunk = {"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return decode_event(json.dumps(chunk).encode(), "t/a")


def begun(index: int, arguments: str = "") -> Event:
    return piece(index, arguments, id=f"call_{index}", type="function", name="weigh")


def test_what_has_the_form_passes_as_it_came() -> None:
    """OpenAI's own streams: the very same events, one for one."""
    stream = regular()
    events = [
        of_delta({"role": "assistant", "content": None}),
        *(event for index in range(2) for event in (begun(index), *(piece(index, each) for each in _PIECES))),
        of_delta({}, "tool_calls"),
    ]
    for event in events:
        (found,) = stream.events(event)
        assert found is event


def test_a_whole_answer_in_the_form_passes_as_it_came() -> None:
    """Texts are not even looked at."""
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}]}
    event = decode_event(json.dumps(whole).encode(), "t/a")
    assert not event.odd
    assert regular_answer(event, chat_request(), "req_1", "t/a") is event


def test_pieces_mixed_at_random_come_whole() -> None:
    """Any order between the pieces of several calls and texts: each call whole, in its turn, and the texts in theirs."""
    rng = random.Random(7)
    for _ in range(200):
        lots: list[list[Event]] = [[begun(index), *(piece(index, each) for each in _PIECES)] for index in range(3)]
        lots.append([of_delta({"content": each}) for each in "abcd"])
        events: list[Event] = []
        while any(lots):
            events.append(rng.choice([lot for lot in lots if lot]).pop(0))
        stream = regular()
        said, calls, opened = "", dict[int, str](), list[int]()
        for event in [*events, of_delta({}, "tool_calls")]:
            for found in stream.events(event):
                delta = json.loads(found.payload)["choices"][0]["delta"]
                said += delta.get("content") or ""
                for call in delta.get("tool_calls") or ():
                    if call["index"] not in opened[-1:]:
                        assert call["index"] not in opened
                        opened.append(call["index"])
                        assert call["function"]["name"] == "weigh"
                    calls[call["index"]] = calls.get(call["index"], "") + call["function"]["arguments"]
        assert said == "abcd"
        assert calls == dict.fromkeys(range(3), "".join(_PIECES))


def test_what_waits_for_a_call_is_bounded() -> None:
    """A call that never ends holds no more than so much back."""
    stream = regular()
    stream.events(begun(0, '{"'))
    text = of_delta({"content": "x" * 4_000_000})
    assert [stream.events(text) for _ in range(2)] == [[], []]
    with pytest.raises(MalformedReply):
        stream.events(text)


@pytest.mark.parametrize(
    ("choice", "came", "told"),
    [
        ("auto", "stop", "tool_calls"),
        ("auto", "length", "length"),
        (None, "eos", "tool_calls"),
        ({"type": "function", "function": {"name": "weigh"}}, "stop", "stop"),
    ],
)
def test_why_an_answer_with_calls_ended(choice: Any, came: str, told: str) -> None:
    """For its calls, by which agents go on; only for a call that was forced by name OpenAI itself says `stop`."""
    request = chat_request(stream=True, **({} if choice is None else {"tool_choice": choice}))
    stream = RegularStream(request, "req_1", "t/a")
    *_, last = [found for event in (begun(0, "{}"), of_delta({}, came)) for found in stream.events(event)]
    assert json.loads(last.payload)["choices"][0]["finish_reason"] == told
    call = {"id": "call_a", "type": "function", "function": {"name": "weigh", "arguments": "{}"}}
    whole = {"choices": [{"index": 0, "message": {"tool_calls": [call]}, "finish_reason": came}]}
    answer = regular_answer(decode_event(json.dumps(whole).encode(), "t/a"), request, "req_1", "t/a")
    assert json.loads(answer.payload)["choices"][0]["finish_reason"] == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "{}"),
        ("", "{}"),
        (" ", "{}"),
        ("null", "{}"),
        ('""', "{}"),
        ({"a": 1}, '{"a":1}'),
        ([1], "[1]"),
        ('{ "a" : 1 }', '{ "a" : 1 }'),
        ('{}{"a":1}', '{"a":1}'),
        ('{"a":1}{"a":1}', '{"a":1}'),
        ('"{\\"a\\":1}"', '{"a":1}'),
        ('{"a":', '{"a":'),
        ("weigh it", "weigh it"),
        ("[1]", "[1]"),
        ("7", "7"),
    ],
)
def test_arguments_of_a_whole_call(given: Any, told: str) -> None:
    """One JSON object wherever there is one to be found, and else what the model wrote."""
    assert whole_arguments(given) == told


def test_each_word_for_an_end_stands_once() -> None:
    """And none of them is one of OpenAI's own."""
    text = Path(providers.finish_reasons.__file__).with_name("data").joinpath("finish_reasons.toml").read_text()
    words = [word for row in tomllib.loads(text)["reasons"] for word in row["words"]]
    assert len(set(words)) == len(words)
    assert all(word == word.lower() for word in words)
    odd: list[Any] = ["STOP", "Eos", "", None, 7, []]
    assert [meaning_of(word) for word in odd] == ["stop", "stop", "on", "stop", "stop", "stop"]


def test_an_answer_that_broke_off_is_no_answer() -> None:
    """Neither whole nor streamed."""
    for name in ("message", "delta"):
        chunk = {"choices": [{"index": 0, name: {"content": "Half of"}, "finish_reason": "abort"}]}
        with pytest.raises(StreamCut, match="abort"):
            decode_event(json.dumps(chunk).encode(), "t/a")
