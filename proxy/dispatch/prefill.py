"""Prefill before the call: the prompt is read by another replica (disaggregated), or by the same one in pieces
(chunked).

Disaggregated, as in vLLM's example proxy and llm-d's sidecar: the reader gets the request with one token to answer and
the wish to keep its KV cache (`kv_transfer_params`); its reply tells the place of the cache, which goes with the
request to the answering replica, which fetches it.

Chunked, for batch lines, so that interactive requests wait for one piece at most: an engine does not interrupt the
reading of a prompt, but keeps the part it has read (vLLM's prefix cache). So the request is sent with its prompt cut
off after one piece, after two, and so on, and one token to answer; between two pieces interactive requests go first.
The last piece is read with the request itself.

Where no replica can read, a reader fails or a piece is not kept, the answering replica reads the rest itself: callers
notice a delay at most.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from cost.usage import MOST_TOKENS, Usage, estimated, from_openai
from providers.errors import RequestRejected, UpstreamError
from providers.target import Deployment
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import ChatRequest, Event, WireUsage
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.attempt_timeout import AttemptTimeout
from proxy.dispatch.load_balancer import LoadTracker, ReplicaPool
from selfhosted.pools.fleet import ReadResult
from selfhosted.pools.pool import Reader, ReadingAhead
from settings.decoding import DECODE_ERRORS

_TRIES: Final = 2
"""Replicas that are asked to read one prompt. The prompt may be the cause of their failure."""
_MOST_WAITING_S: Final = 5.0
"""Seconds that the pieces of one prompt wait in all for requests without a first token."""
_UNTOLD: Final = estimated(input_tokens=0, output_tokens=0)
_LONGEST_PIECE_S: Final = 10.0
"""The longest that a piece may take, in seconds. A slower engine has too much to do; the request waits in its queue
once, and not once for each piece.
"""
_LOOK_S: Final = 0.01
_PARAMS: Final = "kv_transfer_params"
_KEEP: Final[Mapping[str, object]] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
_NOT_WHILE_READING: Final = ("max_completion_tokens", "min_tokens", "stream_options")
"""Fields that would contradict an answer of one token, whole."""
_NEEDS_READING_HERE: Final = frozenset({"prompt_logprobs", "echo", "return_prompt_text"})
"""Fields whose values only the replica has that computed the prompt, at once."""
_CUTS_THE_PROMPT: Final = frozenset({"truncate_prompt_tokens", "truncation_side"})
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class _Handed(msgspec.Struct):
    do_remote_prefill: bool = False


async def prefill(
    upstream: Upstream, replicas: ReplicaPool, attempt: Attempt, call: UpstreamCall
) -> Mapping[str, Any] | None:
    """Have the prompt of `call` read before it is made, where the attempt's pool does so. Return the body fields that
    the call then has, which is to be made anew as time has passed; None where nothing was read. Engine errors are not
    raised. Chunks are not booked beside the request, and only tokens that were cached before count as cached; a
    reader is booked by its hours.
    """
    tracker, target = attempt.load_tracker, attempt.candidate.target
    if tracker is None or not _may_be_read_before(call.request):
        return None
    if attempt.routed.facts.tier == "batch" and _comes_in_pieces(call.request):
        chunks = replicas.ahead(target, tracker)
        if chunks is not None:
            tracker.postponed()
            try:
                with chunks:
                    await _read_chunks(upstream, chunks, attempt, call)
            finally:
                tracker.asked()
            return _NOTHING
    return await _read_apart(upstream, replicas, attempt, tracker, call) or None


def _may_be_read_before(request: ChatRequest) -> bool:
    """Return True for a request for one answer to a chat that needs nothing from the replica that reads its prompt."""
    return (
        request.operation == "chat"
        and request.n == 1
        and request.as_written is None
        and request.for_text is None
        and _NEEDS_READING_HERE.isdisjoint(request.fields)
    )


def _comes_in_pieces(request: ChatRequest) -> bool:
    """Return True for a prompt of text alone that its caller did not cut off already."""
    return not request.images and _CUTS_THE_PROMPT.isdisjoint(request.fields)


async def _read_chunks(upstream: Upstream, chunks: ReadingAhead, attempt: Attempt, call: UpstreamCall) -> None:
    kept, waited_s = 0, 0.0
    for upto in chunks.pieces:
        while not chunks.is_clear() and waited_s < _MOST_WAITING_S:
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S
        told = await _read_chunk(upstream, call, upto)
        if told is None:
            return
        if attempt.cached_before is None:
            attempt.cached_before = told.cached_input_tokens
        if told.input_tokens < upto or told.cached_input_tokens < kept:
            # The prompt has come to its end, or nothing is kept.
            return
        kept = upto - chunks.block_tokens


async def _read_chunk(upstream: Upstream, call: UpstreamCall, upto: int) -> Usage | None:
    """Have the prompt read up to `upto` tokens. Return the engine's usage, None where it failed, took long or does
    not tell.
    """
    fields = {"truncate_prompt_tokens": upto, "truncation_side": "right"}
    reading = _reading(call, call.deployment, fields, (*_NOT_WHILE_READING, "logprobs", "top_logprobs"))
    told: WireUsage | None = None
    try:
        async with asyncio.timeout(_LONGEST_PIECE_S):
            for event in await _all_events(upstream, reading):
                told = event.usage or told
    except (UpstreamError, TimeoutError):
        # The fault, if it is the request's, is told by the request itself.
        return None
    found = from_openai(told, estimate=_UNTOLD, max_input_tokens=MOST_TOKENS, max_output_tokens=MOST_TOKENS)
    return None if found.source == _UNTOLD.source else found


async def _read_apart(
    upstream: Upstream, replicas: ReplicaPool, attempt: Attempt, tracker: LoadTracker, call: UpstreamCall
) -> Mapping[str, Any]:
    """Return the body fields with which the attempt's replica fetches the prompt that another one has read. Empty
    where it is to read the prompt itself.
    """
    target, tried = attempt.candidate.target, set[str]()
    reader = replicas.reader(target, tracker, tried)
    if reader is None:
        return _NOTHING
    tracker.postponed()
    try:
        while reader is not None and len(tried) < _TRIES:
            tried.add(reader.name)
            result, handed = await _ask_reader(upstream, reader, call)
            replicas.read(target, result)
            if result != "failed":
                return handed
            reader = replicas.reader(target, tracker, tried) if len(tried) < _TRIES else None
    finally:
        tracker.asked()
    return _NOTHING


async def _ask_reader(upstream: Upstream, reader: Reader, call: UpstreamCall) -> tuple[ReadResult, Mapping[str, Any]]:
    """Ask the reader once, and end its load."""
    tracker = reader.lease
    payload = b"{}"
    try:
        with AttemptTimeout(asyncio.get_running_loop()) as timeout:
            tracker.when_lost = timeout.expire
            reading = _reading(call, reader.deployment, {_PARAMS: _KEEP}, _NOT_WHILE_READING)
            for event in await _all_events(upstream, reading):
                payload = event.payload
    except (UpstreamError, TimeoutError) as error:
        # The answering replica reports a fault of the request itself.
        rejected = isinstance(error, RequestRejected)
        tracker.end(failed=not rejected, silent=isinstance(error, TimeoutError))
        return "declined" if rejected else "failed", _NOTHING
    except BaseException:
        tracker.end(failed=None)
        raise
    tracker.first_token()
    tracker.end(failed=False, output_tokens=1)
    params = _params(payload)
    return ("declined", _NOTHING) if params is None else ("handed", {_PARAMS: params})


def _reading(
    call: UpstreamCall, deployment: Deployment, fields: Mapping[str, Any], left_out: tuple[str, ...]
) -> UpstreamCall:
    """Return the same call with one token to answer, for a replica that only reads."""
    return msgspec.structs.replace(
        call,
        deployment=deployment,
        request=msgspec.structs.replace(call.request, stream=False),
        engine_fields={**call.engine_fields, "stream": False, "max_tokens": 1, **fields},
        dropped=(*(name for name in call.dropped if name != "max_tokens"), *left_out),
        reaches=_ignored,
        drops=_ignored,
    )


async def _all_events(upstream: Upstream, reading: UpstreamCall) -> list[Event]:
    stream: UpstreamStream | None = None
    found: list[Event] = []
    try:
        stream = await upstream.open(reading)
        while (events := await stream.read()) is not None:
            found += events
    finally:
        if stream is not None:
            with contextlib.suppress(Exception):
                await stream.aclose()
    return found


def _params(payload: bytes) -> msgspec.Raw | None:
    """Return the reader's place of the prompt's cache, as it wrote it; None where it kept nothing."""
    try:
        params = msgspec.json.decode(payload, type=_Answer).kv_transfer_params
        handed = msgspec.json.decode(params, type=_Handed | None)
    except DECODE_ERRORS:
        return None
    return params if handed is not None and handed.do_remote_prefill else None


def _ignored(_what: object) -> None:
    pass
