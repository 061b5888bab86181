"""Why providers' prompt caches had less than they could, in words, and what to change."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from proxy.settle.prompt_caches.losses import Cause


class CauseWords(NamedTuple):
    """What a cause is called, and what its team can do."""

    title: str
    advice: str


CAUSES: Final[Mapping[Cause, CauseWords]] = {
    "time": CauseWords(
        "A time or a date early in the prompt",
        "Leave it out of the system prompt, or put it at the end of the last message: all that stands behind it is billed anew when it changes.",
    ),
    "id": CauseWords(
        "An id or a counter early in the prompt",
        "Put ids of sessions or requests, and counters, behind all that stays the same. In Claude Code, set CLAUDE_CODE_ATTRIBUTION_HEADER=0.",
    ),
    "system": CauseWords(
        "Something else that changes in the system prompt",
        "Put what differs between requests (a folder, a person, what was looked up) at its end, or into the last message.",
    ),
    "tools_order": CauseWords(
        "Tools in another order",
        "Sort tools by their names, and write the keys of their schemas in one order: lists of MCP servers come in any.",
    ),
    "tools": CauseWords(
        "Other tools",
        "Send the same tools all through a conversation, and new ones behind the others; say with tool_choice which to use.",
    ),
    "history": CauseWords(
        "Earlier messages edited or dropped",
        "Only add messages at the end. Where old ones have to go, drop many at once and seldom, not a few with each turn.",
    ),
    "settings": CauseWords(
        "Other settings beside the same prompt",
        "Keep tool_choice, response_format, thinking and effort the same through a conversation: some providers keep a cache for each.",
    ),
    "unmarked": CauseWords(
        "Not marked for the cache",
        "This model keeps only what is marked: set cache_control at the end of the system prompt and of the last message.",
    ),
    "late": CauseWords(
        "A pause longer than the provider keeps prompts",
        "Where people pause, nothing. Jobs: send requests closer together, or ask for longer (ttl, prompt_cache_retention) where its price pays.",
    ),
    "parallel": CauseWords(
        "Sent beside each other",
        "Send one first, and the others once it begins to answer: what was not written yet cannot be read.",
    ),
    "moved": CauseWords(
        "Went to another model",
        "Each model has a cache of its own, and the gateway counts that when it chooses. Where it still costs more, name the model.",
    ),
    "short": CauseWords(
        "Shorter than the provider caches",
        "Nothing to mend; more instructions or examples in front would have to be worth it by themselves. Whether such prompts come again is not looked at.",
    ),
    "unknown": CauseWords(
        "Unknown",
        "It began as a prompt before it, in time, and was not read all the same. Providers give prompts up and have many machines; a prompt_cache_key for each conversation helps at some.",
    ),
}
