"""Refusals: the error that names the limit in the way."""

from typing import Final

import msgspec

from accounts.caller import Caller
from proxy.admit.limits.bucket import places, share, wait_us
from proxy.admit.limits.headers import rate_lines
from proxy.admit.limits.limit import Kind, Limit, Scope
from proxy.admit.limits.limit_set import LimitSet, Outcome
from proxy.errors import Refused
from proxy.http.reply_head import fields_of


class RateLimited(Refused, status=429, code="rate_limit_exceeded"):
    """A rate limit is used up (429). Carries the same headers as an admission."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None,
        scope: Scope,
        kind: Kind,
        lines: bytes = b"",
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=should_retry)
        if kind == "tokens":
            # OpenAI names the limit here: requests or tokens.
            self.fault = msgspec.structs.replace(self.fault, type="tokens")
        self.scope = scope
        self.kind = kind
        self.headers = tuple(fields_of(lines))


_US_PER_S: Final = 1_000_000
_PLACE_WAIT_S: Final = 1.0
"""Seconds to retry after for a concurrency limit: a place becomes free when some request ends, which cannot be
predicted.
"""
_LONGEST_WAIT_S: Final = 86_400.0


def refusal(draw: LimitSet, outcome: Outcome, tokens: int, live: int, caller: Caller, model: str) -> RateLimited:
    """Build the refusal. It names the limit with the longest wait, which decides when the request can be admitted."""
    waits = [_wait_s(draw, index, outcome.figures[index], tokens, live) for index in range(len(draw.limits))]
    wait_s = max(waits)
    index = waits.index(wait_s)
    limit, figure = draw.limits[index], outcome.figures[index]
    rate, burst = _bounds(limit, live)
    used = int(figure) if limit.kind == "concurrency" else int(burst) - int(figure // 1)
    asked = tokens if limit.kind == "tokens" else 1
    shares = f" (one of {live} shares of {limit.rate or limit.burst})" if live > 1 else ""
    bursts = f", Burst {int(burst)}" if limit.kind != "concurrency" and limit.rate != limit.burst else ""
    return RateLimited(
        f"Rate limit reached for {_what(limit)} of {_whose(limit, caller, model)}: Limit {rate:.12g}{shares}{bursts}, "
        f"Used {used}, Requested {asked}. Please try again in {_seconds(wait_s)}s.",
        retry_after_s=min(wait_s, _LONGEST_WAIT_S),
        scope=limit.scope,
        kind=limit.kind,
        lines=rate_lines(draw, outcome.figures, live),
    )


def too_large(limit: Limit, tokens: int, caller: Caller, model: str) -> RateLimited:
    """Build the refusal of a request larger than the bucket, for which waiting does not help."""
    return RateLimited(
        f"Request too large for {_what(limit)} of {_whose(limit, caller, model)}: at most {limit.burst} at once, "
        f"Requested {tokens} (the prompt's and those that the answer may have). It will never be admitted as it is: "
        "shorten the prompt, lower `max_tokens`, or ask an administrator for a larger limit or burst.",
        retry_after_s=None,
        should_retry=False,
        scope=limit.scope,
        kind=limit.kind,
    )


def _wait_s(draw: LimitSet, index: int, figure: float, tokens: int, live: int) -> float:
    """Return the seconds until one limit admits the request; negative when it already does."""
    limit = draw.limits[index]
    rate, burst = _bounds(limit, live)
    if limit.kind == "concurrency":
        return _PLACE_WAIT_S if figure >= burst else -1.0
    amount = min(1.0 if index < draw.requests else float(tokens), burst)
    return wait_us(figure, amount, rate) / _US_PER_S if figure < amount else -1.0


def _bounds(limit: Limit, live: int) -> tuple[float, float]:
    if limit.kind == "concurrency":
        most = float(places(limit.burst, live))
        return most, most
    return share(float(limit.rate), float(limit.burst), live)


def _what(limit: Limit) -> str:
    return "concurrent requests" if limit.kind == "concurrency" else f"{limit.kind} per minute"


def _whose(limit: Limit, caller: Caller, model: str) -> str:
    if limit.scope == "model":
        return f"model `{model}`"
    if limit.scope == "end_user":
        return f"end user `{limit.whose.partition('/')[2]}` of team `{caller.team_id}`"
    name = {
        "organisation": caller.organisation_id,
        "team": caller.team_id,
        "key": caller.key_id,
    }[limit.scope]
    # A limit's key is scope, whose, model and kind, all without a slash of their own.
    for_model = f" for model `{model}`" if limit.key.split("/")[2] else ""
    return f"{limit.scope} `{name}`{for_model}"


def _seconds(wait_s: float) -> str:
    return f"{max(wait_s, 0.001):.3f}".rstrip("0").rstrip(".")
