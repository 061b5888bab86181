"""Thoughts on the way to a caller and back: its client keeps them for us, in the field that each API has for what only its maker
reads. They are encoded, not encrypted: a caller may read its own conversation, and could write any other, too. Pure.
"""

import base64
import binascii
from typing import Any, Final, TypeVar

import msgspec

from providers.thoughts import EXTRAS, FIELDS, Thought
from proxy.parse.json_bounds import is_dense
from proxy.parse.wires.completions_of_chat import Call, Said, to_json
from settings.decoding import DECODE_ERRORS

MARK: Final = "wb2."
"""The beginning of what we sealed."""
_T = TypeVar("_T")


def sealed(thought: Thought) -> str:
    return MARK + base64.urlsafe_b64encode(to_json(thought)).decode()


def unsealed(given: Any, words: str) -> Thought | None:
    """Return the thought, whose words may stand beside it rather than in it; None for what is none of ours."""
    if not isinstance(given, str) or not given.startswith(MARK):
        return None
    thought = from_base64(given.removeprefix(MARK), Thought)
    if thought is None:
        return None
    said = {name: words if value == "" else value for name, value in thought.said.items() if name in FIELDS}
    calls = {
        call_id: {name: value for name, value in extra.items() if name in EXTRAS}
        for call_id, extra in thought.calls.items()
    }
    return Thought(thought.target_id, said, calls)


def from_base64(text: str, kind: type[_T]) -> _T | None:
    """Return JSON of this type that stands in base64; None for anything else, and for what is too deep or has too much in it."""
    try:
        data = base64.urlsafe_b64decode(text)
        return None if is_dense(data) else msgspec.json.decode(data, type=kind)
    except (binascii.Error, ValueError, *DECODE_ERRORS):
        return None


def joined(thought: Thought | None, more: Thought) -> Thought:
    """Return two thoughts behind one message as one."""
    if thought is None:
        return more
    said = dict(thought.said)
    for name, value in more.said.items():
        before = said.get(name)
        if (isinstance(before, str) and isinstance(value, str)) or (
            isinstance(before, list) and isinstance(value, list)
        ):
            said[name] = before + value  # type: ignore[operator]
        else:
            said[name] = value
    return Thought(more.target_id or thought.target_id, said, thought.calls | more.calls)


class Heard:
    """The thought behind an answer, so far as it was not sealed yet."""

    def __init__(self, target_id: str) -> None:
        self._target_id = target_id
        self._texts: dict[str, list[str]] = {}
        self._details: list[Any] = []
        self._calls: dict[str, dict[str, Any]] = {}

    def __bool__(self) -> bool:
        return bool(self._texts or self._details or self._calls)

    def hear(self, said: Said) -> None:
        for name, value in (("reasoning_content", said.reasoning_content), ("reasoning", said.reasoning)):
            if isinstance(value, str) and value:
                self._texts.setdefault(name, []).append(value)
        if isinstance(said.reasoning_details, list):
            self._details += said.reasoning_details

    def hear_call(self, call: Call, call_id: str) -> None:
        extra = {name: value for name in EXTRAS if isinstance(value := getattr(call, name), dict) and value}
        if extra:
            self._calls[call_id] = extra

    def sealed(self, *, words_beside: bool) -> str:
        """Return all of it, sealed, and begin anew; with `words_beside` without its words, which stand elsewhere in full."""
        said: dict[str, Any] = {name: "" if words_beside else "".join(texts) for name, texts in self._texts.items()}
        if self._details:
            said["reasoning_details"] = _merged(self._details)
        found = sealed(Thought(self._target_id, said, self._calls))
        self._texts, self._details, self._calls = {}, [], {}
        return found


def _merged(details: list[Any]) -> list[Any]:
    """Return the details of a stream, in which the pieces of a text are one: each names the detail that it belongs to."""
    found: list[Any] = []
    for each in details:
        last = found[-1] if found else None
        if (
            isinstance(each, dict)
            and isinstance(last, dict)
            and (each.get("type"), each.get("index")) == (last.get("type"), last.get("index"))
            and each.get("index") is not None
        ):
            for name, value in each.items():
                is_piece = name in ("text", "summary") and isinstance(value, str) and isinstance(last.get(name), str)
                if is_piece:
                    last[name] += value
                elif value is not None:
                    last[name] = value
        else:
            found.append(dict(each) if isinstance(each, dict) else each)
    return found
