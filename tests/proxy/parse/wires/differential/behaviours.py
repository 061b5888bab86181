"""What upstreams do: each behaviour as a stream and, where there is such a thing, as a whole answer, and what has to be told of it.

From public reports on gateways and engines; the names say what is odd. `OPENAI` behaviours are a chat's, `CLAUDE` ones those of
Anthropic's messages.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec

from tests.proxy.parse.wires.differential.told import FAILED, Call, End, Told

Chunk = dict[str, Any]
DONE: Final = b"[DONE]"
HEAD: Final[Chunk] = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
USAGE: Final[Chunk] = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17}
COUNTED: Final = (12, 5)
ROLE: Final[Chunk] = {"role": "assistant", "content": ""}


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """One way to answer."""

    name: str
    stream: Sequence[Chunk | bytes]
    """The events' data."""
    told: Told
    whole: Chunk | None = None
    """The same as a whole answer; None where only streams can be so."""
    told_whole: Told | None = None
    """What is told of that, where it is something else."""
    speaks: Literal["openai", "claude"] = "openai"
    fields: Chunk = {}
    """What the chat's caller asks for beside the usual."""
    ways: tuple[str, ...] = ("chat", "responses", "messages", "completions")


def part(delta: Any, finish: Any = None, **more: Any) -> Chunk:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return {**HEAD, "choices": [choice]}


def text(words: str) -> Chunk:
    return part({"content": words})


def end(finish: Any = "stop", delta: Any = None, **more: Any) -> Chunk:
    return part({} if delta is None else delta, finish, **more)


def calls(*each: Any, finish: Any = None) -> Chunk:
    return part({"tool_calls": list(each)}, finish)


def begun(index: Any = 0, call_id: Any = "call_a", name: Any = "weigh", arguments: Any = "", **more: Any) -> Chunk:
    return {
        "index": index,
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
        **more,
    }


def grown(arguments: Any, index: Any = 0, **more: Any) -> Chunk:
    return {"index": index, "function": {"arguments": arguments}, **more}


def without(fields: Chunk, *names: str) -> Chunk:
    return {name: value for name, value in fields.items() if name not in names}


def usage(**more: Any) -> Chunk:
    return {**HEAD, "choices": [], "usage": USAGE, **more}


def whole(message: Any, finish: Any = "stop", **more: Any) -> Chunk:
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE, **more}


def said(content: Any, **more: Any) -> Chunk:
    return {"role": "assistant", "content": content, **more}


def called(*each: Any, content: Any = None, **more: Any) -> Chunk:
    return {"role": "assistant", "content": content, "tool_calls": list(each), **more}


KG: Final = '{"kg":7}'
WEIGH: Final = Call("weigh", {"kg": 7})
PRINT: Final = Call("print", {"copies": 2})
NOTHING: Final = Call("weigh", {})
COPIES: Final = '{"copies":2}'


def hello(text: str = "Hello there.", ended: End = "ended", **more: Any) -> Told:
    return Told(end=ended, text=text, usage=COUNTED, **more)


def one(*each: Call, ended: End = "calls", **more: Any) -> Told:
    return Told(end=ended, calls=each or (WEIGH,), usage=COUNTED, **more)


WORDS: Final = (part(ROLE), text("Hello"), text(" there."))
A: Final = begun()
B: Final = begun(1, "call_b", "print")


def behaviour(name: str, stream: Sequence[Any], told: Told, whole: Chunk | None = None, **more: Any) -> Behaviour:
    return Behaviour(name=name, stream=[*stream, DONE], told=told, whole=whole, **more)


def ending(name: str, reason: Any, ended: End = "ended") -> Behaviour:
    return behaviour(
        name,
        [*WORDS, end(reason), usage()],
        hello(ended=ended) if ended != "failed" else FAILED,
        whole(said("Hello there."), reason),
    )


