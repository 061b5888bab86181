"""The items of a response's input as chat messages. Pure.

A model's reasoning goes back as what its own maker signed, to a Claude, or as a thought of an assistant's message, to whoever takes
that.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from providers.provider_tools import tool_name
from providers.thoughts import Thought
from proxy.errors import BadRequest
from proxy.parse.wires.reading import objects, text, unsupported, wrong
from proxy.parse.wires.responses.tools import INPUT, Toolbox
from proxy.parse.wires.thoughts import MARK, from_base64, joined, unsealed

Item = dict[str, Any]
Message = dict[str, Any]

PREFIX: Final[Mapping[str, str]] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
}
"""The beginnings of items' ids, by type; `item` for other types."""
COMPACTED: Final = "wbc1."
"""The beginning of the encrypted content that holds a summary of ours."""
_BEFORE: Final = "What was said and done before, summed up:\n"
_PLAIN: Final = 2
"""The fields of a message that has a role and a content and nothing else."""
_AS_IT_IS: Final = ("user", "system")
_BY_TOOL: Final = re.compile(r"([a-z_]{1,64}?)_(?:call|call_output|list_tools|approval_request|approval_response)")
_ROLES: Final = ("user", "assistant", "system", "developer")
_SIGNED: Final = "wb1."
"""The beginning of the encrypted content that holds a Claude's signed thinking."""


def items_of(given: Any) -> list[Item]:
    """Return the input as a list of items. Raises BadRequest."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return objects(given, "input", or_text=True)


def with_ids(items: Sequence[Item], number: str) -> list[Item]:
    """Return the items, each with an id: its own, or one of `number` and its place."""
    return [
        {"id": f"{PREFIX.get(item.get('type') or 'message', 'item')}_{number}_i{index}", **item}
        for index, item in enumerate(items)
    ]


def in_full(item: Item) -> Item:
    """Return an item in its full form: callers may send messages in a shorter one."""
    if item.get("type", "message") != "message":
        return item
    content = item.get("content")
    if isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        content = [{"type": kind, "text": content, **({"annotations": []} if kind == "output_text" else {})}]
    return {"type": "message", "status": "completed", **item, "content": content}


def chat_messages(
    instructions: Any,
    items: Sequence[Item],
    box: Toolbox,
    *,
    signed: bool,
    foreign: dict[str, str] | None = None,
    thoughts: dict[int, Thought] | None = None,
    whole: bool = True,
) -> list[Message]:
    """Return the conversation as chat messages; with `signed` each assistant message has its signed thinking. Calls are of
    the functions in `box`. Items that a provider's own tools wrote are left out, and the tools are noted in `foreign`, each with its place; thoughts
    are noted in `thoughts`, by the number of the assistant's message. In a `whole` conversation each output has its call.
    Raises BadRequest.
    """
    talk = _Talk(box, {} if thoughts is None else thoughts, signed=signed, whole=whole)
    if isinstance(instructions, str) and instructions:
        talk.messages.append({"role": "system", "content": instructions})
    elif instructions:
        for index, item in enumerate(objects(instructions, "instructions", or_text=True)):
            talk.add(item, f"instructions.{index}")
    for index, item in enumerate(items):
        # Most items are a text of the user's, and are chat's as they are.
        if len(item) == _PLAIN and type(item.get("content")) is str and item.get("role") in _AS_IT_IS:
            # Users of the signed form may write into it, so it is a copy.
            talk.messages.append({**item} if signed else item)
        elif foreign is None or not _is_foreign(item, f"input.{index}", foreign):
            talk.add(item, f"input.{index}")
    return talk.messages


def _is_foreign(item: Item, where: str, foreign: dict[str, str]) -> bool:
    """Note the tool that wrote an item which only its provider can read again. Return False for any other item."""
    kind = item.get("type")
    if not isinstance(kind, str) or kind in _ADDERS or (made := _BY_TOOL.fullmatch(kind)) is None:
        return False
    foreign.setdefault(tool_name(made[1]), f"{where}.type")
    return True


def sealed_thinking(blocks: Sequence[Mapping[str, Any]]) -> str:
    """Encode signed thinking blocks as the encrypted content of a reasoning item."""
    return _SIGNED + base64.urlsafe_b64encode(msgspec.json.encode(list(blocks))).decode()


def _thinking_of(item: Item) -> list[Any]:
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_SIGNED):
        return []
    return from_base64(content.removeprefix(_SIGNED), list[Any]) or []


def _words_of(part: Any) -> str:
    words = part.get("text") if isinstance(part, dict) else None
    return words if isinstance(words, str) else ""


def chat_kind(kind: str) -> bool:
    """Return True for the types of items that chat can express."""
    return kind in _ADDERS


def is_ours(sealed: str) -> bool:
    """Return True for encrypted content that this gateway wrote."""
    return sealed.startswith((_SIGNED, COMPACTED, MARK))


def unsealed_summary(item: Item) -> str | None:
    """Return the message that stands for a compaction of ours; None for that of another."""
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(COMPACTED):
        return None
    try:
        summary = base64.urlsafe_b64decode(content.removeprefix(COMPACTED)).decode()
    except (binascii.Error, ValueError):
        return None
    return _BEFORE + summary if summary else None


class _Talk:
    """The messages so far. Texts and calls of the assistant between two others' messages are one message."""

    def __init__(self, box: Toolbox, thoughts: dict[int, Thought], *, signed: bool, whole: bool) -> None:
        self.messages: list[Message] = []
        self._whole = whole
        self._called: set[str] = set()
        self._box = box
        self._thoughts = thoughts
        self._thought: Thought | None = None
        """The thought that belongs to the assistant's next item."""
        self._answers = 0
        self._signed = signed
        self._thinking: list[Any] = []

    def add(self, item: Item, where: str) -> None:
        kind = item.get("type") or "message"
        adder = _ADDERS.get(kind) if isinstance(kind, str) else None
        if adder is None:
            raise unsupported(
                f"{where}.type",
                f"An item of the type {str(kind)[:64]!r} cannot be passed on from here: send messages, function and custom "
                "tool calls and their outputs. What a provider's own tools have written can be read by that provider alone.",
            )
        adder(self, item, where)

    def message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if role not in _ROLES:
            raise wrong(f"{where}.role", "`user`, `assistant`, `system` or `developer`")
        content = _content(item.get("content"), f"{where}.content")
        if role != "assistant":
            self.messages.append({"role": "system" if role == "developer" else role, "content": content})
            return
        message = self._assistant()
        said = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
        message["content"] = (message["content"] or "") + said

    def call(self, item: Item, where: str) -> None:
        self._call(item, where, text(item.get("arguments"), f"{where}.arguments"))

    def custom_call(self, item: Item, where: str) -> None:
        given = text(item.get("input"), f"{where}.input")
        self._call(item, where, msgspec.json.encode({INPUT: given}).decode())

    def output(self, item: Item, where: str) -> None:
        """Add a call's output. Its pictures and files follow in a user message: a chat's tool message has no room for
        them.
        """
        content = _content(item.get("output"), f"{where}.output")
        beside: list[Message] = []
        if not isinstance(content, str):
            beside = [part for part in content if part["type"] != "text"]
            content = "\n".join(part["text"] for part in content if part["type"] == "text")
        call_id = text(item.get("call_id"), f"{where}.call_id")
        if self._whole and call_id not in self._called:
            # OpenAI's words. Engines answer such a conversation, and its caller would never learn that a part of it is missing.
            raise BadRequest(
                f"No tool call found for function call output with call_id {call_id[:64]}: send the call before it, or go on "
                "from the response that made it.",
                param=f"{where}.call_id",
            )
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": content})
        if beside:
            self.messages.append({"role": "user", "content": beside})

    def reasoning(self, item: Item, _where: str) -> None:
        self._thinking += _thinking_of(item)
        content = item.get("content")
        words = "".join(map(_words_of, content if isinstance(content, list) else ()))
        thought = unsealed(item.get("encrypted_content"), words)
        if thought is None and words and not self._thinking:
            thought = Thought(said={"reasoning_content": words})
        if thought is not None:
            self._thought = joined(self._thought, thought)

    def compaction(self, item: Item, where: str) -> None:
        """Add a compaction as a user's message: a system message would have to come first at many engines."""
        text(item.get("encrypted_content"), f"{where}.encrypted_content")
        summary = unsealed_summary(item)
        if summary is None:
            raise unsupported(
                f"{where}.encrypted_content",
                "This compaction is none of this gateway's, and only who wrote it can read it: send the items that it stands for.",
            )
        self.messages.append({"role": "user", "content": summary})
        # Calls may be among what was summed up.
        self._whole = False

    def _call(self, item: Item, where: str, arguments: str) -> None:
        name = self._box.function_of(text(item.get("name"), f"{where}.name"), item.get("namespace"))
        call_id = text(item.get("call_id"), f"{where}.call_id")
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._assistant().setdefault("tool_calls", []).append(call)
        self._called.add(call_id)

    def _assistant(self) -> Message:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": None})
            self._answers += 1
        message = self.messages[-1]
        if self._thought is not None:
            number = self._answers - 1
            self._thoughts[number] = joined(self._thoughts.get(number), self._thought)
            self._thought = None
        if self._signed and self._thinking:
            message.setdefault("thinking_blocks", []).extend(self._thinking)
        self._thinking = []
        return message


