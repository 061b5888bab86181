"""The wire of POST /v1/completions: a prompt without roles.

For `auto`, and for targets that only chat, a prompt becomes a user's message. An engine of one's own completes the text
as it is when the caller names it, or when chat cannot express the request.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cost.usage import Usage
from providers.wire import ChatRequest, Event, Message
from proxy.errors import ErrorReply
from proxy.parse.chat_request import AUTO, ChatFields, chat_request, refuse_steering, request_of
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.completions_of_chat import Choice, Completion, Said, completion_of, to_json
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.own_fields import Bill, bill
from proxy.parse.wires.reading import (
    object_of,
    own_fields_of,
    plain_fields,
    raw,
    said,
    text,
    unsupported,
    whole_number,
    wrong,
)
from proxy.parse.wires.wire import EventWriter, IsModel, Served, Tally, Understood, Wire

_DONE: Final = b"data: [DONE]\n\n"
_WORD_TAIL: Final = b',"logprobs":null,"finish_reason":null}]}\n\n'
_SILENT: Final = Said()
_SAME: Final = frozenset({
    "temperature", "top_p", "n", "stream", "stream_options", "stop", "presence_penalty", "frequency_penalty", "logit_bias",
    "seed", "user",
})  # fmt: skip
"""Fields that chat has under the same name, with the same meaning."""
_DEFAULT_MAX_TOKENS: Final = 16
"""OpenAI's `max_tokens` where the caller sets none."""
_DEFAULT_MAX: Final = msgspec.Raw(b"%d" % _DEFAULT_MAX_TOKENS)
_MAX_PROMPTS: Final = 64
_MAX_LOGPROBS: Final = 20


class _Prompt(msgspec.Struct, frozen=True):
    """The value of `prompt`, in whichever of its four forms."""

    texts: list[str]
    tokens: int = 0
    count: int = 1


class _Plain(ChatFields, frozen=True, kw_only=True):
    """A body with one text as its prompt, and none but the usual fields."""

    prompt: str
    max_tokens: int = _DEFAULT_MAX_TOKENS
    stream: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    stop: str | list[str] = ""
    user: str = ""


_decode_plain: Final = msgspec.json.Decoder(_Plain).decode
_COMMON: Final = frozenset(
    {"max_tokens", "model", "prompt", "seed", "stop", "stream", "stream_options", "temperature", "top_p", "user"}
)