def one_call(name: str, stream: Sequence[Any], *each: Any, told: Told | None = None, **more: Any) -> Behaviour:
    finish = more.pop("finish", "tool_calls")
    return behaviour(
        name, [part(ROLE), *stream, end(finish), usage()], told or one(), whole(called(*each), finish) if each else None,
        **more,
    )  # fmt: skip


_ARGUMENTS: Final[list[Behaviour]] = [
    one_call("arguments in one piece", [calls(begun(arguments=KG))], begun(arguments=KG)),
    one_call("arguments in pieces", [calls(A), *(calls(grown(each)) for each in KG)]),
    one_call("arguments as an object", [calls(begun(arguments={"kg": 7}))], begun(arguments={"kg": 7})),
    one_call("arguments as null", [calls(begun(arguments=None))], begun(arguments=None), told=one(NOTHING)),
    one_call("arguments as an empty text", [calls(A)], A, told=one(NOTHING)),
    one_call("arguments of blanks", [calls(A), calls(grown("  "))], begun(arguments="  "), told=one(NOTHING)),
    one_call("no arguments at all", [calls({**A, "function": {"name": "weigh"}})], {**A, "function": {"name": "weigh"}}, told=one(NOTHING)),
    one_call("arguments that say null", [calls(begun(arguments="null"))], begun(arguments="null"), told=one(NOTHING)),
    one_call("arguments encoded twice", [calls(begun(arguments=json.dumps(KG)))], begun(arguments=json.dumps(KG))),
    one_call("an empty object before the arguments", [calls(begun(arguments="{}")), calls(grown(KG))], begun(arguments="{}" + KG)),
    one_call("the arguments twice", [calls(begun(arguments=KG)), calls(grown(KG))], begun(arguments=KG + KG)),
    one_call("the call repeated whole at the end", [calls(A), calls(grown('{"kg"')), calls(grown(":7}")), calls(begun(arguments=KG))]),
    one_call("a template's mark behind the arguments", [calls(begun(arguments=KG + "\n</tool_call>"))], begun(arguments=KG + "\n</tool_call>")),
    one_call("arguments with blanks around", [calls(begun(arguments=" \n" + KG + "\n"))], begun(arguments=" \n" + KG + "\n")),
    one_call("arguments with brackets and quotes in texts", [calls(A), *(calls(grown(each)) for each in json.dumps({"x": '}]"\\{'}))],
             begun(arguments=json.dumps({"x": '}]"\\{'})), told=one(Call("weigh", {"x": '}]"\\{'}))),
    one_call("arguments that end too early", [calls(A), calls(grown('{"kg"'))], begun(arguments='{"kg"'), finish="length",
             told=one(Call("weigh", '{"kg"'), ended="length")),
]  # fmt: skip

