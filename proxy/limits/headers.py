"""`x-ratelimit-*`: what remains, as OpenAI's headers tell it."""

from typing import Protocol

from proxy.limits.limit import Remaining


class Figures(Protocol):
    """An admission, or a refusal."""

    @property
    def requests(self) -> Remaining | None: ...

    @property
    def tokens(self) -> Remaining | None: ...


_REQUESTS, _TOKENS = (
    (
        f"x-ratelimit-limit-{kind}".encode(),
        f"x-ratelimit-remaining-{kind}".encode(),
        f"x-ratelimit-reset-{kind}".encode(),
    )
    for kind in ("requests", "tokens")
)


def duration(seconds: float) -> str:
    """OpenAI's spelling of a reset time: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{int(rest)}s"


def rate_headers(figures: Figures) -> list[tuple[bytes, bytes]]:
    """For the limits that are set: the tightest of the request buckets, and the tightest of the token buckets."""
    headers: list[tuple[bytes, bytes]] = []
    for (limit, remaining, reset), left in ((_REQUESTS, figures.requests), (_TOKENS, figures.tokens)):
        if left is not None:
            headers += [
                (limit, b"%d" % left.limit),
                (remaining, b"%d" % left.remaining),
                (reset, duration(left.reset_s).encode()),
            ]
    return headers
