"""Asking a target how many tokens a prompt has, where it counts itself. Free everywhere, and no attempt."""

from typing import Final, Protocol

import msgspec

from providers.provider_tools import AsWritten, address_of_dialect, model_of_dialect
from providers.target import Deployment, Target

_V1: Final = "/v1"
_OF_MESSAGES: Final = frozenset(
    {"cache_control", "mcp_servers", "messages", "output_config", "system", "thinking", "tool_choice", "tools"}
)
_OF_RESPONSES: Final = frozenset(
    {"input", "instructions", "parallel_tool_calls", "reasoning", "text", "tool_choice", "tools", "truncation"}
)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One POST. `field` is the whole number in its answer that is the count."""

    url: str
    body: bytes
    field: str
    headers: tuple[tuple[str, str], ...] = ()


class TokenCounter(Protocol):
    """A client that puts questions to deployments."""

    async def count_tokens(self, deployment: Deployment, question: Question, request_id: str) -> int | None:
        """Return the count; None where the deployment does not tell it, or not soon."""
        ...


def asked_as_written(target: Target, deployment: Deployment, written: AsWritten | None) -> Question | None:
    """Return the question to a target that is asked in the caller's own dialect; None where it is not known to count.

    Anthropic counts wherever it is reached; of OpenAI's dialect only who runs the provider's tools is taken to.
    """
    if written is None or target.dialect != written.dialect:
        return None
    if written.dialect == "responses" and not target.provider_tools:
        return None
    names = _OF_RESPONSES if written.dialect == "responses" else _OF_MESSAGES
    told = {name: value for name, value in written.fields.items() if name in names}
    path = "responses/input_tokens" if written.dialect == "responses" else "messages/count_tokens"
    return Question(
        url=f"{address_of_dialect(deployment).rstrip('/')}/{path}",
        body=msgspec.json.encode({**told, "model": model_of_dialect(deployment)}),
        field="input_tokens",
        headers=written.headers,
    )


def asked_of_vllm(deployment: Deployment, body: bytes) -> Question:
    """Return the question to vLLM, whose `/tokenize` stands beside the versioned paths and applies the chat template."""
    return Question(url=f"{deployment.base_url.rstrip('/').removesuffix(_V1)}/tokenize", body=body, field="count")
