"""POST /v1/responses/compact: a conversation as its user's messages and one item that stands for all the rest.

A model writes a summary, whatever target it runs on; the item holds the summary, and a later turn is given it as a
message. The conversation is shown to the model as a text, so every target can read it, without the tools that it was
made with.
"""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from proxy.parse.chat_request import chat_request
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.completions_of_chat import Said, completion_of, to_json
from proxy.parse.wires.own_fields import own_fields
from proxy.parse.wires.reading import object_of, own_fields_of, text, unread, wrong
from proxy.parse.wires.responses.dialect import usage_of
from proxy.parse.wires.responses.items import COMPACTED, Item, chat_messages, in_full, items_of, with_ids
from proxy.parse.wires.responses.parser import longest_answer
from proxy.parse.wires.responses.tools import NO_TOOLS
from proxy.parse.wires.wire import EventWriter, IsModel, Kept, Served, Understood

_READ: Final = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "model",
        "previous_response_id",
        "prompt_cache_key",
        "prompt_cache_retention",
        "service_tier",
    }
)
_STAYS: Final = ("user", "system", "developer")
"""The roles whose messages a compaction leaves as they are."""
_ASKED: Final = (
    "The text between the lines below is a conversation of a user with an assistant that uses tools. Write what the assistant "
    "needs to know to go on with the work as if it had read all of it: what the user wants and has ruled out, what was decided "
    "and why, what was found out (names, paths, numbers, errors, exactly as they are), what was changed, how far the work "
    "is, and what comes next. The user's own messages will be there; do not repeat them. Write nothing but that."
)
_LINE: Final = "-" * 20


def read_compaction(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse a request whose earlier turns stand in its `input`. Raises BadRequest."""
    del is_model
    fields = object_of(body)
    items = items_of(fields.get("input") or [])
    if not items:
        raise wrong("input", "there, or `previous_response_id`: nothing is to be compacted")
    # Only the provider can read its own tools' items; the messages have what was said about them.
    talk = chat_messages(fields.get("instructions"), items, NO_TOOLS, signed=False, foreign={})
    asked = "\n".join([_ASKED, _LINE, *_told(talk), _LINE])
    chat = {
        **own_fields_of(fields),
        "model": text(fields.get("model") or "auto", "model"),
        "messages": [{"role": "user", "content": asked}],
        **longest_answer(fields),
    }
    return Understood(chat_request(chat, headers, left_out=unread(fields, _READ)), _CompactionDialect(items))


class _CompactionDialect:
    """A dialect that writes the one answer, which is never streamed."""

    def __init__(self, items: list[Item]) -> None:
        self._items = items
        self.keeps = False

    def whole(self, payload: bytes, served: Served) -> bytes:
        number = served.request_id.removeprefix("req_")
        choice = completion_of(payload).first
        summary = ((choice.message if choice is not None else None) or Said()).text.strip()
        items = [in_full(item) for item in with_ids(self._items, number)]
        if summary:
            items = [item for item in items if item.get("type") == "message" and item.get("role") in _STAYS]
            items.append({"id": f"cmp_{number}", "type": "compaction", "encrypted_content": compacted(summary)})
        # Where a model wrote nothing, nothing is lost: everything is there as it was.
        tally = served.tally()
        return to_json(
            {
                "id": f"resp_{number}",
                "object": "response.compaction",
                "created_at": served.created_at,
                "output": items,
                "usage": usage_of(tally.usage),
                **own_fields(served, tally),
            }
        )

    def events(self, served: Served) -> EventWriter:
        raise NotImplementedError("a compaction is not streamed")

    def to_keep(self, payload: bytes | None, served: Served) -> Kept | None:
        del payload, served
        return None


def compacted(summary: str) -> str:
    """Encode a summary as the content of a compaction item. It is the caller's own, so it is not hidden from it."""
    return COMPACTED + base64.urlsafe_b64encode(summary.encode()).decode()


def _told(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield each message as a paragraph."""
    for message in messages:
        content = message.get("content")
        said = content if isinstance(content, str) else "\n".join(_part(part) for part in content or ())
        if message["role"] == "tool":
            yield f"[result of {message['tool_call_id']}]\n{said}\n"
        elif said:
            yield f"[{message['role']}]\n{said}\n"
        for call in message.get("tool_calls") or ():
            function = call["function"]
            yield f"[assistant calls {function['name']}, {call['id']}]\n{function['arguments']}\n"


def _part(part: Mapping[str, Any]) -> str:
    return part["text"] if part["type"] == "text" else f"({part['type']})"