_IDS: Final[list[Behaviour]] = [
    one_call("no id", [calls(without(begun(arguments=KG), "id"))], without(begun(arguments=KG), "id")),
    one_call("an id of null", [calls(begun(call_id=None, arguments=KG))], begun(call_id=None, arguments=KG)),
    one_call("an empty id", [calls(begun(call_id="", arguments=KG))], begun(call_id="", arguments=KG)),
    one_call("a number as id", [calls(begun(call_id=0, arguments=KG))], begun(call_id=0, arguments=KG)),
    one_call("no type", [calls(without(begun(arguments=KG), "type"))], without(begun(arguments=KG), "type")),
    one_call("id and name in each piece", [calls(A), calls(begun(arguments='{"kg"')), calls(begun(arguments=":7}"))]),
    one_call("an empty id in later pieces", [calls(A), calls(begun(call_id="", name="", arguments=KG))]),
    one_call("a new id in each piece", [calls(A), calls(grown('{"kg"', id="call_b")), calls(grown(":7}", id="call_c"))]),
    one_call("the name behind the id", [calls(begun(name=None)), calls(begun(call_id=None, arguments=KG))]),
    one_call(
        "arguments before the name",
        [calls(begun(name="", arguments='{"kg"')), calls(begun(call_id="", arguments=":7}"))],
    ),
    one_call("the id behind the name", [calls(begun(call_id=None)), calls(grown('{"kg"', id="call_b")), calls(grown(":7}"))]),
    one_call(
        "the type behind the arguments",
        [calls(without(begun(arguments='{"kg"'), "type")), calls(grown(":7}", type="function"))],
    ),
    one_call("two calls of one id", [calls(begun(arguments=KG)), calls(begun(1, "call_a", "print", COPIES))],
             begun(arguments=KG), begun(1, "call_a", "print", COPIES), told=one(WEIGH, PRINT)),
    one_call("one call told twice", [calls(begun(arguments=KG)), calls(begun(arguments=KG))], begun(arguments=KG), begun(arguments=KG)),
    one_call("an id of an earlier turn", [calls(begun(call_id="call_0", arguments=KG))], begun(call_id="call_0", arguments=KG)),
    one_call("a call of nobody", [calls({"index": 0, "function": {}}), calls(begun(arguments=KG))], {"function": {}}, begun(arguments=KG)),
]  # fmt: skip

_TWO: Final = one(WEIGH, PRINT)
_INDEXES: Final[list[Behaviour]] = [
    one_call("two calls", [calls(A), calls(grown(KG)), calls(B), calls(grown(COPIES, 1))],
             begun(arguments=KG), begun(1, "call_b", "print", COPIES), told=_TWO),
    one_call("two calls in one event", [calls(begun(arguments=KG), begun(1, "call_b", "print", COPIES))], told=_TWO),
    one_call("interleaved pieces", [calls(A), calls(B), calls(grown('{"kg"')), calls(grown('{"copies"', 1)), calls(grown(":7}")),
                                    calls(grown(":2}", 1))], told=_TWO),
    one_call("pieces of two calls in one event", [calls(A, B), calls(grown('{"kg"'), grown('{"copies"', 1)), calls(grown(":7}"), grown(":2}", 1))],
             told=_TWO),
    one_call("the second call ends first", [calls(A), calls(grown('{"kg"')), calls(B), calls(grown(COPIES, 1)), calls(grown(":7}"))], told=_TWO),
    one_call("three calls, interleaved, one without arguments", [calls(A), calls(B), calls(begun(2, "call_c", "stamp")),
             calls(grown(COPIES, 1)), calls(grown(KG))], told=one(WEIGH, PRINT, Call("stamp", {}))),
    one_call("no index", [calls(without(A, "index")), calls(without(grown(KG), "index"))]),
    one_call("no index, two calls", [calls(without(begun(arguments=KG), "index")), calls(without(begun(1, "call_b", "print", COPIES), "index"))], told=_TWO),
    one_call("an index of null", [calls(begun(None, arguments='{"kg"')), calls(grown(":7}", None))]),
    one_call("index 0 for every call", [calls(begun(arguments=KG)), calls(begun(0, "call_b", "print", COPIES))], told=_TWO),
    one_call("index 0 and no id for every call", [calls(begun(0, "", arguments=KG)), calls(begun(0, "", "print", COPIES))], told=_TWO),
    one_call("one tool twice, no id, index 0", [calls(begun(0, "", arguments=KG)), calls(begun(0, "", arguments='{"kg":8}'))],
             told=one(WEIGH, Call("weigh", {"kg": 8}))),
    one_call("indexes from 1 on", [calls(begun(1, arguments=KG)), calls(begun(2, "call_b", "print", COPIES))], told=_TWO),
    one_call("an index that is a text", [calls(begun("0", arguments='{"kg"')), calls(grown(":7}", "0"))]),
]  # fmt: skip

