"""Anthropic's system prompt and messages as chat messages, in two forms. Pure.

The plain form goes to every target, and prefixes, prompts and tokens are read from it. Parts that change from turn to
turn without meaning anything are not in it: cache marks, thinking that only its maker can read, and the first system
block by which one client counts its calls. The marked form keeps them, for targets that speak Anthropic's dialect.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from providers.thoughts import Thought
from providers.tool_names import fitting_name
from proxy.parse.wires.messages.provider_blocks import tool_of
from proxy.parse.wires.reading import an_object, objects, text, unsupported, wrong
from proxy.parse.wires.thoughts import MARK, joined, unsealed

_ATTRIBUTION: Final = "x-anthropic-billing-header:"
"""The beginning of the system block that a client of Anthropic's makes anew for each request."""
_REMINDER: Final = "<system-reminder>"
"""The beginning of texts that such a client adds behind tool results. They ask nothing, so no user turn begins."""
_MARK: Final = "cache_control"
_SEARCH_SOURCE: Final = "search_result"

_SPEAKERS: Final = ("user", "assistant", "system")
_PLAIN: Final = 2
"""The fields of a message that has a role and a content and nothing else."""

Message = dict[str, Any]
Part = dict[str, Any]


def chat_messages(
    system: Any,
    messages: Any,
    *,
    marked: bool,
    foreign: dict[str, str] | None = None,
    thoughts: dict[int, Thought] | None = None,
) -> list[Message]:
    """Return the whole conversation as chat messages. Blocks that a provider's own tools wrote are left out, and the
    tools are noted in `foreign`, each with its place; thoughts that we sealed are noted in `thoughts`, by the number of the
    assistant's message. Raises BadRequest.
    """
    found: list[Message] = []
    answers = -1
    if system is not None:
        found += _system(system, marked=marked)
    for index, message in enumerate(objects(messages, "messages")):
        answers += message.get("role") == "assistant"
        # Most messages are a text, and are chat's as they are.
        if len(message) == _PLAIN and type(message.get("content")) is str and message.get("role") in _SPEAKERS:
            # Users of the marked form may write into it, so it is a copy.
            found.append({**message} if marked else message)
        else:
            found += _message(message, f"messages.{index}", marked=marked, foreign=foreign)
            if thoughts is not None and (thought := _thought_of(message)) is not None:
                thoughts[answers] = thought
    return found


def _thought_of(message: Message) -> Thought | None:
    """Return the thought of ours in an assistant's message, which was read before."""
    thought: Thought | None = None
    if message.get("role") == "assistant" and isinstance(message.get("content"), list):
        for block in message["content"]:
            words = block.get("thinking")
            part = unsealed(seal_of(block), words if isinstance(words, str) else "")
            thought = thought if part is None else joined(thought, part)
    return thought


def seal_of(block: Mapping[str, Any]) -> Any:
    """Return what only its maker reads of a block of thinking; None of all others."""
    return {"thinking": block.get("signature"), "redacted_thinking": block.get("data")}.get(str(block.get("type")))


def is_foreign_thinking(block: Any) -> bool:
    """Return True for thinking that Anthropic would refuse, as it did not sign it."""
    if not isinstance(block, dict) or block.get("type") not in ("thinking", "redacted_thinking"):
        return False
    seal = seal_of(block)
    return not seal or (isinstance(seal, str) and seal.startswith(MARK))


def is_attribution(block: Mapping[str, Any]) -> bool:
    return str(block.get("text", "")).startswith(_ATTRIBUTION)


def _system(system: Any, *, marked: bool) -> Iterator[Message]:
    if isinstance(system, str):
        yield {"role": "system", "content": system}
        return
    blocks = objects(system, "system", or_text=True)
    for index, block in enumerate(blocks):
        if block.get("type") != "text":
            raise wrong(f"system.{index}.type", "`text`")
        text(block.get("text"), f"system.{index}.text")
    if marked:
        yield {
            "role": "system",
            "content": [_marked({"type": "text", "text": block["text"]}, block) for block in blocks],
        }
    elif texts := [block["text"] for block in blocks if not is_attribution(block)]:
        yield {"role": "system", "content": "\n".join(texts)}


