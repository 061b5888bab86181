"""Has a prompt read by a replica that only reads, before the replica that answers is asked (prefill and decode apart).

As vLLM's own example proxy and llm-d's sidecar do it: the reader gets the request with one token to answer and a wish to keep what
it read (`kv_transfer_params`), and what it says of where that is goes with the request to the replica that answers, which
fetches it. Where nobody can read, or the reader fails, the answering replica reads the prompt itself: callers notice a delay at most.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from providers.errors import RequestRejected, UpstreamError
from providers.upstream import Upstream, UpstreamCall, UpstreamStream
from providers.wire import ChatRequest
from proxy.dispatch.attempt import Attempt
from proxy.dispatch.attempt_timeout import Patience
from proxy.dispatch.load_balancer import ReplicaPool
from selfhosted.pools.fleet import ReadResult
from selfhosted.pools.pool import Reader

_TRIES: Final = 2
"""Replicas that are asked to read one prompt. A prompt may be what makes them fail."""
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
"""Fields that ask for what only the replica has that computed the prompt."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class _Answer(msgspec.Struct):
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


class _Handed(msgspec.Struct):
    do_remote_prefill: bool = False


async def read_apart(
    upstream: Upstream, replicas: ReplicaPool, attempt: Attempt, call: UpstreamCall
) -> Mapping[str, Any]:
    """Returns the body fields with which the attempt's replica fetches what another one has read; empty where it is to read the
    prompt itself. Raises nothing of the reader's. What the reader used is not booked: its hours are.
    """
    target, lease, tried = attempt.candidate.target, attempt.lease, set[str]()
    reader = None if lease is None or not _can_be_handed(call.request) else replicas.reader(target, lease, tried)
    if lease is None or reader is None:
        return _NOTHING
    lease.put_off()
    try:
        while reader is not None and len(tried) < _TRIES:
            tried.add(reader.name)
            result, handed = await _read(upstream, reader, call)
            replicas.read(target, result)
            if result != "failed":
                return handed
            reader = replicas.reader(target, lease, tried) if len(tried) < _TRIES else None
    finally:
        lease.asked()
    return _NOTHING


def _can_be_handed(request: ChatRequest) -> bool:
    """True for one answer to a chat, from which nothing is wanted that only who reads the prompt has."""
    return (
        request.operation == "chat"
        and request.n == 1
        and request.as_written is None
        and request.for_text is None
        and _NEEDS_READING_HERE.isdisjoint(request.fields)
    )


def _reading(call: UpstreamCall, reader: Reader) -> UpstreamCall:
    """The same call for the one that reads."""
    fields = {**call.engine_fields, "stream": False, "max_tokens": 1, _PARAMS: _KEEP}
    return msgspec.structs.replace(
        call,
        deployment=reader.deployment,
        request=msgspec.structs.replace(call.request, stream=False),
        engine_fields=fields,
        dropped=(*(name for name in call.dropped if name != "max_tokens"), *_NOT_WHILE_READING),
        reaches=_ignored,
        drops=_ignored,
    )


async def _read(upstream: Upstream, reader: Reader, call: UpstreamCall) -> tuple[ReadResult, Mapping[str, Any]]:
    """Asks the reader once, and ends its lease."""
    stream: UpstreamStream | None = None
    lease = reader.lease
    payload = b"{}"
    try:
        with Patience(asyncio.get_running_loop()) as patience:
            lease.when_lost = patience.expire
            stream = await upstream.open(_reading(call, reader))
            while (events := await stream.read()) is not None:
                payload = events[-1].payload
    except (UpstreamError, TimeoutError) as error:
        # What is wrong with the request, the answering replica says itself.
        rejected = isinstance(error, RequestRejected)
        lease.end(failed=not rejected, silent=isinstance(error, TimeoutError))
        return "declined" if rejected else "failed", _NOTHING
    except BaseException:
        lease.end(failed=None)
        raise
    finally:
        if stream is not None:
            with contextlib.suppress(Exception):
                await stream.aclose()
    lease.first_token()
    lease.end(failed=False, output_tokens=1)
    params = _params(payload)
    return ("declined", _NOTHING) if params is None else ("handed", {_PARAMS: params})


def _params(payload: bytes) -> msgspec.Raw | None:
    """What the reader says of where it keeps the prompt, as it wrote it; None where it kept nothing."""
    try:
        params = msgspec.json.decode(payload, type=_Answer).kv_transfer_params
        handed = msgspec.json.decode(params, type=_Handed | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return params if handed is not None and handed.do_remote_prefill else None


def _ignored(_what: object) -> None:
    pass