_ADDERS: Final[Mapping[str, Callable[[_Talk, Item, str], None]]] = {
    "message": _Talk.message,
    "function_call": _Talk.call,
    "custom_tool_call": _Talk.custom_call,
    "function_call_output": _Talk.output,
    "custom_tool_call_output": _Talk.output,
    "reasoning": _Talk.reasoning,
    "compaction": _Talk.compaction,
}


def _content(content: Any, where: str) -> Any:
    """Return a text, or parts; a single text is a text, however it was sent."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{where}.{index}") for index, part in enumerate(objects(content, where, or_text=True))]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _part(part: Item, where: str) -> Message:
    match part.get("type"):
        case "input_text" | "output_text" | "text" | "summary_text":
            return {"type": "text", "text": text(part.get("text"), f"{where}.text")}
        case "refusal":
            return {"type": "text", "text": text(part.get("refusal"), f"{where}.refusal")}
        case "input_image" if part.get("image_url") is not None:
            image = {"url": text(part["image_url"], f"{where}.image_url")}
            if part.get("detail") is not None:
                image["detail"] = text(part["detail"], f"{where}.detail")
            return {"type": "image_url", "image_url": image}
        case "input_file" if part.get("file_data") is not None:
            data = text(part["file_data"], f"{where}.file_data")
            name = text(part.get("filename") or "document.pdf", f"{where}.filename")
            return {"type": "file", "file": {"filename": name, "file_data": data}}
        case "input_image" | "input_file":
            raise unsupported(where, "Files are not kept here, and links to them not fetched: send media inline.")
        case "input_audio":
            return {"type": "input_audio", "input_audio": part.get("input_audio")}
        case kind:
            raise unsupported(f"{where}.type", f"Content of the type {str(kind)[:64]!r} cannot be passed on from here.")
