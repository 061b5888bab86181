"""OpenAI's parameters that some providers' models cannot take, and what then becomes of a request that has them.

Some parameters decide what an answer has in it: a target that cannot take those is not asked. Others only nudge it, or
are notes for OpenAI's own records: they are left out, and the caller is told.
"""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from providers.target import Deployment

DECISIVE: Final = frozenset({"logit_bias", "logprobs", "modalities", "audio", "n", "top_logprobs", "prediction"})
"""Left out, these would change what the caller gets back, or pays for."""
MINOR: Final = frozenset(
    {
        "frequency_penalty",
        "parallel_tool_calls",
        "presence_penalty",
        "seed",
        "temperature",
        "top_p",
        "user",
        "verbosity",
    }
)
"""Left out, the caller gets an answer of the same kind."""

TEXT: Final = frozenset({"an echo", "a suffix", "several prompts", "tokens as a prompt"})
"""Requests of a text's completion that a chat cannot make. They are no names of fields: engines read such in chats, too."""
_TEXT_OF: Final = {"vllm": TEXT - {"a suffix"}, "sglang": TEXT}
"""The abilities among them that an engine has."""

# Anthropic's messages have none of these, wherever they are served.
_CLAUDE: Final = frozenset(
    {"audio", "frequency_penalty", "logit_bias", "logprobs", "modalities", "n", "prediction", "presence_penalty", "seed",
     "top_logprobs", "verbosity"}
)  # fmt: skip
# Nor has Bedrock's Converse.
_BEDROCK: Final = _CLAUDE | {"user"}
# OpenAI's models that reason refuse these with "Unsupported parameter" or "Unsupported value".
_REASONING: Final = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_tokens",
        "presence_penalty",
        "temperature",
        "top_logprobs",
        "top_p",
    }
)
_REASONS: Final = re.compile(r"(?:(?:o[1-9]|gpt-5)(?![0-9.])|gpt-5\.[5-9](?!\d)|gpt-5\.\d-(?:codex|pro))(?!.*chat)")
# Those that do not reason unless asked to take a temperature, and refuse the old name of the bound all the same.
_RENAMED: Final = frozenset({"max_tokens"})
_RENAMES: Final = re.compile(r"gpt-5\.\d(?!.*chat)")


def lacking(deployments: Iterable[Deployment]) -> frozenset[str]:
    """Return the parameters that a target with these deployments cannot take, as far as that is known from names alone."""
    return frozenset().union(*(_lacking(each) | (TEXT - _TEXT_OF.get(each.kind, _NONE)) for each in deployments))


_NONE: Final[frozenset[str]] = frozenset()


def _lacking(deployment: Deployment) -> frozenset[str]:
    model = deployment.upstream_model
    if deployment.kind == "litellm":
        provider = model.partition("/")[0]
        if provider == "bedrock":
            return _BEDROCK
        return _CLAUDE if provider == "anthropic" or "claude" in model else frozenset()
    if deployment.kind in {"openai", "azure"}:
        name = model.rpartition("/")[2]
        return _REASONING if _REASONS.match(name) else _RENAMED if _RENAMES.match(name) else frozenset()
    return frozenset()


def is_said(name: str, value: msgspec.Raw) -> bool:
    """Return True when a parameter asks for something: one choice, no log-probabilities and null are what comes anyway."""
    return bytes(value) not in _UNSAID.get(name, _NOTHING)


_NOTHING: Final = frozenset({b"null"})
_UNSAID: Final = {
    "n": _NOTHING | {b"1"},
    "logprobs": _NOTHING | {b"false"},
    "modalities": _NOTHING | {b'["text"]', b'[ "text" ]'},
    "logit_bias": _NOTHING | {b"{}"},
    "temperature": _NOTHING | {b"1", b"1.0"},
    "top_p": _NOTHING | {b"1", b"1.0"},
}
