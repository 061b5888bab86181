"""Token usage in one shape, read from OpenAI's dialect with the fields that hosts and litellm add.

Buckets are inclusive: `input_tokens` contains the cached and the cache-written ones, and `output_tokens` contains
reasoning tokens.

Tokens of sound and pictures have prices of their own. OpenAI counts those from the cache twice, in `audio_tokens` and in
`cached_tokens`; here they are `cached_audio_input_tokens`, a part of the cached alone. Where nobody tells what was cached
(`cached_tokens_details`), it was text as far as there is any, then pictures, then sound: from the cheapest up.

One rule holds for what an upstream tells (`from_openai`):

1. What is possible is booked as told: it is what the provider will bill, whatever was asked for. A part that is more than its
   whole was counted beside it.
   So is a prompt of fewer tokens than its text can have, with a flag: so it will be billed, or it was not read whole.
2. What is more than possible is booked up to the possible; the rest is disputed, and is told to operators and to the
   reconciliation. A limit that nobody knows is no reason to dispute.
3. What cannot be read (a negative figure, no whole number, more than `MOST_TOKENS`), what is missing, and a zero where text
   was delivered, or fewer tokens than it can have, are replaced by our estimate, with a flag.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from cost.meters import FALLBACKS, METERS, TOKEN_COLUMNS, TokenCounts
from cost.usage_names import (
    CACHED,
    COMPLETION_DETAILS,
    KNOWN,
    PROMPT_DETAILS,
    REASONING,
    TOOL_CALLS,
    WRITTEN,
    unknown_details,
)

UsageSource = Literal["upstream", "counted", "estimated", "none"]


class Usage(TokenCounts, frozen=True, kw_only=True):
    """Token counts of one attempt, and what else it used.

    `source` says who counted: the upstream, we exactly, our estimate, or nobody (nothing was generated). `flags` name what was odd
    (`absurd_usage`, `stream_cut`, `caller_gone`, ...); a flagged row is never silently trusted.
    """

    tool_calls: tuple[tuple[str, int], ...] = ()
    """Calls of each tool that the provider runs, by its name, where the upstream says so."""
    source: UsageSource = "none"
    flags: tuple[str, ...] = ()
    unit: str = ""
    """Unit of what else was used, as `cost.prices.UNIT` names it; empty for tokens alone."""
    quantity_milli: int = 0
    """Quantity of it, in thousandths."""
    disputed_input: int = 0
    """Prompt tokens that were told beyond the possible, and are not in `input_tokens`."""
    disputed_output: int = 0
    disputed_milli: int = 0
    """Units that were told beyond the possible, in thousandths."""
    unknown: tuple[str, ...] = ()
    """Names of counts that no meter is known for."""
    told_nanousd: int | None = None
    """What the provider says that the request costs; None where it does not."""

    @property
    def is_disputed(self) -> bool:
        """True if the upstream told more than is possible."""
        return bool(self.disputed_input or self.disputed_output or self.disputed_milli)


ABSURD: Final = "absurd_usage"
"""Flag of a report that could not be read."""
DISPUTED: Final = "usage_disputed"
"""Flag of a report of more than is possible."""
MISSING: Final = "usage_missing"
PARTIAL: Final = "usage_partial"
ZERO: Final = "usage_zero"
"""Flag of a report of 0 tokens, or of fewer than possible, where there was text."""
UNDERTOLD: Final = "prompt_undertold"
"""Flag of a prompt that was told to have fewer tokens than its text can have. It is booked as told, for so it will be billed."""
REASONING_ADDED: Final = "reasoning_added"
THOUGHT_ADDED: Final = "thought_added"
CACHE_ADDED: Final = "cache_added"
"""Flags of hosts that count reasoning beside the answer, that tell it in the total alone, or the cached beside the prompt."""
MEDIA_ADDED: Final = "media_added"
"""Flag of one that counts sound or pictures beside the prompt or the answer."""
CUT_AT_BOUND: Final = "cut_at_bound"
"""Flag of a stream that was cut because it became longer than what a hard budget holds for it."""
CONTINUED: Final = "continued"
"""Flag of an attempt that went on with an answer whose replica was lost."""
UPSTREAM_STATUS: Final = "upstream_status_"
"""Beginning of a flag that ends with the status which the upstream answered; an entry's `status` is the caller's."""
UNPRICED_CALLS: Final = "tool_calls_unpriced"
"""The cost is without calls of tools that the provider ran, whose price is not known."""
UNKNOWN_DETAIL: Final = "usage_detail_unknown"
"""Flag of a report with a count that no meter is known for (`cost.usage_names`), so that it has no price of its own."""
COST_DIFFERS: Final = "told_cost_differs"
"""Flag of a request whose provider told another cost than ours; the provider's is booked."""
MOST_TOKENS: Final = 1_000_000_000
"""Most tokens that one request can have, whatever the limits given."""


