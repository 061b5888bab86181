"""Detection of weak answers by rules alone: truncated, refused, malformed, or of low log-probability.

Pure and bounded. An answer that cannot be judged within the bounds (too large, too deep, a schema that asks for too
much work) counts as not weak: a wrong "weak" costs a second call, a wrong "fine" costs nothing new.

- `truncated`: the target ran out of tokens and the caller had set no bound. Where the caller did set one,
  a cut answer is what was asked for, unless nothing usable is left of it: no content at all, or JSON or
  tool arguments that were asked for and are broken by the cut.
- `refused`: the wire says so (`refusal`, `content_filter`), or a short answer begins as refusals do.
- `invalid-json`, `schema-mismatch`: against `response_format`. JSON between fences, or the one object in prose, is JSON: what
  teams parse answers with (LangChain's and LlamaIndex's parsers, instructor, mem0, graphiti and their own) finds it there, and a
  second call at a dearer target for three backticks helps nobody. Only a schema with `strict: true` promises bare JSON on every
  provider's wire, and the SDKs' `parse` relies on it, so there a fence is a fault. Patterns are not looked at: Python's regular
  expressions can be made to run for ever. No reference leaves the schema.
- `malformed-tool-arguments`: no object, not what the tool's parameters ask for, or a tool that was never offered.
- `low-logprob`: the mean of the tokens' log-probabilities is below the operator's bound.

Of several choices each must be weak: one good one is an answer.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from classifier.answer_forms import MAX_JSON_CHARS, NOTHING, json_in
from providers.wire import ChatRequest
from proxy.dispatch.outcome import Weakness
from proxy.judge.refusals import reads_as_refusal
from proxy.judge.schema_check import MAX_STEPS, NotJudged, follows
from settings.decoding import DECODE_ERRORS


class Function(msgspec.Struct):
    """The function of a tool call. `arguments` is text that should be a JSON object."""

    name: Any = None
    arguments: Any = None


class Call(msgspec.Struct):
    """A tool call, or one piece of it: in a stream the pieces of one call share an index."""

    index: Any = None
    function: Function | None = None


MAX_JUDGED_BYTES: Final = 4 * 1024 * 1024
"""The most payload bytes that are judged; a larger answer counts as not weak."""
MAX_DEFINITION_BYTES: Final = 256 * 1024
"""The most bytes of tool definitions, and of a response format, that are parsed."""
MAX_TOOL_CALLS: Final = 128

# The order of weaknesses, to compare two weak answers: the less of an answer can be used, the graver.
_GRAVITY: Final[Mapping[Weakness, int]] = {
    "low-logprob": 0,
    "schema-mismatch": 1,
    "truncated": 2,
    "invalid-json": 3,
    "malformed-tool-arguments": 3,
    "refused": 4,
}


class _Part(msgspec.Struct):
    content: Any = None
    refusal: Any = None
    tool_calls: list[Call] | None = None
    function_call: Function | None = None
    audio: Any = None


class _Logprob(msgspec.Struct):
    logprob: Any = None


class _Logprobs(msgspec.Struct):
    content: list[_Logprob] | None = None


class _Choice(msgspec.Struct):
    index: Any = 0
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: Any = None
    logprobs: _Logprobs | None = None


class _Payload(msgspec.Struct):
    choices: list[_Choice] | None = None


class CalledTool:
    """A tool call, assembled from its streamed pieces."""

    __slots__ = ("arguments", "name")

    def __init__(self) -> None:
        self.name = ""
        self.arguments: list[str] = []


class WholeChoice(msgspec.Struct):
    """A choice of the answer, assembled from its streamed pieces."""

    texts: list[str] = []
    refusal: bool = False
    audio: bool = False
    calls: dict[int, CalledTool] = {}
    finish: str | None = None
    logprob_sum: float = 0.0
    logprobs: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class _RequestedForm(msgspec.Struct):
    """The form that the request asks for: response format and tools, parsed only when an answer needs them."""

    request: ChatRequest
    max_steps: int
    definitions: tuple[dict[str, Any], bool] | None = None

    def response_schema(self) -> Any:
        """Return the schema of a `json_schema` response format, or None."""
        form = self._field("response_format")
        inner = form.get("json_schema") if isinstance(form, dict) else None
        return inner.get("schema") if isinstance(inner, dict) else None

    def wants_bare(self) -> bool:
        """Return True where the answer must be JSON and nothing else."""
        form = self._field("response_format")
        inner = form.get("json_schema") if isinstance(form, dict) else None
        return isinstance(inner, dict) and inner.get("strict") is True

    def wants_object(self) -> bool:
        form = self._field("response_format")
        return isinstance(form, dict) and form.get("type") == "json_object"

    def tools(self) -> tuple[dict[str, Any], bool]:
        """Return each function's parameter schema by name, and True when no other kind of tool was offered."""
        if self.definitions is None:
            tools, functions = self._field("tools") or [], self._field("functions") or []
            named = [tool.get("function") if isinstance(tool, dict) else None for tool in tools]
            known = {
                each["name"]: each.get("parameters")
                for each in (*named, *functions)
                if isinstance(each, dict) and isinstance(each.get("name"), str)
            }
            self.definitions = known, len(known) == len(tools) + len(functions)
        return self.definitions

    def follows(self, value: Any, schema: Any) -> bool:
        """Return True when `value` follows `schema`, or when there is no schema."""
        return schema is None or follows(value, schema, max_steps=self.max_steps)

    def _field(self, name: str) -> Any:
        raw = self.request.fields.get(name)
        if raw is None:
            return None
        if len(bytes(raw)) > MAX_DEFINITION_BYTES:
            raise NotJudged
        return msgspec.json.decode(raw)


