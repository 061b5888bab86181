"""Continuation by an engine of an answer that another one began: the request with what was said as its assistant's last words.

vLLM, SGLang and llama.cpp read `continue_final_message`, and then complete the last message rather than answer it. vLLM and
llama.cpp refuse it beside their default of `add_generation_prompt`; llama.cpp before May 2026 knows neither name and
completes a last message of the assistant anyway. TGI and TensorRT-LLM have no such field. A text that is completed as it is
needs none of it: what was said is appended to it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from providers.parameters import is_said
from providers.target import OWN_ENGINES, Deployment
from providers.wire import CONTINUE_FIELDS, ChatRequest, Message
from settings.decoding import DECODE_ERRORS

_LONGEST: Final = ("max_tokens", "max_completion_tokens")
# What would begin anew, be counted anew, or be told by other events than text: grammars, log-probabilities, echoes.
_ALL_AT_ONCE: Final = frozenset(
    {
        *("logprobs", "top_logprobs", "prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids"),
        *("echo", "suffix", "min_tokens", "modalities", "audio", "include_stop_str_in_output"),
        *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
        *("json_schema", "grammar", "regex", "ebnf", "structural_tag"),
        # A caller who continues a message of its own, or writes the prompt's end.
        *("continue_final_message", "add_generation_prompt"),
    }
)
_FREE: Final = frozenset({b"null", b'"auto"', b'"none"'})
"""Values of `tool_choice` with which an answer may be text."""
_UNSAID: Final = frozenset({b"false", b"0", b"[]", b'""'})


def goes_on(deployment: Deployment, request: ChatRequest) -> bool:
    """Return True for an engine that completes an answer which another one began."""
    return deployment.quirks.prefill == "continue" or (completes_whole_text(request) and deployment.kind in OWN_ENGINES)


def can_be_continued(request: ChatRequest) -> bool:
    """Return True for a request whose answer, as long as it is nothing but text, an engine can go on with."""
    fields = request.fields if request.for_text is None else {**request.fields, **request.for_text}
    return (
        request.operation == "chat"
        and request.as_written is None
        and request.n == 1
        and not request.json_mode
        and not request.text_needs
        and not (request.messages and request.messages[-1].role == "assistant")
        and not any(
            is_said(name, fields[name]) and bytes(fields[name]) not in _UNSAID for name in _ALL_AT_ONCE & fields.keys()
        )
        and bytes(fields.get("tool_choice", b"null")) in _FREE
    )


def completes_whole_text(request: ChatRequest) -> bool:
    """Return whether an engine is given the text itself, and so loses none of its blanks."""
    return request.for_text is not None


def continued(request: ChatRequest, said: str, left_tokens: int | None) -> ChatRequest:
    """Return the request that asks for the rest of an answer whose beginning is `said`, of at most `left_tokens` tokens where
    that is known. With nothing said it is asked for the whole.
    """
    longest = {} if left_tokens is None else {"max_output_tokens": left_tokens}
    fields = _shortened(request.fields, left_tokens)
    for_text = request.for_text
    if for_text is not None:
        for_text = {**_shortened(for_text, left_tokens), "prompt": _longer_text(for_text["prompt"], said)}
    if not said:
        return msgspec.structs.replace(request, fields=fields, for_text=for_text, **longest)
    return msgspec.structs.replace(
        request,
        fields={**_with_answer(fields, said), **CONTINUE_FIELDS},
        for_engines=_with_answer(request.for_engines, said),
        for_text=for_text,
        messages=[*request.messages, Message(role="assistant", content=said)],
        **longest,
    )


def stops_of(request: ChatRequest) -> tuple[str, ...]:
    """Return the texts at which the answer is to end; empty where none is given, or none can be read."""
    raw = request.fields.get("stop")
    try:
        given: Any = None if raw is None else msgspec.json.decode(raw)
    except DECODE_ERRORS:
        return ()
    texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return tuple(text for text in texts if isinstance(text, str) and text)


def _with_answer(fields: Mapping[str, msgspec.Raw], said: str) -> dict[str, msgspec.Raw]:
    """Return the fields with one more message at the end; the others are copied as they came."""
    if "messages" not in fields:
        return dict(fields)
    answer = msgspec.json.encode({"role": "assistant", "content": said})
    before = bytes(fields["messages"]).rstrip()[:-1]
    return {**fields, "messages": msgspec.Raw(before + b"," + answer + b"]")}


def _longer_text(prompt: msgspec.Raw, said: str) -> msgspec.Raw:
    """Return a prompt that is one text, or a list of one."""
    given = msgspec.json.decode(prompt)
    (text,) = given if isinstance(given, list) else [given]
    return msgspec.Raw(msgspec.json.encode(f"{text}{said}"))


def _shortened(fields: Mapping[str, msgspec.Raw], left_tokens: int | None) -> dict[str, msgspec.Raw]:
    """Return the fields with the lengths that they name cut to what is left."""
    if left_tokens is None:
        return dict(fields)
    left = msgspec.Raw(b"%d" % left_tokens)
    named = {name: left for name in _LONGEST if name in fields and bytes(fields[name]) != b"null"}
    return {**fields, **named}
