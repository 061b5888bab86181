"""Engines of one's own fetch nothing for a caller unless their operator says so."""

from typing import Any

import msgspec
import pytest

from providers.errors import CannotCarry
from providers.media_links import refuse_media_links
from providers.target import OWN_ENGINES, DeploymentKind
from providers.wire import ChatRequest, Operation
from tests.providers.calls import chat_request, deployment

METADATA = "http://169.254.169.254/latest"
INLINE = "data:image/png;base64,AAAA"
OUTSIDE = "https://api.example.com/v1"


def asking(*parts: Any) -> ChatRequest:
    return chat_request(messages=[{"role": "system", "content": "Look."}, {"role": "user", "content": list(parts)}])


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.mark.parametrize("kind", sorted(OWN_ENGINES))
def test_links_are_refused(kind: DeploymentKind) -> None:
    """The refusal is a 400 that names the messages, counts against nobody and lets the next candidate try."""
    with pytest.raises(CannotCarry) as raised:
        refuse_media_links(asking({"type": "text", "text": "What is this?"}, image(METADATA)), deployment(kind))
    found = raised.value
    assert (found.status, found.param, found.fall_back, found.gateway_failure) == (400, "messages", True, False)
    assert "data:" in found.public


@pytest.mark.parametrize(
    "part",
    [
        image("file:///etc/passwd"),
        image("/data/private.png"),
        {"type": "image_url", "image_url": METADATA},
        {"type": "input_image", "image_url": METADATA},
        {"type": "video_url", "video_url": {"url": METADATA}},
        {"type": "audio_url", "audio_url": {"url": METADATA}},
        {"type": "novel_url", "novel_url": {"url": METADATA}},
        {"type": "text", "text": "x", "image_url": {"url": METADATA}},
        {"type": "file", "file": {"file_data": METADATA}},
    ],
)
def test_every_way_to_link(part: dict[str, Any]) -> None:
    """Any kind of media, any scheme or none, and whatever the part calls itself."""
    with pytest.raises(CannotCarry):
        refuse_media_links(asking(part), deployment("vllm"))


@pytest.mark.parametrize(
    "part",
    [
        image(INLINE),
        image("DATA:image/png;base64,AAAA"),
        {"type": "text", "text": f"see {METADATA} and ![it]({METADATA})"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1", "filename": "a.pdf"}},
    ],
)
def test_what_is_inline_passes(part: dict[str, Any]) -> None:
    """data: URLs, and text that only mentions an address."""
    refuse_media_links(asking(part), deployment("vllm"))


@pytest.mark.parametrize("odd", [b"1e999", b'"\xff"'])
def test_messages_that_cannot_be_looked_through_are_refused(odd: bytes) -> None:
    """What cannot be decoded cannot be found harmless."""
    request = asking(image(INLINE))
    request.fields["messages"] = msgspec.Raw(b'[{"role":"user","content":[{"type":"x","y":' + odd + b"}]}]")
    with pytest.raises(CannotCarry):
        refuse_media_links(request, deployment("vllm"))


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "part",
    [
        image(INLINE) | {"uuid": "logo"},
        {"type": "image_url", "image_url": None, "uuid": "logo"},
        {"type": "image_url", "image_url": {"url": INLINE, "content_hash": "0" * 64}},
    ],
)
def test_nobody_names_what_an_engine_keeps(part: dict[str, Any], *, allowed: bool) -> None:
    """Engines share media by such a name, so that one caller would see, or replace, another's picture."""
    with pytest.raises(CannotCarry, match="without `uuid`"):
        refuse_media_links(asking(part), deployment("vllm", allow_media_links=allowed))
    refuse_media_links(asking(part), deployment("openai", base_url=OUTSIDE))


def test_tgi_reads_images_out_of_text() -> None:
    """TGI fetches a Markdown image with an empty name, also when two parts make it up; others do not."""
    for request in (
        asking({"type": "text", "text": "![]("}, {"type": "text", "text": f"{METADATA})"}),
        chat_request(messages=[{"role": "user", "content": f"![]({METADATA})"}]),
    ):
        refuse_media_links(request, deployment("vllm"))
        with pytest.raises(CannotCarry):
            refuse_media_links(request, deployment("tgi"))


