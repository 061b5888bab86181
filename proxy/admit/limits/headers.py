"""The rest of limits as `x-ratelimit-*` reply headers in OpenAI's format."""

from collections.abc import Mapping, Sequence
from typing import Final, get_args

from proxy.admit.limits.bucket import places, share
from proxy.admit.limits.limit import PERIOD_S, Kind, Limit, Remaining
from proxy.admit.limits.limit_set import LimitSet

_LINES: Final[Mapping[Kind, bytes]] = {
    kind: f"x-ratelimit-limit-{kind}: %d\r\nx-ratelimit-remaining-{kind}: %d\r\nx-ratelimit-reset-{kind}: %b\r\n".encode()
    for kind in get_args(Kind)
}


def duration(seconds: float) -> bytes:
    """Format a reset time as OpenAI does: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return (b"%.3f" % rest).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (minutes, rest)


def rate_lines(draw: LimitSet, figures: Sequence[float], live: int) -> bytes:
    """Return limit, remaining and reset headers of the request bucket and of the token bucket with least left, where
    such are set, as lines of a reply's head; of two with as much left the smaller limit counts. `figures` follow
    `draw.limits`.
    """
    lines = b""
    rated = draw.rated
    for kind, indexes in draw.kinds:
        tightest = indexes[0]
        for index in indexes[1:]:
            left, least = int(figures[index]), int(figures[tightest])
            if left < least or (left == least and rated[index].burst < rated[tightest].burst):
                tightest = index
        remains = remaining(rated[tightest], figures[tightest], live)
        lines += _LINES[kind] % (remains.limit, remains.remaining, duration(remains.reset_s))
    return lines


def remaining(limit: Limit, figure: float, live: int) -> Remaining:
    """Convert a bucket's figure to the headers' terms. `limit` is the full bucket, `reset_s` the seconds until it is
    full; with several processes, of one share.
    """
    if limit.kind == "concurrency":
        most = places(limit.burst, live)
        return Remaining(most, max(0, most - int(figure)), 0.0)
    rate, burst = share(limit.rate, limit.burst, live)
    # Truncation is rounding down here, since a debt remains as nothing.
    left = int(figure) if figure > 0 else 0
    return Remaining(int(burst), left, 0.0 if figure >= burst else (burst - figure) * PERIOD_S / rate)
