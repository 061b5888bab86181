"""The choice of the cheapest execution option that is in time: the way in which a line is answered, and the use of
flex. Pure.

There are four options. *Own* engines answer in their idle time at nearly no cost; *flex* is a provider's slower service
tier; a *provider*'s batch API answers within a day at about half the price; plain *calls* are the dearest, and the
fallback of every other option.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.batch.batch import ClaimedLine
from proxy.batch.line_protocol import OptionName
from proxy.batch.scheduler import Slack

MOST_FLEX: Final = 3
"""The most times that one line is tried in the tier flex; a provider that has no room there refuses the next one,
too.
"""
_SOLD_FOR: Final = frozenset({"/v1/chat/completions", "/v1/responses"})


class ExecutionOption(msgspec.Struct, frozen=True, kw_only=True):
    """An option for some work: its expected cost, and its duration."""

    name: OptionName
    cost_nanousd: int | None
    """The expected cost; None where it is not known: such an option is taken only where no other one is in time."""
    takes_s: float
    """Seconds until the work is done that way, with the time that is needed where it fails and another option is
    taken.
    """


def cheapest_option(ways: Sequence[ExecutionOption], left_s: float | None) -> ExecutionOption:
    """Return the cheapest option that is done in time, of equally cheap ones the quickest; where none is, the
    quickest. `ways` has at least one; `left_s` is the time until the work is due, None without a deadline. Less time
    never leads to a slower option, and no option that is done in time is cheaper than the one returned.
    """
    in_time = [way for way in ways if left_s is None or way.takes_s <= left_s]
    return min(in_time, key=_by_cost) if in_time else min(ways, key=_by_time)


def takes_flex(slack: Slack, line: ClaimedLine, endpoint: str) -> bool:
    """Return True for a line that asks for the service tier flex, which is slower, cheaper, and may have no room.
    Only while its batch has slack, so never where the speed is not known yet, and only while the line has not failed
    and was not begun often: lines that flex does not answer are asked in the usual tier with the time that is left.
    """
    return slack.is_easy and line.failures == 0 and line.generation <= MOST_FLEX and endpoint in _SOLD_FOR


def in_flex(body: bytes) -> bytes:
    """Add the service tier flex to the body of a line, unless it names a tier itself. Raises msgspec.MsgspecError."""
    fields = _decode(body)
    if "service_tier" in fields:
        return body
    return _encode({**fields, "service_tier": "flex"})


def _by_cost(way: ExecutionOption) -> tuple[bool, int, float]:
    return (way.cost_nanousd is None, way.cost_nanousd or 0, way.takes_s)


def _by_time(way: ExecutionOption) -> tuple[float, bool, int]:
    return (way.takes_s, way.cost_nanousd is None, way.cost_nanousd or 0)


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
