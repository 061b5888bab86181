"""The cheapest way that still makes it: by which way a line is answered, and whether it asks for flex. Pure.

There are four ways. *Own* engines answer what they have room for at nearly no cost, in their idle time; *flex* is a provider's
slower service tier; a *provider*'s batch API answers within a day at about half the price; plain *calls* are the dearest, and
what every other way falls back to.
"""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

from proxy.batch.batch import ClaimedLine
from proxy.batch.line_protocol import WayName
from proxy.batch.scheduler import EASY, TIGHT, Slack

MOST_FLEX: Final = 3
"""Beginnings of one line that are tried in the tier flex; a provider that has no room there refuses the next one, too."""
_SOLD_FOR: Final = frozenset({"/v1/chat/completions", "/v1/responses"})


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """One way for some work: what it is expected to cost, and how long it takes."""

    name: WayName
    cost_nanousd: int | None
    """None where it is not known: such a way is taken only where no other one makes it."""
    takes_s: float
    """Seconds until the work is done that way, with the time that is needed where the way fails and another one is taken."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that each way takes for the work of one batch and all that is due before it."""

    own_s: float
    flex_s: float
    provider_s: float
    calls_s: float
    turn_back_s: float
    """Seconds before it is due at which what a provider's batch has not answered is taken back."""


def cheapest_way(ways: Sequence[Way], left_s: float | None) -> Way:
    """The cheapest way that is done in time, of equally cheap ones the quickest; where none is, the quickest.

    `ways` has at least one; `left_s` is the time until the work is due, None without a deadline. Less time never leads to a
    slower way, and no way that is done in time is cheaper than the one returned.
    """
    in_time = [way for way in ways if left_s is None or way.takes_s <= left_s]
    return min(in_time, key=_by_cost) if in_time else min(ways, key=_by_time)


def times(left_s: float | None, needed_s: float | None, handed_s: float, turnaround_s: float) -> Times:
    """How long the ways take for work that needs `needed_s` at the measured speed, None while that is not known; `handed_s` is how
    long that part of it needs which is at providers, or is to go there now.

    Idle time and flex are counted on for at most half of what is left, as the scheduler does. A provider's batch takes its
    `turnaround_s`, and after it what was handed over has to be answered by other ways in half of what is left then; own engines
    go on with the rest meanwhile. While no speed is known own engines are taken to be in time, so that it is measured.
    """
    if needed_s is None:
        turn_back_s = 0.0 if left_s is None else max(0.0, left_s) * EASY
        return Times(
            own_s=0.0, flex_s=math.inf, provider_s=turnaround_s + turn_back_s, calls_s=0.0, turn_back_s=turn_back_s
        )
    easy_s, turn_back_s = needed_s / EASY, handed_s / EASY
    return Times(
        own_s=easy_s,
        flex_s=easy_s,
        provider_s=turnaround_s + turn_back_s,
        calls_s=needed_s / TIGHT,
        turn_back_s=turn_back_s,
    )


def needed_s(slack: Slack, left_s: float | None) -> float | None:
    """Seconds that a batch's work, and all that is due before it, takes at the measured speed; None where it is not known."""
    if left_s is None or slack.slack_s is None:
        return None
    return left_s - slack.slack_s


def takes_flex(slack: Slack, line: ClaimedLine, endpoint: str) -> bool:
    """Whether a line is asked for in the service tier flex, which is slower, cheaper, and may have no room.

    Only while its batch has time to spare, so never where the speed is not known yet, and only while the line has not failed
    and was not begun often: what flex does not answer is asked in the usual tier with the time that is left.
    """
    return slack.is_easy and line.failures == 0 and line.generation <= MOST_FLEX and endpoint in _SOLD_FOR


def in_flex(body: bytes) -> bytes:
    """The body of a line, asking for flex unless it names a service tier itself. Raises msgspec.MsgspecError."""
    fields = _decode(body)
    if "service_tier" in fields:
        return body
    return _encode({**fields, "service_tier": "flex"})


def _by_cost(way: Way) -> tuple[bool, int, float]:
    return (way.cost_nanousd is None, way.cost_nanousd or 0, way.takes_s)


def _by_time(way: Way) -> tuple[float, bool, int]:
    return (way.takes_s, way.cost_nanousd is None, way.cost_nanousd or 0)


_decode: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode
