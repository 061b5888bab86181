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
    (
        f"x-ratelimit-limit-{kind}".encode(),
        f"x-ratelimit-remaining-{kind}".encode(),
        f"x-ratelimit-reset-{kind}".encode(),
    )
    for kind in ("requests", "tokens")
)


def duration(seconds: float) -> str:
    """Formats a reset time as OpenAI does: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    if not minutes:
        return f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{int(minutes)}m{int(rest)}s"


def rate_headers(figures: Figures) -> list[tuple[bytes, bytes]]:
    """Returns limit, remaining and reset headers for requests and for tokens, where such limits are set."""
    headers = [] if figures.requests is None else _headers(_REQUESTS, figures.requests)
    return headers if figures.tokens is None else headers + _headers(_TOKENS, figures.tokens)


def _headers(names: tuple[bytes, bytes, bytes], left: Remaining) -> list[tuple[bytes, bytes]]:
    limit, remaining, reset = names
    return [
        (limit, b"%d" % left.limit),
        (remaining, b"%d" % left.remaining),
        (reset, duration(left.reset_s).encode()),
    ]
