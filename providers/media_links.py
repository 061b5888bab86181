"""Which media a request links to: a link is fetched by whoever serves it, from inside that network."""

from collections.abc import Iterator
from typing import Any

from providers.errors import CannotCarry
from providers.target import OWN_ENGINES, Deployment
from providers.wire import ChatRequest, field_of

_MEDIA = frozenset({"image", "input_image", "video", "audio", "input_audio", "file"})
# TGI looks for images in the prompt's text, too, and fetches what it finds.
_TGI_LINK = "![](http"


def refuse_media_links(request: ChatRequest, deployment: Deployment) -> None:
    """Raises CannotCarry when an engine of one's own would be made to fetch something it was not told to."""
    if deployment.kind not in OWN_ENGINES or deployment.allow_media_links:
        return
    for message in request.messages:
        # Most messages are text, and then nothing has to be decoded here.
        if isinstance(message.content, list):
            refuse_links_in(field_of(request, "messages", deployment.deployment_id), deployment)
            break
    if deployment.kind == "tgi" and any(_TGI_LINK in text for text in _texts(request)):
        raise _refusal(deployment)


def refuse_links_in(messages: Any, deployment: Deployment) -> None:
    """Raises CannotCarry when any part of these decoded messages links to media."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and not all(map(_is_inline, _links(part))):
                raise _refusal(deployment)


def _links(part: dict[str, Any]) -> Iterator[str]:
    """Every text in a part that some engine could take for an address, whatever the part says it is."""
    for name, media in part.items():
        if not (name.endswith("_url") or name in _MEDIA):
            continue
        if isinstance(media, str):
            yield media
        for inner, value in media.items() if isinstance(media, dict) else ():
            # SGLang also opens paths, so under these names even a text without a scheme is an address.
            if isinstance(value, str) and (inner == "url" or ":" in value):
                yield value


def _is_inline(link: str) -> bool:
    return link[:5].lower() == "data:"


def _texts(request: ChatRequest) -> Iterator[str]:
    for message in request.messages:
        content = message.content
        if isinstance(content, str):
            yield content
        else:
            yield "".join(part.text for part in content or () if part.text)


def _refusal(deployment: Deployment) -> CannotCarry:
    return CannotCarry(
        "Send media to this model inline, as data: URLs; links are not fetched.",
        deployment_id=deployment.deployment_id,
        status=400,
        param="messages",
        code="unsupported_parameter",
    )
