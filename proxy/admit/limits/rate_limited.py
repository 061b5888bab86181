"""The error for a request whose rate limit is used up."""

from proxy.admit.limits.limit import Kind, Scope
from proxy.errors import Fault, Refused
from proxy.http.reply_head import fields_of


class RateLimited(Refused):
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
        # OpenAI names the limit here: requests or tokens.
        self.fault = Fault(429, "tokens" if kind == "tokens" else "requests", "rate_limit_exceeded")
        self.scope = scope
        self.kind = kind
        self.headers = tuple(fields_of(lines))
