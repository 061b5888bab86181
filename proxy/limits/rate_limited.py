"""The error for a request whose rate limit is used up."""

from proxy.errors import Fault, Refused
from proxy.http.reply_head import fields_of
from proxy.limits.headers import rate_lines
from proxy.limits.limit import Kind, Remaining, Scope


class RateLimited(Refused):
    """A rate limit is used up (429). Carries the same figures as an admission."""

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None,
        scope: Scope,
        kind: Kind,
        requests: Remaining | None = None,
        tokens: Remaining | None = None,
        should_retry: bool | None = None,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s, should_retry=should_retry)
        # OpenAI names the limit here: requests or tokens.
        self.fault = Fault(429, "tokens" if kind == "tokens" else "requests", "rate_limit_exceeded")
        self.scope = scope
        self.kind = kind
        self.requests = requests
        self.tokens = tokens
        self.headers = tuple(fields_of(rate_lines(self)))