def test_the_operator_may_allow_it() -> None:
    """`allow_media_links` lifts it for one deployment, and providers outside fetch from outside."""
    refuse_media_links(asking(image(METADATA) | {"uuid": None}), deployment("vllm", allow_media_links=True))
    refuse_media_links(asking(image(METADATA)), deployment("openai", allow_media_links=True))
    refuse_media_links(asking(image(METADATA)), deployment("openai", base_url=OUTSIDE))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "localhost:1234", "10.0.0.7", "192.168.1.20:30000", "172.16.5.1", "169.254.1.1", "100.64.0.9", "[::1]:8000",
     "[fd00::7]", "[fe80::1]", "[::ffff:10.0.0.7]", "127.1", "2130706433", "vllm:8000", "VLLM.Models.svc", "vllm.models.svc.cluster.local",
     "gpu1.internal", "gpu1.local.", "host.docker.internal:11434", "0x7f000001", "0177.1", "\uff11\uff10.0.0.7", "127。0。0。1", "127.0.0.1.",
     "[64:ff9b::a00:7]", "[2002:a00:7::]", "[::10.0.0.7]", "[fe80::1%25eth0]", "user:word@10.0.0.7", "gpu1.home.arpa", "vllm.models.svc.k8s.example.com",
     "vllm.service.consul"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["openai", "azure"])
def test_an_address_of_ones_own_is_an_engine_of_ones_own(kind: DeploymentKind, host: str) -> None:
    """vLLM, llama.cpp and others are often declared as OpenAI-compatible, and fetch whatever they are sent (vllm #57157, lmdeploy #4761)."""
    with pytest.raises(CannotCarry, match="data:"):
        refuse_media_links(asking(image(METADATA)), deployment(kind, base_url=f"http://{host}/v1"))


@pytest.mark.parametrize(
    "host",
    [
        "api.openai.com",
        "8.8.8.8",
        "10.0.0.7@api.openai.com",
        "[64:ff9b::808:808]",
        "[2002:808:808::]",
        "svc.example.com",
        "[2606:4700::1111]:443",
        "vllm.example.com",
        "internal.example.com",
        "mylocal.dev",
    ],
)
def test_an_address_outside_fetches_from_outside(host: str) -> None:
    """A provider's, whatever its name contains."""
    refuse_media_links(asking(image(METADATA)), deployment("openai", base_url=f"https://{host}/v1"))


def other(operation: Operation, **fields: Any) -> ChatRequest:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
    return ChatRequest(operation=operation, fields=raw, model="t", messages=[])


@pytest.mark.parametrize(
    "asked",
    [
        other("rerank", query="q", documents=[{"content": [image(METADATA)]}]),
        other("rerank", query="q", documents=["a", {"image": METADATA}]),
        other("moderations", input=[{"type": "text", "text": "x"}, image(METADATA)]),
        other("embeddings", input="x", messages=[{"role": "user", "content": [image(METADATA)]}]),
        other("embeddings", input=[{"content": [{"type": "image_url", "image_url": METADATA}]}]),
        other("embeddings", input="x", image_url=METADATA),
        other("images", prompt="x", image=["data:image/png;base64,AA", METADATA]),
    ],
)
def test_links_are_refused_wherever_engines_take_parts(asked: ChatRequest) -> None:
    """Engines fetch what is ranked, scored and embedded, too (vllm #34574), and read `messages` in the place of `input`."""
    for own in (deployment("vllm"), deployment("openai")):
        with pytest.raises(CannotCarry, match="data:"):
            refuse_media_links(asked, own)
    refuse_media_links(asked, deployment("vllm", allow_media_links=True))
    refuse_media_links(asked, deployment("openai", base_url=OUTSIDE))


def test_a_name_with_escaped_letters_is_read() -> None:
    """JSON may write any letter by its number."""
    for name in (b'"image\\u005furl"', b'"\\u0069mage"'):
        asked = other("rerank", query="q")
        asked.fields["documents"] = msgspec.Raw(b"[{%b:%b}]" % (name, msgspec.json.encode(METADATA)))
        with pytest.raises(CannotCarry, match="data:"):
            refuse_media_links(asked, deployment("vllm"))


def test_texts_and_inline_media_are_ranked_and_embedded() -> None:
    """A text may have an address in it, and a document a `uuid`; a picture's is the engine's, as it is in messages."""
    for asked in (
        other("rerank", query=METADATA, documents=[METADATA, {"text": "x", "uuid": "1", "url": METADATA}]),
        other("rerank", query="q", documents=[{"content": [image(INLINE)]}]),
        other("embeddings", input=["{", METADATA]),
        other("embeddings", input=[[1, 2], [3]]),
    ):
        refuse_media_links(asked, deployment("vllm"))
    named = other("rerank", query="q", documents=[{"content": [image(INLINE) | {"uuid": "logo"}]}])
    with pytest.raises(CannotCarry, match="without `uuid`"):
        refuse_media_links(named, deployment("vllm", allow_media_links=True))


def test_a_call_without_an_address_is_as_it_was() -> None:
    """Litellm's own kinds have none, and their links are refused where litellm is called."""
    refuse_media_links(asking(image(METADATA)), deployment("litellm", base_url="", upstream_model="bedrock/x"))
