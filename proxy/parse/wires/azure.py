"""OpenAI's routes at other addresses: Azure's clients name the model in the path, LiteLLM's leave `/v1` out.

    /openai/deployments/{model}/chat/completions?api-version=…   the wire of /v1/chat/completions, with this model
    /openai/v1/…, /openai/models, /openai/responses, …           the same without `/openai`
    /chat/completions, /models, …                                the same below `/v1`

Other routes, the admin API above all, do not exist under these addresses.

Any `api-version` is accepted and ignored: this gateway's wires follow OpenAI's.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

import msgspec

from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.wire import IsModel, Understood, Wire
from settings.decoding import DECODE_ERRORS

_PREFIX: Final = "/openai/"
_DEPLOYMENTS: Final = "/openai/deployments/"
_MOST_NAME_CHARS: Final = 128
_AZURES: Final = frozenset(
    {
        *("audio", "batches", "chat", "completions", "conversations", "embeddings"),
        *("files", "images", "models", "moderations", "rerank", "responses"),
    }
)
"""The first segments of OpenAI's paths that Azure has, too."""

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def plain_path(path: str) -> str:
    """Return the path that one of Azure's, or one without `/v1`, stands for; any other as it is."""
    if path.startswith(_DEPLOYMENTS):
        return path
    rest = path.removeprefix(_PREFIX).removeprefix("v1/") if path.startswith(_PREFIX) else path[1:]
    return f"/v1/{rest}" if rest.partition("/")[0] in _AZURES else path


def wire_at(path: str, wires: Mapping[str, Wire]) -> Wire | None:
    """Return the wire of a path, Azure's and one without `/v1` included; None where there is none."""
    if not path.startswith(_DEPLOYMENTS):
        return wires.get(plain_path(path))
    encoded, operation = _named(path.removeprefix(_DEPLOYMENTS), wires)
    name = unquote(encoded)
    wire = wires.get(f"/v1/{operation}")
    if wire is None or not 0 < len(name) <= _MOST_NAME_CHARS:
        return None

    def read(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
        return wire.read(_with_model(body, name), headers, is_model)

    return msgspec.structs.replace(wire, read=read)


def _named(rest: str, wires: Mapping[str, Wire]) -> tuple[str, str]:
    """Split a name, which may have slashes in it, from the operation behind it."""
    for path in wires:
        operation = path.removeprefix("/v1/")
        if rest.endswith(f"/{operation}"):
            return rest[: -len(operation) - 1], operation
    return "", ""


def _with_model(body: bytes, name: str) -> bytes:
    """Return the body with the path's model; a body that is no object is left to the wire, which refuses it."""
    try:
        fields = _decode_fields(body)
    except DECODE_ERRORS:
        return body
    fields["model"] = msgspec.Raw(msgspec.json.encode(name))
    return msgspec.json.encode(fields)