_BETWEEN: Final[list[Behaviour]] = [
    one_call("text before calls", [text("One moment."), calls(begun(arguments=KG))], told=one(text="One moment.")),
    behaviour("text and call in one message", [part(called(begun(arguments=KG), content="One moment.")), end("tool_calls"), usage()],
              one(text="One moment."), whole(called(begun(arguments=KG), content="One moment."), "tool_calls")),
    one_call("text between pieces of a call", [calls(A), calls(grown('{"kg"')), text("Hm."), text(" Well."), calls(grown(":7}"))],
             told=one(text="Hm. Well.")),
    one_call("a thought between pieces of a call", [calls(A), calls(grown('{"kg"')), part({"reasoning_content": "Hm."}), calls(grown(":7}"))],
             told=one(thought="Hm.")),
    one_call("empty texts between pieces of a call", [calls(A), part({"content": ""}), calls(grown('{"kg"')), part({"content": None}), part({}), calls(grown(":7}"))]),
    one_call("text behind a call", [calls(begun(arguments=KG)), text("Done.")], told=one(text="Done.")),
    one_call("text behind a call without arguments", [calls(A), text("Done.")], told=one(NOTHING, text="Done.")),
    one_call("text, call, text, call", [text("a"), calls(begun(arguments=KG)), text("b"), calls(begun(1, "call_b", "print", COPIES))],
             told=one(WEIGH, PRINT, text="ab")),
    one_call("a last piece with the end", [calls(A), calls(grown('{"kg"')), calls(grown(":7}"), finish="tool_calls")]),
    behaviour("all of it in one event", [calls(begun(arguments=KG), finish="tool_calls"), usage()], one()),
]  # fmt: skip

_FINISHES: Final[list[Behaviour]] = [
    ending("stop", "stop"),
    ending("length", "length", "length"),
    ending("content_filter", "content_filter", "filtered"),
    ending("eos", "eos"),
    ending("eos_token", "eos_token"),
    ending("stop_sequence", "stop_sequence"),
    ending("end_turn", "end_turn"),
    ending("STOP", "STOP"),
    ending("MAX_TOKENS", "MAX_TOKENS", "length"),
    ending("max_tokens", "max_tokens", "length"),
    ending("model_length", "model_length", "length"),
    ending("SAFETY", "SAFETY", "filtered"),
    ending("a word that nobody knows", "completed_v2"),
    ending("a reason that is a number", 1),
    ending("abort", "abort", "failed"),
    ending("error", "error", "failed"),
    ending("insufficient_system_resource", "insufficient_system_resource", "failed"),
    ending("cancelled", "cancelled", "failed"),
    one_call("stop beside a call", [calls(begun(arguments=KG))], begun(arguments=KG), finish="stop"),
    one_call("function_call beside a call", [calls(begun(arguments=KG))], begun(arguments=KG), finish="function_call"),
    one_call("eos beside a call", [calls(begun(arguments=KG))], begun(arguments=KG), finish="eos"),
    one_call("tool_calls and then stop", [calls(begun(arguments=KG)), end("tool_calls")], finish="stop"),
    one_call("text before a call, and stop", [text("One moment."), calls(begun(arguments=KG))], finish="stop", told=one(text="One moment.")),
    one_call("the end of calls twice, with usage", [calls(begun(arguments=KG)), {**end("tool_calls"), "usage": USAGE}]),
    one_call("empty reasons and an older call of nothing", [part({"content": ""}, ""), calls(A, finish=""), calls(grown(KG), finish=""),
             part({"function_call": {"name": "", "arguments": ""}}, "")]),
    behaviour("reasons left out while it goes on", [{**HEAD, "choices": [without(each["choices"][0], "finish_reason")]} for each in WORDS] + [end(), usage()], hello()),
    behaviour("a stub of an older call with the end", [*WORDS, end(delta={"function_call": {"name": "", "arguments": ""}}), usage()], hello(),
              whole(said("Hello there.", function_call={"name": "", "arguments": ""}))),
    behaviour("stop in the first event", [part(ROLE, "stop"), text("Hello"), text(" there."), end(), usage()], hello()),
    one_call("empty names and texts in later pieces", [calls(A), *(part({"content": "", "tool_calls": [{**grown(each), "id": None, "function": {"name": "", "arguments": each}}]}) for each in KG)]),
    one_call("abort in a call", [calls(A), calls(grown('{"kg"'))], begun(arguments='{"kg"'), finish="abort", told=FAILED),
    behaviour("stop twice", [*WORDS, end(), end(), usage()], hello()),
    behaviour("an empty reason while it goes on", [part(ROLE, ""), part({"content": "Hello"}, ""), part({"content": " there."}, ""), end(), usage()], hello()),
    behaviour("the end marker without any reason", [*WORDS, usage()], FAILED, whole(said("Hello there."), None), told_whole=hello()),
    behaviour("the end marker in the middle of a call", [calls(A), calls(grown('{"kg"'))], FAILED),
    behaviour("only an empty reason", [part(ROLE, ""), part({"content": "Hello"}, "")], FAILED),
    Behaviour(name="no end marker", stream=[*WORDS, end(), usage()], told=hello()),
    Behaviour(name="no end at all", stream=[*WORDS], told=FAILED),
    Behaviour(name="nothing", stream=[DONE], told=FAILED, whole={**HEAD, "choices": []}, told_whole=FAILED),
    Behaviour(name="a role alone", stream=[part(ROLE), DONE], told=FAILED),
    behaviour("an error that is an object's name", [*WORDS, {"object": "error", "message": "CUDA", "code": 500}], FAILED),
    behaviour("an error with a message alone", [*WORDS, {"error": "CUDA out of memory"}], FAILED),
    behaviour("an error beside choices", [*WORDS, {**text("x"), "error": {"message": "CUDA", "code": 500}}], FAILED),
    behaviour("an error with empty choices", [*WORDS, {"object": "error", "choices": [], "message": "CUDA"}], FAILED),
    behaviour("an error with a usage", [*WORDS, {"object": "error", "message": "CUDA", "usage": USAGE}], FAILED),
    behaviour("an error in a list", [*WORDS, b'[{"error":{"code":500,"message":"CUDA","status":"INTERNAL"}}]'], FAILED),
]  # fmt: skip

