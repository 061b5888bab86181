"""OpenAI's parameters that some targets cannot take, and what then becomes of a request that has them. Who takes which is the
table of `providers/data/quirks.toml`.

Some parameters decide what an answer has in it: a target that cannot take those is not asked. Others only nudge it, or
are notes for OpenAI's own records: they are left out, and the caller is told.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from providers.quirks import read_table
from providers.target import NO_LIMITS, Deployment, Limits

DECISIVE: Final = frozenset(
    {"audio", "logit_bias", "logprobs", "modalities", "n", "prediction", "stop", "top_logprobs"}
)
"""Left out, these would change what the caller gets back, or pays for."""
MINOR: Final = frozenset(
    {
        "frequency_penalty",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "user",
        "verbosity",
    }
)
"""Left out, the caller gets an answer of the same kind."""

NOTES: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
    }
)
"""For OpenAI's own records, or about the reply's form: they change nothing in an answer."""

LENGTHS: Final[tuple[str, str]] = ("max_tokens", "max_completion_tokens")
"""The older and the newer name of the longest answer; a target that does not take the one is told by the other."""
KNOWN: Final = DECISIVE | MINOR | NOTES | frozenset(LENGTHS)
"""The parameters of which it is known what becomes of a request without them."""

TEXT: Final = frozenset({"an echo", "a suffix", "several prompts", "tokens as a prompt"})
"""Requests of a text's completion that a chat cannot make. They are no names of fields: engines read such in chats, too."""


class Lacks(msgspec.Struct, frozen=True):
    """What a target cannot take, as the fields of `Target` of these names."""

    lacks: frozenset[str]
    lacks_thinking: frozenset[str] | None
    lacks_unthinking: frozenset[str] | None
    excludes: tuple[tuple[str, ...], ...]
    limits: Limits


def lacking(deployments: Iterable[Deployment]) -> Lacks:
    """Return what a target with these deployments cannot take, as far as that is known from names alone."""
    usual: frozenset[str] = frozenset()
    thinking: frozenset[str] = frozenset()
    unthinking: frozenset[str] = frozenset()
    excludes: dict[tuple[str, ...], None] = {}
    limits = NO_LIMITS
    for each in deployments:
        quirks = each.quirks
        text = TEXT - quirks.completes
        usual |= quirks.refuses | text
        thinking |= quirks.refuses | quirks.refuses_thinking | text
        unthinking |= (quirks.refuses - quirks.takes_unthinking) | text
        excludes.update(dict.fromkeys(quirks.excludes))
        limits = Limits(
            stops=_least(limits.stops, quirks.most_stops),
            tools=_least(limits.tools, quirks.most_tools),
            images=_least(limits.images, quirks.most_images),
        )
    return Lacks(
        usual,
        None if thinking == usual else thinking,
        None if unthinking == usual else unthinking,
        tuple(excludes),
        NO_LIMITS if limits == NO_LIMITS else limits,
    )


def most_output_tokens(deployments: Iterable[Deployment]) -> int | None:
    """Return the longest answer that all these deployments give, as far as each one's is known from its name; None where one's is not."""
    found = [each.quirks.most_output_tokens for each in deployments]
    known = [each for each in found if each is not None]
    return min(known) if known and len(known) == len(found) else None


def _least(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else min(one, other)


def beside_each_other(excludes: Iterable[tuple[str, ...]], fields: Mapping[str, msgspec.Raw]) -> Iterator[str]:
    """Yield the parameters that a target does not take beside another one of the fields: of each group, all but the first
    that asks for something.
    """
    for group in excludes:
        given = [name for name in group if name in fields]
        if len(given) > 1:
            kept = next((name for name in given if is_said(name, fields[name])), given[0])
            yield from (name for name in given if name != kept)


def is_conditional(name: str, effort: str) -> bool:
    """Return True where a refusal of the parameter may be about the effort beside it: models that reason when asked to take no
    temperature then, and say so in the words for one that they never take.
    """
    return effort not in ("", "none") and name in read_table().by_effort


def is_said(name: str, value: msgspec.Raw) -> bool:
    """Return True when a parameter asks for something: one choice, no log-probabilities and null are what comes anyway."""
    return bytes(value) not in _UNSAID.get(name, _NOTHING)


_NOTHING: Final = frozenset({b"null"})
_UNSAID: Final = {
    "n": _NOTHING | {b"1"},
    "logprobs": _NOTHING | {b"false"},
    "modalities": _NOTHING | {b'["text"]', b'[ "text" ]'},
    "logit_bias": _NOTHING | {b"{}"},
    "stop": _NOTHING | {b"[]", b'""'},
    "temperature": _NOTHING | {b"1", b"1.0"},
    "top_p": _NOTHING | {b"1", b"1.0"},
}