def _message(message: Message, where: str, *, marked: bool, foreign: dict[str, str] | None) -> Iterator[Message]:
    role, content = message.get("role"), message.get("content")
    if isinstance(content, str):
        if role not in _SPEAKERS:
            raise wrong(f"{where}.role", "`user` or `assistant`")
        yield {"role": role, "content": content}
        return
    blocks = objects(content, f"{where}.content", or_text=True)
    if foreign is not None and any(map(tool_of, blocks)):
        blocks = _without_foreign(blocks, f"{where}.content", foreign)
    match role:
        case "user":
            yield from _of_user(blocks, f"{where}.content", marked=marked)
        case "assistant":
            yield _of_assistant(blocks, f"{where}.content", marked=marked)
        case "system":
            texts = [text(block.get("text"), f"{where}.content.{index}.text") for index, block in enumerate(blocks)]
            yield {"role": "system", "content": "\n".join(texts)}
        case _:
            raise wrong(f"{where}.role", "`user` or `assistant`")


def _without_foreign(blocks: list[Message], where: str, foreign: dict[str, str]) -> list[Message]:
    kept = []
    for index, block in enumerate(blocks):
        tool = tool_of(block)
        if tool is None:
            kept.append(block)
        else:
            foreign.setdefault(tool, f"{where}.{index}.type")
    return kept


def _of_user(blocks: list[Message], where: str, *, marked: bool) -> Iterator[Message]:
    """Yield a user message's chat messages: tool results become messages of their own, before the rest."""
    results: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(blocks):
        if block.get("type") == "tool_result":
            result, beside = _tool_result(block, f"{where}.{index}", marked=marked)
            results.append(result)
            parts += beside
        else:
            parts.append(_part(block, f"{where}.{index}", marked=marked))
    if results and parts and all(str(part.get("text", "")).startswith(_REMINDER) for part in parts):
        results[-1]["content"] = _joined(results[-1]["content"], parts)
        parts = []
    yield from results
    if parts or not results:
        yield {"role": "user", "content": _plainest(parts, marked=marked)}


def _joined(content: Any, parts: list[Part]) -> Any:
    """Return a tool result's content with texts behind it."""
    if isinstance(content, list):
        return content + parts
    return "\n".join([content, *(part["text"] for part in parts)])


def _plainest(parts: list[Part], *, marked: bool) -> Any:
    """Return a single text as a text: clients send it as a text or a list as their cache mark moves on."""
    if not marked and len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _tool_result(block: Message, where: str, *, marked: bool) -> tuple[Message, list[Part]]:
    """Return the chat message, and the pictures and files that a chat's tool message has no room for."""
    call_id = text(block.get("tool_use_id"), f"{where}.tool_use_id")
    content = block.get("content")
    if content is None:
        content = ""
    beside: list[Part] = []
    if isinstance(content, list):
        parts = [
            _part(part, f"{where}.content.{index}", marked=marked)
            for index, part in enumerate(objects(content, f"{where}.content"))
        ]
        if marked:
            content = parts
        else:
            content = "\n".join(part["text"] for part in parts if part["type"] == "text")
            beside = [part for part in parts if part["type"] != "text"]
    content = content if isinstance(content, list) else text(content, f"{where}.content")
    if block.get("is_error"):
        content = _as_error(content)
    message = {"role": "tool", "tool_call_id": call_id, "content": content}
    return (_marked(message, block) if marked else message), beside


def _as_error(content: Any) -> Any:
    """Mark a tool result as failed: chat has no field for it, so the text says it, in the word that tool loops are
    read by.
    """
    if isinstance(content, list):
        return [{"type": "text", "text": "Error:"}, *content]
    return content if content.lower().startswith("error") else f"Error: {content}"


def _of_assistant(blocks: list[Message], where: str, *, marked: bool) -> Message:
    texts: list[Part] = []
    calls: list[Message] = []
    thinking: list[Message] = []
    for index, block in enumerate(blocks):
        at = f"{where}.{index}"
        match block.get("type"):
            case "text":
                said = {"type": "text", "text": text(block.get("text"), f"{at}.text")}
                texts.append(_marked(said, block) if marked else said)
            case "tool_use":
                call = _call(block, at, marked=marked)
                calls.append(_marked(call, block) if marked else call)
            case "thinking" | "redacted_thinking":
                # Without its maker's signature it would be refused.
                if not is_foreign_thinking(block):
                    thinking.append(block)
            case kind:
                raise _unknown(kind, at)
    message: Message = {"role": "assistant"}
    if marked and any(_MARK in part for part in texts):
        message["content"] = texts
    else:
        message["content"] = "".join(part["text"] for part in texts) or (None if calls else "")
    if calls:
        message["tool_calls"] = calls
    if marked and thinking:
        message["thinking_blocks"] = thinking
    return message


