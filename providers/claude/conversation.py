"""Chat messages as Anthropic's: a system prompt, and turns that alternate, each of them a list of blocks. Pure.

The same table as `proxy/parse/wires/messages/conversation.py` has for the way back. What a chat's message may have of Anthropic's own,
marks for caches (`cache_control`) and signed thinking (`thinking_blocks`), is kept.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from providers.call_arguments import as_object
from providers.errors import CannotCarry
from providers.quirks import media_type
from providers.target import Deployment
from providers.tool_names import fitting_name, with_checksum

Block = dict[str, Any]
Message = dict[str, Any]

_MARK: Final = "cache_control"
_DATA_URL: Final = re.compile(
    r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<more>(?:;[\w=.+-]+)*?)(?P<base64>;base64)?,", re.ASCII
)
_PDF: Final = "application/pdf"
_BARE_PDF: Final = "JVBERi0"
"""The first characters of a PDF's base64, where it comes without its type."""
_MOST_ID_CHARS: Final = 128
_MOST_NAME_CHARS: Final = 128
_SYSTEM: Final = ("system", "developer")


class Conversation(msgspec.Struct, frozen=True):
    """The values of the request's fields of these names."""

    system: list[Block]
    messages: list[Message]


class NotAMessage(Exception):
    """A thing that Anthropic's messages have no place for; the text says what and where."""


def claude_conversation(messages: Any, deployment: Deployment) -> Conversation:
    """Return the decoded chat messages for a Claude. Raises CannotCarry.

    A model that takes no system messages between turns reads them as a reminder in the turn before.
    """
    turns = _Turns(system_between=deployment.quirks.later_system == "kept")
    try:
        for index, message in enumerate(messages if isinstance(messages, list) else ()):
            turns.add(message, f"messages.{index}")
    except NotAMessage as odd:
        raise CannotCarry(
            str(odd),
            deployment_id=deployment.deployment_id,
            status=400,
            param="messages",
            code="unsupported_parameter",
        ) from odd
    return turns.ended()


def call_id(given: Any) -> str:
    """Return a tool call's id in the letters that Anthropic takes: other hosts use more of them."""
    return fitting_name(given, _MOST_ID_CHARS) if isinstance(given, str) and given else "call"


def tool_name(given: Any) -> str:
    """Return a tool's name in the letters that Anthropic takes."""
    return fitting_name(str(given), _MOST_NAME_CHARS)


class _Turns:
    """The conversation so far. What others say between two of the assistant's messages is one turn: results first."""

    def __init__(self, *, system_between: bool) -> None:
        self._system_between = system_between
        self._system: list[Block] = []
        self._messages: list[Message] = []
        self._results: list[Block] = []
        self._said: list[Block] = []
        self._notes: list[str] = []
        """System messages within this turn."""
        self._called: set[str] = set()
        self._renamed: dict[str, str] = {}
        """The ids of calls that had the id of an earlier one, which Anthropic refuses."""

    def add(self, message: Any, where: str) -> None:
        if not isinstance(message, dict):
            raise NotAMessage(f"`{where}` must be an object.")
        role = message.get("role")
        if role == "user":
            self._said += _blocks(message, where, _USER)
        elif role == "assistant":
            self._end_turn()
            self._answer(self._with_own_ids(_of_assistant(message, where)))
        elif role in ("tool", "function"):
            result = _result(message, where)
            used = result["tool_use_id"]
            self._results.append({**result, "tool_use_id": self._renamed.get(used, used)})
        elif role in _SYSTEM:
            self._instruct(_blocks(message, where, _TEXTS))
        else:
            raise NotAMessage(f"`{where}.role` is none that this model's provider knows.")

    def _with_own_ids(self, blocks: list[Block]) -> list[Block]:
        """Give each call an id that no earlier one has: some engines number theirs anew in every turn."""
        for block in blocks:
            if block["type"] != "tool_use":
                continue
            came = block["id"]
            if came in self._called:
                block["id"] = self._renamed[came] = with_checksum(came, f"{came}:{len(self._called)}", _MOST_ID_CHARS)
            self._called.add(block["id"])
        return blocks

    def ended(self) -> Conversation:
        self._end_turn()
        if not self._messages and self._system:
            # Anthropic wants somebody to speak.
            self._messages.append({"role": "user", "content": self._system})
            self._system = []
        last = self._messages[-1] if self._messages else None
        if last is not None and last["role"] == "assistant" and last["content"][-1]["type"] == "text":
            # An answer that is to be gone on with may not end in blanks.
            block = last["content"][-1]
            block["text"] = block["text"].rstrip()
        return Conversation(self._system, self._messages)

    def _instruct(self, blocks: list[Block]) -> None:
        if self._messages or self._results or self._said:
            self._notes.append("\n".join(block["text"] for block in blocks))
        else:
            self._system += blocks

    def _answer(self, blocks: list[Block]) -> None:
        if self._messages and self._messages[-1]["role"] == "assistant":
            self._messages[-1]["content"] += blocks
        elif blocks:
            self._messages.append({"role": "assistant", "content": blocks})

    def _end_turn(self) -> None:
        blocks, notes = self._results + self._said, [note for note in self._notes if note]
        self._results, self._said, self._notes = [], [], []
        between = self._system_between and bool(blocks)
        if not between:
            blocks += [_text(f"<system-reminder>\n{note}\n</system-reminder>") for note in notes]
        if blocks:
            self._messages.append({"role": "user", "content": blocks})
        if between and notes:
            self._messages.append({"role": "system", "content": "\n\n".join(notes)})


def _text(words: str) -> Block:
    return {"type": "text", "text": words}


