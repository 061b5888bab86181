"""Tool loops: the steps of the messages after the last user message, and signs of struggle among them. Pure.

An agent answers one user message in many requests: the model calls tools, their results are appended, and it is asked
again. The request itself holds the whole loop, so every process reads the same of it, and nothing has to be remembered.
Messages are read from the loop's beginning, and a finding never changes as the loop grows.

Results that were meant for a model have no agreed form, so errors are recognised narrowly: a loop wrongly taken for a
struggle costs money, an overlooked one costs no more than before.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from providers.wire import Message
from proxy.parse.chat_request import turn_start
from settings.decoding import DECODE_ERRORS

Struggle = Literal["repeated-call", "repeated-errors", "no-progress"]
"""The kinds of struggle. `repeated-call`: the same call with the same arguments, and its result is the same or fails
again; `repeated-errors`: steps in a row whose every result is an error; `no-progress`: steps in a row with the same
result, or many steps among a few calls.
"""


class LoopRules(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds from which on a loop is taken to struggle, and the most raises for it."""

    same_call: int = 3
    """Times that one call brings nothing new."""
    errors: int = 3
    """Steps in a row that fail."""
    unchanged: int = 4
    """Steps in a row with the same result."""
    max_steps: int = 30
    """Steps after which going to and fro between a few calls is no progress."""
    max_raises: int = 2
    """Raises within one turn, those that it takes over from the turn before included; 0 reads no loop."""


class ToolLoop(msgspec.Struct, frozen=True):
    """The present turn's loop."""

    steps: int = 0
    """Answers of this turn that called tools."""
    raises: int = 0
    """Episodes of struggle in this turn and the turn before, each of which asks for one better target."""
    struggle: Struggle | None = None
    """The kind of the last episode."""


NO_LOOP: Final = ToolLoop()

READ_STEPS: Final = 256
"""The most steps of a turn that are read."""
READ_CHARS: Final = 1_000_000
"""The most characters of calls and results of a turn that are looked at."""
_KEPT_CHARS: Final = 4_096
"""The most characters of a text that are compared whole; of a longer one both ends and its length are."""
_CALLS_BYTES: Final = 65_536
_JSON_CHARS: Final = 16_384
_ENDS_CHARS: Final = 512
"""The characters at each end of a text in which errors are looked for: its beginning, and its last line."""
_TELLING_CHARS: Final = 80
"""The length from which on the same result of different calls is evidence; shorter ones ("ok") are acknowledgements."""
_WINDOW: Final = 12
_FEW_CALLS: Final = 4
_RESULT_ROLES: Final = frozenset({"tool", "function"})

# Both read text in small letters.
_ERROR_START: Final = re.compile(
    r"\s*(?:<(?:tool_use_)?error>|\[?error\]?\s*[:\-]|fatal(?: error)?:|panic:|uncaught |unhandled "
    r"|[\w.]{0,80}(?:error|exception)\s?:\s|http(?:/[\d.]{1,3})?[ :]+(?:error )?[45]\d\d\b"
    r"|status(?: code)?[ :=]+[45]\d\d\b)"
)
_ERROR_WITHIN: Final = re.compile(
    r"^traceback \(most recent call last\)|\bexit(?:ed)?(?: with)?(?: code| status|code)[ :=]+-?[1-9]\d{0,9}\b"
    r"|\bnon-zero exit status [1-9]|^[^\n]{0,80}: command not found",
    re.MULTILINE,
)
_WITHIN_HINTS: Final = ("exit", "traceback", "command not found")
"""Words of which one stands in every match of `_ERROR_WITHIN`; looking for them is much faster."""
_ERROR_LAST: Final = re.compile(r"[\w.]{0,80}(?:error|exception): ")
_NOTHING_FOUND: Final = re.compile(
    r"\s*(?:\[\s*\]|\{\s*\}|no (?:results|matches|files)\b|0 (?:results|matches)\b)", re.IGNORECASE
)
_EXIT_FIELDS: Final = ("exit_code", "exitCode", "returncode", "return_code")
_ERROR_FIELDS: Final = ("error", "errors", "is_error", "isError", "traceback")
_STATUS_FIELDS: Final = ("status", "status_code", "statusCode")
_FAILED_WORDS: Final = frozenset({"error", "failed", "failure"})

_CallKey = tuple[str, str]
_Answered = tuple[_CallKey, str]
"""A call and its result."""


class _Function(msgspec.Struct):
    name: Any = None
    arguments: Any = None


class _Call(msgspec.Struct):
    id: msgspec.Raw = msgspec.Raw()
    function: _Function | None = None