_NULLS: Final[list[Behaviour]] = [
    behaviour("nulls in all places",
              [part({"role": None, "content": None, "tool_calls": None, "refusal": None, "reasoning_content": None, "function_call": None, "audio": None}, logprobs=None),
               text("Hello"), text(" there."), end(delta={"content": None}, stop_reason=None), usage()],
              hello(), whole(said("Hello there.", tool_calls=None, refusal=None, function_call=None, audio=None, annotations=None), logprobs=None)),
    behaviour("a delta of null", [part(None), *WORDS, end(delta=None), usage()], hello()),
    behaviour("a list of no calls", [part({**ROLE, "tool_calls": []}), *WORDS, end(), usage()], hello(), whole(said("Hello there.", tool_calls=[]))),
    behaviour("a call of null", [*WORDS, calls(None), end(), usage()], hello(), whole(said("Hello there.", tool_calls=[None]))),
    behaviour("a function of null", [*WORDS, calls({"index": 0, "function": None}), end(), usage()], hello(), whole(said("Hello there.", tool_calls=[{"function": None}]))),
    behaviour("calls that are an object", [calls(A), part({"tool_calls": grown(KG)}), end("tool_calls"), usage()], one(), whole(said(None, tool_calls=begun(arguments=KG)), "tool_calls")),
    behaviour("empty choices in the middle", [part(ROLE), {**HEAD, "choices": []}, text("Hello"), {**HEAD, "choices": []}, text(" there."), end(), usage()], hello()),
    behaviour("a choice of null", [{**HEAD, "choices": [None]}, *WORDS, end(), usage()], hello()),
    behaviour("choices of null", [{**HEAD, "choices": None, "usage": USAGE}, *WORDS, end(), usage()], hello()),
    behaviour("no number of the choice", [{**HEAD, "choices": [without(each["choices"][0], "index")]} for each in (*WORDS, end())] + [usage()], hello()),
    behaviour("roles in each event", [part({"role": "assistant", "content": each}) for each in ("Hello", " there.")] + [end(), usage()], hello()),
    behaviour("a comment, a blank and an empty object", [*WORDS, {}, b" ", end(), usage()], hello()),
    behaviour("annotations and citations", [*WORDS, part({"annotations": [{"type": "url_citation", "url_citation": {"url": "x"}}]}), end(citations=["x"]), usage()], hello(),
              whole(said("Hello there.", annotations=[{"type": "url_citation", "url_citation": {"url": "x"}}]))),
    behaviour("half a letter at a time", [part(ROLE), b'{"choices":[{"index":0,"delta":{"content":"\\ud83d"}}]}', b'{"choices":[{"index":0,"delta":{"content":"\\ude00"}}]}', end(), usage()],
              hello("\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"))),
]  # fmt: skip