class _Counts(msgspec.Struct, frozen=True, kw_only=True):
    """An upstream's report in inclusive buckets, not checked yet; None is what it left out."""

    input_tokens: int | None
    output_tokens: int | None
    cached: int
    written: int
    written_1h: int
    reasoning: int
    tool_calls: tuple[tuple[str, int], ...]
    flags: tuple[str, ...]
    unknown: tuple[str, ...]
    media: Mapping[str, int]
    """Tokens of sound, pictures and video, by field of a Usage."""

    @property
    def input_parts(self) -> int:
        """Tokens of all parts of the prompt."""
        return self.cached + self.written + sum(map(self.media.get, _FRESH, _ZEROS))

    @property
    def output_parts(self) -> int:
        """Tokens of all parts of the answer."""
        return self.reasoning + sum(map(self.media.get, _ANSWERED.values(), _ZEROS))


_READ: Final = {
    f"{each.medium}_tokens": (f"{each.uncached}_tokens", f"{each.name}_tokens") for each in METERS if each.uncached
}
"""Names in a report's details of the prompt, with the fields of a Usage for what is fresh and for what was cached."""
_FRESH: Final = tuple(fresh for fresh, _ in _READ.values())
_ANSWERED: Final = {
    f"{each.medium}_tokens": f"{each.name}_tokens" for each in METERS if each.medium and each.within == "output"
}
"""Names in its details of the answer, with the fields of a Usage."""
_ZEROS: Final = (0,) * len(_ANSWERED)


class _UnreadableError(Exception):
    """A figure that is no count."""


def estimated(*, input_tokens: int, output_tokens: int, flags: tuple[str, ...] = ()) -> Usage:
    """Return usage that we counted ourselves; negative counts become 0."""
    return Usage(
        input_tokens=max(0, input_tokens), output_tokens=max(0, output_tokens), source="estimated", flags=flags
    )


def from_openai(
    raw: Any,
    *,
    estimate: Usage,
    max_input_tokens: int,
    max_output_tokens: int,
    flags: tuple[str, ...] = (),
    least_output_tokens: int = 0,
    zeros_are_told: bool = True,
) -> Usage:
    """Return the usage that a report in OpenAI's dialect comes to, by the rule at the top of this module.

    Everything cached is a part of `prompt_tokens`. litellm adds
    `cache_read_input_tokens` and `cache_creation_input_tokens` for some providers; its `prompt_tokens` contains both.
    `max_input_tokens` and `max_output_tokens` are the most that is possible, and
    `least_output_tokens` are the fewest. False for `zeros_are_told` takes a zero for
    missing where the estimate is more.
    """
    try:
        counts = _openai_counts(raw)
    except _UnreadableError:
        return _as_estimate(estimate, (*flags, ABSURD))
    if not zeros_are_told:
        counts = _without_zeros(counts, estimate, least_output_tokens)
    if counts.input_tokens is None and counts.output_tokens is None:
        return _as_estimate(estimate, (*flags, *counts.flags, *(() if ZERO in counts.flags else (MISSING,))))
    if counts.input_tokens is None or counts.output_tokens is None:
        return _possible(_with_estimate(counts, estimate, flags), max_input_tokens, max_output_tokens)
    usage = Usage(
        input_tokens=counts.input_tokens,
        cached_input_tokens=counts.cached,
        cache_write_tokens=counts.written,
        cache_write_1h_tokens=counts.written_1h,
        output_tokens=counts.output_tokens,
        reasoning_tokens=counts.reasoning,
        tool_calls=counts.tool_calls,
        source="upstream",
        flags=_union(flags, counts.flags),
        unknown=counts.unknown,
        **_more(counts.media),
    )
    return _possible(usage, max_input_tokens, max_output_tokens)


