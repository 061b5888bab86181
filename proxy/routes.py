"""The routes of the data plane: each wire's path, served by the pipeline itself. Every other path goes to the control plane.

`WIRES` is the one list of them. A `Wire` has its paths, its parser and the writer of its errors; the dialect that the parser gives writes
the answer. Router, Azure's addresses, batches and the hints of unknown addresses go by this list.
"""

from functools import partial
from typing import Final

from proxy.http.exchange import Exchange
from proxy.http.server import Route, Routes
from proxy.parse.wires.azure import wire_at
from proxy.parse.wires.chat.dialect import CHAT, EMBEDDINGS
from proxy.parse.wires.completions.wire import COMPLETIONS
from proxy.parse.wires.messages.wire import COUNT_TOKENS, MESSAGES
from proxy.parse.wires.metered.audio import TRANSCRIPTIONS, TRANSLATIONS
from proxy.parse.wires.metered.images import EDITS, IMAGES, VARIATIONS
from proxy.parse.wires.metered.moderations import MODERATIONS
from proxy.parse.wires.metered.rerank import RERANK
from proxy.parse.wires.metered.speech import SPEECH
from proxy.parse.wires.responses.wire import COMPACT, INPUT_TOKENS, RESPONSES
from proxy.pipeline import RequestPipeline
from proxy.responses_socket import ResponsesSocket

WIRES: Final = (
    CHAT,
    EMBEDDINGS,
    COMPLETIONS,
    MESSAGES,
    COUNT_TOKENS,
    RESPONSES,
    INPUT_TOKENS,
    COMPACT,
    MODERATIONS,
    RERANK,
    IMAGES,
    EDITS,
    VARIATIONS,
    SPEECH,
    TRANSCRIPTIONS,
    TRANSLATIONS,
)
WIRE_AT: Final = {path: wire for wire in WIRES for path in (wire.path, *wire.other_paths)}


def model_routes(pipeline: RequestPipeline) -> Routes:
    """Return each wire's POST, and the socket of responses."""
    routes: dict[str, dict[str, Route]] = {
        path: {"POST": partial(pipeline.serve, wire)} for path, wire in WIRE_AT.items()
    }
    routes[RESPONSES.path]["GET"] = ResponsesSocket(pipeline).serve
    return routes


def fallback_route(pipeline: RequestPipeline, otherwise: Route) -> Route:
    """Return the route of all other paths: Azure's, which have the model in them, and those without `/v1` go to the pipeline,
    and the rest to `otherwise`.
    """

    async def answer(exchange: Exchange) -> None:
        wire = wire_at(exchange.path, _BY_OWN_PATH) if exchange.method == "POST" else None
        await (otherwise(exchange) if wire is None else pipeline.serve(wire, exchange))

    return answer


_BY_OWN_PATH: Final = {wire.path: wire for wire in WIRES}