def judge(
    request: ChatRequest,
    payloads: Sequence[bytes],
    *,
    min_mean_logprob: float | None = None,
    max_schema_steps: int = MAX_STEPS,
) -> Weakness | None:
    """Return the weakness of a whole answer, or None when it has none or cannot be judged within the bounds.

    `payloads` are its events' JSON payloads. Of several choices all must be weak; the first one's weakness is returned.
    """
    if sum(map(len, payloads)) > MAX_JUDGED_BYTES:
        return None
    asked = _RequestedForm(request, max_schema_steps)
    first: Weakness | None = None
    try:
        for answer in choices_of(payloads):
            found = _weakness(asked, answer, min_mean_logprob)
            if found is None:
                return None
            # The first choice's weakness stands for all, as callers that asked for one choice read the first.
            first = first or found
    except Exception:  # noqa: BLE001 - too large, too deep, no chat completion: whatever it was, nothing was judged
        return None
    return first


def graver(weakness: Weakness, than: Weakness) -> bool:
    """Return True when `weakness` leaves less of an answer usable than the weakness `than` does."""
    return _GRAVITY[weakness] > _GRAVITY[than]


_decode: Final = msgspec.json.Decoder(_Payload).decode


def choices_of(payloads: Sequence[bytes]) -> Iterable[WholeChoice]:
    """Return the choices' answers, the first choice's first."""
    answers: dict[int, WholeChoice] = {}
    for payload in payloads:
        for choice in _decode(payload).choices or ():
            number = choice.index if type(choice.index) is int else 0
            answer = answers.get(number)
            if answer is None:
                answer = answers[number] = WholeChoice()
            if isinstance(choice.finish_reason, str):
                answer.finish = choice.finish_reason
            part = choice.delta or choice.message
            if part is not None:
                _add_part(answer, part)
            if choice.logprobs is not None:
                _add_logprobs(answer, choice.logprobs.content or ())
    return map(answers.__getitem__, sorted(answers))


def _add_part(answer: WholeChoice, part: _Part) -> None:
    if part.content:
        answer.texts.append(part.content if type(part.content) is str else _text_of_parts(part.content))
    if part.refusal:
        answer.refusal = True
    if part.audio:
        answer.audio = True
    if part.tool_calls:
        for place, call in enumerate(part.tool_calls):
            # Only chunks number their calls; a whole message has them in order.
            _add_call(answer, call.index if type(call.index) is int else place, call.function)
    if part.function_call is not None:
        _add_call(answer, -1, part.function_call)