def plain_usage(raw: Mapping[str, Any], *, max_input_tokens: int, max_output_tokens: int) -> Usage | None:
    """Return the usage of a report as most hosts send it, where nothing is odd; None leaves it to `from_openai`.

    The same as that finds, in a fifth of its time.
    """
    prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
    if type(prompt) is not int or type(completion) is not int or raw.get("total_tokens") != prompt + completion:
        return None
    if not raw.keys() <= _PLAIN and any(raw[name] is not None for name in raw.keys() - _PLAIN):
        return None
    cached = _plain_part(raw.get(PROMPT_DETAILS), "cached_tokens", _PLAIN_INPUT)
    reasoning = _plain_part(raw.get(COMPLETION_DETAILS), "reasoning_tokens", _PLAIN_OUTPUT)
    within = 0 < prompt <= max_input_tokens and 0 < completion <= max_output_tokens
    if not (within and 0 <= cached <= prompt <= MOST_TOKENS and 0 <= reasoning <= completion <= MOST_TOKENS):
        return None
    return Usage(
        input_tokens=prompt,
        cached_input_tokens=cached,
        output_tokens=completion,
        reasoning_tokens=reasoning,
        source="upstream",
    )


def _plain_part(details: Any, name: str, plain: frozenset[str]) -> int:
    """Return the one part in details that have nothing else of note; -1 where they have."""
    if details is None:
        return 0
    if type(details) is not dict or not details.keys() <= plain:
        return -1
    if details.get("audio_tokens") or details.get("image_tokens") or details.get("video_tokens"):
        return -1
    part = details.get(name, 0)
    return part if type(part) is int else -1


_PLAIN: Final = frozenset({"prompt_tokens", "completion_tokens", "total_tokens", PROMPT_DETAILS, COMPLETION_DETAILS})
_PLAIN_INPUT: Final = KNOWN[PROMPT_DETAILS] - {
    name for place, name in (*WRITTEN, *CACHED[1:]) if place == PROMPT_DETAILS
}
_PLAIN_OUTPUT: Final = KNOWN[COMPLETION_DETAILS]


def _more(media: Mapping[str, int]) -> Mapping[str, Any]:
    return media


def _as_estimate(estimate: Usage, flags: tuple[str, ...]) -> Usage:
    return msgspec.structs.replace(estimate, source="estimated", flags=_union(estimate.flags, flags))


def _without_zeros(counts: _Counts, estimate: Usage, least_output: int) -> _Counts:
    """Return the counts without the zeros, and what is no better, that our own count of what was read and written belies."""
    no_input = counts.input_tokens == 0 and estimate.input_tokens > 0
    told = counts.output_tokens
    no_output = told is not None and (told < least_output or (told == 0 and estimate.output_tokens > 0))
    if not (no_input or no_output):
        return counts
    return msgspec.structs.replace(
        counts,
        input_tokens=None if no_input else counts.input_tokens,
        output_tokens=None if no_output else counts.output_tokens,
        flags=(*counts.flags, ZERO),
    )


def _with_estimate(counts: _Counts, estimate: Usage, flags: tuple[str, ...]) -> Usage:
    """Keep the reported figure and estimate the missing one, never less than its own parts."""
    told_input, told_output = counts.input_tokens, counts.output_tokens
    why = counts.flags if ZERO in counts.flags else (*counts.flags, PARTIAL)
    return Usage(
        input_tokens=max(estimate.input_tokens, counts.input_parts) if told_input is None else told_input,
        cached_input_tokens=counts.cached,
        cache_write_tokens=counts.written,
        cache_write_1h_tokens=counts.written_1h,
        output_tokens=max(estimate.output_tokens, counts.output_parts) if told_output is None else told_output,
        reasoning_tokens=counts.reasoning,
        tool_calls=counts.tool_calls,
        source="estimated",
        flags=_union(estimate.flags, (*flags, *why)),
        unknown=counts.unknown,
        **_more(counts.media),
    )


