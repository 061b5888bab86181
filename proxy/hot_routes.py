"""The routes of the data plane: each wire's path, served by the line itself. Every other path is somebody else's."""

from functools import partial
from typing import Final

from proxy.http.server import Routes
from proxy.line import RequestPipeline
from proxy.wires.chat.dialect import CHAT, EMBEDDINGS
from proxy.wires.completions.wire import COMPLETIONS
from proxy.wires.messages.wire import COUNT_TOKENS, MESSAGES
from proxy.wires.responses.wire import INPUT_TOKENS, RESPONSES

WIRES: Final = (CHAT, EMBEDDINGS, COMPLETIONS, MESSAGES, COUNT_TOKENS, RESPONSES, INPUT_TOKENS)


def hot_routes(line: RequestPipeline) -> Routes:
    """Each wire's POST."""
    return {wire.path: {"POST": partial(line.serve, wire)} for wire in WIRES}
