"""Has the prompt of a batch line read in pieces before its answer is asked for, so that who comes meanwhile waits for one piece.

An engine does not interrupt the reading of a prompt. But what it has read once it keeps (vLLM's prefix cache), so the same request is
sent with its prompt cut off after one piece, after two, and so on, and one token to answer; between two pieces callers go first. The
last piece is read with the request itself. Where a piece fails, or the engine does not tell that the ones before were kept, the
rest is read with the request, as everywhere else.
"""

import asyncio
import contextlib
from typing import Final

import msgspec

from cost.usage import MOST_TOKENS, Usage, plain_usage
from providers.errors import UpstreamError
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import ChatRequest, WireUsage
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.load_balancer import ReplicaPool
from selfhosted.pools.pool import ReadingAhead

_MOST_WAITING_S: Final = 5.0
"""How long the pieces of one prompt wait in all for those who wait for their first tokens."""
_LONGEST_PIECE_S: Final = 10.0
"""An engine that takes longer for a piece has too much to do; the request waits in its queue once, and not once for each piece."""
_LOOK_S: Final = 0.01
_NOT_WHILE_READING: Final = ("max_completion_tokens", "min_tokens", "stream_options", "logprobs", "top_logprobs")
"""Fields that would contradict an answer of one token, whole."""
_NEEDS_ONE_READING: Final = frozenset(
    {"prompt_logprobs", "echo", "return_prompt_text", "truncate_prompt_tokens", "truncation_side"}
)
"""Fields that ask for what only a prompt gives that is read as one, or cut it off themselves."""


async def read_ahead(upstream: Upstream, replicas: ReplicaPool, attempt: Attempt, call: UpstreamCall) -> bool:
    """Returns True once all but the last piece was read, and False at once where the prompt is read as one. Raises nothing of the
    engine's.

    What was read so is not booked by itself: the request is, and none of it as cached but what was cached before.
    """
    lease = attempt.lease
    if lease is None or attempt.routed.facts.tier != "batch" or not _comes_in_pieces(call.request):
        return False
    ahead = replicas.ahead(attempt.candidate.target, lease)
    if ahead is None:
        return False
    lease.put_off()
    try:
        with ahead:
            await _read_all(upstream, ahead, attempt, call)
    finally:
        lease.asked()
    return True


async def _read_all(upstream: Upstream, ahead: ReadingAhead, attempt: Attempt, call: UpstreamCall) -> None:
    kept, waited_s = 0, 0.0
    for upto in ahead.pieces:
        while not ahead.is_clear() and waited_s < _MOST_WAITING_S:
            await asyncio.sleep(_LOOK_S)
            waited_s += _LOOK_S
        told = await _read(upstream, call, upto)
        if told is None:
            return
        if attempt.cached_before is None:
            attempt.cached_before = told.cached_input_tokens
        if told.input_tokens < upto or told.cached_input_tokens < kept:
            # The prompt has come to its end, or nothing is kept.
            return
        kept = upto - ahead.block_tokens


def _comes_in_pieces(request: ChatRequest) -> bool:
    """True for one answer to a chat of text alone, as it came or translated to a chat."""
    return (
        request.operation == "chat"
        and request.n == 1
        and not request.images
        and request.as_written is None
        and request.for_text is None
        and _NEEDS_ONE_READING.isdisjoint(request.fields)
    )


async def _read(upstream: Upstream, call: UpstreamCall, upto: int) -> Usage | None:
    """Has the prompt read up to so many tokens; what the engine says that it used, None where it failed, took long or does not say."""
    stream: UpstreamStream | None = None
    told: WireUsage | None = None
    try:
        async with asyncio.timeout(_LONGEST_PIECE_S):
            stream = await upstream.open(_reading(call, upto))
            while (events := await stream.read()) is not None:
                told = next((event.usage for event in reversed(events) if event.usage is not None), told)
    except (UpstreamError, TimeoutError):
        # What is wrong, the request itself is told.
        return None
    finally:
        if stream is not None:
            with contextlib.suppress(Exception):
                await stream.aclose()
    return None if told is None else plain_usage(told, max_input_tokens=MOST_TOKENS, max_output_tokens=MOST_TOKENS)


def _reading(call: UpstreamCall, upto: int) -> UpstreamCall:
    fields = {
        **call.engine_fields,
        "stream": False,
        "max_tokens": 1,
        "truncate_prompt_tokens": upto,
        "truncation_side": "right",
    }
    return msgspec.structs.replace(
        call,
        request=msgspec.structs.replace(call.request, stream=False),
        engine_fields=fields,
        dropped=(*(name for name in call.dropped if name != "max_tokens"), *_NOT_WHILE_READING),
        reaches=_ignored,
        drops=_ignored,
    )


def _ignored(_what: object) -> None:
    pass