def _possible(usage: Usage, max_input_tokens: int, max_output_tokens: int) -> Usage:
    """Return the usage up to what is possible, with the rest as disputed."""
    most_input, most_output = min(max_input_tokens, MOST_TOKENS), min(max_output_tokens, MOST_TOKENS)
    if usage.input_tokens <= most_input and usage.output_tokens <= most_output:
        return usage
    read, written = min(usage.input_tokens, most_input), min(usage.output_tokens, most_output)
    counts = {name: getattr(usage, name) for name in TOKEN_COLUMNS} | {"input_tokens": read, "output_tokens": written}
    left = dict(counts)
    for part, whole in FALLBACKS:
        name, within = TOKEN_COLUMNS[part], TOKEN_COLUMNS[whole]
        counts[name] = left[name] = min(counts[name], left[within])
        left[within] -= counts[name]
    return msgspec.structs.replace(
        usage,
        **counts,
        disputed_input=usage.input_tokens - read,
        disputed_output=usage.output_tokens - written,
        flags=_union(usage.flags, (DISPUTED,)),
    )


def _openai_counts(raw: Any) -> _Counts:
    prompt_details, told = _inner_object(raw, PROMPT_DETAILS), _inner_object(raw, COMPLETION_DETAILS)
    places = {"": raw, PROMPT_DETAILS: prompt_details, COMPLETION_DETAILS: told}
    prompt = _count(raw, "prompt_tokens")
    total = _count(raw, "total_tokens")
    reasoning = _first(*(_count(places[place], name) for place, name in REASONING))
    kept = _inner_object(prompt_details, "cache_creation_token_details") or _inner_object(raw, "cache_creation")
    written, written_1h = _cache_writes(kept, *(_count(places[place], name) for place, name in WRITTEN))
    completion, flags = _openai_completion(prompt, _count(raw, "completion_tokens"), total, reasoning)
    cached = _first(*(_count(places[place], name) for place, name in CACHED))
    if prompt is not None and cached + written > prompt:
        # A part is never more than its whole: this host counts it beside the prompt.
        prompt, flags = prompt + cached + written, (*flags, CACHE_ADDED)
    read, made = _input_media(prompt_details, prompt, cached, written), _output_media(told)
    if prompt is not None and (fresh := sum(map(read.get, _FRESH, _ZEROS))) + cached + written > prompt:
        prompt, flags = prompt + fresh, (*flags, MEDIA_ADDED)
    if completion is not None and (media := sum(made.values())) + reasoning > completion:
        completion, flags = completion + media, (*flags, MEDIA_ADDED)
    if not flags and (beside := _thought_beside(prompt, completion, total, cached, written)):
        completion, flags = (completion or 0) + beside, (THOUGHT_ADDED,)
    if max(prompt or 0, completion or 0) > MOST_TOKENS:
        raise _UnreadableError
    unknown = unknown_details(raw) if isinstance(raw, dict) else ()
    return _Counts(
        input_tokens=prompt,
        output_tokens=completion,
        cached=cached,
        written=written,
        written_1h=written_1h,
        reasoning=reasoning,
        tool_calls=_tool_calls(_field(raw, "server_tool_use"), raw),
        flags=flags if not unknown else (*flags, UNKNOWN_DETAIL),
        unknown=unknown,
        media=read | made,
    )


def _input_media(details: Any, prompt: int | None, cached: int, written: int) -> dict[str, int]:
    """Return the prompt's tokens of sound and pictures by field of a Usage, those from the cache apart."""
    told = {name: count for name in _READ if (count := _count(details, name))}
    if not told:
        return {}
    kept_of = _inner_object(details, "cached_tokens_details")
    found: dict[str, int] = {}
    left = cached
    for name, count in told.items():
        fresh, kept = _READ[name]
        found[kept] = min(_count(kept_of, name) or 0, count, left)
        found[fresh] = count - found[kept]
        left -= found[kept]
    # What is counted twice was cached, though nobody says so: there is not enough text for all of the cached.
    twice = 0 if prompt is None else sum(found.get(fresh, 0) for fresh in _FRESH) + cached + written - prompt
    for name in reversed(told):
        fresh, kept = _READ[name]
        more = max(0, min(twice, found[fresh], left))
        found[fresh], found[kept] = found[fresh] - more, found[kept] + more
        twice, left = twice - more, left - more
    return found