def _add_logprobs(answer: WholeChoice, tokens: Iterable[_Logprob]) -> None:
    for token in tokens:
        if isinstance(token.logprob, int | float) and math.isfinite(token.logprob):
            answer.logprob_sum += token.logprob
            answer.logprobs += 1


def _text_of_parts(content: Any) -> str:
    """Concatenate the text parts of a content list, which some upstreams send in place of a string."""
    parts = content if isinstance(content, list) else ()
    return "".join(text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str))


def _add_call(answer: WholeChoice, number: int, function: Function | None) -> None:
    call = answer.calls.get(number)
    if call is None:
        if len(answer.calls) >= MAX_TOOL_CALLS:
            raise NotJudged
        call = answer.calls[number] = CalledTool()
    if function is None:
        return
    if isinstance(function.name, str):
        # Some engines repeat the whole name on every piece.
        call.name = function.name if call.name in {"", function.name} else call.name + function.name
    if isinstance(function.arguments, str):
        call.arguments.append(function.arguments)
    elif function.arguments is not None:
        call.arguments.append(msgspec.json.encode(function.arguments).decode())


def _weakness(asked: _RequestedForm, answer: WholeChoice, min_mean_logprob: float | None) -> Weakness | None:
    if answer.refusal or answer.finish == "content_filter":
        return "refused"
    cut = answer.finish == "length"
    if cut and asked.request.max_output_tokens is None:
        return "truncated"
    broken = _form_weakness(asked, answer)
    if broken is not None:
        return "truncated" if cut else broken
    if not answer.calls and not asked.request.json_mode and reads_as_refusal(answer.text):
        return "refused"
    if min_mean_logprob is not None and answer.logprobs and answer.logprob_sum / answer.logprobs < min_mean_logprob:
        return "low-logprob"
    return None


def _form_weakness(asked: _RequestedForm, answer: WholeChoice) -> Weakness | None:
    """Return the weakness of an answer whose tool calls or JSON cannot be used, or which a cut left empty; else None."""
    if answer.calls:
        return "malformed-tool-arguments" if not _callable(asked, answer.calls.values()) else None
    if asked.request.json_mode:
        return _broken_json(asked, answer.text)
    if answer.finish == "length" and not answer.audio and not answer.text.strip():
        return "truncated"
    return None


def _broken_json(asked: _RequestedForm, text: str) -> Weakness | None:
    try:
        value, is_bare = json_in(text)
    except OverflowError as error:
        raise NotJudged from error
    if value is NOTHING or (not is_bare and asked.wants_bare()):
        return "invalid-json"
    if asked.wants_object():
        return None if isinstance(value, dict) else "invalid-json"
    return None if asked.follows(value, asked.response_schema()) else "schema-mismatch"


def _callable(asked: _RequestedForm, calls: Iterable[CalledTool]) -> bool:
    known, only_these = asked.tools()
    for call in calls:
        if not call.name:
            # No function: a kind of tool that is not known here.
            continue
        if call.name not in known:
            if only_these:
                return False
            continue
        try:
            # Nothing at all is how some engines call a tool without parameters.
            value = _parsed("".join(call.arguments).strip() or "{}")
        except ValueError:
            return False
        if not isinstance(value, dict) or not asked.follows(value, known[call.name]):
            return False
    return True


def _parsed(text: str) -> Any:
    """Parse JSON. Raises ValueError when the text is not JSON, NotJudged when it is too large."""
    if len(text) > MAX_JSON_CHARS:
        raise NotJudged
    try:
        return msgspec.json.decode(text)
    except DECODE_ERRORS:
        pass
    try:
        # Python's own decoder takes half a letter of an emoji, as callers' clients do.
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        # A number of thousands of digits: JSON all the same.
        raise NotJudged from error
