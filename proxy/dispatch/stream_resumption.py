"""The seam in a stream whose answer another engine continues: its events, in the form of the first engine's.

Pure: events in, events out.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from cost.usage import Usage
from providers.wire import Event

_HEAD: Final = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
"""The fields that are the same in every event of a stream."""


def endings(first: bytes, choices: int, reason: str) -> list[Event]:
    """Return the event that ends each choice of an answer, whose `first` payload gives the head."""
    head = _head_of(first)
    return [_ending(head, index, reason) for index in range(choices)]


def _head_of(payload: bytes) -> Mapping[str, Any]:
    fields = _decoded(payload)
    return {name: fields[name] for name in _HEAD if name in fields}


def _ending(head: Mapping[str, Any], index: int, reason: str, **more: str) -> Event:
    choice = {"index": index, "delta": {}, "finish_reason": reason, **more}
    return Event(msgspec.json.encode({**head, "choices": [choice]}), False, 1, 0, None, True)


class Seam:
    """A rewriter of the events after a cut, so that they fit to those before it. They get the first events' head,
    begin no new message, and count the whole answer's tokens. Blanks that the caller has already are dropped, and a
    stop sequence that began before the cut ends the answer.
    """

    def __init__(self, first: bytes, said: str, *, overlap: str, stops: Iterable[str], before: Usage) -> None:
        """`first` is the payload of one of the first engine's events, `said` the text that the caller has, and
        `overlap` the blanks at its end that the second engine was not sent. `before` is the usage up to the cut.
        """
        self._head = _head_of(first)
        self._overlap = overlap
        self._before = before
        self._open_stops = {
            stop[begun:]: stop for stop in stops for begun in range(1, len(stop)) if said.endswith(stop[:begun])
        }
        """The missing rest of each stop sequence that the end of `said` may be the beginning of."""
        self._held: list[Event] = []
        self._held_text = ""
        self.ended = False
        """True once a stop sequence across the cut ended the answer: later text of the engine is not part of it."""

    def sewn(self, events: Iterable[Event]) -> list[Event]:
        """Return the events to write for these; empty while it is open whether a stop sequence ends the answer."""
        found: list[Event] = []
        for event in events:
            if self.ended:
                break
            if event.choices and not event.token and not event.finished:
                # It only begins a message.
                continue
            fields = _decoded(event.payload)
            came = event.words or (_text_of(fields) if event.finished else "")
            text = self._without_overlap(came)
            if came and not text and not event.finished:
                continue
            found += self._past_stops(self._written(event, fields, came, text), text)
        return found

    def rest(self) -> list[Event]:
        """Return the events that were held back, at the end of the engine's stream."""
        held, self._held, self._open_stops = self._held, [], {}
        return held

    def _without_overlap(self, text: str) -> str:
        if not self._overlap:
            return text
        pairs = enumerate(zip(self._overlap, text, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), min(len(self._overlap), len(text)))
        self._overlap = self._overlap[same:] if same == len(text) else ""
        return text[same:]

    def _past_stops(self, event: Event, text: str) -> list[Event]:
        """Return the events to write now, where a stop sequence may be under way."""
        if not self._open_stops:
            return [event]
        self._held.append(event)
        self._held_text += text
        met = next((stop for rest, stop in self._open_stops.items() if self._held_text.startswith(rest)), None)
        if met is not None:
            self.ended, self._held = True, []
            return [self._stopped(met)]
        self._open_stops = {rest: stop for rest, stop in self._open_stops.items() if rest.startswith(self._held_text)}
        # Events with more than text must not wait.
        return [] if self._open_stops and text and not event.finished else self.rest()

    def _stopped(self, stop: str) -> Event:
        return _ending(self._head, 0, "stop", stop_reason=stop)

    def _written(self, event: Event, fields: dict[str, Any], came: str, text: str) -> Event:
        """Return the event with this head, and with `text` in place of its own text."""
        fields.update(self._head)
        for choice in fields.get("choices") or ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                delta.pop("role", None)
                if came:
                    delta["content"] = text
        if isinstance(fields.get("usage"), dict):
            fields["usage"] = self._of_whole(fields["usage"])
        words = text if event.words else ""
        return msgspec.structs.replace(event, payload=json.dumps(fields).encode(), words=words, run=None)

    def _of_whole(self, told: dict[str, Any]) -> dict[str, Any]:
        """Return the engine's usage with the prompt and the first part as they were before the cut."""
        completion = told.get("completion_tokens")
        whole = self._before.output_tokens + (completion if isinstance(completion, int) else 0)
        prompt = self._before.input_tokens
        found = {**told, "prompt_tokens": prompt, "completion_tokens": whole, "total_tokens": prompt + whole}
        if isinstance(told.get("prompt_tokens_details"), dict):
            found["prompt_tokens_details"] = {"cached_tokens": self._before.cached_input_tokens}
        return found


def _text_of(fields: Mapping[str, Any]) -> str:
    """Return the text of an event's one choice."""
    choices = fields.get("choices")
    delta = choices[0].get("delta") if choices and isinstance(choices[0], dict) else None
    content = delta.get("content") if isinstance(delta, dict) else None
    return content if isinstance(content, str) else ""


def _decoded(payload: bytes) -> dict[str, Any]:
    """Return a payload's fields; empty for an unreadable one."""
    try:
        found = json.loads(payload.decode(errors="replace"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
