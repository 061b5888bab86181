"""Refusal of linked and named media: an engine of one's own, of whatever kind it is declared, would fetch a link from inside its network."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from providers.errors import CannotCarry
from providers.target import Deployment
from providers.wire import ChatRequest, field_of

# vLLM and SGLang keep media under such a name if there is one: one caller's picture would be seen by another.
_CACHE_NAMES: Final = ("uuid", "content_hash")
_MEDIA = frozenset({"image", "input_image", "video", "audio", "input_audio", "file"})
# An engine that looks for images in the prompt's text, too, fetches what it finds.
_LINK_IN_TEXT = "![](http"
# Names within JSON; where letters are escaped, any.
_MAY_NAME_MEDIA: Final = (b'_url"', b"\\u", *(f'"{name}"'.encode() for name in sorted(_MEDIA)))


def refuse_media_links(request: ChatRequest, deployment: Deployment) -> None:
    """Raise CannotCarry when an engine of one's own would be made to fetch media and may not.

    Names of cached media are refused too, whether links are allowed or not: the engine's cache is shared by all
    callers.
    """
    if not deployment.fetches_inside:
        return
    if request.operation != "chat":
        _refuse_in_fields(request, deployment)
        return
    # Most messages are text, and then nothing has to be decoded here.
    if any(isinstance(message.content, list) for message in request.messages):
        messages = field_of(request, "messages", deployment.deployment_id)
        _refuse_cache_names_in(_parts(messages), deployment)
        if not deployment.allow_media_links:
            refuse_links_in(messages, deployment)
    if deployment.allow_media_links:
        return
    if deployment.quirks.fetches_links_in_text and any(_LINK_IN_TEXT in text for text in _texts(request)):
        raise _link_refused(deployment)


def _refuse_in_fields(request: ChatRequest, deployment: Deployment) -> None:
    """Look through what is embedded, ranked, moderated or drawn: engines take parts there, at any depth, and `messages` beside `input`."""
    for name, raw in request.fields.items():
        written = bytes(raw)
        if _is_media(name) or any(each in written for each in _MAY_NAME_MEDIA):
            given = {name: field_of(request, name, deployment.deployment_id)}
            # A document may have a `uuid` of its own.
            parts = [each for each in _objects(given) if any(map(_is_media, each))]
            _refuse_cache_names_in(parts, deployment, name)
            if not (deployment.allow_media_links or all(map(_is_inline, parts))):
                raise _link_refused(deployment, name)


def refuse_links_in(messages: Any, deployment: Deployment) -> None:
    """Raise CannotCarry when any part of these decoded messages links to media."""
    if not all(map(_is_inline, _parts(messages))):
        raise _link_refused(deployment)


def _is_inline(part: dict[str, Any]) -> bool:
    return all(link[:5].lower() == "data:" for link in _addresses(part))


def _is_media(name: str) -> bool:
    return name.endswith("_url") or name in _MEDIA


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object within a decoded value."""
    left = [value]
    while left:
        found = left.pop()
        if isinstance(found, dict):
            yield found
            left += found.values()
        elif isinstance(found, list):
            left += found


def _refuse_cache_names_in(parts: Iterable[dict[str, Any]], deployment: Deployment, param: str = "messages") -> None:
    for part in parts:
        for named in (part, *part.values()):
            if isinstance(named, dict) and any(named.get(name) is not None for name in _CACHE_NAMES):
                raise CannotCarry(
                    "Send media to this model without `uuid` or `content_hash`: its caches name media themselves.",
                    deployment_id=deployment.deployment_id,
                    status=400,
                    param=param,
                    code="unsupported_parameter",
                )


def _parts(messages: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts of all messages whose content is a list."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part


def _addresses(part: dict[str, Any]) -> Iterator[str]:
    """Yield every text in a part that some engine could take for an address, whatever type the part declares."""
    for name, media in part.items():
        if not _is_media(name):
            continue
        if isinstance(media, str):
            yield media
        if isinstance(media, list):
            yield from (each for each in media if isinstance(each, str))
        for inner, value in media.items() if isinstance(media, dict) else ():
            # SGLang also opens paths, so under these names even a text without a scheme is an address.
            if isinstance(value, str) and (inner == "url" or ":" in value):
                yield value


def _texts(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            yield content
        else:
            yield "".join(part.text for part in content or () if part.text)


def _link_refused(deployment: Deployment, param: str = "messages") -> CannotCarry:
    return CannotCarry(
        "Send media to this model inline, as data: URLs; links are not fetched.",
        deployment_id=deployment.deployment_id,
        status=400,
        param=param,
        code="unsupported_parameter",
    )