_decode_calls = msgspec.json.Decoder(list[_Call]).decode
_decode_call = msgspec.json.Decoder(_Function).decode


def read_loop(messages: Sequence[Message], rules: LoopRules) -> ToolLoop:
    """Read the loop of the last user message, and the struggles of the turn before it."""
    if len(messages) == 1:
        return NO_LOOP
    start = turn_start(messages)
    before = _turn_before(messages, start)
    if not before and start == len(messages):
        return NO_LOOP
    present = messages[start:]
    carried = _episodes(before, rules, rules.max_raises)
    steps = sum(1 for message in present if _calls_of(message))
    own = _episodes(present, rules, rules.max_raises - len(carried)) if steps else []
    found = carried + own
    return ToolLoop(steps, len(found), found[-1] if found else None) if steps or found else NO_LOOP


def _turn_before(messages: Sequence[Message], start: int) -> Sequence[Message]:
    """Return the messages between the last user message and the one before it; user messages in a row count as one."""
    end = start - 1
    while end > 0 and messages[end - 1].role == "user":
        end -= 1
    if end <= 0 or messages[end - 1].role not in {"assistant", *_RESULT_ROLES}:
        return ()
    return messages[turn_start(messages[:end]) : end]


def _episodes(messages: Sequence[Message], rules: LoopRules, most: int) -> list[Struggle]:
    """Return the episodes of struggle in one turn, `most` at most. Each begins with new evidence: the evidence of one
    raise never leads to a second.
    """
    found: list[Struggle] = []
    fewest = min(rules.same_call, rules.errors, rules.unchanged, rules.max_steps)
    if most <= 0 or sum(1 for message in messages if message.role in _RESULT_ROLES) < fewest:
        return found
    evidence = _Evidence(rules)
    for step in _steps(messages):
        struggle = evidence.of(step)
        if struggle is not None:
            found.append(struggle)
            evidence = _Evidence(rules)
            if len(found) >= most:
                break
    return found


def _steps(messages: Sequence[Message]) -> Iterator[list[_Answered]]:
    """Yield each step's calls with their results, within the bounds of reading."""
    chars = steps = 0
    index = 0
    while index < len(messages) and steps < READ_STEPS and chars < READ_CHARS:
        message = messages[index]
        index += 1
        raw = _calls_of(message)
        if not raw:
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index].role in _RESULT_ROLES:
            results.append(messages[index])
            index += 1
        steps += 1
        step = _answered(raw, results)
        chars += len(raw) + sum(len(result) for _, result in step)
        yield step


def _calls_of(message: Message) -> bytes:
    """Return the raw JSON of a message's calls; empty when it has none."""
    if message.role != "assistant":
        return b""
    raw = bytes(message.tool_calls) or bytes(message.function_call)
    return b"" if raw in {b"null", b"[]"} else raw


def _answered(raw: bytes, results: Sequence[Message]) -> list[_Answered]:
    """Pair calls with results: by id where both have one, else by their order. Calls without a result are left out."""
    calls = _parsed(raw)
    by_id = {bytes(result.tool_call_id): result for result in results if bytes(result.tool_call_id)}
    if all(call_id in by_id for call_id, _ in calls):
        return [(key, _result_text(by_id[call_id])) for call_id, key in calls]
    return [(key, _result_text(result)) for (_, key), result in zip(calls, results, strict=False)]