_USAGES: Final[list[Behaviour]] = [
    behaviour("usage with the end", [*WORDS, {**end(), "usage": USAGE}], hello()),
    behaviour("usage in each event", [{**each, "usage": {**USAGE, "completion_tokens": n, "total_tokens": 12 + n}} for n, each in enumerate(WORDS)] + [{**end(), "usage": USAGE}], hello()),
    behaviour("usage twice", [*WORDS, end(), usage(), usage()], hello()),
    behaviour("usage of null in each event", [{**each, "usage": None} for each in (*WORDS, end())] + [usage()], hello()),
    behaviour("usage before the end", [*WORDS, usage(), end()], hello()),
    behaviour("usage beside an empty choice", [*WORDS, end(), {**part({}), "usage": USAGE}], hello()),
    behaviour("usage in another host's place", [*WORDS, end(), {**HEAD, "choices": [], "x_groq": {"usage": USAGE}}], hello()),
    behaviour("usage in another host's place with the end", [{**WORDS[0], "x_groq": {"id": "r"}}, *WORDS[1:], {**end(), "x_groq": {"id": "r", "usage": USAGE}}], hello()),
    behaviour("no usage", [*WORDS, end()], msgspec.structs.replace(hello(), usage=None), without(whole(said("Hello there.")), "usage")),
]  # fmt: skip