def _output_media(details: Any) -> dict[str, int]:
    return {field: count for name, field in _ANSWERED.items() if (count := _count(details, name))}


def _tool_calls(told: Any, usage: Any) -> tuple[tuple[str, int], ...]:
    """Return calls by tool from Anthropic's counts, such as `web_search_requests`, or from a count that is named after what
    was searched. Raises _UnreadableError.
    """
    if told is None:
        beside = ((tool, _count(usage, name)) for name, tool in TOOL_CALLS.items())
        return tuple((tool, count) for tool, count in beside if count)
    inner = told if isinstance(told, dict) else {}
    names = sorted(name for name in inner if isinstance(name, str) and name.endswith(_REQUESTS))[:_MOST_TOOLS]
    counts = ((name.removesuffix(_REQUESTS)[:_MOST_TOOL_CHARACTERS], _count(inner, name)) for name in names)
    return tuple((name, count) for name, count in counts if count)


_REQUESTS: Final = "_requests"
_MOST_TOOLS: Final = 32
_MOST_TOOL_CHARACTERS: Final = 64


def _openai_completion(
    prompt: int | None, completion: int | None, total: int | None, reasoning: int
) -> tuple[int | None, tuple[str, ...]]:
    """Return output tokens and flags: some hosts leave them out for embeddings, some leave reasoning out of them."""
    if completion is None:
        if prompt is None or total is None:
            return None, ()
        if total < prompt:
            raise _UnreadableError
        completion = total - prompt
    is_beside = total is not None and total == (prompt or 0) + completion + reasoning
    if reasoning and (is_beside or reasoning > completion):
        return completion + reasoning, (REASONING_ADDED,)
    return completion, ()


def _thought_beside(prompt: int | None, completion: int | None, total: int | None, cached: int, written: int) -> int:
    """Return tokens that the total alone tells of: what Gemini thought, which it bills as output. Cached ones that a host
    adds to its total are none.
    """
    beside = (total or 0) - (prompt or 0) - (completion or 0)
    return beside if beside > 0 and beside not in {cached, written, cached + written} else 0


def _cache_writes(kept: Any, *totals: int | None) -> tuple[int, int]:
    """Return tokens written to the cache, and the part kept for an hour, as Anthropic and litellm report them.

    Tokens that the details assign to neither time are kept for the usual five minutes.
    """
    hour = _count(kept, "ephemeral_1h_input_tokens") or 0
    detailed = hour + (_count(kept, "ephemeral_5m_input_tokens") or 0)
    return max(_first(*totals, detailed), detailed), hour


def _inner_object(raw: Any, name: str) -> Any:
    """Return an inner object, or None if absent. Raises _UnreadableError for anything else."""
    value = _field(raw, name)
    if value is None or isinstance(value, dict):
        return value
    raise _UnreadableError


def _count(raw: Any, name: str) -> int | None:
    """Return a count, or None if absent. Raise _UnreadableError for anything else; `True` is no count.

    Some hosts write counts as 12.0 or "12".
    """
    value = _field(raw, name)
    if value is None:
        return None
    if type(value) is float and value.is_integer():
        value = int(value)
    elif type(value) is str and len(value) <= _MOST_DIGITS and _DIGITS.fullmatch(value):
        value = int(value.partition(".")[0])
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise _UnreadableError
    return value


_DIGITS: Final = re.compile(r"[0-9]+(\.0+)?", re.ASCII)
_MOST_DIGITS: Final = 20


def _field(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, dict) else None


def _first(*counts: int | None) -> int:
    return next((count for count in counts if count is not None), 0)


def _union(flags: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*flags, *more))) if flags or more else ()
