"""The wire of POST /v1/rerank: documents to be ordered by a query, in the shape of Cohere, Jina and vLLM."""

from typing import Any, Final

import msgspec

from classifier.tokens import estimate_tokens
from providers.wire import ChatRequest
from proxy.errors import BadRequest
from proxy.parse.chat_request import OwnFields, decoded, request_without_messages
from proxy.parse.headers import RequestHeaders
from proxy.parse.wires.chat.dialect import ChatDialect
from proxy.parse.wires.openai_errors import as_told, error_event
from proxy.parse.wires.wire import IsModel, Understood, Wire

MAX_DOCUMENTS: Final = 10_000
_DOCUMENTS_A_SEARCH: Final = 100
_TOKENS_A_DOCUMENT: Final = 500
"""The tokens of a document, with the query, up to which Cohere bills it as one; a longer one counts as several."""
_MILLI: Final = 1_000


class _Body(OwnFields, frozen=True, kw_only=True):
    """The body's fields that the gateway reads."""

    model: str
    query: str
    documents: list[str | dict[str, Any]]


_decoder: Final = msgspec.json.Decoder(_Body)


def read_rerank(body: bytes, headers: RequestHeaders, is_model: IsModel) -> Understood:
    """Parse the body. Raises BadRequest."""
    del is_model
    fields, typed = decoded(body, _decoder)
    if not typed.query:
        raise BadRequest("`query` is empty; send what the documents are to be ordered by.", param="query")
    if not 1 <= len(typed.documents) <= MAX_DOCUMENTS:
        raise BadRequest(f"`documents` must have 1 to {MAX_DOCUMENTS} entries.", param="documents")
    query = estimate_tokens(typed.query)
    sizes = [query + estimate_tokens(_text(each)) for each in typed.documents]
    searches = -(-sum(-(-size // _TOKENS_A_DOCUMENT) for size in sizes) // _DOCUMENTS_A_SEARCH)
    # Each token takes a byte at least, so there cannot be more pieces than this.
    most = -(-(len(typed.documents) + len(body) // _TOKENS_A_DOCUMENT * 2) // _DOCUMENTS_A_SEARCH)
    request = ChatRequest(
        operation="rerank",
        fields={},
        model=typed.model,
        messages=[],
        # Each document is read together with the query.
        given_texts_tokens=sum(sizes),
        longest_tokens=max(1, *sizes),
        unit="search",
        units_milli=searches * _MILLI,
        most_units_milli=max(most, searches) * _MILLI,
    )
    request = request_without_messages(fields, headers, typed, request)
    return Understood(request, ChatDialect(request))


def _text(document: str | dict[str, Any]) -> str:
    if isinstance(document, str):
        return document
    return " ".join(value for value in document.values() if isinstance(value, str))


RERANK: Final = Wire(
    name="rerank",
    path="/v1/rerank",
    other_paths=("/rerank", "/v2/rerank"),
    operation="rerank",
    read=read_rerank,
    error=as_told,
    error_event=error_event,
)
