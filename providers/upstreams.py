"""All wires behind one: the deployment's kind says which upstream speaks to it."""

from collections.abc import Mapping

from providers.errors import UpstreamRefusedUs
from providers.target import DeploymentKind
from providers.upstream import Upstream, UpstreamCall, UpstreamStream

OPENAI_SHAPED: tuple[DeploymentKind, ...] = ("openai", "azure", "vllm", "sglang", "tgi", "tensorrt-llm", "llama.cpp")
"""The kinds that DirectUpstream speaks to."""


class Upstreams:
    """Picks the upstream by kind. One upstream may serve several kinds; each is closed once."""

    def __init__(self, by_kind: Mapping[DeploymentKind, Upstream]) -> None:
        self._by_kind = dict(by_kind)

    async def open(self, call: UpstreamCall) -> UpstreamStream:
        upstream = self._by_kind.get(call.deployment.kind)
        if upstream is None:
            raise UpstreamRefusedUs(
                f"This gateway was started without an upstream of kind {call.deployment.kind}.",
                deployment_id=call.deployment.deployment_id,
            )
        return await upstream.open(call)

    async def aclose(self) -> None:
        for upstream in {id(upstream): upstream for upstream in self._by_kind.values()}.values():
            await upstream.aclose()
