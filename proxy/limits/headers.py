"""The `x-ratelimit-*` reply headers, in OpenAI's format."""

from typing import Protocol

from proxy.limits.limit import Remaining


class Figures(Protocol):
    """The remaining requests and tokens, as an admission or a refusal reports them."""

    @property
    def requests(self) -> Remaining | None: ...

    @property
    def tokens(self) -> Remaining | None: ...


_REQUESTS, _TOKENS = (
    b"x-ratelimit-limit-%(kind)b: %%d\r\nx-ratelimit-remaining-%(kind)b: %%d\r\nx-ratelimit-reset-%(kind)b: %%b\r\n"
    % {b"kind": kind}
    for kind in (b"requests", b"tokens")
)


def duration(seconds: float) -> bytes:
    """Formats a reset time as OpenAI does: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return (b"%.3f" % rest).rstrip(b"0").rstrip(b".") + b"s"
    return b"%dm%ds" % (minutes, rest)


def rate_lines(figures: Figures) -> bytes:
    """Returns limit, remaining and reset headers for requests and for tokens, where such limits are set, as lines of a
    reply's head.
    """
    lines = b""
    for said, left in ((_REQUESTS, figures.requests), (_TOKENS, figures.tokens)):
        if left is not None:
            lines += said % (left.limit, left.remaining, duration(left.reset_s))
    return lines