def _parsed(raw: bytes) -> list[tuple[bytes, _CallKey]]:
    """Return the calls' ids and keys. Calls that are too long or odd to be read are one call that is known by its
    ends.
    """
    if len(raw) <= _CALLS_BYTES:
        try:
            calls = [_Call(function=_decode_call(raw))] if raw[:1] == b"{" else _decode_calls(raw)
            return [(bytes(call.id), _key(call.function or _Function())) for call in calls]
        except DECODE_ERRORS:
            pass
    ends = raw[: _KEPT_CHARS // 2] + raw[-_KEPT_CHARS // 2 :]
    return [(b"", ("", f"{len(raw)} {ends.decode('latin-1')}"))]


def _key(function: _Function) -> _CallKey:
    return str(function.name)[:256], _normalised(function.arguments)


def _normalised(arguments: Any) -> str:
    """Return arguments as text that is the same for every order of keys and every spacing."""
    if isinstance(arguments, str):
        if len(arguments) > _KEPT_CHARS:
            return _ends(arguments)
        try:
            arguments = msgspec.json.decode(arguments)
        except DECODE_ERRORS:
            return str(arguments).strip()
    try:
        return _ends(msgspec.json.encode(arguments, order="sorted").decode())
    except (msgspec.EncodeError, UnicodeError, RecursionError):
        return ""


def _ends(text: str) -> str:
    if len(text) <= _KEPT_CHARS:
        return text
    return f"{len(text)} {text[: _KEPT_CHARS // 2]}{text[-_KEPT_CHARS // 2 :]}"


def _result_text(message: Message) -> str:
    content = message.content
    if isinstance(content, str):
        return content if len(content) <= _JSON_CHARS else _ends(content)
    texts = [part.text[:_KEPT_CHARS] for part in (content or ())[:16] if part.text]
    return texts[0] if len(texts) == 1 else "\n".join(texts)


class _Evidence:
    """The evidence of struggle in the steps since the last episode."""

    __slots__ = ("errors", "last", "recent", "rules", "seen", "steps", "successes", "unchanged")

    def __init__(self, rules: LoopRules) -> None:
        self.rules = rules
        self.seen: dict[_CallKey, tuple[str, int, int]] = {}
        """The last result of each call, the successes until then, and the number of times that it brought nothing
        new.
        """
        self.successes = 0
        self.errors = 0
        self.unchanged = 0
        self.last: tuple[str, ...] = ()
        self.recent: deque[_CallKey] = deque(maxlen=_WINDOW)
        self.steps = 0

    def of(self, step: Sequence[_Answered]) -> Struggle | None:
        """Add one step, and return the struggle that it completes."""
        if not step:
            return None
        rules = self.rules
        self.steps += 1
        failed = {result: looks_like_error(result) for _, result in step}
        repeats = max(self._repeats(key, result, failed[result]) for key, result in dict(step).items())
        self.successes += sum(1 for _, result in step if not failed[result])
        self.errors = self.errors + 1 if all(failed.values()) else 0
        self._compare(tuple(result for _, result in step))
        self.recent.extend(key for key, _ in step)
        if repeats >= rules.same_call:
            return "repeated-call"
        if self.errors >= rules.errors:
            return "repeated-errors"
        return "no-progress" if self.unchanged >= rules.unchanged or self._goes_in_circles() else None

    def _repeats(self, key: _CallKey, result: str, failed: bool) -> int:
        """Return how often this call has brought nothing new: the same result, or one more error with no success in
        between, which would be the cycle of mending and testing.
        """
        before = self.seen.get(key)
        times = 1
        if before is not None and (before[0] == result or (failed and before[1] == self.successes)):
            times = before[2] + 1
        self.seen[key] = (result, self.successes + (not failed), times)
        return times

    def _compare(self, results: tuple[str, ...]) -> None:
        telling = any(len(each) >= _TELLING_CHARS or _NOTHING_FOUND.match(each) for each in results)
        self.unchanged = self.unchanged + 1 if results == self.last and telling else 1
        self.last = results

    def _goes_in_circles(self) -> bool:
        return self.steps > self.rules.max_steps and len(set(self.recent)) <= _FEW_CALLS


def looks_like_error(result: str) -> bool:
    """Return True for a tool's result that reports a failure. Read narrowly: a file that speaks of errors is none."""
    if result.lstrip()[:1] == "{" and len(result) <= _JSON_CHARS:
        try:
            fields = msgspec.json.decode(result)
        except DECODE_ERRORS:
            return False
        return isinstance(fields, dict) and _tells_error(fields)
    head = result[:_ENDS_CHARS].lower()
    if _ERROR_START.match(head) or _fails_within(head):
        return True
    last = result[-_ENDS_CHARS:].rstrip().rpartition("\n")[2].lower()
    return _ERROR_LAST.match(last) is not None or _fails_within(last)


def _fails_within(text: str) -> bool:
    return any(hint in text for hint in _WITHIN_HINTS) and _ERROR_WITHIN.search(text) is not None


def _tells_error(fields: Mapping[str, Any]) -> bool:
    if any(fields.get(name) for name in _ERROR_FIELDS):
        return True
    if fields.get("success") is False or fields.get("ok") is False:
        return True
    if any(_is_failure(fields.get(name)) for name in _STATUS_FIELDS):
        return True
    inner = fields.get("metadata")
    told = (fields, inner) if isinstance(inner, dict) else (fields,)
    return any(type(code := each.get(name)) is int and code != 0 for each in told for name in _EXIT_FIELDS)


def _is_failure(status: Any) -> bool:
    if isinstance(status, str):
        return status.lower() in _FAILED_WORDS
    return type(status) is int and 400 <= status <= 599  # noqa: PLR2004 - HTTP's own ranges