_PARTS: Final = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
    {"type": "text", "text": "Hello there."},
]
_THOUGHTS: Final[list[Behaviour]] = [
    behaviour(f"a thought as {name}", [part({**ROLE, name: "H"}), part({name: "m."}), text("Hello there."), end(), usage()], hello(thought="Hm."),
              whole(said("Hello there.", **{name: "Hm."}))) for name in ("reasoning_content", "reasoning")
] + [
    behaviour("both names of a thought", [part({**ROLE, "reasoning": "Hm.", "reasoning_content": "Hm."}), text("Hello there."), end(), usage()], hello(thought="Hm."),
              whole(said("Hello there.", reasoning="Hm.", reasoning_content="Hm."))),
    behaviour("thoughts in details", [part({**ROLE, "reasoning": "Hm.", "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "index": 0}]}), text("Hello there."), end(), usage()],
              hello(thought="Hm."), whole(said("Hello there.", reasoning="Hm.", reasoning_details=[{"type": "reasoning.text", "text": "Hm."}]))),
    behaviour("thoughts in details alone", [part({**ROLE, "reasoning_details": [{"type": "reasoning.text", "text": "Hm.", "index": 0}]}), text("Hello there."), end(), usage()],
              hello(thought="Hm."), whole(said("Hello there.", reasoning_details=[{"type": "reasoning.summary", "summary": "Hm."}]))),
    behaviour("content as a list of parts", [part({"content": [{"type": "text", "text": "Hello"}]}), part({"content": [{"type": "text", "text": " there."}]}), end(), usage()], hello(),
              whole(said([{"type": "text", "text": "Hello"}, {"type": "text", "text": " there."}]))),
    behaviour("thinking as a part of the content", [part(ROLE), part({"content": _PARTS[:1]}), part({"content": _PARTS[1:]}), end(), usage()], hello(thought="Hm."), whole(said(_PARTS))),
    behaviour("thinking as a text in a part", [part({"content": [{"type": "thinking", "thinking": "Hm."}]}), text("Hello there."), end(), usage()], hello(thought="Hm."),
              whole(said([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Hello there."}]))),
    behaviour("an odd thought", [part({**ROLE, "reasoning_content": {"x": 1}}), *WORDS, end(), usage()], hello(), whole(said("Hello there.", reasoning_content={"x": 1}))),
    one_call("a thought before a call", [part({"reasoning_content": "Hm."}), calls(begun(arguments=KG))], told=one(thought="Hm.")),
    one_call("a thought's signature on a call", [calls(begun(arguments=KG, extra_content={"google": {"thought_signature": "c2ln"}}))],
             begun(arguments=KG, extra_content={"google": {"thought_signature": "c2ln"}})),
    behaviour("a refusal", [part({"role": "assistant", "refusal": "No"}), part({"refusal": "."}), end(), usage()], hello("", refusal="No."), whole(said(None, refusal="No."))),
    behaviour("a refusal as a part", [part({"content": [{"type": "refusal", "refusal": "No."}]}), end(), usage()], hello("", refusal="No."), whole(said([{"type": "refusal", "refusal": "No."}]))),
    behaviour("the older function_call", [part({"role": "assistant", "function_call": {"name": "weigh", "arguments": ""}}), part({"function_call": {"arguments": '{"kg"'}}),
              part({"function_call": {"arguments": ":7}"}}), end("function_call"), usage()], one(), whole(said(None, function_call={"name": "weigh", "arguments": KG}), "function_call")),
]  # fmt: skip


def _claude(content: list[Chunk], reason: str = "end_turn") -> Chunk:
    counted = {"input_tokens": 12, "output_tokens": 5}
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content, "stop_reason": reason, "stop_sequence": None, "usage": counted}  # fmt: skip


def _claude_stream(*events: Chunk, reason: str | None = "end_turn", stops: bool = True) -> list[Chunk | bytes]:
    start = {**_claude([]), "stop_reason": None}
    ends = [
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": {"output_tokens": 5},
        }
    ]
    return [{"type": "message_start", "message": start}, *events, *ends, *([{"type": "message_stop"}] if stops else [])]


def _block(index: int, block: Chunk, *deltas: Chunk) -> list[Chunk]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def _said_by_claude(*pieces: str, index: int = 0) -> list[Chunk]:
    return _block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": each} for each in pieces))


def _claude_use(*pieces: str, index: int = 0, name: str = "weigh") -> list[Chunk]:
    use = {"type": "tool_use", "id": f"toolu_{index}", "name": name, "input": {}}
    return _block(index, use, *({"type": "input_json_delta", "partial_json": each} for each in pieces))


def _use(name: str = "weigh", number: int = 0, **given: Any) -> Chunk:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": given}


def claude(
    name: str,
    stream: list[Chunk | bytes],
    told: Told,
    content: list[Chunk] | None = None,
    reason: str = "end_turn",
    **more: Any,
) -> Behaviour:
    body = None if content is None else _claude(content, reason)
    return Behaviour(name=f"claude: {name}", stream=stream, told=told, whole=body, speaks="claude", **more)


# A caller of its own wire is told in its own words.
_NOT_ITS_OWN: Final = ("chat", "responses", "completions")
_TEXT: Final = [{"type": "text", "text": "Hello there."}]
_THINKING: Final = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
_CLAUDES: Final[list[Behaviour]] = [
    claude("text", _claude_stream(*_said_by_claude("Hello", " there.")), hello(), _TEXT),
    claude("pings between", _claude_stream({"type": "ping"}, *_said_by_claude("Hello", " there."), {"type": "ping"}), hello()),
    claude("a block of an unknown kind", _claude_stream(*_block(0, {"type": "novel"}), *_said_by_claude("Hello there.", index=1)), hello(), [{"type": "novel"}, *_TEXT], ways=_NOT_ITS_OWN),
    claude("two texts", _claude_stream(*_said_by_claude("Hello"), *_said_by_claude(" there.", index=1)), hello(), [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there."}]),
    claude("a call", _claude_stream(*_claude_use('{"kg"', ":7}"), reason="tool_use"), one(), [_use(kg=7)], "tool_use"),
    claude("a call without arguments", _claude_stream(*_claude_use(), reason="tool_use"), one(NOTHING), [_use()], "tool_use"),
    claude("an empty piece", _claude_stream(*_claude_use("", KG), reason="tool_use"), one()),
    claude("two calls", _claude_stream(*_claude_use(KG), *_claude_use(COPIES, index=1, name="print"), reason="tool_use"), one(WEIGH, PRINT),
           [_use(kg=7), _use("print", 1, copies=2)], "tool_use"),
    claude("thinking", _claude_stream(*_block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Hm."},
           {"type": "signature_delta", "signature": "c2ln"}), *_said_by_claude("Hello there.", index=1)), hello(thought="Hm."), [_THINKING, *_TEXT]),
    claude("thinking before a call", _claude_stream(*_block(0, {"type": "thinking", "thinking": "", "signature": ""}, {"type": "thinking_delta", "thinking": "Hm."},
           {"type": "signature_delta", "signature": "c2ln"}), *_claude_use(KG, index=1), reason="tool_use"), one(thought="Hm."), [_THINKING, _use(kg=7)], "tool_use"),
    claude("redacted thinking", _claude_stream(*_block(0, {"type": "redacted_thinking", "data": "x"}), *_said_by_claude("Hello there.", index=1)), hello(), [{"type": "redacted_thinking", "data": "x"}, *_TEXT]),
    claude("max_tokens", _claude_stream(*_said_by_claude("Hello there."), reason="max_tokens"), hello(ended="length"), _TEXT, "max_tokens"),
    claude("a full context", _claude_stream(*_said_by_claude("Hello there."), reason="model_context_window_exceeded"), hello(ended="length"), _TEXT, "model_context_window_exceeded", ways=_NOT_ITS_OWN),
    claude("refusal", _claude_stream(*_said_by_claude("Hello there."), reason="refusal"), hello(ended="filtered"), _TEXT, "refusal"),
    claude("end_turn beside a call", _claude_stream(*_claude_use(KG)), one(), [_use(kg=7)], ways=_NOT_ITS_OWN),
    claude("an unknown reason", _claude_stream(*_said_by_claude("Hello there."), reason="novel"), hello(), _TEXT, "novel", ways=_NOT_ITS_OWN),
    claude("no end", _claude_stream(*_said_by_claude("Hello there."), stops=False)[:-1], FAILED),
    claude("a stop without a reason", [*_claude_stream(*_said_by_claude("Hello there."))[:-2], {"type": "message_stop"}], FAILED),
    claude("overloaded in the middle", [*_claude_stream(*_said_by_claude("Hello there."))[:-2], {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}], FAILED),
]  # fmt: skip

BEHAVIOURS: Final = [
    *_ARGUMENTS, *_IDS, *_INDEXES, *_BETWEEN, *_FINISHES, *_NULLS, *_USAGES, *_THOUGHTS, *_CLAUDES,
]  # fmt: skip