def _blocks(message: Mapping[str, Any], where: str, makers: "_Makers") -> list[Block]:
    """Return a message's content. Texts without a letter are left out, as they would be refused."""
    content = message.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [_marked(_text(content), message)] if content.strip() else []
    if not isinstance(content, list):
        raise NotAMessage(f"`{where}.content` must be a text or a list.")
    return list(_of_parts(content, f"{where}.content", makers))


def _of_parts(parts: Sequence[Any], where: str, makers: "_Makers") -> Iterator[Block]:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, dict) else None
        maker = makers.get(kind) if isinstance(kind, str) else None
        if maker is None:
            raise NotAMessage(
                f"Content of the type {str(kind)[:64]!r} cannot be passed on to this model's provider (`{where}.{index}`)."
            )
        block = maker(part, f"{where}.{index}")
        if block is not None:
            yield _marked(block, part)


def _marked(block: Block, part: Mapping[str, Any]) -> Block:
    if part.get(_MARK) is not None:
        block[_MARK] = part[_MARK]
    return block


def _text_part(part: Block, where: str) -> Block | None:
    words = part.get("text", part.get("refusal"))
    if not isinstance(words, str):
        raise NotAMessage(f"`{where}.text` must be a text.")
    return _text(words) if words.strip() else None


def _image(part: Block, where: str) -> Block:
    given = part.get("image_url")
    address = given.get("url") if isinstance(given, dict) else given
    return {"type": "image", "source": _source(address, where)}


def _file(part: Block, where: str) -> Block:
    file = part.get("file")
    data = file.get("file_data") if isinstance(file, dict) else None
    if not isinstance(file, dict) or not isinstance(data, str):
        raise NotAMessage(f"Files are not kept here: send `{where}.file.file_data`.")
    if data.startswith(_BARE_PDF):
        data = f"data:{_PDF};base64,{data}"
    source = _source(data, where)
    kind = str(source.get("media_type"))
    if kind.startswith("image/"):
        return {"type": "image", "source": source}
    if source["type"] == "base64" and kind != _PDF:
        source = _text_source(source["data"], where)
    block: Block = {"type": "document", "source": source}
    if isinstance(file.get("filename"), str):
        block["title"] = file["filename"]
    return block


def _document(part: Block, where: str) -> Block:
    """Return a document in Anthropic's own words, which some chat clients send. Files by id lie in an account that all teams share."""
    source = part.get("source")
    if not isinstance(source, dict) or source.get("type") == "file":
        raise NotAMessage(f"Files are not kept here: send `{where}.source` inline.")
    return {name: value for name, value in part.items() if name != _MARK}


def _source(address: Any, where: str) -> dict[str, str]:
    """Return the source of a picture or a file: the data, or a public address that the provider itself fetches."""
    if isinstance(address, str) and address.startswith("https://"):
        return {"type": "url", "url": address}
    found = _DATA_URL.match(address) if isinstance(address, str) else None
    if found is None or not found["base64"] or not found["type"]:
        raise NotAMessage(f"Media must be a data: URL in base64, or a link that begins with https:// (`{where}`).")
    return {"type": "base64", "media_type": media_type(found["type"]), "data": address[found.end() :]}


def _text_source(data: str, where: str) -> dict[str, str]:
    """Return the source of a file of text, which Anthropic takes as a text and not in base64."""
    try:
        text = base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeError) as error:
        raise NotAMessage(f"Files other than PDF must be texts in UTF-8, in base64 (`{where}`).") from error
    return {"type": "text", "media_type": "text/plain", "data": text}


def _signed(part: Block, _where: str) -> Block | None:
    """Return the thinking that has its maker's signature: without one it would be refused."""
    if not (part.get("signature") or part.get("data")):
        return None
    return {name: value for name, value in part.items() if name != _MARK}


_Makers = Mapping[str, Callable[[Block, str], Block | None]]
_TEXTS: Final[_Makers] = dict.fromkeys(("text", "input_text"), _text_part)
_USER: Final[_Makers] = {
    **_TEXTS,
    **dict.fromkeys(("image_url", "input_image"), _image),
    "file": _file,
    "document": _document,
}
_ASSISTANT: Final[_Makers] = {
    **_TEXTS,
    **dict.fromkeys(("output_text", "refusal"), _text_part),
    **dict.fromkeys(("thinking", "redacted_thinking"), _signed),
}


def _result(message: Mapping[str, Any], where: str) -> Block:
    given = message.get("tool_call_id") or message.get("name")
    block: Block = {"type": "tool_result", "tool_use_id": call_id(given)}
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        block["content"] = content
    elif isinstance(content, list) and (parts := list(_of_parts(content, f"{where}.content", _USER))):
        block["content"] = parts
    return _marked(block, message)


def _of_assistant(message: Mapping[str, Any], where: str) -> list[Block]:
    """Order an assistant's blocks: thinking first, calls last."""
    blocks: list[Block] = []
    thinking = message.get("thinking_blocks")
    if isinstance(thinking, list):
        blocks += _of_parts(thinking, f"{where}.thinking_blocks", _ASSISTANT)
    blocks += _blocks(message, where, _ASSISTANT)
    calls = message.get("tool_calls")
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        blocks.append(_call(call, f"{where}.tool_calls.{index}"))
    function = message.get("function_call")
    if isinstance(function, dict):
        blocks.append(_use(function, call_id(function.get("name"))))
    return blocks


def _call(call: Any, where: str) -> Block:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise NotAMessage(f"`{where}` is no call of a function.")
    return _marked(_use(function, call_id(call.get("id"))), call)


def _use(function: Mapping[str, Any], use_id: str) -> Block:
    return {
        "type": "tool_use",
        "id": use_id,
        "name": tool_name(function.get("name")),
        "input": as_object(function.get("arguments")),
    }
