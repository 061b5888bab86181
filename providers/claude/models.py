"""The abilities of Claudes, by their names. An unknown one is taken for one of the newest; a name of no Claude for an older one."""

import re
from functools import cache
from typing import Final, Literal

import msgspec

Thinking = Literal["none", "budget", "adaptive"]
"""The way to ask a model to think: not at all, by a number of tokens, or as much as it finds right at an effort."""

_NAME: Final = re.compile(r"claude-(?P<line>[a-z]+)-(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)")
_OLD_NAME: Final = re.compile(r"claude-(?P<major>\d)(?:[-.](?P<minor>\d))?-[a-z]")
_NEWEST: Final = (99, 0)
_NO_CLAUDE: Final = (4, 5)
"""Others that speak Anthropic's dialect know what it had at that time."""
_THINKS_SINCE, _ADAPTIVE_SINCE, _STEERED_SINCE = (3, 7), (4, 6), (4, 7)
_FIRST_WITH_EFFORTS: Final = ("opus", (4, 5))
_SYSTEM_SINCE, _UNFORCED_SINCE = (4, 8), (5, 1)


class Claude(msgspec.Struct, frozen=True):
    """The fields that one model takes."""

    thinking: Thinking
    samples: bool
    """True when `temperature`, `top_p` and `top_k` may be set."""
    efforts: frozenset[str]
    """The words that its `output_config.effort` knows."""
    forced: bool
    """True when a tool may be forced."""
    system_between: bool
    """True when system messages may stand between turns."""


@cache
def claude_named(model: str) -> Claude:
    """Return the model of a name at Anthropic, without `anthropic/`."""
    line, version = _version(model)
    thinking: Thinking = "budget"
    if version < _THINKS_SINCE:
        thinking = "none"
    elif version >= _ADAPTIVE_SINCE:
        thinking = "adaptive"
    efforts = (
        {"low", "medium", "high"} if version >= _ADAPTIVE_SINCE or (line, version) == _FIRST_WITH_EFFORTS else set()
    )
    efforts |= {"max"} if version >= _ADAPTIVE_SINCE else set()
    efforts |= {"xhigh"} if version >= _STEERED_SINCE else set()
    return Claude(
        thinking=thinking,
        samples=version < _STEERED_SINCE,
        efforts=frozenset(efforts),
        forced=version < _UNFORCED_SINCE or line == "haiku" or version == _NEWEST,
        system_between=_SYSTEM_SINCE <= version < _NEWEST,
    )


def _version(model: str) -> tuple[str, tuple[int, int]]:
    if found := _OLD_NAME.search(model) or _NAME.search(model):
        line = found.groupdict().get("line") or ""
        return line, (int(found["major"]), int(found["minor"] or 0))
    return "", _NEWEST if "claude" in model else _NO_CLAUDE
