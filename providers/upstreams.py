"""All upstream clients behind one: the deployment's kind selects the client."""

from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from providers.errors import UpstreamRefusedUs
from providers.http_client import HttpUpstream
from providers.key_files import KeyFiles
from providers.target import OWN_ENGINES, Deployment, DeploymentKind
from providers.token_counts import Question
from providers.upstream import Upstream, UpstreamCall, UpstreamStream

OPENAI_SHAPED: frozenset[DeploymentKind] = OWN_ENGINES | {"openai", "azure"}
"""The kinds that HttpUpstream calls."""


class Upstreams:
    """All upstream clients, chosen by the deployment's kind. A client may serve several kinds; each is closed once."""

    def __init__(self, by_kind: Mapping[DeploymentKind, Upstream], keys: KeyFiles | None = None) -> None:
        self._by_kind = dict(by_kind)
        self._keys = keys

    def open(self, call: UpstreamCall) -> Coroutine[Any, Any, UpstreamStream]:
        """Open the call with the client of its deployment's kind. Raises UpstreamRefusedUs where there is none."""
        # What is passed on as its caller wrote it, and Anthropic's own dialect, need no litellm.
        direct = call.request.as_written is not None or call.deployment.speaks_messages
        kind = "openai" if direct else call.deployment.kind
        upstream = self._by_kind.get(kind)
        if upstream is None:
            raise UpstreamRefusedUs(
                f"This gateway was started without an upstream of kind {call.deployment.kind}.",
                deployment_id=call.deployment.deployment_id,
            )
        if self._keys is not None and self._keys.knows(call.deployment.api_key):
            return _opened_with_either_key(upstream, call, self._keys)
        return upstream.open(call)

    async def count_tokens(self, deployment: Deployment, question: Question, request_id: str) -> int | None:
        """Put the question as `TokenCounter.count_tokens` does."""
        counter = self._by_kind.get("openai")
        return (
            await counter.count_tokens(deployment, question, request_id) if isinstance(counter, HttpUpstream) else None
        )

    async def aclose(self) -> None:
        """Close every client once."""
        for upstream in {id(upstream): upstream for upstream in self._by_kind.values()}.values():
            await upstream.aclose()


async def _opened_with_either_key(upstream: Upstream, call: UpstreamCall, keys: KeyFiles) -> UpstreamStream:
    """Open a call whose key may be changing: where the provider refuses it, once more with the other one. A refused key costs nothing,
    so both are one attempt.
    """
    key = keys.first(call.deployment.api_key or "")
    try:
        return await upstream.open(_with_key(call, key))
    except UpstreamRefusedUs as error:
        other = await keys.after_refusal(key) if error.reason == "key" else None
        if other is None:
            raise
        # The first one a last time: the provider may have changed from one to the other between the two calls.
        for tried, before in ((other, key), (key, other)):
            try:
                stream = await upstream.open(_with_key(call, tried))
            except UpstreamRefusedUs:
                continue
            keys.went_on(before, tried)
            return stream
        raise


def _with_key(call: UpstreamCall, key: str) -> UpstreamCall:
    if key == call.deployment.api_key:
        return call
    return msgspec.structs.replace(call, deployment=msgspec.structs.replace(call.deployment, api_key=key))
