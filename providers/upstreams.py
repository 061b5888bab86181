"""All upstream clients behind one: the deployment's kind selects the client."""

from collections.abc import Coroutine, Mapping
from typing import Any

from providers.errors import UpstreamRefusedUs
from providers.http_client import HttpUpstream
from providers.target import OWN_ENGINES, Deployment, DeploymentKind
from providers.token_counts import Question
from providers.upstream import Upstream, UpstreamCall, UpstreamStream

OPENAI_SHAPED: frozenset[DeploymentKind] = OWN_ENGINES | {"openai", "azure"}
"""The kinds that HttpUpstream calls."""


class Upstreams:
    """All upstream clients, chosen by the deployment's kind. A client may serve several kinds; each is closed once."""

    def __init__(self, by_kind: Mapping[DeploymentKind, Upstream]) -> None:
        self._by_kind = dict(by_kind)

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