def read_completion(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse the body. Raises BadRequest."""
    del is_model
    plain = plain_fields(body, _COMMON, _decode_plain)
    return _read(body, headers) if plain is None else _read_plain(*plain, headers)


def _read_plain(fields: dict[str, msgspec.Raw], asked: _Plain, headers: RequestHeaders) -> Understood:
    """Return the request of a body that is a chat in all but its prompt, as most are: its text is passed on as it was
    written.
    """
    fields.setdefault("max_tokens", _DEFAULT_MAX)
    for_text = None if asked.model == AUTO else dict(fields)
    fields["messages"] = msgspec.Raw(b'[{"role":"user","content":%b}]' % bytes(fields.pop("prompt")))
    request = request_of(fields, asked, [Message("user", asked.prompt)], headers, translated=True)
    if for_text is not None:
        request = msgspec.structs.replace(request, for_text=for_text)
    return Understood(request, CompletionsDialect(request))


def _read(body: bytes, headers: RequestHeaders) -> Understood:
    fields = object_of(body)
    own = own_fields_of(fields)
    prompt = _prompt(fields.get("prompt"))
    n = 1 if fields.get("n") is None else whole_number(fields["n"], "n")
    if fields.pop("best_of", None) not in (None, n):
        raise unsupported(
            "best_of", "`best_of` above `n` makes answers that nobody is given: ask for as many with `n`."
        )
    refuse_steering(fields)
    model = text(fields.get("model"), "model")
    most = fields.get("max_tokens")
    most = _DEFAULT_MAX_TOKENS if most is None else whole_number(most, "max_tokens")
    chat: dict[str, Any] = {
        **own,
        **said(fields, _SAME),
        **_logprobs(fields.get("logprobs")),
        "model": model,
        "messages": [{"role": "user", "content": "\n\n".join(prompt.texts)}],
        "max_tokens": most,
    }
    needs = _needs(fields, prompt)
    for_text: dict[str, Any] | None = None
    if needs or model != AUTO:
        for_text = raw({name: value for name, value in fields.items() if name not in own} | {"max_tokens": most})
    # Each prompt gets as many answers.
    request = chat_request(
        chat, headers, times=prompt.count, for_text=for_text, text_needs=needs, given_tokens=prompt.tokens
    )
    return Understood(request, CompletionsDialect(request))


def _prompt(given: Any) -> _Prompt:
    match given:
        case str():
            return _Prompt([given])
        case [*parts] if parts and all(isinstance(part, str) for part in parts):
            return _Prompt(_bounded(parts), count=len(parts))
        case [*parts] if parts and all(_is_token(part) for part in parts):
            return _Prompt([], tokens=len(parts))
        case [*parts] if parts and all(isinstance(part, list) and all(map(_is_token, part)) for part in parts):
            return _Prompt([], tokens=sum(map(len, _bounded(parts))), count=len(parts))
    raise wrong("prompt", "a text, a list of texts, a list of tokens, or a list of such lists")


def _is_token(part: Any) -> bool:
    return isinstance(part, int) and not isinstance(part, bool)


def _bounded(prompts: list[Any]) -> list[Any]:
    if len(prompts) > _MAX_PROMPTS:
        raise wrong("prompt", f"a list of at most {_MAX_PROMPTS} prompts")
    return prompts


def _needs(fields: Mapping[str, Any], prompt: _Prompt) -> frozenset[str]:
    """Return the request's needs among `providers.parameters.TEXT`."""
    asked = {
        "an echo": bool(fields.get("echo")),
        "a suffix": bool(fields.get("suffix")),
        "several prompts": prompt.count > 1,
        "tokens as a prompt": bool(prompt.tokens),
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


def _logprobs(given: Any) -> dict[str, Any]:
    if given is None or given is False:
        return {}
    number = whole_number(given, "logprobs")
    if not 0 <= number <= _MAX_LOGPROBS:
        raise wrong("logprobs", f"between 0 and {_MAX_LOGPROBS}")
    return {"logprobs": True, "top_logprobs": number}


class _Choice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's completion object, whole or one event's, with the gateway's own fields. Unset fields are not written."""

    model_used: str
    weighbridge: Bill | msgspec.UnsetType = msgspec.UNSET
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[_Choice] | msgspec.UnsetType = msgspec.UNSET
    usage: _Usage | msgspec.UnsetType = msgspec.UNSET


class CompletionsDialect:
    """A dialect that writes chat completions as completions of a text."""

    keeps = False

    def __init__(self, request: ChatRequest) -> None:
        self._wants_usage = request.include_usage

    def whole(self, payload: bytes, served: Served) -> bytes:
        tally = served.tally()
        completion = completion_of(payload)
        choices = [_choice(choice, choice.message or _SILENT) for choice in completion.choices]
        return to_json(_told(completion, served, choices, tally))

    def events(self, served: Served) -> EventWriter:
        return _EventWriter(served, wants_usage=self._wants_usage)

    def to_keep(self, payload: bytes | None, served: Served) -> None:
        """Return None: a completion ends with its answer."""


class _EventWriter:
    def __init__(self, served: Served, *, wants_usage: bool) -> None:
        self._served = served
        self._wants_usage = wants_usage
        self._last: Completion = Completion()
        self._word_head = b""
        """The beginning of an event that holds nothing but a piece of text, up to that text."""

    def render(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for event in events:
            if event.words:
                # Most of a stream is this event, so its beginning is not made anew each time.
                head = self._word_head or self._begun(event)
                parts += (head, to_json(event.words), _WORD_TAIL)
            elif event.choices:
                self._last = completion = completion_of(event.payload)
                choices = [_choice(choice, choice.delta or _SILENT) for choice in completion.choices]
                if any(choice.text or choice.finish_reason for choice in choices):
                    parts.append(_event(_told(completion, self._served, choices)))
        return b"".join(parts)

    def _begun(self, event: Event) -> bytes:
        self._last = completion_of(event.payload)
        head = to_json(_told(self._last, self._served))
        self._word_head = b"data: " + head[:-1] + b',"choices":[{"index":0,"text":'
        return self._word_head

    def last_words(self) -> bytes:
        if not self._wants_usage:
            return _DONE
        return _event(_told(self._last, self._served, [], self._served.tally())) + _DONE

    def failed(self, told: ErrorReply) -> bytes:
        return error_event(told, self._served.request_id)


def _event(told: _Told) -> bytes:
    return b"data: " + to_json(told) + b"\n\n"


def _told(
    completion: Completion,
    served: Served,
    choices: list[_Choice] | msgspec.UnsetType = msgspec.UNSET,
    tally: Tally | None = None,
) -> _Told:
    """Return the completion object. With a tally it has usage and bill."""
    return _Told(
        model_used=served.target_id,
        weighbridge=msgspec.UNSET if tally is None else bill(tally),
        id=f"cmpl-{served.request_id.removeprefix('req_')}",
        created=served.created_at,
        model=completion.model if isinstance(completion.model, str) else served.target_id,
        choices=choices,
        usage=msgspec.UNSET if tally is None else _usage(tally.usage),
    )


def _choice(choice: Choice, said: Said) -> _Choice:
    return _Choice(
        index=choice.index if isinstance(choice.index, int) else 0,
        text=said.text + said.declined,
        logprobs=_text_logprobs(choice.logprobs),
        finish_reason=choice.finish,
    )


def _text_logprobs(told: Any) -> dict[str, Any] | None:
    """Convert a chat's log-probabilities to the older form; those of an engine that completed a text have it already."""
    if not isinstance(told, dict) or not isinstance(told.get("content"), list):
        return told if isinstance(told, dict) and "tokens" in told else None
    tokens = [each for each in told["content"] if isinstance(each, dict)]
    names = [str(each.get("token", "")) for each in tokens]
    offsets = list(itertools.accumulate(map(len, names[:-1]), initial=0)) if names else []
    tops = [
        {str(top.get("token")): top.get("logprob") for top in each.get("top_logprobs") or () if isinstance(top, dict)}
        for each in tokens
    ]
    return {
        "tokens": names,
        "token_logprobs": [each.get("logprob") for each in tokens],
        "top_logprobs": tops,
        "text_offset": offsets,
    }


def _usage(usage: Usage) -> _Usage:
    return _Usage(usage.input_tokens, usage.output_tokens, usage.input_tokens + usage.output_tokens)


COMPLETIONS: Final = Wire(
    name="completions", path="/v1/completions", read=read_completion, error=as_told, error_event=error_event
)