def _call(block: Message, where: str, *, marked: bool) -> Message:
    arguments = msgspec.json.encode(an_object(block.get("input"), f"{where}.input")).decode()
    name = text(block.get("name"), f"{where}.name")
    # A Claude takes twice as many characters as others do.
    function = {"name": name if marked else fitting_name(name), "arguments": arguments}
    return {"id": text(block.get("id"), f"{where}.id"), "type": "function", "function": function}


def _part(block: Message, where: str, *, marked: bool) -> Part:
    kind = block.get("type")
    maker = _PARTS.get(kind) if isinstance(kind, str) else None
    if maker is None:
        raise _unknown(kind, where)
    part = maker(block, where)
    return _marked(part, block) if marked else part


def _text_part(block: Message, where: str) -> Part:
    return {"type": "text", "text": text(block.get("text"), f"{where}.text")}


def _image(block: Message, where: str) -> Part:
    source = an_object(block.get("source"), f"{where}.source")
    match source.get("type"):
        case "base64":
            return {"type": "image_url", "image_url": {"url": _data_url(source, where)}}
        case "url":
            return {"type": "image_url", "image_url": {"url": text(source.get("url"), f"{where}.source.url")}}
        case kind:
            raise _unknown_source(kind, where)


def _document(block: Message, where: str) -> Part:
    source = an_object(block.get("source"), f"{where}.source")
    match source.get("type"):
        case "base64":
            name = block.get("title") or "document.pdf"
            file = {"filename": text(name, f"{where}.title"), "file_data": _data_url(source, where)}
            return {"type": "file", "file": file}
        case "text":
            said = text(source.get("data"), f"{where}.source.data")
            return {"type": "text", "text": "\n".join([*_heading(block), said])}
        case "content" if isinstance(source.get("content"), str):
            return {"type": "text", "text": "\n".join([*_heading(block), source["content"]])}
        case "content":
            blocks = objects(source.get("content"), f"{where}.source.content", or_text=True)
            texts = [text(each.get("text"), f"{where}.source.content.{i}.text") for i, each in enumerate(blocks)]
            return {"type": "text", "text": "\n".join([*_heading(block), *texts])}
        case kind:
            raise _unknown_source(kind, where)


def _search_result(block: Message, where: str) -> Part:
    blocks = objects(block.get("content"), f"{where}.content")
    texts = [text(each.get("text"), f"{where}.content.{index}.text") for index, each in enumerate(blocks)]
    source = text(block.get("source"), f"{where}.source")
    return {"type": "text", "text": "\n".join([*_heading(block), source, *texts])}


_PARTS: Final[Mapping[str, Callable[[Message, str], Part]]] = {
    "text": _text_part,
    "image": _image,
    "document": _document,
    _SEARCH_SOURCE: _search_result,
}


def _heading(block: Message) -> list[str]:
    return [str(block[name]) for name in ("title", "context") if block.get(name)]


def _data_url(source: Message, where: str) -> str:
    media_type = text(source.get("media_type"), f"{where}.source.media_type")
    return f"data:{media_type};base64,{text(source.get('data'), f'{where}.source.data')}"


def _marked(part: Part, block: Message) -> Part:
    if block.get(_MARK) is not None:
        part[_MARK] = block[_MARK]
    return part


def _unknown(kind: Any, where: str) -> Exception:
    return unsupported(
        f"{where}.type",
        f"Content of the type {str(kind)[:64]!r} cannot be passed on from here: send text, images, documents, tool calls "
        "and their results. What a provider's own tools have written can be read by that provider alone.",
    )


def _unknown_source(kind: Any, where: str) -> Exception:
    return unsupported(
        f"{where}.source.type",
        f"A source of the type {str(kind)[:64]!r} cannot be passed on from here: send media inline, as `base64`.",
    )
